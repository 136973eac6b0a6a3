"""The Loader and its batches."""

import atexit
import ctypes
import json
import math
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from . import _dlpack
from ._library import BatchStruct, Place, library
from ._stage import Sample, running_stage, stage_function
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
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"embedded null byte in {path!r}")
    return name


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

    def __del__(self):
        struct, self._struct = getattr(self, "_struct", None), None
        if struct is not None:
            library().flatout_feed_release(struct)

    def __reduce_ex__(self, _):
        raise TypeError("a Batch cannot be copied or pickled: it is a view of its loader's memory; make a tensor or an array of it and copy that")

    def __dlpack__(self, stream=None, **_):
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
        tar or WebDataset shards, TFRecord files or a file of `flatout feed pack`; a folder of such, or "train-{000..146}.tar".
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
    rank, ranks: this process's share; by default from RANK and WORLD_SIZE.
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
        options: Dict[str, Any] = {"size": size}
        if transform is not None:
            options = options_from_transforms(transform)
        options.update({name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in more.items()})
        if rank is None and ranks is None:
            rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        options.update(batch=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last, threads=threads, prefetch=prefetch,
                       rank=rank or 0, ranks=ranks or 1, on_bad=on_bad, mode=mode)
        self.batch_size = batch_size
        self._process = os.getpid()
        self._lock = threading.RLock()  # of the place in the data; a signal's handler may come while it is held
        self._loop = 0  # the number of the loop that has the place
        self._form = form
        self._pin_memory = pin_memory
        self._spare = prefetch + 2  # as many batches as there are under way, and two that change hands
        self._lent: Dict[int, Any] = {}  # memory for batches to come, by its address
        self._seed = seed
        self._window = [options.get("shuffle_buffer", 0), options.get("shuffle_run", 256)] if options.get("shuffle_buffer") else None
        self._resumed = False
        self._own_stage = stage
        self._stage = None if stage is None else stage_function(stage)  # kept: C calls it
        self._handle = library().flatout_feed_open_with_stage(_path(path), json.dumps(options).encode(),
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

    @property
    def classes(self) -> List[str]:
        return self.report()["classes"]

    @property
    def epoch(self) -> int:
        return library().flatout_feed_get_place(self._feed()).epoch

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch."""
        self._feed()
        with self._lock:
            place = library().flatout_feed_get_place(self._feed())
            if (place.epoch, place.position) != (epoch, 0):
                self._seek(Place(epoch, 0))

    def __iter__(self) -> Iterator:
        """The rest of the epoch after load_state_dict, else a whole one: what a loop left by `break` did not take is dropped.

        An earlier loop that has not come to its end is over: its next batch is a FeedError."""
        self._feed()
        with self._lock:
            self._loop += 1
            place = library().flatout_feed_get_place(self._feed())
            if place.position > 0 and not self._resumed:
                self._seek(Place(place.epoch + 1, 0))
            self._resumed = False
            form = self._form or _form_in_use()
            if not self._lent and self._wants_pinned(form):
                try:
                    self._lend(self._spare)
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
            if got < 0:
                raise _error()
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

    def state_dict(self) -> Dict[str, Any]:
        """Where to go on, exact to the bit, with any number of threads and ranks that take equally many samples."""
        place = library().flatout_feed_get_place(self._feed())
        state = {"version": 1, "epoch": place.epoch, "position": place.position, "seed": self._seed, "samples": self.samples}
        return {**state, "shuffle_buffer": self._window} if self._window else state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes to where state_dict() was called; the next `for` loop takes the rest of that epoch. ValueError: of another data set or seed."""
        if state.get("version") != 1:
            raise ValueError(f"the state is of version {state.get('version')}, which this Flatout does not know")
        if state["samples"] != self.samples:
            raise ValueError(f"the state was saved with {state['samples']} samples, this data set has {self.samples}")
        if state["seed"] != self._seed:
            raise ValueError(f"the state was saved with seed {state['seed']}, this loader has {self._seed}")
        if state.get("shuffle_buffer") != self._window:
            raise ValueError(f"the state was saved with a shuffle's buffer and run of {state.get('shuffle_buffer')}, this loader has {self._window}")
        with self._lock:
            self._seek(Place(state["epoch"], state["position"]))
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
