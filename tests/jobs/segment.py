"""Segmentation with an encoder-decoder; heavy NumPy augmentation in two workers bounds the step.

The transforms live in a helper package. --fixed leaves gamma and blur out.
"""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import kit
from segmentation.data import Scenes


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down = torch.nn.Conv2d(3, 8, 3, stride=4, padding=1)
        self.mid = torch.nn.Conv2d(8, 16, 3, padding=1)
        self.head = torch.nn.Conv2d(16, 5, 1)

    def forward(self, x):
        small = F.relu(self.mid(F.relu(self.down(x))))
        return self.head(small)


def train(opts):
    torch.set_num_threads(1)
    model = Net()
    adam = torch.optim.Adam(model.parameters())
    batches = DataLoader(Scenes(augment=not opts.fixed), batch_size=8, shuffle=True, num_workers=2,
                         prefetch_factor=4)
    meter = kit.Meter(opts)
    while not meter.over:
        for batch in batches:
            prediction = model(batch["image"])
            loss = F.cross_entropy(prediction, batch["mask"][:, ::4, ::4])
            adam.zero_grad(set_to_none=True)
            loss.backward()
            adam.step()
            if meter.step():
                break
    meter.write()


train(kit.options())
