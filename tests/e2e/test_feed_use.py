"""flatout.feed in the hands of a program: copies, several loops, threads and processes, folders as ImageFolder reads them, files that are not there."""

import copy
import io
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import threading
import zlib

import numpy as np
import pytest
from PIL import Image

from feed_package import BIN, ROOT, built, feed

pytestmark = [pytest.mark.parallel, built]


def picture(seed, form="JPEG"):
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 48, 3), np.uint8)).save(out, form)
    return out.getvalue()


def write(root, *names):
    for i, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(i))


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "data", *(f"{name}/{i}.jpg" for name in "abc" for i in range(4)))
    return tmp_path / "data"


def taken(loader):
    return [i for batch in loader for i in batch.indices]


# ---- copies ----


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_what_has_memory_of_its_own_is_not_copied(folder, how):
    with feed.Loader(folder, 4, 32, form="batch") as loader:
        with pytest.raises(TypeError, match=r"a Loader cannot be copied or pickled.*load_state_dict"):
            how(loader)
        batch = next(iter(loader))
        with pytest.raises(TypeError, match="a Batch cannot be copied"):
            how(batch)
        assert sorted(taken(loader)) == list(range(12))


def test_a_sample_that_a_stage_keeps_says_that_it_is_gone(folder):
    kept = []

    def stage(sample):
        with pytest.raises(TypeError, match="a Sample cannot be copied"):
            copy.copy(sample)
        kept.append(sample)

    with feed.Loader(folder, 12, 32, form="batch", stage=stage) as loader:
        assert len(next(iter(loader))) == 12
        for use in (lambda: kept[0].pixels, lambda: kept[0].label):
            with pytest.raises(RuntimeError, match="the stage has returned"):
                use()
        assert kept[0].epoch == 0


# ---- one place, several users ----


def test_a_second_loop_ends_the_first(folder):
    with feed.Loader(folder, 4, 32, form="batch") as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        assert len(next(second)) == 4
        with pytest.raises(feed.FeedError, match="another loop over this loader has begun"):
            next(first)
        assert len(list(second)) == 2
        for _ in loader:
            break
        assert sorted(taken(loader)) == list(range(12))


def test_threads_that_share_a_loader_are_told_and_one_has_its_epoch(folder):
    results = []
    with feed.Loader(folder, 1, 32, form="batch") as loader:
        begun = threading.Barrier(3)

        def loop():
            begun.wait(30)
            try:
                results.append(sorted(taken(loader)))
            except feed.FeedError as error:
                results.append(str(error))

        threads = [threading.Thread(target=loop) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    # Whoever came last has all of an epoch; so has who had ended before the next one began.
    whole = [result for result in results if result == list(range(12))]
    told = [result for result in results if "another loop" in result]
    assert len(whole) >= 1 and len(whole) + len(told) == 3, results


def test_a_loader_closed_by_another_thread_ends_the_loop(folder):
    held, go_on = threading.Event(), threading.Event()

    def stage(sample):
        held.set()
        go_on.wait(30)

    loader = feed.Loader(folder, 4, 32, form="batch", stage=stage)
    results = []

    def loop():
        try:
            results.append(taken(loader))
        except feed.FeedError as error:
            results.append(str(error))

    thread = threading.Thread(target=loop)
    thread.start()
    assert held.wait(30)
    closer = threading.Thread(target=loader.close)
    closer.start()
    go_on.set()
    thread.join(60)
    closer.join(60)
    assert not thread.is_alive() and not closer.is_alive() and len(results) == 1
    assert "closed" in results[0] or len(results[0]) == 12


def test_a_forked_process_is_told_whatever_it_asks(folder):
    """Before any lock, which a thread of the parent may have held."""
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT / "python")!r})
from flatout import feed
loader = feed.Loader({str(folder)!r}, 4, 32, form="batch")
next(iter(loader))
child = os.fork()
if child == 0:
    signal.alarm(20)
    for ask in (lambda: iter(loader), lambda: len(loader), lambda: loader.epoch, lambda: loader.samples, loader.report, loader.state_dict,
                lambda: loader.set_epoch(3)):
        try:
            ask()
        except feed.FeedError as error:
            assert "forked" in str(error), error
        else:
            os._exit(1)
    own = feed.Loader({str(folder)!r}, 4, 32, form="batch")
    assert sum(len(batch) for batch in own) == 12
    loader.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)


def test_worker_processes_are_told_at_once(folder):
    data = pytest.importorskip("torch.utils.data")

    class Pictures(data.IterableDataset):
        def __init__(self):
            self.loader = feed.Loader(folder, 4, 32)

        def __iter__(self):
            yield from self.loader

    pictures = Pictures()
    list(pictures)  # its threads make the next epoch's batches while the workers are forked
    with pytest.raises(feed.FeedError, match="forked"):
        list(data.DataLoader(pictures, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60))
    with pytest.raises(TypeError, match="a Loader cannot be copied or pickled"):
        multiprocessing.get_context("spawn").Process(target=len, args=(pictures.loader,)).start()


# ---- folders as torchvision's ImageFolder reads them ----


def labels_of(root, **options):
    with feed.Loader(root, 1, 32, shuffle=False, form="batch", num_classes=None, **options) as loader:
        return loader.classes, [batch.labels[0] for batch in loader]


LAYOUTS = {
    "hidden": ["x/1.jpg", ".ipynb_checkpoints/1.jpg"],
    "hidden files": ["x/1.jpg", "x/.2.jpg", "x/.cache/3.jpg", "y/4.jpg"],
    "nested": ["a/z.jpg", "a/b/y.jpg", "a/b-c/1.jpg", "a/b.jpg", "a/b/c/1.jpg", "b/x.JPEG", "beside.jpg"],
    "names": ["B/1.jpg", "a/1.jpg", "Ä/1.jpg", "a10/1.jpg", "a9/1.jpg", "a b/1.jpg", "a-b/1.jpg"],
    "others": ["a/1.jpg", "a/note.txt", "b/2.png.bak", "b/3.webp", "b/4.tiff"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_classes_samples_and_order_are_imagefolders(tmp_path, layout):
    folders = pytest.importorskip("torchvision.datasets")
    write(tmp_path, *LAYOUTS[layout])
    theirs = folders.ImageFolder(str(tmp_path))
    assert labels_of(tmp_path) == (theirs.classes, theirs.targets)
    # Which picture each is: the list of the same files gives the same pixels.
    listed = tmp_path.parent / f"{tmp_path.name}.json"
    listed.write_text(json.dumps(theirs.samples))
    both = [list(feed.Loader(path, 1, 32, shuffle=False, form="numpy", augment="stretch")) for path in (tmp_path, listed)]
    assert len(both[0]) == len(both[1]) == len(theirs)
    assert all((a[0] == b[0]).all() for a, b in zip(*both))


@pytest.mark.parametrize("content", [None, "only.gif", "note.txt"])
def test_an_empty_class_folder_is_an_error_or_keeps_its_number(tmp_path, content):
    folders = pytest.importorskip("torchvision.datasets")
    write(tmp_path, "b/1.jpg", "c/1.jpg")
    (tmp_path / "a").mkdir()
    if content:
        write(tmp_path, f"a/{content}")
    with pytest.raises(FileNotFoundError, match="a"):
        folders.ImageFolder(str(tmp_path))
    with pytest.raises(feed.FeedError, match=r"no picture in the class folder a;.*allow_empty=True"):
        feed.Loader(tmp_path, 1, 32)
    theirs = folders.ImageFolder(str(tmp_path), allow_empty=True)
    assert labels_of(tmp_path, allow_empty=True) == (theirs.classes, theirs.targets) == (["a", "b", "c"], [1, 2])
    packed = tmp_path.parent / f"{tmp_path.name}.fpack"
    done = subprocess.run([BIN, "feed", "pack", tmp_path, "--output", packed], capture_output=True, text=True, check=True)
    assert "class folder a" in done.stderr
    assert labels_of(packed) == (["a", "b", "c"], [1, 2])


def test_pictures_beside_a_notebooks_folder_are_a_flat_data_set(tmp_path):
    write(tmp_path, "1.jpg", "2.jpg", ".ipynb_checkpoints/1.jpg")
    assert labels_of(tmp_path) == ([], [0, 0])


# ---- files that are not there ----


def test_a_file_that_vanishes_is_a_bad_sample(folder):
    with feed.Loader(folder, 4, 32, form="batch") as loader:
        (folder / "b/2.jpg").unlink()
        loader.set_epoch(1)  # what was made ahead may have had it
        for epoch in (1, 2):
            assert len(taken(loader)) == 12
        report = loader.report()
        assert (report["outcomes"]["unreadable"], report["outcomes"]["ok"], report["replaced"]) == (2, 22, 2)
        assert [(bad["file"], bad["outcome"]) for bad in report["bad"]] == [(str(folder / "b/2.jpg"), "unreadable")]
        assert "No such file" in report["bad"][0]["detail"]
    listed = folder / "list.csv"
    listed.write_text("a/1.jpg,0\nb/2.jpg,1\nc/1.jpg,2\n")
    with pytest.raises(feed.FeedError, match=r"b/2\.jpg: unreadable .*No such file"):
        list(feed.Loader(listed, 3, 32, on_bad="strict"))
    assert labels_of(listed)[1][0::2] == [0, 2]


def test_links_that_lead_nowhere_are_bad_files(folder):
    (folder / "a/dangling.jpg").symlink_to("nowhere.jpg")
    (folder / "a/loop.jpg").symlink_to("loop.jpg")
    os.mkfifo(folder / "a/pipe.jpg")
    done = subprocess.run([BIN, "feed", "verify", "--fail-on", "any", folder], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3 and done.stdout.endswith("15 files, 3 of them bad\n")
    assert [line.split(" (")[0] for line in done.stdout.splitlines()[:3]] == [f"a/{name}.jpg: unreadable" for name in ("dangling", "loop", "pipe")]
    assert len(labels_of(folder)[1]) == 15
    subprocess.run([BIN, "cache", "warm", "--order", "feed:7", folder], check=True, timeout=60)


def test_a_data_set_that_is_gone_ends_the_loop(folder):
    with feed.Loader(folder, 4, 32, form="batch") as loader:
        shutil.rmtree(folder)
        with pytest.raises(feed.FeedError, match="nothing can be read in place of"):
            for _ in range(20):  # what was made before
                next(iter(loader))


@pytest.mark.parametrize("words", [["verify"], ["verify", "--json"], ["pack", "--output", "x.fpack"], ["index"]], ids=" ".join)
def test_output_that_cannot_be_written_is_no_success(folder, tmp_path, words):
    data = folder
    if words[0] == "index":
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            tar.add(folder / "a/1.jpg", "1.jpg")
        data = tmp_path / "x.tar"
    with open("/dev/full", "w") as full:
        done = subprocess.run([BIN, "feed", *words, data], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1 and "cannot write to standard output: No space left on device" in done.stderr


# ---- arguments ----


def test_arguments_that_cannot_be_meant_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="null byte"):
        feed.Loader(f"{folder}\0x", 4)
    with pytest.raises(feed.FeedError, match="seek index"):
        feed.Loader(folder, 4, index=f"{tmp_path}/a\0b")
    (tmp_path / "train.py").write_text("import torch\n")
    with pytest.raises(feed.FeedError, match=r"train\.py is no picture, no list of them and no archive"):
        feed.Loader(tmp_path / "train.py")
    data = picture(1)
    with pytest.raises(ValueError, match="mode is 'foo'; there are exact, scaled"):
        feed.decode(data, 8, 8, mode="foo")
    assert feed.decode(bytearray(data), 8, 8) == feed.decode(memoryview(data), 8, 8) == feed.decode(data, 8, 8)
    with pytest.raises(TypeError, match="str"):
        feed.decode("picture.jpg", 8, 8)


def test_one_number_for_all_channels_is_torchvisions(folder):
    transforms = pytest.importorskip("torchvision.transforms")
    for mean, std in (([0.5], [0.25]), ((0.5,), (0.25,)), (0.5, 0.25), ([0.1, 0.2, 0.3], [0.5, 0.6, 0.7])):
        both = [transforms.Resize((32, 32)), transforms.ToTensor(), transforms.Normalize(mean, std)]
        images, _ = next(iter(feed.Loader(folder, 1, transform=both, shuffle=False, form="torch")))
        theirs = transforms.Compose(both)(Image.open(folder / "a/0.jpg"))
        assert (images[0] - theirs).abs().max() < 1.01 / 255 / 0.25
    with pytest.raises(feed.FeedError, match=r"mean cannot be \[0\.5,0\.5\]"):
        feed.Loader(folder, 4, mean=[0.5, 0.5])


def test_a_list_begins_as_spreadsheets_write_it(folder):
    (folder / "list.csv").write_text("a/1.jpg,7\nb/1.jpg,8\n", encoding="utf-8-sig")
    with feed.Loader(folder / "list.csv", 2, 32, shuffle=False, form="batch") as loader:
        assert next(iter(loader)).labels == [7, 8]
        assert loader.report()["bad"] == []


def test_labels_behind_all_pictures_of_a_shard_are_theirs(folder, tmp_path):
    shard = tmp_path / "x.tar"
    names = [f"{c}{i}" for c in "abc" for i in range(4)]
    with tarfile.open(shard, "w") as tar:
        for name in names:
            tar.add(folder / name[0] / f"{name[1]}.jpg", f"{name}.jpg")
        for label, name in enumerate(names):
            info = tarfile.TarInfo(f"{name}.cls")
            info.size = len(str(label))
            tar.addfile(info, io.BytesIO(str(label).encode()))
    assert labels_of(shard)[1] == list(range(12))
    subprocess.run([BIN, "feed", "index", shard], capture_output=True, check=True)
    assert labels_of(shard)[1] == list(range(12))


# ---- loops that count their batches, states, shares ----


def by_count(loader):
    batches = iter(loader)
    return [i for _ in range(len(loader)) for i in next(batches).indices]


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loop_that_counts_its_batches_leaves_the_next_epoch_whole(folder, drop_last):
    options = {"batch_size": 5, "size": 32, "seed": 3, "form": "batch", "drop_last": drop_last}
    with feed.Loader(folder, **options) as plain, feed.Loader(folder, **options) as counted:
        expected = [taken(plain) for _ in range(4)]
        assert [by_count(counted), taken(counted), by_count(counted), by_count(counted)] == expected
        # zip() with what is shorter or as long takes no end either.
        counted.set_epoch(0)
        assert [[i for _, batch in zip(range(len(counted)), counted) for i in batch.indices] for _ in range(4)] == expected


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_state_of_an_epochs_end_is_the_next_ones_beginning(folder, drop_last):
    options = {"batch_size": 5, "size": 32, "form": "batch", "drop_last": drop_last}
    with feed.Loader(folder, **options) as loader, feed.Loader(folder, **options) as other:
        for _, batch in zip(range(len(loader)), loader):
            state = loader.state_dict()
        other.load_state_dict(state)
        assert taken(other) == taken(loader)
        assert (loader.epoch, other.epoch) == (2, 2)


def test_set_epoch_stays_within_the_epoch_that_was_loaded(folder):
    with feed.Loader(folder, 4, 32, form="batch") as loader, feed.Loader(folder, 4, 32, form="batch") as other:
        batches = iter(loader)
        next(batches)
        other.load_state_dict(loader.state_dict())
        other.set_epoch(0)  # as scripts do at the beginning of each
        assert taken(other) == [i for batch in batches for i in batch.indices]
        other.load_state_dict({**loader.state_dict(), "epoch": 1, "position": 4})
        other.set_epoch(5)
        assert len(taken(other)) == 12
        assert other.epoch == 6
        for epoch, error in ((-1, ValueError), (2**32, ValueError), (0.5, TypeError)):
            with pytest.raises(error, match=r"^the epoch is .*has to be"):
                other.set_epoch(epoch)
        for state, error, text in ((None, TypeError, "what state_dict"), ({"version": 1, "epoch": 0}, ValueError, "has no 'position'"),
                                   ({**loader.state_dict(), "position": -4}, ValueError, "the state's position is -4")):
            with pytest.raises(error, match=text):
                other.load_state_dict(state)


def share(folder, **more):
    with feed.Loader(folder, 4, 32, form="batch", shuffle=False, **more) as loader:
        return taken(loader)


def test_a_share_is_the_environments_or_is_refused(folder, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    assert share(folder) == share(folder, ranks=3) == [2, 5, 8, 11]
    assert share(folder, rank=1) == [1, 4, 7, 10]
    assert share(folder, ranks=1) == list(range(12))
    for rank in (None, ""):  # as in Lightning's processes: each of them would take rank 0's
        if rank is None:
            monkeypatch.delenv("RANK")
        else:
            monkeypatch.setenv("RANK", rank)
        with pytest.raises(feed.FeedError, match="one of 3 ranks, and nothing says which"):
            share(folder)
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(feed.FeedError, match="RANK is 'two'"):
        share(folder)
    assert share(folder, rank=0, ranks=3) == [0, 3, 6, 9]


def test_a_share_is_torch_distributeds(folder, tmp_path, monkeypatch):
    distributed = pytest.importorskip("torch.distributed")
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with feed.Loader(folder, 4, 32, form="batch") as before, feed.Loader(folder, 4, 32, form="batch", ranks=1) as whole:
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "get_rank", lambda: 1)
        monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
        with pytest.raises(feed.FeedError, match="opened as one of 1, and torch.distributed has 2"):
            iter(before)
        assert len(taken(whole)) == 12
        assert share(folder) == [1, 3, 5, 7, 9, 11]


# ---- arguments as programs have them ----


def test_numbers_arrays_and_types_of_numpy_and_torch_are_options(folder):
    def batch(**options):
        with feed.Loader(folder, seed=np.int64(3), form="batch", **options) as loader:
            return next(iter(loader))

    plain = batch(batch_size=4, size=[32, 24], mean=[0.5, 0.25, 0.5], dtype="f16")
    for dtype in (np.float16, np.dtype("float16"), "float16"):
        other = batch(batch_size=np.int32(4), size=np.array([32, 24]), mean=np.array([0.5, 0.25, 0.5]), dtype=dtype)
        assert np.array_equal(np.asarray(plain), np.asarray(other))
    for options, error, text in (({"scale": {1, 2}}, TypeError, "scale cannot be"), ({"num_workers": 2}, feed.FeedError, "threads=8"),
                                 ({"prefetch": None}, feed.FeedError, "prefetch cannot be"), ({"stage": 3}, TypeError, "stage is 3")):
        with pytest.raises(error, match=text):
            feed.Loader(folder, **options)


def test_a_batch_is_lent_not_copied_and_says_so(folder):
    with feed.Loader(folder, 4, 32, form="batch") as loader:
        batch = next(iter(loader))
        assert repr(loader) == f"<Loader of {folder!r} in batches of 4>"
        assert repr(batch) == "<Batch f32 [4, 3, 32, 32] of epoch 0>"
        assert np.shares_memory(np.from_dlpack(batch), np.asarray(batch))
        with pytest.raises(BufferError, match="lent, not copied"):
            batch.__dlpack__(copy=True)
        with pytest.raises(BufferError, match="CPU's memory"):
            batch.__dlpack__(dl_device=(2, 0))
        assert [loader.name(i) for i in batch.indices] == [str(sorted(folder.glob("*/*"))[i]) for i in batch.indices]
        with pytest.raises(IndexError, match="no sample 12 of 12"):
            loader.name(12)
    assert repr(loader).endswith("closed>")


def test_several_shards_are_a_list_or_a_pattern(tmp_path):
    for number in range(3):
        with tarfile.open(tmp_path / f"x-{number}.tar", "w") as shard:
            for name, content in ((f"{number}.jpg", picture(number)), (f"{number}.cls", str(number).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    for path in ([tmp_path / "x-2.tar", str(tmp_path / "x-0.tar")], (tmp_path / "x-2.tar", tmp_path / "x-0.tar"), tmp_path / "x-[02].tar"):
        with feed.Loader(path, 4, 32, shuffle=False, form="batch") as loader:
            assert sorted(next(iter(loader)).labels) == [0, 2]
    with feed.Loader([tmp_path / "x-1.tar"], 4, 32, form="batch") as loader:
        assert next(iter(loader)).labels == [1]
    write(tmp_path, "a.jpg")
    for path, text in (([tmp_path / "x-1.tar", tmp_path / "a.jpg"], "no shard of one kind"), (tmp_path / "y-*.tar", "there is no ")):
        with pytest.raises(feed.FeedError, match=text):
            feed.Loader(path, 4, 32)
    with pytest.raises(ValueError, match="braces or commas"):
        feed.Loader(["a,b.tar", "c.tar"], 4, 32)


def test_a_compressed_archive_is_told_as_one(tmp_path):
    for name, mode in (("x.tar.gz", "w:gz"), ("x.tar.bz2", "w:bz2"), ("x.tar.xz", "w:xz")):
        with tarfile.open(tmp_path / name, mode) as archive:
            archive.addfile(tarfile.TarInfo("a.jpg"), io.BytesIO())
        with pytest.raises(feed.FeedError, match="is compressed"):
            feed.Loader(tmp_path / name)
    (tmp_path / "x.tfrecord").write_bytes(zlib.compress(b"a" * 100))
    with pytest.raises(feed.FeedError, match=r"unsupported \(a compressed file \(zlib\)"):
        feed.Loader(tmp_path / "x.tfrecord")


def test_what_a_stage_raises_is_the_cause(folder):
    def stage(sample):
        raise KeyError(f"no such label {sample.label}")

    with feed.Loader(folder, 4, 32, stage=stage) as loader:
        with pytest.raises(feed.FeedError, match="the stage failed at .*KeyError") as raised:
            next(iter(loader))
    assert isinstance(raised.value.__cause__, KeyError)
    assert raised.value.__cause__.__traceback__.tb_next.tb_frame.f_code is stage.__code__
