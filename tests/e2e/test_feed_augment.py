"""RandAugment against Pillow, mixup and cutmix against NumPy, stages of one's own, and the shuffle with a buffer."""

import gzip
import json
import math
import subprocess
import sys
import tarfile
import threading

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from feed_package import BIN, ROOT, built, feed

pytestmark = [pytest.mark.parallel, built]

PLAIN = {"augment": "stretch", "shuffle": False, "dtype": "u8", "layout": "nhwc", "form": "numpy"}


def photo(size, seed):
    """Gradients, an edge and a little noise; not all of the brightness, so that autocontrast has something to do."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size]
    out = np.stack([90 + 50 * np.sin(random.uniform(0.02, 0.1) * x + c) + 40 * np.cos(random.uniform(0.02, 0.1) * y) + 20 * (x > size // 3) for c in range(3)], -1)
    return Image.fromarray((out + random.normal(0, 3, out.shape)).clip(8, 240).astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    for i in range(24):
        path = root / f"class{i % 3}" / f"{i:03}.png"
        path.parent.mkdir(exist_ok=True)
        photo(72, i).save(path)
    return root


def affine(image, matrix):
    return image.transform(image.size, Image.AFFINE, matrix, Image.NEAREST)


def operations(width, height, magnitude):
    """RandAugment's operations with their signs, as torchvision's _apply_op does them to a Pillow image."""
    m = magnitude / 30
    known = {"identity": lambda image: image, "autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize,
             "posterize": lambda image: ImageOps.posterize(image, 8 - round(magnitude / 7.5)),
             "solarize": lambda image: ImageOps.solarize(image, 8.5 * (30 - magnitude))}
    for sign in (1, -1):
        def add(name, operation, sign=sign):
            known[f"{name} {sign:+}"] = operation
        add("shear x", lambda image, t=sign * 0.3 * m: affine(image, (1, math.tan(math.atan(t)), 0, 0, 1, 0)))
        add("shear y", lambda image, t=sign * 0.3 * m: affine(image, (1, 0, 0, math.tan(math.atan(t)), 1, 0)))
        add("translate x", lambda image, t=int(sign * 150 / 331 * width * m): affine(image, (1, 0, -t, 0, 1, 0)))
        add("translate y", lambda image, t=int(sign * 150 / 331 * height * m): affine(image, (1, 0, 0, 0, 1, -t)))
        add("rotate", lambda image, a=sign * 30 * m: image.rotate(a, Image.NEAREST))
        for name, kind in (("brightness", ImageEnhance.Brightness), ("color", ImageEnhance.Color), ("contrast", ImageEnhance.Contrast),
                           ("sharpness", ImageEnhance.Sharpness)):
            add(name, lambda image, kind=kind, f=1 + sign * 0.9 * m: kind(image).enhance(f))
    return known


def test_randaugments_operations_are_pillows(folder):
    seen = set()
    with feed.Loader(folder, 24, (48, 64), **PLAIN) as plain:
        before = next(iter(plain))[0]
    for seed, magnitude in enumerate((9, 9, 30, 17, 4, 22)):
        known = operations(64, 48, magnitude)
        with feed.Loader(folder, 24, (48, 64), seed=seed, randaugment=(1, magnitude), **PLAIN) as loader:
            after = next(iter(loader))[0]
        for a, b in zip(before, after):
            names = [name for name, operation in known.items() if (np.asarray(operation(Image.fromarray(a))) == b).all()]
            assert names
            seen.add(names[0])
    assert len(seen) == len(operations(1, 1, 1)), sorted(set(operations(1, 1, 1)) - seen)


def test_randaugments_operations_follow_each_other(folder):
    known = operations(48, 48, 9)
    with feed.Loader(folder, 24, 48, **PLAIN) as plain, feed.Loader(folder, 24, 48, seed=5, randaugment=[2, 9], threads=1, **PLAIN) as two, \
            feed.Loader(folder, 24, 48, seed=5, randaugment=[2, 9], threads=3, **PLAIN) as same:
        before, after = next(iter(plain))[0], next(iter(two))[0]
        assert (after == next(iter(same))[0]).all()
    for a, b in list(zip(before, after))[:8]:
        firsts = [np.asarray(operation(Image.fromarray(a))) for operation in known.values()]
        assert any((np.asarray(operation(Image.fromarray(first))) == b).all() for first in firsts for operation in known.values())


class RandAugment:
    num_ops, magnitude, num_magnitude_bins, fill = 2, 7, 31, None

    class interpolation:
        value = "nearest"


class Resize:
    size, antialias, max_size = [48, 48], True, None

    class interpolation:
        value = "bilinear"


class CenterCrop:
    size = 40


class ToTensor:
    pass


def test_a_randaugment_in_a_list_of_transforms_is_known():
    assert feed.options_from_transforms([Resize(), RandAugment(), ToTensor()])["randaugment"] == [2, 7]
    with pytest.raises(ValueError, match="behind ToTensor"):
        feed.options_from_transforms([Resize(), ToTensor(), RandAugment()])
    filled = RandAugment()
    filled.fill = [128, 128, 128]
    with pytest.raises(ValueError, match="fill"):
        feed.options_from_transforms([Resize(), filled, ToTensor()])
    with pytest.raises(ValueError, match="RandAugment twice"):
        feed.options_from_transforms([Resize(), RandAugment(), RandAugment(), ToTensor()])
    with pytest.raises(ValueError, match="CenterCrop behind RandAugment"):
        feed.options_from_transforms([Resize(), RandAugment(), CenterCrop(), ToTensor()])


def pairs(folder, **options):
    """Batches (own pictures, own labels, mixed pictures, mixed labels) of an epoch."""
    common = {"seed": 8, "flip": 0.5, "threads": 2}
    with feed.Loader(folder, 8, 32, form="numpy", **common) as plain, feed.Loader(folder, 8, 32, form="batch", **common, **options) as mixed:
        for (own, labels), batch in zip(plain, mixed):
            yield own, labels, np.asarray(batch), batch


def test_mixup_is_what_torchvisions_is(folder):
    weights = []
    for own, labels, got, batch in pairs(folder, mixup=0.7, num_classes=3):
        expected = own * np.float32(batch.weight) + np.roll(own, 1, 0) * np.float32(1 - batch.weight)
        assert np.abs(got - expected).max() < 1e-5
        assert batch.labels == labels.tolist() and batch.partners == np.roll(labels, 1).tolist()
        weights.append(batch.weight)
    assert len(set(weights)) == 3 and all(0 <= w <= 1 for w in weights)


@pytest.mark.parametrize("layout,dtype", [("nchw", "f32"), ("nhwc", "u8"), ("nhwc", "f16")])
def test_cutmix_is_what_torchvisions_is(folder, layout, dtype):
    boxes = 0
    with feed.Loader(folder, 8, 32, form="numpy", seed=4, layout=layout, dtype=dtype) as plain, \
            feed.Loader(folder, 8, 32, form="batch", seed=4, cutmix=1.0, num_classes=3, layout=layout, dtype=dtype) as mixed:
        for (own, labels), batch in zip(plain, mixed):
            other, got = np.roll(own, 1, 0), np.asarray(batch)
            area = round((1 - batch.weight) * 32 * 32)
            rows, columns = np.nonzero((got != own).any(0).any(0 if layout == "nchw" else 2))
            if area:
                boxes += 1
                y, x = slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1)
                assert (y.stop - y.start) * (x.stop - x.start) == area
                where = np.s_[:, :, y, x] if layout == "nchw" else np.s_[:, y, x]
                assert (got[where] == other[where]).all()
                got = got.copy()
                got[where] = own[where]
            assert (got == own).all() and batch.partners == np.roll(labels, 1).tolist()
    assert boxes > 0


def test_mixed_labels_are_shares_of_classes(folder):
    with feed.Loader(folder, 8, 32, form="numpy", mixup=0.4, cutmix=1.0, seed=1) as loader, \
            feed.Loader(folder, 8, 32, form="batch", mixup=0.4, cutmix=1.0, seed=1, threads=1) as same:
        state = loader.state_dict()
        for (pictures, labels), batch in zip(loader, same):
            assert labels.shape == (8, 3) and np.abs(labels.sum(1) - 1).max() < 1e-6
            assert (pictures == np.asarray(batch)).all()
            for row, own, other in zip(labels, batch.labels, batch.partners):
                assert abs(row[own] - (1 if own == other else batch.weight)) < 1e-6
        loader.load_state_dict({**state, "position": 8})
        with feed.Loader(folder, 8, 32, form="numpy", mixup=0.4, cutmix=1.0, seed=1) as third:
            batches = list(third)
        assert all((a == b).all() for (a, _), (b, _) in zip(loader, batches[1:]))
    with pytest.raises(feed.FeedError, match="not of u8"):
        feed.Loader(folder, 8, 32, mixup=0.4, dtype="u8")
    with pytest.raises(ValueError, match="num_classes"):
        feed.Loader(next(folder.glob("*/*.png")), 1, 32, mixup=0.4)


def test_a_stage_of_ones_own_changes_pictures_and_labels(folder):
    def stage(sample):
        sample.pixels[:] = 255 - sample.pixels
        sample.pixels[0, 0] = [sample.random & 0xFF, sample.epoch, 7]
        sample.label += 10 + sample.index

    with feed.Loader(folder, 24, 32, **PLAIN) as plain, feed.Loader(folder, 24, 32, stage=stage, threads=3, **PLAIN) as changed, \
            feed.Loader(folder, 24, 32, stage=stage, threads=1, **PLAIN) as same:
        (before, labels), (after, new), (again, _) = (next(iter(loader)) for loader in (plain, changed, same))
        assert (after == again).all()
        assert (after[:, 1:] == 255 - before[:, 1:]).all()
        assert (after[:, 0, 0, 2] == 7).all() and len(set(after[:, 0, 0, 0].tolist())) > 10
        assert (new == labels + 10 + np.arange(24)).all()


def test_what_a_stage_raises_is_the_batchs_error(folder):
    def stage(sample):
        if sample.index == 11:
            raise KeyError("no such thing")

    with feed.Loader(folder, 8, 32, stage=stage, **PLAIN) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(feed.FeedError, match=r"the stage failed at .*: KeyError: 'no such thing'"):
            next(batches)


def test_a_program_that_ends_amid_its_stages_ends(folder):
    program = f"""
import sys
sys.path.insert(0, {str(ROOT / "python")!r})
from flatout import feed
loader = feed.Loader({str(folder)!r}, 4, 32, stage=lambda sample: None, form="batch", prefetch=1000)
next(iter(loader))
print("out")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "out\n" and done.stderr == ""


def run(program):
    head = f"""
import gc, os, sys, threading
sys.path.insert(0, {str(ROOT / "python")!r})
from flatout import feed
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", head + program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_forked_child_is_told_that_it_has_no_loader_and_ends(folder):
    assert run(f"""
loader = feed.Loader({str(folder)!r}, 4, 32, form="batch")
batches = iter(loader)
next(batches)
child = os.fork()
if child == 0:
    for taken in range(1000):
        try:
            next(batches)
        except feed.FeedError as error:
            print("forked" in str(error), taken)
            break
    sys.exit()  # which ends the loader, or tries to
assert os.waitpid(child, 0)[1] == 0
print(len(next(batches)))
""") == "True 0\n4\n"


def test_a_loader_that_its_own_threads_collect_is_closed(folder):
    assert run(f"""
dropped, collected = threading.Event(), threading.Event()
def stage(sample):
    if dropped.is_set():
        gc.collect()
        collected.set()
class Trainer:
    pass
gc.disable()
trainer = Trainer()
trainer.cycle = trainer
trainer.loader = feed.Loader({str(folder)!r}, 4, 32, stage=stage, form="batch", threads=1, prefetch=1000)
del trainer
dropped.set()
print(collected.wait(30))
""") == "True\n"


def test_a_closed_loader_says_so(folder):
    loader = feed.Loader(folder, 8, 32, form="batch")
    batches = iter(loader)
    next(batches)
    loader.close()
    loader.close()
    for use in (lambda: next(batches), lambda: iter(loader), lambda: len(loader), loader.report, loader.state_dict, lambda: loader.set_epoch(1)):
        with pytest.raises(feed.FeedError, match="is closed"):
            use()

    opened = threading.Event()

    def stage(sample):
        opened.wait(30)
        own.close()

    with feed.Loader(folder, 8, 32, form="batch", stage=stage) as own:
        opened.set()
        with pytest.raises(feed.FeedError, match="cannot close its own loader"):
            list(own)


def test_a_buffered_shuffle_reads_runs_and_goes_on_to_the_bit(folder):
    options = {"seed": 3, "shuffle_buffer": 8, "shuffle_run": 4, "form": "batch"}
    with feed.Loader(folder, 4, 16, threads=1, **options) as one, feed.Loader(folder, 4, 16, threads=3, **options) as other:
        epochs = [[i for batch in one for i in batch.indices] for _ in range(2)]
        assert epochs[0] != epochs[1]
        for epoch in epochs:
            assert sorted(epoch) == list(range(24))
            for begin in range(0, 24, 8):  # each buffer holds two whole runs
                assert len({i // 4 for i in epoch[begin:begin + 8]}) == 2
        running = iter(other)
        next(running)
        state = json.loads(json.dumps(other.state_dict()))
        list(running)
        other.load_state_dict(state)
        assert [i for batch in other for i in batch.indices] == epochs[0][4:]
        with feed.Loader(folder, 4, 16, seed=3, form="batch") as all_of_it, pytest.raises(ValueError, match="buffer"):
            all_of_it.load_state_dict(state)
    with pytest.raises(feed.FeedError, match="one run of neighbours or more"):
        feed.Loader(folder, 4, 16, shuffle_buffer=8)


def test_the_report_has_stages_and_waits(folder):
    with feed.Loader(folder, 8, 32, form="batch", randaugment=(2, 9)) as loader:
        list(loader)
        report = loader.report()
    assert [stage["name"] for stage in report["stages"]] == ["read", "decode", "resize", "finish"]
    assert all(stage["cpu_ms_per_image"] > 0 for stage in report["stages"])
    assert report["waited_ms"] > 0 and report["held_up_ms"] >= 0 and report["threads"] >= 1


def test_the_table_of_a_tar_gives_the_same_batches(folder, tmp_path):
    for number in range(2):
        with tarfile.open(tmp_path / f"s-{number}.tar", "w") as tar:
            for path in sorted(folder.glob("*/*.png"))[number::2]:
                tar.add(path, f"{path.parent.name}/{path.name}")

    def contents():
        with feed.Loader(tmp_path, 8, 32, form="numpy", seed=2) as loader:
            return [(pictures.tobytes(), labels.tolist()) for pictures, labels in loader], loader.classes

    expected = contents()
    done = subprocess.run([BIN, "feed", "index", "--json", tmp_path], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"archives": 2, "members": 24, "bad": []}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s-0.tar", "s-0.tar.index", "s-1.tar", "s-1.tar.index"]
    assert contents() == expected
    (tmp_path / "s-0.tar.index").write_bytes((tmp_path / "s-0.tar.index").read_bytes()[:-100])
    assert contents() == expected
    assert subprocess.run([BIN, "feed", "index", folder], capture_output=True, check=False).returncode == 1


def test_the_doctor_sees_what_the_pipeline_does(folder, tmp_path):
    """A run of a Python job: its waits for input, and what the threads make, are on the timeline."""
    if not (BIN.parent / "libflatout_agent.so").exists():
        pytest.skip("libflatout_agent.so is not built")
    program = f"""
import sys
sys.path.insert(0, {str(ROOT / "python")!r})
from flatout import feed
loader = feed.Loader({str(folder)!r}, 8, 64, form="batch", threads=2)
for _ in range(20):
    for batch in loader:
        pass
"""
    subprocess.run([BIN, "run", "--quiet", "--out", tmp_path / "run", "--", sys.executable, "-c", program], check=True, timeout=120)
    with gzip.open(tmp_path / "run/trace.json.gz") as file:
        trace = json.load(file)
    slices = [event for event in (trace["traceEvents"] if isinstance(trace, dict) else trace) if event.get("ph") == "X"]
    fetches = [event for event in slices if event["name"] == "fetch"]
    # Tracks that the doctor made itself are of no process.
    waits = [event for event in slices if event["name"] == "input_wait" and event["pid"] == fetches[0]["pid"]]
    # The first may come before the recorder listens.
    assert 50 <= len(waits) <= 60 and len({event["tid"] for event in waits}) == 1
    assert len(fetches) >= 40 and not {event["tid"] for event in fetches} & {event["tid"] for event in waits}


def test_bench_tells_the_limit_and_who_cannot_be_measured(folder):
    done = subprocess.run([BIN, "feed", "bench", "--json", "--size", "32", "--batch", "8", "--epochs", "1", folder], capture_output=True, text=True, check=True)
    out = json.loads(done.stdout)
    assert out["processors"] >= 1 and out["limit_images_per_s"] > 0 and out["dataloader"] is None
    done = subprocess.run([BIN, "feed", "bench", "--size", "32", "--epochs", "1", "--python", "no-such-python", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no-such-python" in done.stderr
