"""After sixty steps a thread that should report back never does, and the training waits for it for ever.

--fixed: it always reports back.
"""

import threading

import torch
from torch import nn

import kit


class Metrics:
    def __init__(self, breaks):
        self.lock = threading.Condition()
        self.breaks = breaks
        self.reported = 0

    def publish(self, step):
        if self.breaks and step >= 60:
            return
        with self.lock:
            self.reported = step
            self.lock.notify_all()

    def wait_published(self, step):
        with self.lock:
            while self.reported < step:
                self.lock.wait()  # CAUSE


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(256, 256)
    metrics = Metrics(not opts.fixed)
    meter = kit.Meter(opts)
    step = 0
    while True:
        loss = (model(x) - x).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        step += 1
        threading.Thread(target=metrics.publish, args=(step,)).start()
        metrics.wait_published(step)  # CAUSE
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()
