"""The Loader and its batches."""

import atexit
import collections
import ctypes
import json
import math
import operator
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from . import _dlpack
from ._library import BatchStruct, Place, library
from ._stage import Sample, last_line, running_stage, stage_function
from ._transforms import options_from_transforms

_TYPES = ("u8", "f32", "f16", "bf16")
_ARRAY_TYPES = {"u8": "|u1", "f32": "<f4", "f16": "<f2"}
_BYTES = {"u8": 1, "f32": 4, "f16": 2, "bf16": 2}


class FeedError(RuntimeError):
    """A data set, a file or an option that cannot be used; the message names it and the way out."""


def _error() -> FeedError:
    return FeedError(library().flatout_feed_error().decode("utf-8", "replace"))


def _path(path: Any) -> bytes:
    """As C takes it. What follows a zero would be lost on the way."""
    if isinstance(path, (list, tuple)) and path:
        names = [_path(each) for each in path]
        odd = next((each for each, name in zip(path, names) if set(name) & set(b"{},")), None)
        if odd is not None and len(names) > 1:
            raise ValueError(f"{odd!r} among several names: those cannot have braces or commas")
        return b"{" + b",".join(names) + b"}" if len(names) > 1 else names[0]
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"embedded null byte in {path!r}")
    return name


# What torch's DataLoader calls otherwise, or has no use here.
_OF_TORCH = {
    "num_workers": "threads=8 says how many threads decode, and threads=0 is one a core",
    "prefetch_factor": "prefetch=2 says how many batches are in memory",
    "collate_fn": "stage= is a function of each sample, and form='batch' gives all that is known of a batch",
    "batch_sampler": "rank=, ranks= and seed= say which samples come", "sampler": "rank=, ranks= and seed= say which samples come",
    "generator": "seed=1 decides all that is random", "worker_init_fn": "there are no worker processes",
    "persistent_workers": "there are no worker processes, and the threads stay from epoch to epoch"}
_DTYPES = {"uint8": "u8", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def _plain(name: str, value: Any) -> Any:
    """An option's value as JSON has it: numbers and arrays of NumPy and torch, paths, types by their names."""
    if name == "dtype":
        word = value if isinstance(value, str) else getattr(value, "__name__", str(value))
        return _DTYPES.get(word.rsplit(".", 1)[-1], word)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain("", each) for each in value] if isinstance(value, (list, tuple)) else value


def _options_json(options: Dict[str, Any]) -> bytes:
    for name, value in options.items():
        if name in _OF_TORCH:
            raise FeedError(f"there is no option '{name}': {_OF_TORCH[name]}")
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise TypeError(f"{name} cannot be {value!r}") from None
    return json.dumps(options).encode()


def _number_of(variable: str) -> Optional[int]:
    text = os.environ.get(variable, "")
    try:
        return int(text) if text else None
    except ValueError:
        raise FeedError(f"the environment's {variable} is {text!r}, which is no number; rank= and ranks= go before it") from None


def _ranks_of_torch() -> Optional[Tuple[int, int]]:
    """Rank and number of ranks, where torch.distributed has begun."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _share(rank: Optional[int], ranks: Optional[int]) -> Tuple[int, int]:
    """What is not given is as torch.distributed has it, or else the environment. A share that is not known is an error: each process would
    get the same samples."""
    if rank is not None and ranks is not None:
        return rank, ranks
    if ranks == 1:
        return 0, 1
    known = _ranks_of_torch() or (_number_of("RANK"), _number_of("WORLD_SIZE"))
    rank, ranks = known[0] if rank is None else rank, (known[1] or 1) if ranks is None else ranks
    if rank is None and ranks != 1:
        raise FeedError(f"this is one of {ranks} ranks, and nothing says which: open the loader behind torch.distributed's beginning (with Lightning in "
                        "train_dataloader()), or give rank= and ranks=")
    return rank or 0, ranks


def _whole_number(what: str, value: Any, end: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}, and has to be a whole number") from None
    if not 0 <= number < end:
        raise ValueError(f"{what} is {number}, and has to be 0 to {end - 1}")
    return number


class Batch:
    """A batch in the loader's own memory, which stays valid while the batch or any tensor or array made from it lives.

    `numpy.asarray(batch)`, `torch.from_dlpack(batch)`, `jax.dlpack.from_dlpack(batch)`, `tf.experimental.dlpack.from_dlpack(batch.__dlpack__())`
    and `memoryview(batch.buffer())` see it without a copy.
    """

    def __init__(self, struct):
        self._struct = struct
        content = struct.contents
        self.shape: Tuple[int, ...] = tuple(content.shape)
        self.dtype: str = _TYPES[content.type]
        self.epoch: int = content.epoch
        n = content.count
        self.labels: List[int] = content.labels[:n]
        self.indices: List[int] = content.indices[:n]
        """Numbers of the samples in the data set."""
        flat = content.views[:n * 5]
        self.views: List[Tuple[int, ...]] = [tuple(flat[i:i + 5]) for i in range(0, n * 5, 5)]
        """Of each sample x, y, width and height of the part shown, and 1 where it is mirrored."""
        self.weight: float = content.weight
        """Of `labels`, where samples were mixed; the rest is that of `partners`."""
        self.partners: List[int] = content.partners[:n]
        """Labels of the samples that mixup or cutmix put in."""

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Batch {self.dtype} {list(self.shape)} of epoch {self.epoch}>"

    def __del__(self):
        struct, self._struct = getattr(self, "_struct", None), None
        if struct is not None:
            library().flatout_feed_release(struct)

    def __reduce_ex__(self, _):
        raise TypeError("a Batch cannot be copied or pickled: it is a view of its loader's memory; make a tensor or an array of it and copy that")

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy:
            raise BufferError("a batch is lent, not copied; copy what is made of it")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"a batch is in the CPU's memory; make a tensor of it, and move that to device {tuple(dl_device)}")
        return _dlpack.capsule(library().flatout_feed_dlpack(self._struct))

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (1, 0)

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if self.dtype not in _ARRAY_TYPES:
            raise FeedError("NumPy has no bf16; take it by DLPack")
        return {"version": 3, "shape": self.shape, "typestr": _ARRAY_TYPES[self.dtype], "data": (self._struct.contents.data, False)}

    def buffer(self) -> ctypes.Array:
        """The bytes as an object with the buffer protocol."""
        n = _BYTES[self.dtype]
        for extent in self.shape:
            n *= extent
        view = (ctypes.c_uint8 * n).from_address(self._struct.contents.data)
        view.batch = self  # lives as long as any memoryview of it
        return view


def _as_batch(batch: Batch, classes: int):
    return batch


def _shares(batch: Batch, classes: int) -> List[List[float]]:
    """Each sample's share of each class, [samples, classes]."""
    rows = []
    for own, other in zip(batch.labels, batch.partners):
        if not (0 <= own < classes and 0 <= other < classes):
            raise FeedError(f"a label is {own if not 0 <= own < classes else other}, which is none of {classes} classes; num_classes says how many there are")
        row = [0.0] * classes
        row[own] += batch.weight
        row[other] += 1 - batch.weight
        rows.append(row)
    return rows


def _torch_labels(batch: Batch, classes: int):
    import torch

    return torch.tensor(_shares(batch, classes), dtype=torch.float32) if classes else torch.tensor(batch.labels, dtype=torch.int64)


def _as_torch(batch: Batch, classes: int):
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(batch.__dlpack__()), _torch_labels(batch, classes)


def _in_pinned_memory(batch: Batch, classes: int, memory):
    """The same, of a batch that was made in `memory`, a tensor of bytes."""
    import torch

    dtype = {"u8": torch.uint8, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[batch.dtype]
    images = memory[:math.prod(batch.shape) * _BYTES[batch.dtype]].view(dtype).view(batch.shape)
    labels = _torch_labels(batch, classes)
    return images, labels.pin_memory() if memory.is_pinned() else labels


def _as_numpy(batch: Batch, classes: int):
    import numpy

    labels = numpy.asarray(_shares(batch, classes), dtype=numpy.float32) if classes else numpy.asarray(batch.labels, dtype=numpy.int64)
    return numpy.asarray(batch), labels


_with_stages: "weakref.WeakSet[Loader]" = weakref.WeakSet()


@atexit.register
def _close_before_the_interpreter_ends() -> None:
    """The pipeline's threads must not call a stage in an interpreter that is gone."""
    for loader in list(_with_stages):
        loader.close()


_FORMS = {"torch": _as_torch, "numpy": _as_numpy, "batch": _as_batch}


def _form_in_use() -> str:
    """What the program already imported: a loader must not pull in a framework."""
    return next((name for name in ("torch", "numpy") if name in sys.modules), "batch")


class Loader:
    """Batches of pictures, in an order and with augmentation that the seed alone decides.

    path: a folder with one folder for each class, as torchvision's ImageFolder takes it; a list of files and labels (text, CSV, JSON);
        tar or WebDataset shards, TFRecord files or a file of `flatout feed pack`; a folder of such, several by braces or wildcards
        ("train-{000..146}.tar", "train-*.tar") or a list of names.
    batch_size, size: samples in a batch; width and height of a sample (or a pair: height, width).
    transform: instead of the options from `size` on, a torchvision transform or list of them; one that is not known is a ValueError.
    augment: "random_crop" (torchvision's RandomResizedCrop with `scale` and `ratio`, then a mirror image with probability `flip`),
        "center_crop" (Resize(`resize`), CenterCrop(`size`)) or "stretch" (Resize((size, size))); always antialiased, interpolation
        "bilinear" or "bicubic". brightness, contrast, saturation, hue: ranges of torchvision's ColorJitter, as (0.6, 1.4) or (-0.1, 0.1).
    randaugment: (operations, magnitude of 0 to 30) of torchvision's RandAugment, as (2, 9).
    mixup, cutmix: alpha of torchvision's MixUp and CutMix, 0 for none; with both, each batch has one or the other. Labels are then float32
        [N, num_classes], each sample's share of each class; num_classes is by default the number of the data set's classes.
    stage: a function of a Sample that changes its pixels or its label in place before they are normalised. The pipeline's threads call it,
        one at a time as the GIL has it; what it raises is a FeedError of that batch.
    shuffle_buffer, shuffle_run: instead of shuffling the whole epoch, so many samples (8192, say) are shuffled among themselves, of a stream
        of runs of neighbours in a random order: for storage that is slow unless it is read in order. As exact, and as quick to resume.
    dtype, layout: "f32", "f16", "bf16" (normalised by `mean` and `std`, of values 0 to 1) or "u8"; "nchw" or "nhwc".
    mode: "exact" (pixels as Pillow gives) or "scaled" (JPEG at reduced size, where that stays twice the target; for large photographs).
    orient: True turns pictures as their EXIF data say; torchvision does not, and by default this does not.
    index: the seek index, which lets later epochs decode only the part of a JPEG that is needed, to the same bits: "memory" (at most
        `index_mb` megabytes, 64 by default), "off", or the name of a file in which it is kept from one run to the next.
    pin_memory: torch batches in page-locked memory, from which `.to(device, non_blocking=True)` copies while the job goes on; by default where
        the program uses CUDA when the loop begins. The memory is torch's own, so it is not used again before such copies are done.
    threads: 0 for one a core. prefetch: batches in memory, the one that the loop holds among them; at least one is made ahead.
    rank, ranks: this process's share; by default torch.distributed's where that has begun, or else from RANK and WORLD_SIZE. ranks=1: all.
    on_bad: "skip" (another sample takes a bad one's place, the same in every run), "strict" (FeedError), "lenient" (what can be decoded).
    form: "torch" and "numpy" give (images, labels), "batch" gives Batch objects; by default as the program's imports suggest.

    allow_empty: True lets a class folder be without pictures; it has its number, as with ImageFolder's allow_empty. By default that is an error.

    An epoch is one `for` loop. The next epoch's first batches are made while the last ones are used. A loader has one place in its data: where a
    second loop begins, in whatever thread, the first one's next batch is a FeedError. It can be neither pickled nor copied (TypeError), and not
    used in a forked process (FeedError): open one there, and load_state_dict() takes it to the same place.
    """

    def __init__(self, path, batch_size: int = 64, size: Union[int, Sequence[int]] = 224, *, transform: Any = None, shuffle: bool = True,
                 seed: int = 0, drop_last: bool = False, threads: int = 0, prefetch: int = 2, rank: Optional[int] = None,
                 ranks: Optional[int] = None, on_bad: str = "skip", mode: str = "exact", form: Optional[str] = None,
                 pin_memory: Optional[bool] = None, stage: Optional[Callable[[Sample], None]] = None, num_classes: Optional[int] = None, **more: Any):
        if form is not None and form not in _FORMS:
            raise ValueError(f"form is {form!r}; there are {', '.join(sorted(_FORMS))}")
        if stage is not None and not callable(stage):
            raise TypeError(f"stage is {stage!r}, and has to be a function of a Sample")
        options: Dict[str, Any] = {"size": size}
        if transform is not None:
            options = options_from_transforms(transform)
            if size != 224 and _plain("", size) not in (options["size"], options["size"][0]):
                raise ValueError(f"size is {size}, and the transform makes pictures of {options['size']}; give one of the two")
        self._own_share = rank is None and ranks is None
        rank, ranks = _share(rank, ranks)
        options.update(more, batch=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last, threads=threads, prefetch=prefetch,
                       rank=rank, ranks=ranks, on_bad=on_bad, mode=mode)
        options = {name: _plain(name, value) for name, value in options.items()}
        text = _options_json(options)
        self._about, self._ranks = repr(path), options["ranks"]
        self.batch_size = options["batch"]
        self._process = os.getpid()
        self._lock = threading.RLock()  # of the place in the data; a signal's handler may come while it is held
        self._loop = 0  # the number of the loop that has the place
        self._form = form
        self._pin_memory = pin_memory
        self._prefetch = options["prefetch"]
        self._lent: Dict[int, Any] = {}  # memory for batches to come, by its address
        self._seed = options["seed"]
        self._window = [options.get("shuffle_buffer", 0), options.get("shuffle_run", 256)] if options.get("shuffle_buffer") else None
        self._resumed = False
        self._within = False  # an epoch: batches of it were taken, and not its end
        self._own_stage = stage
        self._raised: Deque[BaseException] = collections.deque(maxlen=16)  # by the stage, of late
        self._stage = None if stage is None else stage_function(stage, self._raised)  # kept: C calls it
        self._handle = library().flatout_feed_open_with_stage(_path(path), text,
                                                              ctypes.cast(self._stage, ctypes.c_void_p) if self._stage else None, None)
        if not self._handle:
            raise _error()
        if stage is not None:
            _with_stages.add(self)
        self._classes = 0  # of soft labels; 0: labels are numbers
        if options.get("mixup") or options.get("cutmix"):
            self._classes = num_classes or len(self.classes)
            if self._classes == 0:
                self.close()
                raise ValueError("mixup and cutmix need to know how many classes there are, which this data set does not tell: num_classes=1000")

    def __reduce_ex__(self, _):
        raise TypeError("a Loader cannot be copied or pickled: its threads and memory are this process's. Open one with the same arguments where it is "
                        "used; load_state_dict() takes it to where this one's state_dict() was")

    def __repr__(self) -> str:
        state = "" if getattr(self, "_handle", None) else ", closed"
        return f"<Loader of {getattr(self, '_about', '?')} in batches of {getattr(self, 'batch_size', '?')}{state}>"

    def _feed(self) -> int:
        if os.getpid() != self._process:  # before any lock, which nobody may be there to let go of
            raise FeedError("a loader cannot be used in a process forked from the one that opened it; open it in the process that uses it: "
                            "it needs no worker processes")
        if not self._handle:
            raise FeedError("the loader is closed; open another one")
        return self._handle

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return library().flatout_feed_batches(self._feed())

    @property
    def samples(self) -> int:
        """Samples of the data set."""
        return library().flatout_feed_samples(self._feed())

    def name(self, index: int) -> str:
        """Of a sample by its number in the data set, as in `Batch.indices`: its file, and where in it."""
        if not 0 <= index < self.samples:
            raise IndexError(f"there is no sample {index} of {self.samples}")
        return os.fsdecode(library().flatout_feed_name(self._feed(), index))

    @property
    def classes(self) -> List[str]:
        return self.report()["classes"]

    @property
    def epoch(self) -> int:
        return library().flatout_feed_get_place(self._feed()).epoch

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch; within the one that load_state_dict() went to, the place in it stays."""
        epoch = _whole_number("the epoch", epoch, 2**32)
        self._feed()
        with self._lock:
            place = library().flatout_feed_get_place(self._feed())
            if place.epoch == epoch and (place.position == 0 or self._resumed):
                return
            self._seek(Place(epoch, 0))

    def __iter__(self) -> Iterator:
        """The rest of the epoch after load_state_dict, else a whole one: what a loop left by `break` did not take is dropped.

        An earlier loop that has not come to its end is over: its next batch is a FeedError."""
        self._feed()
        now = _ranks_of_torch() if self._own_share else None
        if now is not None and now[1] != self._ranks:
            raise FeedError(f"the loader was opened as one of {self._ranks}, and torch.distributed has {now[1]} ranks: open it behind "
                            "torch.distributed's beginning (with Lightning in train_dataloader()), or give rank= and ranks=")
        with self._lock:
            self._loop += 1
            place = library().flatout_feed_get_place(self._feed())
            if place.position > 0 and not self._resumed:
                self._seek(Place(place.epoch + 1, 0))
            elif self._within and place.position == 0:
                self._take_end()
            self._resumed = False
            form = self._form or _form_in_use()
            if not self._lent and self._wants_pinned(form):
                try:
                    self._lend(self._prefetch + 2)  # as many as there are under way, and two that change hands
                except RuntimeError as error:
                    raise FeedError(f"no page-locked memory for batches: {error}; pin_memory=False does without") from None
                # Batches under way were begun in other memory.
                self._seek(library().flatout_feed_get_place(self._feed()))
            return self._batches(_FORMS[form], self._loop)

    def _wants_pinned(self, form: str) -> bool:
        if form != "torch":
            if self._pin_memory:
                raise ValueError(f"pin_memory is for torch's tensors, and form is {form!r}")
            return False
        if self._pin_memory is not None:
            return self._pin_memory
        import torch

        return torch.cuda.is_initialized()

    def _new_memory(self, size: int):
        """A tensor of so many page-locked bytes."""
        import torch

        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def _lend(self, batches: int) -> None:
        lib = library()
        for _ in range(batches):
            memory = self._new_memory(lib.flatout_feed_batch_bytes(self._feed()))
            if lib.flatout_feed_lend(self._feed(), memory.data_ptr()) != 0:
                raise _error()
            self._lent[memory.data_ptr()] = memory

    def _take_end(self) -> None:
        """Of an epoch whose batches have all been taken, as by a loop that counts them."""
        struct = ctypes.POINTER(BatchStruct)()
        while not library().flatout_feed_wait(self._feed(), 100):
            pass
        if library().flatout_feed_next(self._feed(), ctypes.byref(struct)) < 0:
            raise _error()
        self._within = False

    def _failure(self) -> FeedError:
        """The error, with what the stage raised as its cause."""
        error = _error()
        for cause in list(self._raised):
            if last_line(cause) in str(error):
                self._raised.clear()
                error.__cause__ = cause
                break
        return error

    def _take(self, loop: int, struct) -> Optional[int]:
        """What flatout_feed_next returns, for the loop of that number; None: not yet."""
        self._feed()
        with self._lock:
            if loop != self._loop:
                raise FeedError("another loop over this loader has begun, and it has one place in its data; each loop, or thread, that goes on "
                                "beside others needs a Loader of its own")
            # In short waits, so that Ctrl-C is heard, and other threads get the lock.
            if not library().flatout_feed_wait(self._feed(), 100):
                return None
            got = library().flatout_feed_next(self._feed(), ctypes.byref(struct))
            self._within = got != 0
            if got < 0:
                raise self._failure()
            return got

    def _batches(self, form, loop: int) -> Iterator:
        struct = ctypes.POINTER(BatchStruct)()
        while True:
            got = self._take(loop, struct)
            if got is None:
                time.sleep(0.001)  # a lock that is taken again at once is never another thread's
                continue
            if got == 0:
                return
            batch = Batch(ctypes.cast(struct, ctypes.POINTER(BatchStruct)))
            with self._lock:
                memory = self._lent.pop(struct.contents.data, None)
                if memory is not None:
                    self._lend(1)
            if memory is None:
                yield form(batch, self._classes)
                continue
            images_and_labels = _in_pinned_memory(batch, self._classes, memory)
            del batch, memory  # they are the caller's alone while the loop goes round
            yield images_and_labels
            del images_and_labels

    def _seek(self, place: Place) -> None:
        if library().flatout_feed_set_place(self._feed(), place) != 0:
            raise _error()
        self._within = False

    def state_dict(self) -> Dict[str, Any]:
        """Where to go on, exact to the bit, with any number of threads and ranks that take equally many samples."""
        place = library().flatout_feed_get_place(self._feed())
        state = {"version": 1, "epoch": place.epoch, "position": place.position, "seed": self._seed, "samples": self.samples}
        return {**state, "shuffle_buffer": self._window} if self._window else state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes to where state_dict() was called; the next `for` loop takes the rest of that epoch. ValueError: of another data set or seed."""
        if not isinstance(state, dict):
            raise TypeError(f"the state is {state!r}, and has to be what state_dict() gave")
        if state.get("version") != 1:
            raise ValueError(f"the state is of version {state.get('version')}, which this Flatout does not know")
        missing = [name for name in ("epoch", "position", "seed", "samples") if name not in state]
        if missing:
            raise ValueError(f"the state has no {missing[0]!r}; it is not what state_dict() gave")
        if state["samples"] != self.samples:
            raise ValueError(f"the state was saved with {state['samples']} samples, this data set has {self.samples}")
        if state["seed"] != self._seed:
            raise ValueError(f"the state was saved with seed {state['seed']}, this loader has {self._seed}")
        if state.get("shuffle_buffer") != self._window:
            raise ValueError(f"the state was saved with a shuffle's buffer and run of {state.get('shuffle_buffer')}, this loader has {self._window}")
        place = Place(_whole_number("the state's epoch", state["epoch"], 2**32), _whole_number("the state's position", state["position"], 2**64))
        with self._lock:
            self._seek(place)
            self._resumed = True

    def report(self) -> Dict[str, Any]:
        """Counts of the samples of batches so far by outcome, how many were replaced, and the first hundred bad files."""
        return json.loads(library().flatout_feed_report(self._feed()))

    def close(self) -> None:
        """Stops the threads. Batches that are still held stay valid."""
        if self._own_stage is not None and running_stage() is self._own_stage:
            raise FeedError("a stage cannot close its own loader: its thread would wait for itself")
        if os.getpid() != self._process:  # there are no threads to end, and nobody may be there to let go of the lock
            self._handle = None
            return
        with self._lock:
            handle, self._handle = self._handle, None
            if handle:
                library().flatout_feed_close(handle)
            self._lent.clear()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_handle", None):
            return
        if running_stage() is None:
            return self.close()
        # Python collects garbage in whatever thread runs. One of the pipeline's cannot wait for itself, so another one does;
        # it holds the stage until nothing calls it any more, and the memory that batches are made in.
        handle, self._handle = self._handle, None
        # The program's end has to wait for that; threads that one of the pipeline's starts would be daemons.
        threading.Thread(target=lambda *held: library().flatout_feed_close(handle), args=(self._stage, self._lent), daemon=False).start()


def decode(data: bytes, height: int, width: int, box: Optional[Tuple[int, int, int, int]] = None, mode: str = "exact") -> bytearray:
    """One picture, resized: RGB, height * width * 3 bytes.

    data: a JPEG, PNG or WebP file's bytes. box: x, y, width and height of the part to take, in the picture's pixels. mode: "exact" or "scaled".
    """
    if mode not in ("exact", "scaled"):
        raise ValueError(f"mode is {mode!r}; there are exact, scaled")
    data = data if isinstance(data, bytes) else bytes(memoryview(data))
    out = bytearray(height * width * 3)
    target = (ctypes.c_uint8 * len(out)).from_buffer(out)
    part = None if box is None else (ctypes.c_int32 * 4)(*box)
    if library().flatout_feed_picture(data, len(data), part, int(mode == "scaled"), height, width, target) != 0:
        raise _error()
    return out
