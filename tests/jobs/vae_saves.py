"""A VAE that saves model and optimizer every few steps and waits until they are on the disk.

--fixed saves nothing.
"""

import os
import tempfile

import torch
from torch import nn

import kit


class Vae(nn.Module):
    def __init__(self, width=3072):
        super().__init__()
        self.encode = nn.Linear(width, 512)
        self.mean, self.spread = nn.Linear(512, 32), nn.Linear(512, 32)
        self.decode = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, width))

    def forward(self, x):
        h = torch.relu(self.encode(x))
        mean, spread = self.mean(h), self.spread(h)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return self.decode(z), mean, spread


def write_state(path, **state):
    with open(path, "wb") as f:
        torch.save(state, f)  # CAUSE
        f.flush()
        os.fsync(f.fileno())  # CAUSE


def main():
    opts = kit.options(lambda p: p.add_argument("--every", type=int, default=5, help="steps between two saves"))
    torch.set_num_threads(1)
    vae = Vae()
    # Fused: else its temporaries are mapped anew in each step, a cause of its own where faults are dear.
    adam = torch.optim.Adam(vae.parameters(), lr=1e-4, fused=True)
    x = torch.rand(16, 3072)
    meter = kit.Meter(opts)
    with tempfile.TemporaryDirectory() as out:
        for step in range(1, 10**9):
            y, mean, spread = vae(x)
            loss = nn.functional.mse_loss(y, x) - 1e-4 * (1 + spread - mean**2 - spread.exp()).mean()
            adam.zero_grad(set_to_none=False)
            loss.backward()
            adam.step()
            if step % opts.every == 0 and not opts.fixed:
                write_state(os.path.join(out, "last.pt"), step=step, model=vae.state_dict(),  # CAUSE
                            optimizer=adam.state_dict())
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()
