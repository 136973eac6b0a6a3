"""The remedy `feed`: a torchvision loader's batches from flatout.feed while the job runs, where all of it is known."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from remedied import INJECT
from test_fix import can_isolate, fix, tree

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PICTURES = """
    import numpy as np
    from pathlib import Path
    from PIL import Image

    rng = np.random.default_rng(5)
    for name in ("ant", "bee", "cat"):
        folder = Path("photos", name)
        folder.mkdir(parents=True)
        for i in range({each}):
            blocks = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
            picture = blocks.resize(({width} + i % 7, {height}), Image.BICUBIC)
            picture.save(folder / f"{{i}}.{{'png' if i % 5 == 0 else 'JPEG'}}", quality=92)
"""

# Notes what a loop over each loader got, in three epochs.
LOOPS = """
    import json, os, pickle, sys
    import torch
    from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset
    from torch.utils.data.distributed import DistributedSampler
    from torchvision import datasets, transforms as t

    torch.manual_seed(3)
    fixed = t.Compose([t.Resize(40), t.CenterCrop(32), t.ToTensor(), t.Normalize([0.5] * 3, [0.25] * 3)])
    drawn = t.Compose([t.RandomResizedCrop(32), t.RandomHorizontalFlip(), t.ToTensor()])
    photos, crops = datasets.ImageFolder("photos", fixed), datasets.ImageFolder("photos", drawn)

    class Own(datasets.ImageFolder):
        def __getitem__(self, index):
            picture, label = super().__getitem__(index)
            return picture.mean(), label

    loaders = {
        "in_order": DataLoader(photos, batch_size=8),
        "workers": DataLoader(photos, batch_size=8, num_workers=1, persistent_workers=True),
        "shuffled": DataLoader(crops, batch_size=8, shuffle=True, drop_last=True),
        "part": DataLoader(Subset(photos, [5, 3, 30]), batch_size=2),
        "rank0": DataLoader(photos, batch_size=4, sampler=DistributedSampler(photos, 2, 0)),
        "rank1": DataLoader(photos, batch_size=4, sampler=DistributedSampler(photos, 2, 1)),
        "rotated": DataLoader(datasets.ImageFolder("photos", t.Compose([t.RandomRotation(9), drawn])), batch_size=8),
        "own": DataLoader(Own("photos", fixed), batch_size=8),
        "twice": DataLoader(photos, batch_size=8, sampler=torch.utils.data.RandomSampler(photos, replacement=True)),
        "target": DataLoader(datasets.ImageFolder("photos", fixed, target_transform=float), batch_size=8),
        "given": DataLoader(photos, batch_sampler=BatchSampler(SequentialSampler(range(9)), 4, False)),
    }
    got = {}
    for name, loader in loaders.items():
        got[name] = [list(loader) for epoch in range(3)]
        assert all(len(epoch) == len(loader) for epoch in got[name]), name
    # What has a feed by now may be looped over twice at a time, by a child of a fork, and by who unpickles it.
    used = loaders["in_order"]
    got["at_once"] = [[first for first, _ in zip(used, used)], [second for _, second in zip(used, used)]]
    got["pickled"] = [list(pickle.loads(pickle.dumps(used)))]
    child = os.fork()
    if child == 0:
        whole = len(list(used)) == len(used)
        vars(used).pop("_flatout_feed", None)  # as at the interpreter's end
        os._exit(0 if whole else 1)
    assert os.waitpid(child, 0)[1] == 0
    torch.save({"got": got, "feeds": [n for n, l in loaders.items() if hasattr(l, "_flatout_feed")]}, sys.argv[1])
"""

# An ImageNet-style training as people write it.
TRAIN = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms

    torch.set_num_threads(2)
    transform = transforms.Compose([
        transforms.RandomResizedCrop(96), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    loader = DataLoader(datasets.ImageFolder("photos", transform), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(1000):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def make(python: str, folder: Path, **size: int) -> None:
    subprocess.run([python, "-c", textwrap.dedent(PICTURES.format(**size))], cwd=folder, check=True)


def batches(python: str, folder: Path, remedy: str) -> dict:
    import torch

    result = folder.parent / f"{remedy or 'plain'}.pt"
    environment = {**os.environ, "PYTHONPATH": str(INJECT), "FLATOUT_REMEDIES": remedy}
    done = subprocess.run([python, "-c", textwrap.dedent(LOOPS), str(result)], cwd=folder, env=environment, text=True,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return torch.load(result)


@pytest.fixture(scope="module")
def both(job_python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    """What the loops got without and with the remedy."""
    folder = tmp_path_factory.mktemp("feed") / "project"
    folder.mkdir()
    make(job_python, folder, each=11, width=120, height=90)
    plain, fed = batches(job_python, folder, ""), batches(job_python, folder, "feed")
    assert plain["feeds"] == []
    assert not list(Path("/tmp").glob("flatout-samples-*"))
    return plain["got"], fed


def test_only_loaders_that_are_known_throughout_are_replaced(both) -> None:
    plain, fed = both
    assert fed["feeds"] == ["in_order", "workers", "shuffled", "part", "rank0", "rank1"]
    for name in ("own", "target", "given"):
        for before, now in zip(sum(plain[name], []), sum(fed["got"][name], [])):
            assert all((a == b).all() for a, b in zip(before, now)), name


@pytest.mark.parametrize("name", ["in_order", "workers", "part", "at_once", "pickled"])
def test_pictures_and_labels_are_torchvisions(both, name: str) -> None:
    plain, fed = both
    for before, now in zip(sum(plain[name], []), sum(fed["got"][name], [])):
        assert type(before) is type(now) and len(before) == len(now)
        for a, b in zip(before, now):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert (before[1] == now[1]).all()
        levels = (before[0] - now[0]).abs() * 0.25 * 255  # of Normalize's values
        assert levels.max() < 1.5 and levels.mean() < 0.35


def test_shuffled_epochs_hold_all_labels_and_are_not_alike(both) -> None:
    plain, fed = both
    epochs = fed["got"]["shuffled"]
    for before, now in zip(plain["shuffled"], epochs):
        assert [batch[0].shape for batch in before] == [batch[0].shape for batch in now]
    assert len({str([batch[1].tolist() for batch in epoch]) for epoch in epochs}) == 3
    assert all(0 <= float(batch[0].min()) and float(batch[0].max()) <= 1 for epoch in epochs for batch in epoch)


def test_ranks_share_the_epoch(both) -> None:
    _, fed = both
    in_order = {tuple(picture.flatten()[::97].tolist()) for batch in fed["got"]["in_order"][0] for picture in batch[0]}
    shares = [{tuple(picture.flatten()[::97].tolist()) for batch in fed["got"][rank][0] for picture in batch[0]}
              for rank in ("rank0", "rank1")]
    assert shares[0] | shares[1] == in_order
    assert len(shares[0] & shares[1]) <= 1  # 33 samples: one is given twice


@pytest.mark.skipif(not can_isolate(), reason="lacks mount namespaces")
def test_fix_finds_it_on_a_training_script_as_people_write_them(flatout: str, job_python: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    make(job_python, folder, each=40, width=500, height=375)
    (folder / "train.py").write_text(textwrap.dedent(TRAIN))
    before = tree(folder)
    skipped = "priority,allocator,allocator_anyway,num_workers,scaled_decode,more_workers,keep_decoded,channels_last"
    done = fix(flatout, folder, "--budget", "120", "--skip", skipped, "--", job_python, "train.py")
    assert done.returncode == 0, done.stderr
    assert tree(folder) == before
    result = json.loads((tmp_path / "result" / "fix.json").read_text())
    said = done.stdout + done.stderr
    if "feed" not in result["kept"] and "cpu.noisy_neighbour" in said:
        pytest.skip("lacks a quiet machine: programs outside the job took the cores")
    assert "feed" in result["kept"], said
    trial = next(t for t in result["trials"] if t["remedy"] == "feed")
    assert trial["finding"] == "input.decode_cpu" and trial["low"] > 1.02
    assert "flatout.feed.Loader" in done.stdout
