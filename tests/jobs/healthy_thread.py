"""The training runs in a thread; the main thread waits for it, as notebooks and GUIs do."""

import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kit


def fit(meter):
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(),
                          nn.AdaptiveMaxPool2d(4), nn.Flatten(), nn.Linear(256, 10))
    adam = torch.optim.Adam(model.parameters())
    data = DataLoader(TensorDataset(torch.rand(3200, 1, 28, 28), torch.randint(0, 10, (3200,))), batch_size=32)
    while True:
        for x, y in data:
            loss = nn.functional.cross_entropy(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            if meter.step():
                return


if __name__ == "__main__":
    options = kit.options()
    clock = kit.Meter(options)
    trainer = threading.Thread(target=fit, args=(clock,), name="trainer")
    trainer.start()
    trainer.join()
    clock.write()
