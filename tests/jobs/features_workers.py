"""Two workers compute features with four intra-op threads each, on few cores; the training has two more.

--fixed leaves the workers one thread each, as the loader would by itself, and the training one.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit


def many_threads(worker_id):
    torch.set_num_threads(6)  # CAUSE


class Spectra(Dataset):
    def __init__(self):
        self.waves = torch.randn(16, 262144)
        self.mel = torch.rand(257, 64)

    def __len__(self):
        return 20_000

    def __getitem__(self, i):
        wave = self.waves[i % 16]
        spectrum = torch.stft(wave, 512, 256, window=torch.hann_window(512), return_complex=True)
        power = spectrum.abs().square()
        for _ in range(2):
            power = (power + 1e-3).log1p()
        return (power.T @ self.mel).sum(0)


def main():
    opts = kit.options()
    torch.set_num_threads(1 if opts.fixed else 4)  # CAUSE
    loader = DataLoader(Spectra(), batch_size=4, num_workers=2,
                        worker_init_fn=None if opts.fixed else many_threads)  # CAUSE
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    adam = torch.optim.Adam(model.parameters())
    meter = kit.Meter(opts)
    for spectra in loader:
        loss = model(spectra).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()
