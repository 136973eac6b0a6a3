"""The remedy `keep_decoded`: pictures come from memory the second time, and nobody can tell."""

from __future__ import annotations

import hashlib
import importlib.util
import multiprocessing
import os
import random
import sys
from pathlib import Path
from typing import Set

import pytest

from remedied import INJECT, changed

pytestmark = [pytest.mark.parallel, pytest.mark.e2e]

MIB = 1 << 20

# Pictures of all kinds, older than the time after which a file counts as settled.
MAKE = """
    import io, os, time
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    base = Image.fromarray(noise).resize((515, 389), Image.BICUBIC)
    kinds = {"rgb": ("RGB", {}), "grey": ("L", {}), "cmyk": ("CMYK", {}), "progressive": ("RGB", {"progressive": True}),
             "subsampled": ("RGB", {"subsampling": 2}), "tiny": ("RGB", {})}
    for name, (mode, how) in kinds.items():
        (base.resize((1, 1)) if name == "tiny" else base).convert(mode).save(name + ".jpg", quality=90, **how)
    whole = open("rgb.jpg", "rb").read()
    open("cut.jpg", "wb").write(whole[: len(whole) // 2])
    time.sleep(2.1)
"""

# Everything that programs do with a picture; the digest of all pixels that they see.
USE = """
    import hashlib, io
    import numpy as np
    from PIL import Image, ImageFile

    def pixels(picture):
        return repr((picture.size, picture.mode, sorted(picture.info))).encode() + picture.tobytes()

    def uses(name):
        opened = lambda: Image.open(name)
        yield pixels(opened())
        yield np.asarray(opened()).tobytes()
        yield pixels(opened().convert("RGB"))
        yield pixels(opened().resize((48, 32)))
        yield pixels(opened().crop((3, 5, 60, 70)))
        mode = opened().mode
        for how in (Image.BILINEAR, Image.BICUBIC, Image.NEAREST):
            yield pixels(opened().convert(mode).resize((64, 64), how))
        yield pixels(opened().convert(mode).resize((64, 64), Image.BILINEAR, None, 2.0))
        yield pixels(opened().convert(mode).resize((64, 64), Image.BILINEAR, (0, 0, 1, 1)))
        yield pixels(opened().convert(mode).crop((0, 0, 40, 50)).resize((20, 30)))
        source = opened()
        mine = source.convert(mode)
        source.paste(0, (0, 0, 5, 5))      # the copy was made before
        source.close()
        yield pixels(mine)
        resized = opened().convert(mode)
        yield pixels(resized.resize((30, 20)))
        yield pixels(resized)              # after that, in full
        resized = resized.resize((30, 20))
        resized.paste(0, (0, 0, 5, 5))     # the job's own
        yield pixels(resized)
        yield pixels(opened().transpose(Image.FLIP_LEFT_RIGHT))
        with open(name, "rb") as file:
            yield pixels(Image.open(file).convert("RGB"))
        yield pixels(Image.open(io.BytesIO(open(name, "rb").read())))
        small = opened()
        small.draft("L", (100, 100))
        yield pixels(small)
        mine = opened()
        mine.putpixel((0, 0), 7 if mine.mode == "L" else (1, 2, 3) + (4,) * (mine.mode == "CMYK"))
        yield pixels(mine)
        with opened() as again:
            yield pixels(again)

    digest = hashlib.sha256()
    for epoch in range(3):
        for name in ("rgb", "grey", "cmyk", "progressive", "subsampled", "tiny"):
            for got in uses(name + ".jpg"):
                digest.update(got)
        for use in (lambda picture: picture.load(), lambda picture: picture.convert("RGB"), lambda picture: picture.resize((9, 9))):
            try:
                use(Image.open("cut.jpg"))
                digest.update(b"whole")
            except OSError as error:
                digest.update(str(error).encode())
    print(digest.hexdigest())
"""


def run(job_python: str, remedies: str, script: str, folder: Path):
    out, applied = changed(job_python, remedies, script, folder)
    return out.strip(), applied


@pytest.fixture
def pictures(job_python: str, tmp_path: Path) -> Path:
    changed(job_python, "", MAKE, tmp_path)
    return tmp_path


def test_pixels_are_those_of_pillow(job_python: str, pictures: Path) -> None:
    plain, none = run(job_python, "", USE, pictures)
    kept, applied = run(job_python, "keep_decoded", USE, pictures)
    assert kept == plain
    assert none == set() and applied == {"keep_decoded"}


def test_pictures_that_are_read_once_are_not_said_to_gain(job_python: str, pictures: Path) -> None:
    once = "from PIL import Image\nprint([Image.open(n + '.jpg').load() is None for n in ('rgb', 'grey', 'tiny')])"
    assert run(job_python, "keep_decoded", once, pictures)[1] == set()


def test_arrays_are_those_of_opencv(job_python: str, pictures: Path) -> None:
    script = """
        import hashlib
        import cv2
        import numpy as np

        cv2.imwrite("deep.png", np.arange(64 * 48 * 3, dtype=np.uint16).reshape(64, 48, 3))
        digest = hashlib.sha256()

        def add(array):
            digest.update(b"none" if array is None else repr((array.shape, array.dtype, array.flags.writeable)).encode() + array.tobytes())
            if array is not None:
                array[:] = 0                # the job's own array: nobody else sees that

        for epoch in range(3):
            for name in ("rgb.jpg", "grey.jpg", "progressive.jpg", "cut.jpg", "deep.png", "nothing.jpg"):
                add(cv2.imread(name))
                for flags in (cv2.IMREAD_GRAYSCALE, cv2.IMREAD_UNCHANGED, cv2.IMREAD_REDUCED_COLOR_4):
                    add(cv2.imread(name, flags))
                    if name != "nothing.jpg":
                        add(cv2.imdecode(np.fromfile(name, np.uint8), flags))
        print(digest.hexdigest())
    """
    plain, none = run(job_python, "", script, pictures)
    kept, applied = run(job_python, "keep_decoded", script, pictures)
    assert kept == plain
    assert none == set() and applied == {"keep_decoded"}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_one_process_decoded_another_finds(job_python: str, pictures: Path, method: str) -> None:
    script = f"""
        import multiprocessing, sys
        from PIL import Image

        def load():
            Image.open("rgb.jpg").load()

        if __name__ == "__main__":
            if {method == "fork"}:
                child = multiprocessing.get_context("fork").Process(target=load)
                child.start()
                child.join()
            else:
                import subprocess
                subprocess.run([sys.executable, "-c", "from PIL import Image; Image.open('rgb.jpg').load()"], check=True)
            import os
            assert not os.path.exists("applied")
            load()
    """
    assert run(job_python, "keep_decoded", script, pictures)[1] == {"keep_decoded"}


def test_a_file_that_changed_is_decoded_anew(job_python: str, pictures: Path) -> None:
    script = """
        import os
        from PIL import Image

        def colour():
            return Image.open("x.jpg").getpixel((0, 0))[0] > 127

        def write(light, name):
            Image.new("RGB", (64, 64), (255 * light,) * 3).save(name, quality=90)

        seen = []
        for i in range(6):
            light = i % 2
            if i < 3:                       # within one tick of the clock, with the times of the first
                write(light, "x.jpg")
            else:                           # another file of that name
                write(light, "y.jpg")
                os.replace("y.jpg", "x.jpg")
            os.utime("x.jpg", ns=(1, 1))
            seen += [colour() == light, colour() == light]
        print(all(seen))
    """
    out, applied = run(job_python, "keep_decoded", script, pictures)
    assert out == "True" and applied == {"keep_decoded"}


def test_a_job_that_closes_all_descriptors_keeps_its_own_files(job_python: str, pictures: Path) -> None:
    script = """
        import os
        from PIL import Image

        Image.open("rgb.jpg").load()
        os.closerange(3, 256)
        files = [open("mine-%d" % i, "wb+", buffering=0) for i in range(64)]
        for file in files:
            file.write(b"mine")
        for name in ("rgb", "grey", "cmyk", "rgb"):
            Image.open(name + ".jpg").load()
        print(set(open("mine-%d" % i, "rb").read() for i in range(64)))
    """
    out, applied = run(job_python, "keep_decoded", script, pictures)
    assert out == "{b'mine'}" and applied == {"keep_decoded"}


def decoded_module():
    """The remedy's own module, in this process."""
    folder = INJECT.parent / "remedies"
    spec = importlib.util.spec_from_file_location("remedies_under_test", folder / "__init__.py", submodule_search_locations=[str(folder)])
    package = importlib.util.module_from_spec(spec)
    sys.modules["remedies_under_test"] = package
    spec.loader.exec_module(package)
    return importlib.import_module("remedies_under_test.decoded")


def pixels_of(number: int) -> bytes:
    """What is kept under a key in these tests: another length and content for each."""
    return hashlib.sha256(b"%d" % number).digest() * (1 + number % 700)


def key_of(number: int) -> bytes:
    # Few places for many keys: they meet.
    return (number % 40).to_bytes(8, "little") + number.to_bytes(8, "big")


def use(fd: int, seed: int, wrong) -> None:
    store = decoded_module().Store(fd, lambda: 1 << 40)
    rng = random.Random(seed)
    for _ in range(4000):
        number = 1 + rng.randrange(900)
        found = store.get(key_of(number))
        if found is None:
            store.put(key_of(number), pixels_of(number))
        elif found != pixels_of(number):
            wrong.value += 1


def test_many_processes_never_see_another_ones_pixels() -> None:
    context = multiprocessing.get_context("fork")
    fd = decoded_module().Store.make(64 * MIB)
    wrong = context.Value("i", 0)
    users = [context.Process(target=use, args=(fd, seed, wrong)) for seed in range(6)]
    for user in users:
        user.start()
    for user in users:
        user.join()
        assert user.exitcode == 0
    assert wrong.value == 0
    store = decoded_module().Store(fd, lambda: 1 << 40)
    kept = sum(store.get(key_of(number)) == pixels_of(number) for number in range(1, 901))
    assert kept == 40 + 31  # all places within reach of the 40 where they begin
    os.close(fd)


def test_what_does_not_fit_is_not_kept() -> None:
    module = decoded_module()
    fd = module.Store.make(MIB)
    store = module.Store(fd, lambda: 1 << 40)
    half = bytes(MIB // 2)
    found: Set[int] = set()
    for number in range(1, 5):
        store.put(key_of(number), half)
    found = {number for number in range(1, 5) if store.get(key_of(number)) is not None}
    assert found == {1, 2}
    scarce = module.Store(module.Store.make(MIB), lambda: 0)
    scarce.put(key_of(1), b"pixels")
    assert scarce.get(key_of(1)) is None
