"""flatout feed and flatout.feed: pixels against Pillow, bad files against what they are, the Loader as torch code uses it."""

import contextlib
import gc
import io
import itertools
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from PIL import __version__ as PIL_VERSION

from feed_package import BIN, LIBRARY, ROOT, built, feed

pytestmark = [pytest.mark.parallel, built]
sys.path.insert(0, str(ROOT / "tests/feed"))

import nasty  # noqa: E402


def photo(width, height, seed=0):
    """Gradients, soft shapes, edges and a little noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    out = np.empty((height, width, 3), np.float64)
    for c in range(3):
        a, b, p = random.uniform(0.01, 0.08, 3)
        out[..., c] = 110 + 60 * np.sin(a * x + p * 50) + 50 * np.cos(b * y + c) + 30 * ((x // 37 + y // 29) % 2)
    out += random.normal(0, 4, (height, width, 1))
    return Image.fromarray(out.clip(0, 255).astype(np.uint8))


def jpeg(image, **options):
    options.setdefault("quality", 92)
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def by_pillow(data, box, height, width):
    image = Image.open(io.BytesIO(data)).convert("RGB")
    x, y, w, h = box
    return np.asarray(image.crop((x, y, x + w, y + h)).resize((width, height), Image.BILINEAR))


def ours(data, box, height, width, mode="exact"):
    return np.frombuffer(feed.decode(data, height, width, box, mode), np.uint8).reshape(height, width, 3)


def figures(pairs):
    """Mean difference, 99th percentile, 5th-percentile PSNR and bias of (ours, Pillow's)."""
    differences = [np.asarray(a, np.float64) - np.asarray(b, np.float64) for a, b in pairs]
    every = np.concatenate([np.abs(d).ravel() for d in differences])
    noise = [10 * np.log10(255**2 / max((d**2).mean(), 1e-9)) for d in differences]
    return every.mean(), np.percentile(every, 99), np.percentile(noise, 5), abs(np.mean([d.mean() for d in differences]))


def random_boxes(width, height, count, seed):
    random = np.random.default_rng(seed)
    for _ in range(count):
        w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
        yield int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1)), w, h


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    for i in range(30):
        path = root / f"class{i % 3}" / f"{i:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(photo(200 + 13 * (i % 7), 150 + 17 * (i % 5), i), subsampling=i % 3))
    return root


KINDS = {"420": {"subsampling": 2}, "422": {"subsampling": 1}, "444": {"subsampling": 0}, "progressive": {"progressive": True},
         "low quality": {"quality": 30}, "restarts": {"restart_marker_blocks": 3}}


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_pillows(kind):
    data = jpeg(photo(500, 375, 1), **KINDS[kind])
    pairs = [(ours(data, box, 224, 224), by_pillow(data, box, 224, 224)) for box in random_boxes(500, 375, 30, 2)]
    mean, p99, noise, bias = figures(pairs)
    # Before version 13 Pillow resized rows first also where the height shrinks much more: another rounding.
    limit = 0.02 if int(PIL_VERSION.split(".")[0]) >= 13 else 0.1
    assert mean <= limit and p99 <= 1 and noise >= 54 and bias <= 0.02


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (7, 5), (16, 16), (17, 33), (1999, 31)])
def test_pixels_are_pillows_for_every_shape(size):
    data = jpeg(photo(*size, seed=3))
    boxes = [(0, 0, *size)] + list(random_boxes(*size, 6, 4))
    for height, width in ((224, 224), (1, 1), (3, 200), (64, 31)):
        pairs = [(ours(data, box, height, width), by_pillow(data, box, height, width)) for box in boxes]
        assert all(np.abs(a.astype(int) - b).max() <= 1 for a, b in pairs)


def encoded(image, form, **options):
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def test_other_formats_are_pillows():
    base = photo(200, 150, 5)
    pictures = {
        "grey jpeg": jpeg(base.convert("L")), "cmyk jpeg": encoded(base.convert("CMYK"), "JPEG", quality=95),
        "png": encoded(base, "PNG"), "grey png": encoded(base.convert("L"), "PNG"), "palette png": encoded(base.convert("P"), "PNG"),
        "bilevel png": encoded(base.convert("1"), "PNG"), "alpha png": encoded(base.convert("RGBA"), "PNG"),
        "grey alpha png": encoded(base.convert("LA"), "PNG"), "lossless webp": encoded(base, "WEBP", lossless=True),
    }
    for name, data in pictures.items():
        a, b = ours(data, (10, 20, 150, 100), 64, 64), by_pillow(data, (10, 20, 150, 100), 64, 64)
        assert np.abs(a.astype(int) - b).max() <= 1, name
    sixteen = (np.arange(200 * 150, dtype=np.uint16) * 2).reshape(150, 200)
    a = ours(encoded(Image.fromarray(sixteen), "PNG"), (0, 0, 200, 150), 150, 200)
    assert (a == (sixteen >> 8)[..., None]).all()


def test_scaled_decode_stays_near_pillow():
    data = jpeg(photo(2400, 1800, 6), quality=92)
    boxes = [(0, 0, 2400, 1800), (100, 200, 2000, 1500), (333, 123, 1001, 999), (17, 5, 1800, 1790)]
    mean, p99, noise, bias = figures([(ours(data, box, 224, 224, "scaled"), by_pillow(data, box, 224, 224)) for box in boxes])
    assert mean <= 0.6 and p99 <= 3.5 and noise >= 46 and bias <= 0.05
    small = (0, 0, 447, 447)  # less than twice the target: nothing is reduced
    assert (ours(data, small, 224, 224, "scaled") == ours(data, small, 224, 224)).all()


def test_a_batch_is_normalised_as_torchvision_does(folder):
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    with feed.Loader(folder, 30, 96, seed=2, form="batch") as loader:
        batch = next(iter(loader))
        files = sorted(folder.glob("*/*.jpg"))
        pairs = []
        for i, (x, y, w, h, flip) in enumerate(batch.views):
            image = by_pillow(files[batch.indices[i]].read_bytes(), (x, y, w, h), 96, 96).astype(np.float64)
            image = image[:, ::-1] if flip else image
            pairs.append((np.asarray(batch)[i].transpose(1, 2, 0) * std * np.float64(255) + np.array(mean) * 255, image))
        mean_difference, p99, noise, bias = figures(pairs)
        assert mean_difference <= 0.35 and p99 <= 1.001 and noise >= 55 and bias <= 0.02
        assert {flip for *_, flip in batch.views} == {0, 1}


def test_center_crop_is_torchvisions_resize_and_centercrop(folder):
    with feed.Loader(folder, 30, 96, augment="center_crop", resize=128, dtype="u8", layout="nhwc", shuffle=False, form="batch") as loader:
        batch = next(iter(loader))
        for i, file in enumerate(sorted(folder.glob("*/*.jpg"))):
            image = Image.open(file).convert("RGB")
            w, h = image.size
            short, long = min(w, h), max(w, h)
            new = (128, int(128 * long / short))
            image = image.resize(new if w <= h else new[::-1], Image.BILINEAR)
            left, top = round((image.width - 96) / 2), round((image.height - 96) / 2)
            expected = np.asarray(image.crop((left, top, left + 96, top + 96)))
            assert np.abs(np.asarray(batch)[i].astype(int) - expected).max() <= 1, file


def test_bicubic_is_pillows(folder):
    with feed.Loader(folder, 30, 96, seed=2, interpolation="bicubic", flip=0, dtype="u8", layout="nhwc", form="batch") as loader:
        batch = next(iter(loader))
    files = sorted(folder.glob("*/*.jpg"))
    for got, index, (x, y, w, h, _) in zip(np.asarray(batch), batch.indices, batch.views):
        image = Image.open(files[index]).convert("RGB").crop((x, y, x + w, y + h))
        assert np.abs(got.astype(int) - np.asarray(image.resize((96, 96), Image.BICUBIC))).max() <= 1, files[index]


def adjusted(image, kind, factor):
    """As torchvision's functional.adjust_* do it to a Pillow image."""
    if kind == "hue":
        h, s, v = image.convert("HSV").split()
        turned = np.asarray(h, np.uint8) + np.uint8(int(factor * 255) % 256)
        return Image.merge("HSV", (Image.fromarray(turned), s, v)).convert("RGB")
    return {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "saturation": ImageEnhance.Color}[kind](image).enhance(factor)


@pytest.mark.parametrize("kind,factor", [("brightness", 0.4), ("brightness", 1.7), ("contrast", 0.3), ("contrast", 1.9), ("saturation", 0.2),
                                         ("saturation", 2.5), ("saturation", 0.0), ("hue", 0.13), ("hue", -0.5), ("hue", -0.31)])
def test_colours_are_changed_as_pillow_does(folder, kind, factor):
    options = {"augment": "stretch", "shuffle": False, "dtype": "u8", "layout": "nhwc", "form": "numpy"}
    with feed.Loader(folder, 30, 64, **options) as plain, feed.Loader(folder, 30, 64, **{kind: [factor, factor]}, **options) as changed:
        for before, after in zip(next(iter(plain))[0], next(iter(changed))[0]):
            assert (np.asarray(adjusted(Image.fromarray(before), kind, factor)) == after).all()


def test_colours_change_in_an_order_that_is_drawn(folder):
    factors = {"brightness": 1.5, "contrast": 0.5, "saturation": 0.3}
    options = {"augment": "stretch", "shuffle": False, "dtype": "u8", "layout": "nhwc", "form": "numpy"}
    seen = set()
    with feed.Loader(folder, 30, 64, **options) as plain, feed.Loader(folder, 30, 64, **{k: [v, v] for k, v in factors.items()}, **options) as changed:
        for before, after in zip(next(iter(plain))[0], next(iter(changed))[0]):
            orders = []
            for order in itertools.permutations(factors):
                image = Image.fromarray(before)
                for kind in order:
                    image = adjusted(image, kind, factors[kind])
                if (np.asarray(image) == after).all():
                    orders.append(order)
            assert orders
            seen.add(orders[0])
    assert len(seen) > 2


def test_types_hold_the_same_values(folder):
    torch = pytest.importorskip("torch")
    values = {}
    for dtype in ("f32", "f16", "bf16", "u8"):
        with feed.Loader(folder, 8, 64, seed=5, dtype=dtype, form="torch") as loader:
            values[dtype] = next(iter(loader))[0]
    assert values["f16"].dtype == torch.float16 and values["bf16"].dtype == torch.bfloat16
    assert torch.equal(values["f32"].to(torch.float16), values["f16"])
    assert torch.equal(values["f32"].to(torch.bfloat16), values["bf16"])
    mean, std = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    assert torch.allclose((values["u8"].float() / 255 - mean) / std, values["f32"], atol=2e-6)


def test_state_goes_on_to_the_bit(folder):
    with feed.Loader(folder, 4, 32, seed=9, threads=2, form="numpy") as whole, feed.Loader(folder, 4, 32, seed=9, threads=3, form="numpy") as other:
        list(whole)
        running = iter(whole)
        for _ in range(3):
            next(running)
        state = json.loads(json.dumps(whole.state_dict()))
        assert len(json.dumps(state)) < 1024
        expected = list(running)
        other.load_state_dict(state)
        rest = list(other)
        assert len(rest) == len(expected) == 5
        for (a, x), (b, y) in zip(rest, expected):
            assert (a == b).all() and (x == y).all()
        again = next(iter(other))[0]
        assert (again == next(iter(whole))[0]).all()
        with pytest.raises(ValueError, match="seed"):
            other.load_state_dict({**state, "seed": 1})


def test_batches_are_the_programs_own(folder):
    """They stay as they are while they are held, however they are seen, and after the loader is gone."""
    loader = feed.Loader(folder, 4, 32, seed=1, form="batch")
    batches = list(loader)
    copies = [np.array(b) for b in batches]
    views = [memoryview(b.buffer()) for b in batches]
    list(loader)
    loader.close()
    del batches
    gc.collect()
    for view, copy in zip(views, copies):
        assert bytes(view) == copy.tobytes()


def test_a_capsule_that_nobody_takes_is_freed(folder):
    with feed.Loader(folder, 4, 32, form="batch") as loader:
        batch = next(iter(loader))
        for _ in range(1000):
            batch.__dlpack__()
        torch = pytest.importorskip("torch")
        tensor = torch.from_dlpack(batch)
        copy = tensor.clone()
        del batch
        list(loader)
        assert torch.equal(tensor, copy)


OTHER_FRAMEWORKS = """
import sys
import jax
import numpy as np
import tensorflow as tf
from flatout import feed

for dtype in ("f32", "u8"):
    with feed.Loader(sys.argv[1], 4, 32, seed=5, dtype=dtype, form="batch") as loader:
        batch = next(iter(loader))
        expected = np.array(batch)
        seen = tf.experimental.dlpack.from_dlpack(batch.__dlpack__())
        array = jax.dlpack.from_dlpack(batch)
        assert seen.shape == expected.shape and array.unsafe_buffer_pointer() == batch.__array_interface__["data"][0]
        del batch
        list(loader)  # would be made in its memory, were it not held
        assert np.array_equal(np.asarray(array), expected) and np.array_equal(seen.numpy(), expected)
print("equal")
"""


def test_tensorflow_and_jax_take_batches(folder, tensorflow):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([tensorflow, "-c", OTHER_FRAMEWORKS, folder], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "equal", done.stderr


class RandomResizedCrop:
    size, scale, ratio, antialias = (64, 64), (0.2, 1.0), (0.8, 1.25), True

    class interpolation:
        value = "bilinear"


class RandomHorizontalFlip:
    p = 0.25


class ToTensor:
    pass


class Normalize:
    mean, std = [0.5, 0.5, 0.5], [0.25, 0.25, 0.25]


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms


class ColorJitter:
    brightness, contrast, saturation, hue = (0.6, 1.4), (0.6, 1.4), None, (-0.1, 0.1)


class GaussianBlur:
    pass


def batches_of(loader):
    return [(images.clone(), labels) for images, labels in loader]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
def test_pinned_batches_are_torchs_own_memory(folder, monkeypatch, dtype):
    torch = pytest.importorskip("torch")
    made = []

    def new_memory(self, size):  # what torch gives where there is a GPU, but for the pages' lock
        made.append(torch.empty(size, dtype=torch.uint8))
        return made[-1]

    monkeypatch.setattr(feed.Loader, "_new_memory", new_memory)
    with feed.Loader(folder, 4, 48, seed=3, dtype=dtype, form="torch") as plain, \
            feed.Loader(folder, 4, 48, seed=3, dtype=dtype, form="torch", pin_memory=True) as pinned:
        for _ in range(2):
            expected, held = batches_of(plain), list(pinned)
            assert len(held) == len(expected)
            addresses = [images.data_ptr() for images, _ in held]
            assert len(set(addresses)) == len(held) and set(addresses) <= {memory.data_ptr() for memory in made}
            for (images, labels), (expected_images, expected_labels) in zip(held, expected):
                assert images.dtype == expected_images.dtype and torch.equal(images, expected_images) and torch.equal(labels, expected_labels)
        assert len(made) == 2 + 2 + 2 * len(held)
        # In the middle of an epoch, too.
        next(iter(plain))
        for loader in (pinned, plain):
            loader.load_state_dict(plain.state_dict())
        rest, expected = batches_of(pinned), batches_of(plain)
        assert len(rest) == len(expected) == len(plain) - 1
        assert all(torch.equal(a[0], b[0]) for a, b in zip(rest, expected))


def test_pinned_memory_that_cannot_be_had_is_said(folder):
    torch = pytest.importorskip("torch")
    with feed.Loader(folder, 4, 48, form="numpy", pin_memory=True) as loader, pytest.raises(ValueError, match="form is 'numpy'"):
        iter(loader)
    if not torch.cuda.is_available():
        with feed.Loader(folder, 4, 48, form="torch", pin_memory=True) as loader, pytest.raises(feed.FeedError, match="pin_memory=False"):
            iter(loader)


@pytest.mark.gpu
def test_batches_are_pinned_where_the_program_uses_cuda(folder):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    torch.zeros(1, device="cuda")
    with feed.Loader(folder, 4, 48, seed=3, form="torch", pin_memory=False) as plain, feed.Loader(folder, 4, 48, seed=3, form="torch") as pinned:
        expected = batches_of(plain)
        copies = []
        for images, labels in pinned:
            assert images.is_pinned() and labels.is_pinned()
            torch.cuda._sleep(10_000_000)  # the copy waits, and the batch is given up meanwhile
            copies.append((images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)))
        assert all(torch.equal(a[0].cpu(), b[0]) and torch.equal(a[1].cpu(), b[1]) for a, b in zip(copies, expected))


def test_transforms_become_options(folder):
    known = Compose([RandomResizedCrop(), RandomHorizontalFlip(), ToTensor(), Normalize()])
    assert feed.options_from_transforms(known) == {
        "augment": "random_crop", "size": [64, 64], "scale": [0.2, 1.0], "ratio": [0.8, 1.25], "interpolation": "bilinear", "flip": 0.25,
        "dtype": "f32", "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}
    with feed.Loader(folder, 4, transform=known, form="batch") as loader:
        assert next(iter(loader)).shape == (4, 3, 64, 64)
    assert feed.options_from_transforms([RandomResizedCrop(), ColorJitter(), ToTensor()])["hue"] == [-0.1, 0.1]
    with pytest.raises(ValueError, match="behind ToTensor"):
        feed.options_from_transforms([RandomResizedCrop(), ToTensor(), ColorJitter()])
    with pytest.raises(ValueError, match="GaussianBlur"):
        feed.options_from_transforms([RandomResizedCrop(), GaussianBlur()])


def test_options_that_cannot_be_are_named(folder, tmp_path):
    with pytest.raises(feed.FeedError, match="there is no option 'sizes'"):
        feed.Loader(folder, sizes=3)
    with pytest.raises(feed.FeedError, match="mode cannot be \"fast\""):
        feed.Loader(folder, mode="fast")
    with pytest.raises(feed.FeedError, match="there is no .*nowhere"):
        feed.Loader(tmp_path / "nowhere")
    with pytest.raises(feed.FeedError, match="no pictures in"):
        feed.Loader(tmp_path)


def test_a_training_gets_the_same_curve_as_with_a_dataloader(folder):
    """The same network on the Loader's batches and on Pillow's pictures of the same views: the losses agree."""
    torch = pytest.importorskip("torch")

    def losses(pictures):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(32, 3))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        out = []
        for x, y in pictures:
            loss = torch.nn.functional.cross_entropy(network(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            out.append(loss.item())
        return np.array(out)

    files = sorted(folder.glob("*/*.jpg"))
    with feed.Loader(folder, 10, 48, seed=3, mean=[0, 0, 0], std=[1, 1, 1], form="batch") as loader:
        batches = [b for _ in range(4) for b in loader]
        got = losses([(torch.from_dlpack(b), torch.tensor(b.labels)) for b in batches])
        pillow = []
        for batch in batches:
            pictures = []
            for index, (x, y, w, h, flip) in zip(batch.indices, batch.views):
                a = by_pillow(files[index].read_bytes(), (x, y, w, h), 48, 48)
                pictures.append(a[:, ::-1] if flip else a)
            pillow.append((torch.tensor(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255, torch.tensor(batch.labels)))
        assert np.abs(got - losses(pillow)).max() < 2e-3


# -- data sets that are no folders, and the seek index --


def contents(path, **options):
    """All samples of an epoch in the data set's order: pixels and labels."""
    with feed.Loader(path, 8, 40, shuffle=False, seed=4, dtype="u8", form="numpy", **options) as loader:
        batches = list(loader)
        assert loader.report()["replaced"] == 0
    return np.concatenate([b[0] for b in batches]), np.concatenate([b[1] for b in batches])


@pytest.fixture(scope="module")
def samples(folder):
    """(name, bytes, label) in the folder's order."""
    return [(path.name, path.read_bytes(), int(path.parent.name[-1])) for path in sorted(folder.glob("*/*.jpg"))]


def same(a, b):
    assert (a[0] == b[0]).all() and (a[1] == b[1]).all()


def test_tar_shards_hold_what_the_folder_does(folder, samples, tmp_path):
    expected = contents(folder)
    for shard in range(3):
        members = {}
        for i, (name, data, label) in enumerate(samples[shard * 10:shard * 10 + 10]):
            members[name] = data
            members.update({name[:-3] + "cls": str(label).encode()} if i % 2 else {name[:-3] + "json": json.dumps({"label": label}).encode()})
        (tmp_path / f"train-{shard:03}.tar").write_bytes(nasty.tar(members, (0, 1, 2)[shard]))
    same(contents(tmp_path), expected)
    same(contents(f"{tmp_path}/train-{{000..002}}.tar"), expected)


def test_tfrecords_hold_what_the_folder_does(folder, samples, tmp_path):
    for shard in range(2):
        (tmp_path / f"train.tfrecord-{shard:05}-of-00002").write_bytes(
            b"".join(nasty.record(nasty.example(data, label)) for _, data, label in samples[shard * 15:shard * 15 + 15]))
    same(contents(tmp_path), contents(folder))


def test_lists_hold_what_the_folder_does(folder, samples, tmp_path):
    names = {str(path): label for path, (_, _, label) in zip(sorted(folder.glob("*/*.jpg")), samples)}
    (tmp_path / "list.csv").write_text("".join(f"{name},{label}\n" for name, label in names.items()))
    (tmp_path / "list.json").write_text(json.dumps(names))
    same(contents(tmp_path / "list.csv"), contents(folder))
    same(contents(tmp_path / "list.json"), contents(folder))


def test_packed_data_hold_what_the_folder_does(folder, tmp_path):
    done = subprocess.run([BIN, "feed", "pack", "--json", folder, "--output", tmp_path / "p.fpack"], capture_output=True, text=True, check=True)
    out = json.loads(done.stdout)
    assert out["samples"] == out["indexed"] == 30 and out["bad"] == []
    assert (tmp_path / "p.fpack").stat().st_size == out["bytes"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.fpack", "p.fpack.seek"]
    same(contents(tmp_path / "p.fpack"), contents(folder))
    with feed.Loader(tmp_path / "p.fpack", 8) as loader:
        assert loader.classes == ["class0", "class1", "class2"]
    again = subprocess.run([BIN, "feed", "verify", "--json", tmp_path / "p.fpack"], capture_output=True, text=True, check=True)
    line = json.loads(again.stdout)
    assert line["outcome"] == "ok" and line["samples"] == 30
    assert subprocess.run([BIN, "feed", "pack", folder], capture_output=True, check=False).returncode == 2


def test_a_killed_pack_leaves_what_was_there(folder, tmp_path):
    """A bad picture that is told where nobody reads holds it up amid its work."""
    picture = next(folder.glob("*/*.jpg"))
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"")
    (tmp_path / "list.txt").write_text(f"{picture}\n{bad}\n")
    out = tmp_path / "p.fpack"
    out.write_bytes(b"before")
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, bytes(4096))
    os.set_blocking(write_end, True)
    process = subprocess.Popen([BIN, "feed", "pack", tmp_path / "list.txt", "--output", out], stdout=write_end)
    temporary = tmp_path / f"p.fpack.tmp{process.pid}"
    while not temporary.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    os.close(read_end)
    os.close(write_end)
    assert out.read_bytes() == b"before" and not (tmp_path / "p.fpack.seek").exists()


def test_the_seek_index_changes_no_bit(folder, tmp_path):
    """Each epoch of a loader with an index, without one, with one from a file, and with a stale one: equal batches."""
    pictures = tmp_path / "pictures"
    shutil.copytree(folder, pictures)
    index = tmp_path / "index"

    def epochs(**options):
        with feed.Loader(pictures, 8, 48, seed=6, form="numpy", **options) as loader:
            return [np.concatenate([b[0] for b in loader]) for _ in range(3)]

    expected = epochs(index="off")
    for options in ({}, {"index": index}, {"index": index}, {"index": index, "threads": 1}, {"index_mb": 0}):
        assert all((a == b).all() for a, b in zip(epochs(**options), expected)), options
    assert index.stat().st_size > 30 * 100
    a, b = sorted(pictures.glob("*/*.jpg"))[:2]
    a.write_bytes(b.read_bytes())
    assert all((x == y).all() for x, y in zip(epochs(index=index), epochs(index="off")))
    index.write_bytes(b"something else")
    with pytest.raises(feed.FeedError, match="no seek index"):
        feed.Loader(pictures, index=index)
    with pytest.raises(feed.FeedError, match="cannot write"):
        feed.Loader(pictures, index=tmp_path / "no/where")


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_orientation_is_pillows_exif_transpose(tmp_path, form):
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        (tmp_path / f"{orientation}.{form.lower()}").write_bytes(encoded(photo(90, 60, 5), form, exif=exif, **({} if form == "PNG" else {"quality": 95})))
    with feed.Loader(tmp_path, 8, (37, 45), augment="stretch", orient=True, dtype="u8", layout="nhwc", shuffle=False, form="numpy") as loader:
        got = next(iter(loader))[0]
    for i, path in enumerate(sorted(tmp_path.iterdir())):
        upright = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        assert np.abs(got[i].astype(int) - np.asarray(upright.resize((45, 37), Image.BILINEAR))).max() <= 1, path


def test_the_example_in_cpp_reads_a_data_set(folder, tmp_path):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "read_pictures"
    subprocess.run([compiler, "-std=c++17", f"-I{ROOT}/include", ROOT / "examples/read_pictures.cpp", LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}", "-o", program], check=True)
    with feed.Loader(folder, 30, 224, shuffle=False, mean=[0, 0, 0], std=[1, 1, 1], form="numpy") as loader:
        mean = next(iter(loader))[0].mean((0, 2, 3), dtype=np.float64)
    done = subprocess.run([program, folder], capture_output=True, text=True, check=True)
    assert done.stdout == f"30 pictures, mean {mean[0]:.4f} {mean[1]:.4f} {mean[2]:.4f}\n"
    assert subprocess.run([program, tmp_path / "nowhere"], capture_output=True, check=False).returncode == 1


# -- bad files --


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    root = tmp_path_factory.mktemp("nasty")
    cases = nasty.cases()
    for name, (data, _) in cases.items():
        (root / name).write_bytes(data)
    return root, {name: outcomes for name, (_, outcomes) in cases.items()}


def test_every_bad_file_is_told_as_what_it_is(bad):
    root, expected = bad
    assert len(expected) >= 80
    done = subprocess.run([BIN, "feed", "verify", "--json", "--threads", "1", root], capture_output=True, text=True, check=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (512 << 20, 512 << 20)))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["file"] for line in lines] == sorted(expected)
    wrong = {line["file"]: (line["outcome"], line["detail"]) for line in lines if line["outcome"] != expected[line["file"]]}
    assert wrong == {}
    for line in lines:
        assert set(line) >= {"file", "outcome", "width", "height", "mean_rgb", "samples", "detail"}
        if line["outcome"] == "ok":
            image = np.asarray(Image.open(root / line["file"]).convert("RGB"))
            assert (line["height"], line["width"]) == image.shape[:2]
            if "png16" not in line["file"]:  # Pillow clips those
                assert np.abs(np.array(line["mean_rgb"]) - image.mean((0, 1))).max() < 1.5, line


def test_every_bad_archive_is_told_as_what_it_is(tmp_path):
    cases = nasty.archives()
    for name, (data, _, _) in cases.items():
        (tmp_path / name).write_bytes(data)
    done = subprocess.run([BIN, "feed", "verify", "--json", tmp_path], capture_output=True, text=True, check=True)
    told = {line["file"]: (line["outcome"], line["samples"]) for line in map(json.loads, done.stdout.splitlines())}
    assert told == {name: (outcome, count) for name, (_, outcome, count) in cases.items()}


def test_a_damaged_archive_is_used_as_far_as_it_goes(tmp_path):
    (tmp_path / "x.tar").write_bytes(nasty.archives()["garbled.tar"][0])
    with feed.Loader(tmp_path, 1, 8) as loader:
        assert loader.samples == 1
        assert [(bad["file"], bad["outcome"]) for bad in loader.report()["bad"]] == [(str(tmp_path / "x.tar"), "corrupt")]
    with pytest.raises(feed.FeedError, match="x.tar: corrupt"):
        feed.Loader(tmp_path, 1, 8, on_bad="strict")


def test_verify_can_fail_a_script(bad, folder):
    root, _ = bad
    assert subprocess.run([BIN, "feed", "verify", "--fail-on", "any", root], capture_output=True, check=False).returncode == 3
    assert subprocess.run([BIN, "feed", "verify", "--fail-on", "any", folder], capture_output=True, check=False).returncode == 0
    assert subprocess.run([BIN, "feed", "verify", root / "nowhere"], capture_output=True, check=False).returncode == 1


def test_bad_files_leave_nothing_behind(bad):
    """10,000 decodes of damaged files: the process does not grow."""
    root, expected = bad
    files = [(root / name).read_bytes() for name, outcome in expected.items() if outcome != "ok" and (root / name).stat().st_size < 30_000]
    failures = 0

    def resident():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

    def decode(count):
        nonlocal failures
        for i in range(count):
            try:
                feed.decode(files[i % len(files)], 8, 8)
            except feed.FeedError:  # some damage shows only behind the last row
                failures += 1

    decode(2000)
    before = resident()
    decode(10_000)
    assert resident() - before < 8 << 20
    assert failures > 10_000


def test_bench_prints_what_scripts_read(folder):
    done = subprocess.run([BIN, "feed", "bench", "--json", "--size", "64", "--batch", "8", "--threads", "2", "--epochs", "2", folder],
                          capture_output=True, text=True, check=True)
    out = json.loads(done.stdout)
    assert [e["images"] for e in out["epochs"]] == [30, 30]
    for epoch in out["epochs"]:
        assert epoch["images_per_s"] > 0 and epoch["cpu_ms_per_image"] > 0 and epoch["first_batch_ms"] >= 0
    assert out["peak_pss_mb"] > 0
    assert {s["name"] for s in out["stages"]} == {"read", "decode", "resize", "finish"}
    assert subprocess.run([BIN, "feed", "bench", "--mode", "fast", folder], capture_output=True, check=False).returncode == 2
