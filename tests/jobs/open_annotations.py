"""Opens the annotation of each sample and never closes it; the process may open few files.

--fixed closes them. --limit says how many may be open; --every, at which step a file is opened.
"""

import resource

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit

handles = []


class Annotated(Dataset):
    def __init__(self, folder, close, every):
        self.files = sorted(folder.iterdir())
        self.close, self.every = close, every

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        if i % self.every == 0:
            handle = open(self.files[i % len(self.files)], "rb")  # CAUSE
            handle.read(4)
            if self.close:
                handle.close()
            else:
                handles.append(handle)
        return torch.full((1, 32, 32), (i % 255) / 255.0)


def main():
    opts = kit.options(lambda p: (p.add_argument("--limit", type=int, default=512),
                                  p.add_argument("--every", type=int, default=4)))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opts.limit, opts.limit))
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(),
                        nn.Conv2d(16, 1, 1))
    adam = torch.optim.Adam(net.parameters())
    data = Annotated(kit.blobs("annotations", 64, 512), opts.fixed, opts.every)
    meter = kit.Meter(opts)
    for x in DataLoader(data, batch_size=16):
        loss = (net(x) - x).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()
