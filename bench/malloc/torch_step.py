"""Real PyTorch under one allocator: prints "value=<CPU ms per step> faults=... peak_mib=...".

elem: 12 x (scale, silu) forward and backward over 64 MiB activations; unet: three convolutions with batch norm at 256 x 256;
tfvar: a transformer over lengths that vary; resnet: ResNet-like blocks at 64 x 64, where no allocator gains anything;
jpeg: a DataLoader that decodes JPEGs of different sizes in the loop's own process, so that its CPU time counts.
"""

import io
import resource
import statistics
import sys
import time

import numpy
import torch
from PIL import Image
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def elem():
    x = torch.randn(16 * 1024 * 1024, requires_grad=True)  # 64 MiB

    def step():
        y = x
        for _ in range(12):
            y = nn.functional.silu(y * 1.01)
        y.sum().backward()
        x.grad = None
    return step


def unet():
    layers = []
    for i in range(3):
        layers += [nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*layers)
    x = torch.randn(4, 3, 256, 256)

    def step():
        model(x).square().mean().backward()
        model.zero_grad()
    return step


def tfvar():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True), 4)
    table, head = nn.Embedding(8000, 256), nn.Linear(256, 8000)
    lengths = torch.Generator().manual_seed(1)

    def step():
        n = int(torch.randint(64, 256, (1,), generator=lengths))
        head(model(table(torch.zeros(8, n, dtype=torch.long)))).square().mean().backward()
        for part in (model, table, head):
            part.zero_grad()
    return step


def resnet():
    layers = [nn.Conv2d(3, 64, 3, stride=2, padding=1)]
    for _ in range(6):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*layers)
    x = torch.randn(16, 3, 64, 64)

    def step():
        model(x).square().mean().backward()
        model.zero_grad()
    return step


class Jpegs(torch.utils.data.Dataset):
    def __init__(self):
        self.files = []
        for i in range(32):
            height, width = 300 + 23 * (i % 7), 400 + 31 * (i % 5)
            pixels = torch.nn.functional.interpolate(torch.rand(1, 3, height // 20, width // 20), (height, width), mode="bilinear")[0]
            file = io.BytesIO()
            Image.fromarray((pixels * 255).byte().permute(1, 2, 0).numpy()).save(file, "JPEG")
            self.files.append(file.getvalue())

    def __len__(self):
        return 32 * 1000

    def __getitem__(self, i):
        image = Image.open(io.BytesIO(self.files[i % 32])).convert("RGB").resize((224, 224))
        return torch.from_numpy(numpy.array(image)).permute(2, 0, 1).float().div(255)


def jpeg():
    batches = iter(torch.utils.data.DataLoader(Jpegs(), batch_size=16))
    model = nn.Conv2d(3, 16, 7, stride=4)

    def step():
        model(next(batches)).square().mean().backward()
        model.zero_grad()
    return step


def main():
    step = {"elem": elem, "unet": unet, "tfvar": tfvar, "resnet": resnet, "jpeg": jpeg}[sys.argv[1]]()
    steps = int(sys.argv[2])
    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF)
    times = []
    for _ in range(steps):
        begin = time.process_time()
        step()
        times.append(time.process_time() - begin)
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(f"value={statistics.median(times) * 1e3:.2f} faults={(after.ru_minflt - before.ru_minflt) / steps:.1f} "
          f"peak_mib={after.ru_maxrss / 1024:.1f}")


main()
