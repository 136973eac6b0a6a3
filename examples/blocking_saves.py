"""Saves model and optimizer every five steps and waits until they are on the disk.

Flatout says: stall.checkpoint. --fixed saves every 500 steps.
"""

import argparse
import os
import tempfile
import time

import torch


def save(path, model, optimizer):
    with open(path, "wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    opts = parser.parse_args()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x = torch.randn(32, 1024)
    end = time.monotonic() + 8
    with tempfile.TemporaryDirectory() as folder:
        step = 0
        while time.monotonic() < end:
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad(set_to_none=False)  # gradients keep their memory: nothing but the saves costs much
            loss.backward()
            optimizer.step()
            step += 1
            if step % (500 if opts.fixed else 5) == 0:
                save(os.path.join(folder, "last.pt"), model, optimizer)


if __name__ == "__main__":
    main()
