"""flatout train: losses against PyTorch on the same weights and data, exact resume, replicas, ranks."""

import io
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "feed"))

import nasty  # noqa: E402
from networks import LeNet, ResNet20  # noqa: E402
from torch.nn import functional as F  # noqa: E402

pytestmark = pytest.mark.parallel


def train(flatout, *options, env=None, timeout=300):
    """The JSON that a run prints."""
    done = subprocess.run([flatout, "train", "--json", *map(str, options)], capture_output=True, text=True, timeout=timeout, check=False,
                          env=dict(os.environ, **(env or {})))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def header_of(data):
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + length]), length


def metadata_of(path):
    return header_of(path.read_bytes())[0]["__metadata__"]


def read_safetensors(path):
    data = path.read_bytes()
    header, length = header_of(data)
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32"
        out[name] = torch.from_numpy(np.frombuffer(data[8 + length + begin:8 + length + end], np.float32).reshape(entry["shape"]).copy())
    return out


def write_safetensors(path, tensors):
    header, blob = {}, b""
    for name, value in tensors.items():
        raw = value.detach().numpy().astype(np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def pictures(count, shape, seed):
    """Something to learn: a picture for each class, under noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count).astype(np.uint8)
    ground = random.uniform(60, 190, (10, *shape))
    return np.clip(ground[labels] + random.normal(0, 50, (count, *shape)), 0, 255).astype(np.uint8), labels


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """PyTorch's sums depend on how many threads share them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def mnist_like(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mnist")
    images, labels = pictures(640, (28, 28), 1)
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, *images.shape) + images.tobytes())
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, len(labels)) + labels.tobytes())
    return folder, images[:, None], labels


@pytest.fixture(scope="module")
def cifar_like(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cifar")
    images, labels = pictures(160, (3, 32, 32), 2)
    (folder / "data_batch_1.bin").write_bytes(b"".join(bytes([y]) + x.tobytes() for x, y in zip(images, labels)))
    return folder, images, labels


def reference(model, optimizer, images, labels, batch, steps, first=0):
    """PyTorch's losses of `steps` steps from step `first` on, on the batches that --plain makes."""
    x = torch.from_numpy(images).float() * np.float32(1 / 127.5) - 1
    y = torch.from_numpy(labels).long()
    losses = []
    for step in range(first, first + steps):
        at = [(step * batch + i) % len(y) for i in range(batch)]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[at]), y[at])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def weights_of(model):
    return {k: v for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}


CASES = {
    "sgd": (["--learning-rate", 0.01, "--weight-decay", 1e-3],
            lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, weight_decay=1e-3)),
    "adam": (["--optimizer", "adam", "--learning-rate", 0.0005, "--weight-decay", 1e-3],
             lambda p: torch.optim.Adam(p, 0.0005, weight_decay=1e-3)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hundred_steps_of_lenet_are_pytorchs(flatout, tmp_path, mnist_like, case):
    options, make_optimizer = CASES[case]
    batch, steps = 20, 100
    folder, images, labels = mnist_like
    torch.manual_seed(5)
    model = LeNet()
    write_safetensors(tmp_path / "first.safetensors", weights_of(model))
    ours = train(flatout, "--model", "lenet", "--data", folder, "--plain", "--weights", tmp_path / "first.safetensors", "--batch", batch,
                 "--steps", steps, "--checkpoint", tmp_path / "last.safetensors", *options)
    theirs = reference(model, make_optimizer(model.parameters()), images, labels, batch, steps)
    assert theirs[-5:].mean() < theirs[:5].mean()  # it learns
    error = np.abs(np.array(ours["losses"]) / theirs - 1)
    assert len(error) == steps and error.max() < 1e-4, f"step {error.argmax()}: {error.max():.2g}"
    # The checkpoint is PyTorch's state_dict, the running statistics included.
    last = read_safetensors(tmp_path / "last.safetensors")
    for key, value in weights_of(model).items():
        torch.testing.assert_close(last[key], value, rtol=2e-3, atol=2e-3)


def test_a_hundred_steps_of_resnet20_are_pytorchs(flatout, tmp_path, cifar_like):
    """Rounding grows tenfold a step in this job, whoever computes it, so that two runs of 100 steps say nothing about each other. Here
    every two steps begin, on both sides, with what is in our checkpoint."""
    folder, images, labels = cifar_like
    batch, stretch, begin = 16, 2, tmp_path / "0.safetensors"
    torch.manual_seed(5)
    model = ResNet20()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    write_safetensors(begin, weights_of(model))
    losses = []
    for first in range(0, 100, stretch):
        end = tmp_path / f"{first + stretch}.safetensors"
        ours = train(flatout, "--model", "resnet20", "--data", folder, "--plain", "--batch", batch, "--steps", first + stretch,
                     "--learning-rate", 0.01, "--weight-decay", 1e-4, "--weights" if first == 0 else "--resume", begin, "--checkpoint", end)
        state = read_safetensors(begin)
        model.load_state_dict({key: state[key] for key in weights_of(model)}, strict=False)
        for name, parameter in model.named_parameters():
            if first > 0:
                optimizer.state[parameter]["momentum_buffer"] = state[f"optimizer.momentum.{name}"]
        theirs = reference(model, optimizer, images, labels, batch, stretch, first)
        np.testing.assert_allclose(ours["losses"], theirs, rtol=1e-4, err_msg=f"steps {first} to {first + stretch}")
        after = read_safetensors(end)
        for key, value in weights_of(model).items():  # the checkpoint is PyTorch's state_dict, the running statistics included
            torch.testing.assert_close(after[key], value, rtol=2e-3, atol=2e-3, msg=lambda m, key=key: f"{key} after {first} steps: {m}")
        losses += ours["losses"]
        begin = end
    assert len(losses) == 100 and np.mean(losses[-5:]) < np.mean(losses[:5])  # it learns


def test_a_stopped_run_is_saved_where_it_stopped(flatout, tmp_path):
    file = tmp_path / "run.safetensors"
    options = ["--model", "lenet", "--batch", "4", "--samples", "1024"]  # 256 steps an epoch
    run = subprocess.Popen([flatout, "train", *options, "--steps", "1000000", "--checkpoint", file], stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline().startswith("epoch")
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=100)
    assert run.returncode == 128 + signal.SIGINT
    steps = int(re.search(r"^(\d+) steps in", out, re.MULTILINE)[1])
    assert int(metadata_of(file)["step"]) == steps
    whole = train(flatout, *options, "--steps", steps + 3)
    rest = train(flatout, *options, "--steps", steps + 3, "--resume", file)
    assert rest["losses"] == whole["losses"][steps:]


@pytest.mark.parametrize("options", [
    ["--model", "lenet", "--optimizer", "adam"],
    ["--model", "lenet", "--replicas", 2, "--weight-decay", 1e-3],
    ["--model", "resnet20", "--batch", 8],
    ["--model", "small"],
], ids=["adam", "replicas", "resnet20", "small"])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(flatout, tmp_path, options):
    options = [*options, "--samples", 96]
    file = tmp_path / "run.safetensors"
    whole = train(flatout, *options, "--steps", 8)
    half = train(flatout, *options, "--steps", 5, "--checkpoint", file)
    rest = train(flatout, *options, "--steps", 8, "--resume", file)
    assert half["losses"] + rest["losses"] == whole["losses"]
    assert rest["weights"] == whole["weights"] != half["weights"]
    assert rest["first_step"] == 5


def jpeg_folder(root):
    from PIL import Image

    random = np.random.default_rng(3)
    for label, colour in enumerate(((200, 60, 60), (60, 60, 200))):
        folder = root / f"class{label}"
        folder.mkdir()
        for i in range(12):
            noise = random.normal(0, 20, (48, 56, 3))
            Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)).save(folder / f"{i}.jpg")
    return root


def test_a_folder_of_pictures_is_learnt_and_resumed(flatout, tmp_path):
    (tmp_path / "pictures").mkdir()
    options = ["--model", "resnet20", "--data", jpeg_folder(tmp_path / "pictures"), "--batch", 8]
    whole = train(flatout, *options, "--steps", 10)
    assert whole["losses"][-1] < whole["losses"][0]
    file = tmp_path / "run.safetensors"
    half = train(flatout, *options, "--steps", 4, "--checkpoint", file)  # in the second epoch
    rest = train(flatout, *options, "--steps", 10, "--resume", file)
    assert half["losses"] + rest["losses"] == whole["losses"]
    assert rest["weights"] == whole["weights"]
    assert train(flatout, "--model", "lenet", *options[2:], "--steps", 2)["steps"] == 2  # grey


def test_archives_are_learnt_as_the_folder_is(flatout, tmp_path):
    (tmp_path / "pictures").mkdir()
    files = sorted(jpeg_folder(tmp_path / "pictures").glob("*/*.jpg"))
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        for i, file in enumerate(files):
            for name, data in ((f"{i:03}.jpg", file.read_bytes()), (f"{i:03}.cls", file.parent.name[-1:].encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    records = (nasty.record(nasty.example(file.read_bytes(), int(file.parent.name[-1]))) for file in files)
    (tmp_path / "train.tfrecord").write_bytes(b"".join(records))
    options = ["--model", "lenet", "--batch", 8, "--steps", 4, "--data"]
    want = train(flatout, *options, tmp_path / "pictures")["losses"]
    for archive in ("train.tar", "train.tfrecord"):
        assert train(flatout, *options, tmp_path / archive, "--classes", 2)["losses"] == want
        code, text = failed(flatout, *options, tmp_path / archive)
        assert code == 2 and "--classes" in text
    (tmp_path / "far.tfrecord").write_bytes(nasty.record(nasty.example(files[0].read_bytes(), 7)) * 8)
    code, text = failed(flatout, *options, tmp_path / "far.tfrecord", "--classes", 7)
    assert code == 2 and "label is 7" in text and "--classes" in text


def test_replicas_with_synchronised_statistics_train_as_one_device(flatout):
    # Three steps: batches of 16 amplify rounding some thirtyfold a step here, PyTorch's own as well (docs/train.md).
    options = ["--model", "resnet20", "--batch", 16, "--steps", 3, "--samples", 64]
    one = train(flatout, *options)
    two = train(flatout, *options, "--replicas", 2, "--sync-batch-norm")
    apart = train(flatout, *options, "--replicas", 2)
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-4)
    assert abs(apart["losses"][0] / one["losses"][0] - 1) > 1e-4
    assert two["replicas"] == 2 and one["device_bytes"] < two["device_bytes"] < 2 * one["device_bytes"] + (8 << 20)


def failed(flatout, *options, env=None):
    done = subprocess.run([flatout, "train", *map(str, options)], capture_output=True, text=True, timeout=120, check=False,
                          env=dict(os.environ, **(env or {})))
    return done.returncode, done.stderr


def test_bad_input_is_named(flatout, tmp_path, mnist_like):
    code, text = failed(flatout, "--model", "resnet20", "--batch", 64, "--device-memory", "24MiB")
    assert code == 1 and "24.0 MiB" in text and "--batch" in text
    code, text = failed(flatout, "--model", "vgg")
    assert code == 2 and '"vgg"' in text
    code, text = failed(flatout, "--replicas", 3, "--batch", 32)
    assert code == 2 and "32" in text and "3 devices" in text
    code, text = failed(flatout, "--model", "small", "--replicas", 2)
    assert code == 2 and "small" in text
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"no")
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"no")
    code, text = failed(flatout, "--model", "lenet", "--data", tmp_path)
    assert code == 2 and "train-images-idx3-ubyte" in text
    code, text = failed(flatout, "--model", "lenet", "--data", tmp_path / "nothing")
    assert code == 1 and "nothing" in text
    (tmp_path / "w").write_bytes(b"\0" * 20)
    code, text = failed(flatout, "--model", "lenet", "--weights", tmp_path / "w")
    assert code == 2 and "safetensors" in text


def test_a_checkpoint_takes_no_links_or_devices_place(flatout, tmp_path):
    options = ["--model", "lenet", "--samples", 64, "--steps", 2]
    old_mask = os.umask(0o027)
    try:
        want = tmp_path / "plain"
        train(flatout, *options, "--checkpoint", want)
        assert want.stat().st_mode & 0o777 == 0o640
        (tmp_path / "real").write_bytes(b"old")
        (tmp_path / "real").chmod(0o604)
        (tmp_path / "link").symlink_to("real")
        train(flatout, *options, "--checkpoint", tmp_path / "link")
        assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == want.read_bytes()
        assert (tmp_path / "real").stat().st_mode & 0o777 == 0o604
        (tmp_path / "dangling").symlink_to("new")
        train(flatout, *options, "--checkpoint", tmp_path / "dangling")
        assert (tmp_path / "new").read_bytes() == want.read_bytes()
    finally:
        os.umask(old_mask)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to("pipe")
    for name in ("pipe", "to_pipe"):
        code, text = failed(flatout, *options, "--checkpoint", tmp_path / name)
        assert code == 2 and f"{name} is a pipe" in text and "every epoch" in text
    assert (tmp_path / "pipe").is_fifo()
    try:
        os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (tmp_path / "null").write_bytes(b"")
    except PermissionError:
        return  # no device can be made or opened here
    train(flatout, *options, "--checkpoint", tmp_path / "null")
    assert (tmp_path / "null").is_char_device()


def test_a_loss_that_is_no_number_ends_the_run_and_spares_the_checkpoint(flatout, tmp_path):
    file = tmp_path / "run.safetensors"
    train(flatout, "--model", "lenet", "--steps", 2, "--checkpoint", file)
    saved = file.read_bytes()
    code, text = failed(flatout, "--model", "lenet", "--steps", 40, "--learning-rate", 1000000, "--resume", file, "--checkpoint", file)
    assert code == 1 and "is no finite number" in text and "--learning-rate than 1000000" in text, text
    assert file.read_bytes() == saved


def test_what_is_resumed_is_what_was_saved(flatout, tmp_path):
    (tmp_path / "pictures").mkdir()
    folder = jpeg_folder(tmp_path / "pictures")
    file = tmp_path / "run.safetensors"
    options = ["--model", "lenet", "--data", folder, "--batch", 8]
    train(flatout, *options, "--steps", 2, "--checkpoint", file)
    code, text = failed(flatout, *options, "--steps", 2, "--resume", file)
    assert code == 0 and "nothing is left to do: 2 steps are done" in text, text
    (folder / "class0" / "3.jpg").unlink()  # the same place in it is another picture
    code, text = failed(flatout, *options, "--steps", 4, "--resume", file)
    assert code == 2 and "saved with samples" in text, text


def test_folders_that_are_no_classes_are_told_in_words_of_the_command(flatout, tmp_path):
    (tmp_path / "data" / "train").mkdir(parents=True)
    folder = jpeg_folder(tmp_path / "data" / "train")
    shutil.copytree(folder, tmp_path / "data" / "test")
    options = ["--model", "lenet", "--steps", 1, "--data"]
    code, text = failed(flatout, *options, tmp_path / "data")
    assert code == 2 and "are the parts of a data set, not classes" in text and f"--data {folder}\n" in text, text
    code, text = failed(flatout, *options, folder, "--batch", 4096)
    assert code == 2 and "less than a batch of 4096" in text and "a smaller --batch" in text and "drop_last" not in text, text
    code, text = failed(flatout, *options, folder, "--batch", 8, "--classes", 1)
    assert code == 0 and "--classes 1 has no effect: the data have 2" in text, text
    (folder / "empty").mkdir()
    code, text = failed(flatout, *options, folder, "--batch", 8)
    assert code == 2 and "train/empty, which would be a class" in text and "allow_empty" not in text, text
    for name, said in (("train-images-idx3-ubyte.gz", "gunzip"), ("data_batch_1", "the binary version")):
        other = tmp_path / f"of_{name}"
        other.mkdir()
        (other / name).write_bytes(b"x")
        code, text = failed(flatout, *options, other)
        assert code == 2 and name in text and said in text, text


def test_a_data_set_that_the_model_does_not_read_is_refused(flatout, tmp_path):
    for more in ([], ["--model", "large"], ["--inject", "none"]):
        code, text = failed(flatout, "--data", tmp_path / "nothing", "--steps", 2, *more)
        assert code == 2 and "does not learn from --data" in text and "--model lenet" in text


@pytest.mark.parametrize("options, said", [
    (["--nccl"], "--nccl has no effect: there is one rank"),
    (["--rank-timeout", 5], "--rank-timeout has no effect: there is one rank"),
    (["--seconds", 3], "--seconds has no effect: it is for --neighbours"),
    (["--classes", 3], "--classes has no effect"),
    (["--hang-seconds", 1], "--hang-seconds has no effect: it is for --inject stall.hang"),
    (["--model", "lenet", "--sync-batch-norm"], "--sync-batch-norm has no effect: the model lenet has no batch norm"),
    (["--optimizer", "adam"], "--optimizer has no effect: the model small has its own"),
    (["--learning-rate", 0.1], "--learning-rate has no effect: the model small has its own"),
    (["--device-memory", "64MiB"], "--device-memory has no effect"),
    (["--model", "lenet", "--optimizer", "adam", "--momentum", 0.5], "--momentum has no effect: it is for --optimizer sgd"),
    (["--inject", "mem.leak", "--data", "/nowhere"], "--data has no effect"),
])
def test_an_option_without_effect_is_told(flatout, options, said):
    code, text = failed(flatout, "--steps", 2, "--samples", 64, "--quiet", *options)
    assert code == 0 and text.count("warning") == 1 and said in text, text


def test_options_that_have_an_effect_are_not_told(flatout, tmp_path):
    (tmp_path / "pictures").mkdir()
    folder = jpeg_folder(tmp_path / "pictures")
    for options in (["--model", "resnet20", "--replicas", 2, "--sync-batch-norm", "--momentum", 0.5, "--learning-rate", 0.1, "--batch", 8],
                    ["--model", "lenet", "--data", folder, "--classes", 3, "--batch", 8, "--device-memory", "64MiB", "--weight-decay", 0.1],
                    ["--inject", "stall.logging", "--data", tmp_path]):
        assert failed(flatout, "--steps", 2, "--quiet", *options) == (0, "")


def test_bad_pictures_are_counted_at_the_end(flatout, tmp_path):
    (tmp_path / "pictures").mkdir()
    folder = jpeg_folder(tmp_path / "pictures")
    options = ["--model", "lenet", "--data", folder, "--batch", 8, "--steps", 6, "--quiet"]
    (folder / "class0" / "3.jpg").write_bytes(b"no picture")
    code, text = failed(flatout, *options)  # two epochs
    assert code == 0 and text.count("\n") == 1 and "class0/3.jpg (not_an_image) is bad: other samples took such places 2 times" in text, text
    (folder / "class1" / "5.jpg").write_bytes(b"")
    code, text = failed(flatout, *options)
    assert code == 0 and "and 1 more are bad: " in text and "4 times" in text, text
    for file in folder.glob("*/*.jpg"):
        file.write_bytes(b"no picture")
    code, text = failed(flatout, *options)
    assert code == 2 and "others were tried" in text and "of 23 others" in text, text


def test_it_is_said_that_the_system_refused_memory(flatout):
    command = 'ulimit -v 4000000; exec "$0" train --model lenet --steps 2 --samples 64 --threads 1 --loaders 1 "$@"'
    def limited(*more):
        return subprocess.run(["bash", "-c", command, flatout, *more], capture_output=True, text=True, timeout=120, check=False)
    if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 3e9:
        pytest.skip("the machine has no more memory than the limit leaves addresses for")
    done = limited()
    assert done.returncode == 1 and "the system refuses the device memory" in done.stderr and "3.81 GiB (ulimit -v)" in done.stderr, done.stderr
    done = limited("--device-memory", "64MiB")
    assert done.returncode == 0, done.stderr


def test_a_limit_on_the_size_of_files_is_named_and_spares_the_checkpoint(flatout, tmp_path):
    def limited(kib, *more):
        command = f'ulimit -f {kib}; exec "$0" train --samples 16 --batch 4 --steps 2 --threads 1 --checkpoint here.safetensors "$@"'
        return subprocess.run(["bash", "-c", command, flatout, *more], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    (tmp_path / "here.safetensors").write_bytes(b"an older one")
    done = limited(100, "--model", "lenet")
    assert done.returncode == 1 and "the system refuses the device memory" in done.stderr and "100 KiB (ulimit -f)" in done.stderr, done.stderr
    done = limited(2048, "--model", "resnet20", "--optimizer", "adam")  # a page of device memory may be so large, this checkpoint not
    assert done.returncode == 1 and "cannot write here.safetensors: File too large" in done.stderr, done.stderr
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("here.safetensors", b"an older one")]


# ---- ranks ----

def ranked(batch=32, steps=12, samples=128):
    return ["--model", "lenet", "--batch", batch, "--steps", steps, "--samples", samples, "--threads", 1, "--loaders", 1]


RANKED = ranked()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_ranks(flatout, size, *options, env=None):
    port = free_port()
    return [subprocess.Popen([flatout, "train", *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                                      **(env or {})))
            for rank in range(size)]


def end(processes, timeout=120):
    try:
        return [p.communicate(timeout=timeout) for p in processes]
    finally:
        for p in processes:
            p.kill()
            p.wait()


def test_ranks_train_as_one_process(flatout):
    one = train(flatout, *RANKED)
    ranks = start_ranks(flatout, 2, *RANKED, "--json")
    (out, errors), (nothing, _) = end(ranks)
    assert [p.returncode for p in ranks] == [0, 0], errors
    two = json.loads(out)
    assert two["ranks"] == 2 and not nothing
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-5)


def test_ranks_and_replicas_share_their_batch_norm(flatout):
    options = ["--model", "resnet20", "--batch", 16, "--steps", 3, "--samples", 64, "--threads", 1, "--loaders", 1]
    one = train(flatout, *options)
    ranks = start_ranks(flatout, 2, *options, "--replicas", 2, "--sync-batch-norm", "--json")
    (out, errors), _ = end(ranks)
    assert [p.returncode for p in ranks] == [0, 0], errors
    np.testing.assert_allclose(json.loads(out)["losses"], one["losses"], rtol=1e-4)


def assert_a_lost_rank_is_named(how, ranks):
    line = ranks[0].stdout.readline()  # an epoch is done: all three train
    assert line.startswith("epoch"), end(ranks)
    victim = ranks[1].pid
    ranks[1].send_signal(how)
    for rank in (0, 2):
        _, errors = ranks[rank].communicate(timeout=100)
        assert ranks[rank].returncode == 1 and "rank 1 (" in errors and f"process {victim})" in errors, errors
    ranks[1].kill()  # a stopped one would not end by itself
    end([ranks[1]])


LOST = pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])


@LOST
def test_a_lost_rank_is_named(flatout, how):
    assert_a_lost_rank_is_named(how, start_ranks(flatout, 3, *ranked(30, 1000000, 60), "--rank-timeout", 8))


@pytest.mark.parametrize("who", [[0], [1], [2, 0, 1]], ids=["first", "another", "all"])
def test_ranks_stop_together_where_one_is_told_to(flatout, tmp_path, who):
    file = tmp_path / "run.safetensors"
    ranks = start_ranks(flatout, 3, *ranked(30, 1000000, 60), "--checkpoint", file)
    line = ranks[0].stdout.readline()  # an epoch is done: all three train
    assert line.startswith("epoch"), end(ranks)
    for rank in who:
        ranks[rank].send_signal(signal.SIGTERM)
    (out, errors), *others = end(ranks)
    assert [p.returncode for p in ranks] == [128 + signal.SIGTERM] * 3, errors
    assert "error" not in errors + "".join(text for _, text in others)
    assert ("a rank was told to stop (SIGTERM): all have" in errors) == (0 not in who)
    steps = int(out.splitlines()[-1].split()[0])
    assert metadata_of(file)["step"] == str(steps)  # where they stopped, not where the last epoch ended


def test_ranks_with_other_options_are_refused(flatout, tmp_path):
    weights = tmp_path / "weights"
    train(flatout, *RANKED, "--seed", 7, "--checkpoint", weights)
    for of_the_second, differing in (
        (["--seed", 7], "--seed (here 1)"),
        (["--learning-rate", 0.1], "--learning-rate (here 0.02)"),
        (["--weights", weights], "the weights to begin with (here "),
        (["--plain", "--nccl"], "--plain (here not given), --nccl (here not given)"),
    ):
        port = free_port()
        ranks = []
        for rank, more in enumerate(([], of_the_second)):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            ranks.append(subprocess.Popen([flatout, "train", *map(str, [*RANKED, *more]), "--rank-timeout", "20"], env=env,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        (_, errors), (_, of_the_other) = end(ranks)
        assert [p.returncode for p in ranks] == [2, 2] and f"rank 1 was started with other options: {differing}" in errors, errors
        assert f"rank 0 was started with other options: {differing.split(' (')[0]}" in of_the_other, of_the_other


def test_torchrun_starts_ranks(flatout):
    one = train(flatout, *RANKED)
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()),
                           "--no-python", flatout, "train", "--json", *map(str, RANKED)],
                          capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][0])
    assert result["ranks"] == 2
    np.testing.assert_allclose(result["losses"], one["losses"], rtol=1e-5)


@pytest.fixture(scope="module")
def mpirun():
    path = shutil.which("mpirun")
    if path is None:
        pytest.skip("no mpirun: install openmpi-bin")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in version:
        pytest.skip(f"mpirun is not Open MPI's: {version.splitlines()[:1]}")
    return [path, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader,tcp"]


def test_mpirun_starts_ranks(flatout, mpirun):
    one = train(flatout, *RANKED)
    done = subprocess.run([*mpirun, "-n", "4", flatout, "train", "--json", *map(str, RANKED)],
                          capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][0])
    assert result["ranks"] == 4
    np.testing.assert_allclose(result["losses"], one["losses"], rtol=1e-5)


def test_ranks_stop_together_under_mpi(flatout, mpirun, tmp_path):
    marker = tmp_path / "pids"
    script = f'echo $OMPI_COMM_WORLD_RANK $$ >> {marker}; exec "$@"'
    run = subprocess.Popen([*mpirun, "-n", "2", "sh", "-c", script, "sh", flatout, "train", *map(str, ranked(steps=1000000))],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout.readline().startswith("epoch")
    pids = dict(map(int, line.split()) for line in marker.read_text().splitlines())
    os.kill(pids[1], signal.SIGTERM)
    (out, errors), = end([run], 100)
    assert "2 ranks over mpi" in out.splitlines()[-1] and "flatout: error" not in errors, errors


def test_a_late_rank_is_named_under_mpi(flatout, mpirun, tmp_path):
    marker = tmp_path / "pids"
    script = f'echo $OMPI_COMM_WORLD_RANK $$ >> {marker}; exec "$@"'
    run = subprocess.Popen([*mpirun, "-n", "2", "sh", "-c", script, "sh", flatout, "train", *map(str, ranked(steps=1000000)),
                            "--rank-timeout", "8"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout.readline().startswith("epoch")
    pids = dict(map(int, line.split()) for line in marker.read_text().splitlines())
    os.kill(pids[1], signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            line = run.stderr.readline()
            if "rank 1 of 2" in line or not line:
                break
        assert "rank 1 of 2" in line
    finally:
        os.kill(pids[1], signal.SIGKILL)
        run.kill()
        run.communicate(timeout=60)


# ---- over NCCL ----

@pytest.fixture(scope="module")
def stand_in(flatout):
    """The environment in which a stand-in plays eight cards and NCCL."""
    libraries = pathlib.Path(flatout).parent / "nccl_stand_in"
    if not (libraries / "libnccl.so.2").exists():
        pytest.skip(f"no stand-in for NCCL in {libraries}: build with -DFLATOUT_BUILD_TESTS=ON")
    return {"LD_LIBRARY_PATH": str(libraries)}


def test_ranks_over_nccl_train_as_over_sockets(flatout, tmp_path, stand_in):
    checkpoints = [tmp_path / "sockets.safetensors", tmp_path / "nccl.safetensors"]
    results = []
    for checkpoint, options in zip(checkpoints, ([], ["--nccl"])):
        ranks = start_ranks(flatout, 3, *ranked(30, 12, 120), "--json", "--checkpoint", checkpoint, *options, env=stand_in)
        (out, errors), *_ = end(ranks)
        assert [p.returncode for p in ranks] == [0] * 3, errors
        results.append(json.loads(out))
    assert results[0]["losses"] == results[1]["losses"] and results[0]["transport"] == "sockets" and results[1]["transport"] == "nccl"
    over_sockets, over_nccl = (read_safetensors(c) for c in checkpoints)
    assert over_sockets.keys() == over_nccl.keys()
    for name, weights in over_sockets.items():
        np.testing.assert_array_equal(weights, over_nccl[name], err_msg=name)


@LOST
def test_a_lost_rank_is_named_over_nccl(flatout, stand_in, how):
    assert_a_lost_rank_is_named(how, start_ranks(flatout, 3, *ranked(30, 1000000, 60), "--rank-timeout", 8, "--nccl", env=stand_in))


@pytest.mark.parametrize("fails", ["connect", "late"])
def test_messages_that_nccl_loses_end_the_run(flatout, stand_in, fails):
    ranks = start_ranks(flatout, 2, *RANKED, "--nccl", "--rank-timeout", 2, env={**stand_in, "NCCL_STAND_IN_FAILS": fails})
    for _, errors in end(ranks):
        assert "NCCL has not moved the ranks' messages in 2.00 s" in errors, errors
    assert [p.returncode for p in ranks] == [1, 1]


def test_a_rank_without_a_card_of_its_own_ends_all(flatout, mpirun, stand_in):
    done = subprocess.run([*mpirun, "-n", "3", flatout, "train", "--nccl", *map(str, ranked(30, 12, 120))], capture_output=True, text=True,
                          timeout=60, check=False, env=dict(os.environ, **stand_in, CUDA_STAND_IN_CARDS="2"))
    assert done.returncode == 2 and "ranks 0 and 2 have the same card" in done.stderr and "without --nccl" in done.stderr, done.stderr
    assert "has sent nothing" not in done.stderr


def test_a_rank_without_nccl_ends_all(flatout, stand_in):
    port = free_port()
    ranks = []
    for rank, env in enumerate([stand_in, {}]):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **env)
        ranks.append(subprocess.Popen([flatout, "train", *map(str, RANKED), "--nccl"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      text=True))
    (_, of_the_first), (_, of_the_second) = end(ranks)
    assert [p.returncode for p in ranks] == [1, 1]
    assert "rank 1 of 2: --nccl: there is no" in of_the_first, of_the_first
    assert "error: --nccl: there is no" in of_the_second and "cannot open shared object file" in of_the_second, of_the_second


def test_mpirun_starts_ranks_over_nccl(flatout, mpirun, stand_in):
    one = train(flatout, *RANKED)
    done = subprocess.run([*mpirun, "-n", "2", flatout, "train", "--json", "--nccl", *map(str, RANKED)],
                          capture_output=True, text=True, timeout=200, check=False, env=dict(os.environ, **stand_in))
    assert done.returncode == 0, done.stderr
    result = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][0])
    assert result["ranks"] == 2 and result["transport"] == "nccl"
    np.testing.assert_allclose(result["losses"], one["losses"], rtol=1e-5)
