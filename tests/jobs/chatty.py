"""Prints the gradients' statistics, some 20 KB of them, in every step, to whoever reads the output.

If the reader is slow (a remote terminal), the print waits. --fixed prints one line every fifty steps.
"""

import sys

import torch
from torch import nn

import kit


def report(step, model, stream):
    lines = [f"step {step}"]
    for name, parameter in model.named_parameters():
        values = parameter.grad.flatten()[:120].tolist()
        lines.append(name + " " + " ".join(f"{v:+.4e}" for v in values))
    print("\n".join(lines), file=stream, flush=True)  # CAUSE


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    model = nn.Sequential(*[m for _ in range(7) for m in (nn.Linear(256, 256), nn.ReLU())])
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(256, 256)
    meter = kit.Meter(opts)
    step = 0
    while True:
        loss = (model(x) - x).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        step += 1
        if not opts.fixed:
            report(step, model, sys.stdout)  # CAUSE
        elif step % 50 == 0:
            print(step, float(loss))
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()
