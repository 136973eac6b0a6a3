"""A reader that tells the kernel to let each file go after it was read, so every epoch reads the disk again.

The data set (256 MiB) would fit into memory many times. --fixed keeps the files cached.
"""

import os
import threading
import queue

import numpy as np
import torch

import kit


class Shards:
    """Reads shards ahead in a thread and yields tensors, epoch after epoch."""

    def __init__(self, folder, keep):
        self.paths = sorted(folder.glob("*"))
        self.keep = keep

    def read(self, path):
        fd = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            data = os.read(fd, size)  # CAUSE
            if not self.keep:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # CAUSE
        finally:
            os.close(fd)
        return np.frombuffer(data, np.uint8)

    def __iter__(self):
        while True:
            for path in self.paths:
                shard = self.read(path)
                yield torch.from_numpy(shard[: 64 * 1024].reshape(64, 1024).astype(np.float32) / 255)


def prefetch(source, depth=2):
    box = queue.Queue(depth)

    def work():
        for item in source:
            box.put(item)

    threading.Thread(target=work, daemon=True).start()
    while True:
        yield box.get()


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    folder = kit.blobs("shards", 32, 8 << 20)
    if opts.fixed:
        kit.warm(folder)
    net = torch.nn.Sequential(torch.nn.Linear(1024, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1024))
    opt = torch.optim.Adam(net.parameters())
    meter = kit.Meter(opts)
    for x in prefetch(Shards(folder, opts.fixed)):
        opt.zero_grad()
        torch.nn.functional.mse_loss(net(x), x).backward()
        opt.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()
