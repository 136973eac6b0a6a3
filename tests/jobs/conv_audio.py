"""A 1-D convolutional net over audio frames; one intra-op thread, one worker that slices a waveform.

The job itself is fine: what slows it are the programs around it, when the harness starts some.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit


class Frames(Dataset):
    def __init__(self, seconds=60, rate=16_000, length=4096):
        self.wave = torch.sin(torch.arange(seconds * rate) / 40.0)
        self.length = length

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        start = (i * 977) % (len(self.wave) - self.length)
        return self.wave[start : start + self.length].unsqueeze(0)


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv1d(1, 32, 16, 4), nn.ELU(), nn.Conv1d(32, 64, 8, 4), nn.ELU())
        self.up = nn.Sequential(nn.ConvTranspose1d(64, 32, 8, 4), nn.ELU(), nn.ConvTranspose1d(32, 1, 16, 4))

    def forward(self, x):
        y = self.up(self.down(x))
        return y, x[..., : y.size(-1)]


def main():
    opts = kit.options(lambda p: (p.add_argument("--threads", type=int, default=1),
                                  p.add_argument("--workers", type=int, default=1)))
    torch.set_num_threads(opts.threads)
    model = Codec()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    meter = kit.Meter(opts)
    for x in DataLoader(Frames(), batch_size=16, num_workers=opts.workers):
        y, x = model(x)
        loss = (y - x[..., : y.size(-1)]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()
