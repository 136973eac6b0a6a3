"""A training as people write them after PyTorch's ImageNet example: ImageFolder, torchvision's transforms on Pillow pictures, a DataLoader as it comes.

It knows nothing of Flatout.

    python bench/fix/train_photos.py FOLDER [--epochs 4] [--batch-size 32] [--workers 0] [--seed 0]
"""

import argparse
import time

import torch
from torch import nn
from torchvision import datasets, transforms


def network(classes: int) -> nn.Module:
    layers, width = [], 3
    for wider in (16, 32, 64, 64):
        layers += [nn.Conv2d(width, wider, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(wider), nn.ReLU(inplace=True)]
        width = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train = datasets.ImageFolder(args.folder, transforms.Compose([
        transforms.RandomResizedCrop(112),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]))
    loader = torch.utils.data.DataLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    model = network(len(train.classes))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        begin, total = time.monotonic(), 0.0
        for images, target in loader:
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, {time.monotonic() - begin:.2f} s", flush=True)


if __name__ == "__main__":
    main()
