"""Networks that tests and benchmarks train with PyTorch."""

from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A residual block as torchvision writes it."""

    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """arXiv 1512.03385, table 1."""

    def __init__(self, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, 1)
        widths = (64, 64, 128, 256, 512)
        self.layers = nn.Sequential(*(nn.Sequential(Block(a, b, 1 if i == 0 else 2), Block(b, b, 1))
                                      for i, (a, b) in enumerate(zip(widths, widths[1:]))))
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.layers(self.pool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


class LeNet(nn.Module):
    """The model `lenet` of flatout train."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class PaddedBlock(nn.Module):
    """A residual block for CIFAR: shortcuts without parameters (arXiv 1512.03385, option A)."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.stride, self.pad = stride, (outputs - inputs) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, self.pad, self.pad)))


class ResNet20(nn.Module):
    """The model `resnet20` of flatout train; arXiv 1512.03385, section 4.2."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(PaddedBlock(16, 16, 1), PaddedBlock(16, 16, 1), PaddedBlock(16, 16, 1))
        self.layer2 = nn.Sequential(PaddedBlock(16, 32, 2), PaddedBlock(32, 32, 1), PaddedBlock(32, 32, 1))
        self.layer3 = nn.Sequential(PaddedBlock(32, 64, 2), PaddedBlock(64, 64, 1), PaddedBlock(64, 64, 1))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))
