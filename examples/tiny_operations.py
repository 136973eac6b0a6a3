"""A recurrent net written as a Python loop over time: hundreds of operations on a few numbers each.

Flatout says: cpu.python_bound. --fixed uses nn.GRU, one call.
"""

import argparse
import time

import torch


class Loop(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = torch.nn.Linear(2 * width, width)
        self.gate = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        state = torch.zeros(x.shape[0], x.shape[2])
        states = []
        for t in range(x.shape[1]):
            both = torch.cat([x[:, t], state], dim=1)
            keep = torch.sigmoid(self.gate(both))
            state = keep * state + (1 - keep) * torch.tanh(self.cell(both))
            states.append(state)
        return torch.stack(states, dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    opts = parser.parse_args()
    torch.set_num_threads(1)
    gru = torch.nn.GRU(16, 16, batch_first=True)
    model = Loop(16)
    optimizer = torch.optim.Adam([*gru.parameters(), *model.parameters()])
    series = torch.randn(32, 80, 16)
    end = time.monotonic() + 8
    while time.monotonic() < end:
        predicted = gru(series)[0] if opts.fixed else model(series)
        loss = (predicted[:, :-1] - series[:, 1:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
