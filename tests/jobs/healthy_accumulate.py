"""Gradient accumulation: four forward and backward passes for one optimizer step."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import kit

ACCUMULATE = 4


class Waves(Dataset):
    def __init__(self):
        self.waves = torch.sin(torch.rand(512, 1, 1) * torch.arange(512) / 8)

    def __len__(self):
        return 20_000

    def __getitem__(self, i):
        return self.waves[i % 512]


opts = kit.options()
torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Conv1d(1, 64, 9, padding=4), torch.nn.GELU(),
    torch.nn.Conv1d(64, 64, 9, padding=4), torch.nn.GELU(), torch.nn.Conv1d(64, 1, 9, padding=4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
meter = kit.Meter(opts)
optimizer.zero_grad(set_to_none=True)
for i, wave in enumerate(DataLoader(Waves(), batch_size=4), start=1):
    noisy = wave + 0.1 * torch.randn_like(wave)
    (F.mse_loss(model(noisy), wave) / ACCUMULATE).backward()
    if i % ACCUMULATE == 0:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if meter.step():
            break
meter.write()
