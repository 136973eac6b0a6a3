"""No DataLoader: a producer thread has a pool of two threads decode JPEG files into a bounded queue.

Decoding releases the interpreter lock, so the threads use both cores; they cannot keep up.
--fixed decodes each file once, before the training begins.
"""

import io
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image
from torch import nn

import kit

BATCH = 12


class Feeder:
    def __init__(self, blobs, cached):
        self.blobs = blobs
        self.ready = [self.decode(b) for b in blobs] if cached else None
        self.queue = queue.Queue(maxsize=4)
        self.pool = ThreadPoolExecutor(2)
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self.produce, daemon=True)
        self.thread.start()

    @staticmethod
    def decode(data):
        image = Image.open(io.BytesIO(data))
        image = image.convert("RGB")  # CAUSE
        return np.asarray(image.resize((112, 112)))  # CAUSE

    def one(self, i):
        i %= len(self.blobs)
        return self.ready[i] if self.ready else self.decode(self.blobs[i])

    def produce(self):
        start = 0
        while not self.closed.is_set():
            items = list(self.pool.map(self.one, range(start, start + BATCH)))
            batch = torch.from_numpy(np.stack(items)).permute(0, 3, 1, 2).float() / 255
            start += BATCH
            while not self.closed.is_set():
                try:
                    self.queue.put(batch, timeout=0.5)
                    break
                except queue.Full:
                    pass

    def close(self):
        self.closed.set()
        self.thread.join()
        self.pool.shutdown()


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    files = sorted(kit.photos(64, 512, 384).glob("*.jpg"))
    feeder = Feeder([f.read_bytes() for f in files], opts.fixed)
    model = nn.Sequential(nn.Conv2d(3, 12, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    sgd = None
    meter = kit.Meter(opts)
    while True:
        x = feeder.queue.get()
        out = model(x)
        sgd = sgd or torch.optim.SGD(model.parameters(), lr=1e-3)
        loss = out.square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if meter.step():
            break
    feeder.close()
    meter.write()


if __name__ == "__main__":
    main()
