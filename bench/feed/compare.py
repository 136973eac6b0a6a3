"""CPU time per picture of flatout.feed and of other input pipelines, interleaved in one run.

Task: random-resized-crop (0.08 to 1) to 224, flip, normalise, NCHW float32. Each peer runs in a process of its own, one epoch to warm up
and one measured; CPU seconds count the whole process tree. Peers that are not installed are left out, and said so.

    python bench/feed/compare.py FOLDER [--rounds 3] [--threads 2] [--batch 64] [--csv bench/results/feed.csv]
"""

import argparse
import csv
import os
import pathlib
import resource
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def cpu_seconds() -> float:
    return sum(u.ru_utime + u.ru_stime for u in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)))


def flatout(folder, threads, batch, mode="exact"):
    sys.path.insert(0, str(ROOT / "python"))
    from flatout.feed import Loader

    loader = Loader(folder, batch, 224, threads=threads, mode=mode, form="batch")
    while True:
        yield sum(len(b) for b in loader)


def flatout_scaled(folder, threads, batch):
    return flatout(folder, threads, batch, "scaled")


def dali(folder, threads, batch, antialias=True):
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=None)
    def pipeline():
        data, labels = fn.readers.file(file_root=folder, random_shuffle=True, name="reader")
        images = fn.decoders.image_random_crop(data, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        images = fn.resize(images, size=[224, 224], interp_type=types.INTERP_LINEAR, antialias=antialias)
        return fn.crop_mirror_normalize(images, mirror=fn.random.coin_flip(), dtype=types.FLOAT, output_layout="CHW",
                                        mean=[m * 255 for m in MEAN], std=[s * 255 for s in STD]), labels

    pipe = pipeline()
    pipe.build()
    count = pipe.epoch_size("reader")
    while True:
        done = 0
        while done < count:
            pipe.run()
            done += batch
        yield done


def dali_no_antialias(folder, threads, batch):
    return dali(folder, threads, batch, False)


def torch_loader(folder, batch, dataset_loader, transform):
    import torch
    from torchvision.datasets import ImageFolder

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(ImageFolder(folder, transform, loader=dataset_loader), batch, shuffle=True)
    while True:
        yield sum(len(labels) for _, labels in loader)


def pillow(folder, threads, batch):
    from torchvision import transforms
    from torchvision.datasets.folder import pil_loader

    return torch_loader(folder, batch, pil_loader, transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]))


def torchvision_v2(folder, threads, batch):
    import torch
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    return torch_loader(folder, batch, lambda path: decode_image(path, ImageReadMode.RGB), v2.Compose([
        v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]))


PEERS = {f.__name__: f for f in (flatout, flatout_scaled, dali, dali_no_antialias, torchvision_v2, pillow)}


def measure(name, folder, threads, batch):
    """In a process of its own: pictures, CPU ms per picture and wall seconds of the second epoch."""
    epochs = PEERS[name](folder, threads, batch)
    next(epochs)
    cpu, wall = cpu_seconds(), time.perf_counter()
    count = next(epochs)
    print(count, (cpu_seconds() - cpu) * 1000 / count, time.perf_counter() - wall)
    sys.stdout.flush()
    os._exit(0)  # some peers' threads take seconds to end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--csv")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one, options.folder, options.threads, options.batch)
    rows = []
    for round_number in range(options.rounds):
        for name in options.peers.split(","):
            done = subprocess.run([sys.executable, __file__, options.folder, "--one", name, "--threads", str(options.threads), "--batch", str(options.batch)],
                                  capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"{name}: left out: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
                continue
            count, cpu_ms, wall = done.stdout.split()[-3:]
            rows.append({"round": round_number, "peer": name, "images": int(count), "cpu_ms_per_image": round(float(cpu_ms), 4),
                         "images_per_s": round(int(count) / float(wall), 1), "load": round(os.getloadavg()[0], 1)})
            print(rows[-1])
            sys.stdout.flush()
    middle = {}
    for name in options.peers.split(","):
        values = sorted(r["cpu_ms_per_image"] for r in rows if r["peer"] == name)
        if values:
            middle[name] = values[len(values) // 2]
    for name, value in middle.items():
        print(f"{name:20} {value:8.3f} CPU ms/image" + (f"   flatout / it: {middle['flatout'] / value:.2f}" if "flatout" in middle else ""))
    if options.csv:
        with open(options.csv, "w", newline="") as out:
            writer = csv.DictWriter(out, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
