"""CPU time per picture of flatout.feed and of other input pipelines, interleaved in one run.

Task: random-resized-crop (0.08 to 1) to 224, flip, normalise, NCHW float32. Each peer runs in a process of its own, one epoch to warm up
and one measured; CPU seconds count the whole process tree. Beside them: the first epoch (with imports and set-up), seconds from the start of
the process to the first batch, and memory (PSS) at the end. Peers that are not installed are left out, and said so. The `loop_` ones train a
small PyTorch network on the batches.

    python bench/feed/compare.py FOLDER [--rounds 5] [--threads 2] [--batch 64] [--csv bench/results/feed.csv]
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


# Each peer gives the size of batch after batch, and 0 at the end of an epoch.


def flatout(folder, threads, batch, **options):
    sys.path.insert(0, str(ROOT / "python"))
    from flatout.feed import Loader

    loader = Loader(folder, batch, 224, threads=threads, form="batch", **options)
    while True:
        for b in loader:
            yield len(b)
        yield 0


def flatout_scaled(folder, threads, batch):
    return flatout(folder, threads, batch, mode="scaled")


def flatout_no_index(folder, threads, batch):
    return flatout(folder, threads, batch, index="off")


def dali_pipeline(folder, threads, batch, antialias=True):
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=None)
    def pipeline():
        data, labels = fn.readers.file(file_root=folder, random_shuffle=True, name="reader")
        images = fn.decoders.image_random_crop(data, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        images = fn.resize(images, size=[224, 224], interp_type=types.INTERP_LINEAR, antialias=antialias)
        return fn.crop_mirror_normalize(images, mirror=fn.random.coin_flip(), dtype=types.FLOAT, output_layout="CHW",
                                        mean=[m * 255 for m in MEAN], std=[s * 255 for s in STD]), labels

    return pipeline()


def dali(folder, threads, batch, antialias=True):
    pipe = dali_pipeline(folder, threads, batch, antialias)
    pipe.build()
    count = pipe.epoch_size("reader")
    while True:
        for _ in range(0, count, batch):
            pipe.run()
            yield batch
        yield 0


def dali_no_antialias(folder, threads, batch):
    return dali(folder, threads, batch, False)


def torch_loader(folder, batch, dataset_loader, transform):
    import torch
    from torchvision.datasets import ImageFolder

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(ImageFolder(folder, transform, loader=dataset_loader), batch, shuffle=True)
    while True:
        for _, labels in loader:
            yield len(labels)
        yield 0


def tf_data(folder, threads, batch):
    """Decodes the crop alone; without antialias, which tf.image has only for whole tensors."""
    import tensorflow as tf

    files = sorted(str(p) for p in pathlib.Path(folder).glob("*/*.jpg"))
    mean, std = tf.constant(MEAN) * 255, tf.constant(STD) * 255

    def sample(path):
        data = tf.io.read_file(path)
        shape = tf.image.extract_jpeg_shape(data)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, tf.zeros([1, 0, 4]), 0, aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0), use_image_if_no_bounding_boxes=True)
        image = tf.io.decode_and_crop_jpeg(data, tf.concat([begin[:2], size[:2]], 0), 3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, [224, 224]))
        return tf.transpose((image - mean) / std, [2, 0, 1])

    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    data = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).map(sample, threads).batch(batch).prefetch(2).with_options(options)
    while True:
        for images in data:
            yield len(images)
        yield 0


def training_step(batch):
    """One step of a small network, of the same cost for each peer."""
    import torch

    torch.set_num_threads(1)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 8, 8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step(images, labels):
        loss = torch.nn.functional.cross_entropy(network(images), labels.flatten().long() % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return len(labels)

    return step


def loop_flatout(folder, threads, batch):
    step = training_step(batch)
    sys.path.insert(0, str(ROOT / "python"))
    from flatout.feed import Loader

    loader = Loader(folder, batch, 224, threads=threads)
    while True:
        for images, labels in loader:
            yield step(images, labels)
        yield 0


def loop_dali(folder, threads, batch):
    step = training_step(batch)
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    loader = DALIGenericIterator([dali_pipeline(folder, threads, batch)], ["images", "labels"], reader_name="reader",
                                 last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True)
    while True:
        for out in loader:
            yield step(out[0]["images"], out[0]["labels"])
        yield 0


def pillow(folder, threads, batch):
    from torchvision import transforms
    from torchvision.datasets.folder import pil_loader

    return torch_loader(folder, batch, pil_loader, transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]))


def pillow_draft(folder, threads, batch):
    """JPEG at reduced size, as Pillow's draft mode offers, where that stays at least the target's size."""
    from PIL import Image
    from torchvision import transforms

    def load(path):
        image = Image.open(path)
        image.draft("RGB", (224, 224))
        return image.convert("RGB")

    return torch_loader(folder, batch, load, transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]))


def simplejpeg_scaled(folder, threads, batch):
    """Scaled decode of the whole, then OpenCV's area average."""
    import cv2
    import numpy as np
    import simplejpeg
    import torch
    from torchvision.transforms import RandomResizedCrop

    cv2.setNumThreads(1)
    mean, std = np.float32(MEAN) * 255, np.float32(STD) * 255

    def load(path):
        with open(path, "rb") as file:
            data = file.read()
        height, width = simplejpeg.decode_jpeg_header(data)[:2]
        # The crop is drawn first: it says how small the decoded picture may be.
        y, x, h, w = RandomResizedCrop.get_params(torch.empty(1, height, width), (0.08, 1.0), (3 / 4, 4 / 3))
        by = max(1, min(h, w) // 224)
        image = simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False, min_height=-(-height // by), min_width=-(-width // by))
        f = image.shape[0] / height
        part = image[int(y * f):int((y + h) * f), int(x * f):int((x + w) * f)]
        out = cv2.resize(part, (224, 224), interpolation=cv2.INTER_AREA)
        out = out[:, ::-1] if torch.rand(()) < 0.5 else out
        return torch.from_numpy(np.ascontiguousarray(((out - mean) / std).transpose(2, 0, 1), np.float32))

    return torch_loader(folder, batch, load, None)


def torchvision_v2(folder, threads, batch):
    import torch
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    return torch_loader(folder, batch, lambda path: decode_image(path, ImageReadMode.RGB), v2.Compose([
        v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]))


def beton(folder):
    """The file that FFCV reads, beside the folder: the JPEG data as they are."""
    path = pathlib.Path(folder).resolve().with_suffix(".beton")
    if not path.exists():
        from ffcv.fields import IntField, RGBImageField
        from ffcv.writer import DatasetWriter
        from torchvision.datasets import ImageFolder

        fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=95), "label": IntField()}
        DatasetWriter(str(path), fields, num_workers=1).from_indexed_dataset(ImageFolder(folder))
    return str(path)


def ffcv(folder, threads, batch):
    """From its own file, made before: the pictures once more encoded, at quality 95, as it does."""
    import numpy as np
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage

    images = [RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip(),
              NormalizeImage(np.array(MEAN) * 255, np.array(STD) * 255, np.float32), ToTensor(), ToTorchImage()]
    loader = Loader(beton(folder), batch, threads, order=OrderOption.RANDOM, drop_last=False, pipelines={"image": images, "label": None})
    while True:
        for out in loader:
            yield len(out[0])
        yield 0


def spdl(folder, threads, batch):
    """FFmpeg's decoder and filters in SPDL's threads; bilinear without antialias."""
    import math
    import random

    import spdl.io
    import torch
    from spdl.pipeline import PipelineBuilder

    torch.set_num_threads(1)
    files = sorted(str(p) for p in pathlib.Path(folder).glob("*/*.jpg"))
    mean, std = (torch.tensor(v).mul(255).view(1, 3, 1, 1) for v in (MEAN, STD))

    def decode(path):
        area, ratio = random.uniform(0.08, 1), math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        crop = (f"crop=w='min(iw,sqrt({area}*iw*ih*{ratio}))':h='min(ih,sqrt({area}*iw*ih/{ratio}))'"
                f":x='(iw-ow)*{random.random()}':y='(ih-oh)*{random.random()}'")
        flip = ",hflip" if random.random() < 0.5 else ""
        return spdl.io.decode_packets(spdl.io.demux_image(path), filter_desc=f"{crop},scale=224:224:flags=bilinear{flip},format=rgb24")

    def finish(frames):
        images = spdl.io.to_torch(spdl.io.convert_frames(frames))
        return (images.permute(0, 3, 1, 2) - mean) / std

    while True:
        order = random.sample(files, len(files))
        pipeline = PipelineBuilder().add_source(order).pipe(decode, concurrency=threads).aggregate(batch).pipe(finish).add_sink(2)
        made = pipeline.build(num_threads=threads)
        with made.auto_stop():
            for images in made:
                yield len(images)
        yield 0


PEERS = {f.__name__: f for f in (flatout, flatout_no_index, flatout_scaled, dali, dali_no_antialias, tf_data, ffcv, spdl, torchvision_v2, pillow, pillow_draft,
                                 simplejpeg_scaled, loop_flatout, loop_dali)}


def pss_mb() -> float:
    """Of this process; DataLoaders here have no workers."""
    return next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:")) / 1000


def measure(name, folder, threads, batch, started):
    """In a process of its own: pictures, CPU ms per picture of the first and the second epoch, wall seconds of the second, seconds to the
    first batch, PSS."""
    batches = PEERS[name](folder, threads, batch)
    count = next(batches)
    cold = time.time() - started
    count += sum(iter(lambda: next(batches), 0))
    first, wall = cpu_seconds(), time.perf_counter()
    count = sum(iter(lambda: next(batches), 0))
    second = cpu_seconds() - first
    print(count, first * 1000 / count, second * 1000 / count, time.perf_counter() - wall, cold, pss_mb())
    sys.stdout.flush()
    os._exit(0)  # some peers' threads take seconds to end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--csv")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one, options.folder, options.threads, options.batch, options.started)
    if "ffcv" in options.peers.split(","):
        subprocess.run([sys.executable, "-c", "import sys, compare; compare.beton(sys.argv[1])", options.folder], cwd=pathlib.Path(__file__).parent,
                       capture_output=True, check=False)  # where it fails, so does the peer, and is left out
    rows = []
    for round_number in range(options.rounds):
        for name in options.peers.split(","):
            done = subprocess.run([sys.executable, __file__, options.folder, "--one", name, "--threads", str(options.threads), "--batch", str(options.batch),
                                   "--started", str(time.time())],
                                  capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"{name}: left out: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
                continue
            count, first_ms, cpu_ms, wall, cold, pss = map(float, done.stdout.split()[-6:])
            rows.append({"round": round_number, "peer": name, "images": int(count), "cpu_ms_per_image": round(cpu_ms, 4),
                         "images_per_s": round(count / wall, 1), "load": round(os.getloadavg()[0], 1), "first_epoch_cpu_ms": round(first_ms, 4),
                         "first_batch_s": round(cold, 3), "pss_mb": round(pss, 1)})
            print(rows[-1])
            sys.stdout.flush()
    columns = ("cpu_ms_per_image", "first_epoch_cpu_ms", "images_per_s", "first_batch_s", "pss_mb")
    middle = {}
    for name in options.peers.split(","):
        mine = [r for r in rows if r["peer"] == name]
        if mine:
            middle[name] = {c: sorted(r[c] for r in mine)[len(mine) // 2] for c in columns}
    print(f"{'medians':20} CPU ms/image  first epoch  images/s  first batch s  PSS MB  flatout / it")
    for name, m in middle.items():
        ratio = f"{middle['flatout']['cpu_ms_per_image'] / m['cpu_ms_per_image']:12.2f}" if "flatout" in middle else ""
        print(f"{name:20} {m['cpu_ms_per_image']:12.3f} {m['first_epoch_cpu_ms']:12.3f} {m['images_per_s']:9.0f} {m['first_batch_s']:14.2f} {m['pss_mb']:7.0f} {ratio}")
    if options.csv:
        with open(options.csv, "w", newline="") as out:
            writer = csv.DictWriter(out, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
