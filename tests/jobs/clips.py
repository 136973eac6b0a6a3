"""Video clips stored as folders of hundreds of tiny files, one per frame patch; a sample opens them all.

The content is a few hundred bytes a file and cached: the time goes into listing, opening and closing.
--fixed reads the same bytes from one packed file per clip.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit

CLIPS, PARTS, BYTES = 40, 320, 256


def build(folder):
    for c in range(CLIPS):
        clip = folder / f"clip{c:03d}"
        clip.mkdir()
        whole = b""
        for p in range(PARTS):
            part = os.urandom(BYTES)
            (clip / f"{p:04d}.raw").write_bytes(part)
            whole += part
        (folder / f"clip{c:03d}.pack").write_bytes(whole)


class Clips(Dataset):
    def __init__(self, folder, packed):
        self.folder, self.packed = str(folder), packed

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        base = f"{self.folder}/clip{index % CLIPS:03d}"
        data = bytearray()
        if self.packed:
            with open(base + ".pack", "rb") as file:
                data += file.read()
        else:
            for name in sorted(os.listdir(base)):  # CAUSE
                path = os.path.join(base, name)
                if os.path.getsize(path) == 0:  # CAUSE
                    continue
                with open(path, "rb") as file:  # CAUSE
                    data += file.read()  # CAUSE
        return torch.frombuffer(data, dtype=torch.uint8).view(PARTS, BYTES).float() / 255


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    loader = DataLoader(Clips(kit.data_dir("clips", build), opts.fixed), batch_size=8, num_workers=1)
    layer = nn.TransformerEncoderLayer(BYTES, 4, 256, batch_first=True)
    adam = torch.optim.Adam(layer.parameters(), lr=1e-4)
    meter = kit.Meter(opts)
    for clips in loader:
        small = clips[:, ::40]
        loss = (layer(small) - small).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()
