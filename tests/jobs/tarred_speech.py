"""Spectrograms lie in one big tar file; each sample opens the archive and looks for its member from the start.

--fixed reads the index once and then goes to the member directly.
"""

import io
import tarfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import kit

COUNT = 1500


def build(folder):
    rng = np.random.default_rng(0)
    with tarfile.open(folder / "train.tar", "w") as tar:
        for i in range(COUNT):
            buffer = io.BytesIO()
            np.save(buffer, rng.standard_normal((40, 100)).astype(np.float32))
            info = tarfile.TarInfo(f"utt{i:06d}.npy")
            info.size = buffer.tell()
            buffer.seek(0)
            tar.addfile(info, buffer)


class Utterances(Dataset):
    def __init__(self, path, indexed):
        self.path = path
        self.index = None
        if indexed:
            with tarfile.open(path) as tar:
                self.index = {m.name: (m.offset_data, m.size) for m in tar}

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        name = f"utt{i:06d}.npy"
        if self.index:
            offset, size = self.index[name]
            with open(self.path, "rb") as file:
                file.seek(offset)
                data = file.read(size)
        else:
            with tarfile.open(self.path) as tar:
                for member in tar:  # CAUSE
                    if member.name == name:
                        data = tar.extractfile(member).read()
                        break
        return torch.from_numpy(np.load(io.BytesIO(data))), i % 12


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    data = Utterances(kit.data_dir("speech-tar", build) / "train.tar", opts.fixed)
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=1)
    model = torch.nn.GRU(40, 48, batch_first=True)
    head = torch.nn.Linear(48, 12)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
    meter = kit.Meter(opts)
    while not meter.over:
        for spectra, words in loader:
            _, state = model(spectra.transpose(1, 2))
            loss = torch.nn.functional.cross_entropy(head(state[0]), words)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()
