"""A set of photographs to measure with: crops of the pictures that come with scikit-image, scikit-learn and the distribution's
wallpapers, with a camera's noise, at several sizes and qualities, in ten folders.

    python bench/feed/photos.py FOLDER [--count 512] [--width 500] [--height 375]
"""

import argparse
import importlib.util
import pathlib

import numpy as np
from PIL import Image


def sources():
    """Photographs of this machine, as RGB, in a fixed order."""
    folders = [pathlib.Path("/usr/share/backgrounds"), pathlib.Path("/usr/share/wallpapers"), pathlib.Path("/usr/share/images")]
    for package in ("skimage", "sklearn"):
        spec = importlib.util.find_spec(package)
        if spec is not None:
            folders.append(pathlib.Path(spec.origin).parent)
    files = sorted((p.name, p) for folder in folders if folder.is_dir() for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    found = []
    for _, path in files:
        try:
            image = Image.open(path)
            if min(image.size) >= 300 and image.mode in ("RGB", "RGBA") and len(image.convert("RGB").resize((64, 64)).getcolors(4096)) > 1000:
                found.append(image.convert("RGB"))
        except OSError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--height", type=int, default=375)
    options = parser.parse_args()
    photographs = sources()
    if not photographs:
        raise SystemExit("no photographs on this machine; install scikit-image and scikit-learn, or a package of wallpapers")
    random = np.random.default_rng(1)
    total = 0
    for i in range(options.count):
        image = photographs[i % len(photographs)]
        width, height = (int(side * random.uniform(0.9, 1.1)) for side in (options.width, options.height))
        # A part of the source between its whole and what fills the picture pixel by pixel.
        largest = min(image.width / width, image.height / height)
        scale = random.uniform(min(1.0, largest), largest)
        w, h = int(width * scale), int(height * scale)
        x, y = int(random.integers(0, image.width - w + 1)), int(random.integers(0, image.height - h + 1))
        part = image.resize((width, height), Image.LANCZOS, box=(x, y, x + w, y + h))
        noisy = np.asarray(part, np.float32) + random.normal(0, random.uniform(2, 6), (height, width, 1))
        path = options.folder / f"{i % 10}" / f"{i:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=int(random.integers(90, 99)), subsampling=2)
        total += path.stat().st_size
    print(f"{options.count} photographs of {len(photographs)} sources, {total / options.count / 1000:.0f} KB on average")


if __name__ == "__main__":
    main()
