"""A hand-written recurrent net: a Python loop over the time steps, a dozen tiny operations in each.

--fixed uses nn.LSTM, which does the same in one call.
"""

import torch
from torch import nn

import kit

TIME, WIDTH = 64, 24


class SlowLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.ModuleList([nn.Linear(2 * WIDTH, WIDTH) for _ in range(4)])

    def forward(self, x):
        h = c = x.new_zeros(x.size(0), WIDTH)
        outputs = []
        for t in range(x.size(1)):
            z = torch.cat([x[:, t], h], dim=1)  # CAUSE
            i, f, o = (torch.sigmoid(g(z)) for g in self.gates[:3])  # CAUSE
            c = f * c + i * torch.tanh(self.gates[3](z))  # CAUSE
            h = o * torch.tanh(c)  # CAUSE
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class FastLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = FastLstm() if opts.fixed else SlowLstm()
    head = nn.Linear(WIDTH, 1)
    optimizer = torch.optim.RMSprop([*model.parameters(), *head.parameters()], lr=1e-3)
    series = torch.randn(16, TIME, WIDTH).cumsum(1)
    meter = kit.Meter(opts)
    while True:
        prediction = head(model(series))  # CAUSE
        loss = (prediction[:, :-1, 0] - series[:, 1:, 0]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()  # CAUSE
        optimizer.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()
