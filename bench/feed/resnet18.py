"""ResNet-18 on the CPU, trained with a DataLoader over ImageFolder and with flatout.feed's Loader in its place: loss curves and time.

Both train the same network from the same weights for each seed, in turn; what the pictures show decides their class. Printed for each epoch:
the mean loss of either, the spread of the DataLoader's own seeds, and for all of it seconds, CPU seconds and the ratio.

    python bench/feed/resnet18.py FOLDER [--epochs 4] [--seeds 3] [--size 96] [--batch 32] [--workers 0] [--csv FILE]
"""

import argparse
import csv
import pathlib
import statistics
import sys
import time

from compare import MEAN, ROOT, STD, cpu_seconds

sys.path.insert(0, str(ROOT / "python"))


def dataloader(options, seed):
    import torch
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    transform = transforms.Compose([transforms.RandomResizedCrop(options.size), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                                    transforms.Normalize(MEAN, STD)])
    return torch.utils.data.DataLoader(ImageFolder(options.folder, transform), options.batch, shuffle=True, drop_last=True,
                                       num_workers=options.workers, persistent_workers=options.workers > 0)


def flatout(options, seed):
    from flatout.feed import Loader

    return Loader(options.folder, options.batch, options.size, seed=seed, drop_last=True, form="torch")


def train(make, options, seed):
    """Mean loss of each epoch, seconds, CPU seconds."""
    import torch
    import torchvision

    torch.manual_seed(seed)
    network = torchvision.models.resnet18(num_classes=10)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    loader = make(options, seed)
    began, cpu, curve = time.monotonic(), cpu_seconds(), []
    for _ in range(options.epochs):
        losses = []
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curve.append(statistics.fmean(losses))
    seconds = time.monotonic() - began
    del loader
    return curve, seconds, cpu_seconds() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0, help="of the DataLoader")
    parser.add_argument("--csv", type=pathlib.Path)
    options = parser.parse_args()
    runs = {"dataloader": [], "flatout": []}
    for seed in range(options.seeds):
        for name, make in (("dataloader", dataloader), ("flatout", flatout)):
            runs[name].append(train(make, options, seed))
            print(f"seed {seed} {name}: losses {' '.join(f'{loss:.3f}' for loss in runs[name][-1][0])}, {runs[name][-1][1]:.1f} s", flush=True)
    print("\nepoch  DataLoader (lowest to highest seed)   flatout")
    for epoch in range(options.epochs):
        theirs, ours = ([curve[epoch] for curve, _, _ in runs[name]] for name in ("dataloader", "flatout"))
        print(f"{epoch:5}  {statistics.fmean(theirs):.3f} ({min(theirs):.3f} to {max(theirs):.3f})"
              f"{'':15}{statistics.fmean(ours):.3f} ({min(ours):.3f} to {max(ours):.3f})")
    for what, place in (("seconds", 1), ("CPU seconds", 2)):
        theirs, ours = (statistics.median(run[place] for run in runs[name]) for name in ("dataloader", "flatout"))
        print(f"{what}: DataLoader {theirs:.1f}, flatout {ours:.1f}: {theirs / ours:.2f}x")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["loader", "seed", "epoch", "loss", "seconds", "cpu_seconds"])
            for name, of in runs.items():
                rows.writerows([name, seed, epoch, f"{loss:.5f}", f"{seconds:.2f}", f"{cpu:.2f}"]
                               for seed, (curve, seconds, cpu) in enumerate(of) for epoch, loss in enumerate(curve))


if __name__ == "__main__":
    main()
