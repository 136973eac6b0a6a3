"""A stage of the program's own, in Python, between the augmentation and the batch."""

import ctypes
import threading
import traceback
from ctypes import POINTER, c_char, c_int, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, Deque, Optional


class SampleStruct(ctypes.Structure):
    _fields_ = [("pixels", POINTER(c_uint8)), ("height", c_int32), ("width", c_int32), ("label", c_int64), ("index", c_int64), ("epoch", c_uint32),
                ("random", c_uint64), ("error", c_char * 256)]


StageFunction = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(SampleStruct))


class Sample:
    """A picture on its way into the batch, 8 bits, not normalised yet. Valid until the stage returns."""

    def __init__(self, struct: SampleStruct):
        self._struct = struct
        self.index: int = struct.index
        """Number of the sample in the data set."""
        self.epoch: int = struct.epoch
        self.random: int = struct.random
        """64 random bits of (seed, epoch, index): a stage that draws from these alone gives the same bits in every run."""

    def _valid(self) -> SampleStruct:
        if self._struct is None:
            raise RuntimeError("the stage has returned, and its sample is gone; copy what is wanted later: sample.pixels.copy()")
        return self._struct

    def __reduce_ex__(self, _):
        raise TypeError("a Sample cannot be copied or pickled: it is the pipeline's own memory; copy what is wanted: sample.pixels.copy()")

    @property
    def label(self) -> int:
        return self._valid().label

    @label.setter
    def label(self, value: int) -> None:
        self._valid().label = value

    @property
    def rgbx(self) -> memoryview:
        """The picture's own memory, [height, width, 4]: red, green, blue, and a byte that means nothing. Change it in place."""
        struct = self._valid()
        height, width = struct.height, struct.width
        flat = (c_uint8 * (height * width * 4)).from_address(ctypes.addressof(struct.pixels.contents))
        return memoryview(flat).cast("B").cast("B", (height, width, 4))

    @property
    def pixels(self) -> Any:
        """The same as a NumPy array, uint8 [height, width, 3]. Change it in place: `sample.pixels[:] = ...`."""
        import numpy

        return numpy.asarray(self.rgbx)[..., :3]


_this_thread = threading.local()


def running_stage() -> Optional[Callable[[Sample], None]]:
    """The stage that this thread, one of a pipeline, is in."""
    return getattr(_this_thread, "stage", None)


def last_line(error: BaseException) -> str:
    """Of what Python would print, as C takes it."""
    text = traceback.format_exception_only(type(error), error)[-1].strip()
    return text.encode("utf-8", "replace")[:255].decode("utf-8", "ignore")


def stage_function(stage: Callable[[Sample], None], raised: Deque[BaseException]):
    """`stage` as C calls it: what it raises fails the batch, its last line is in the message, and itself in `raised`."""

    def call(_, struct) -> int:
        _this_thread.stage = stage
        sample = Sample(struct.contents)
        try:
            stage(sample)
        except BaseException as error:  # nothing can be raised through C; the batch fails instead
            raised.append(error)
            struct.contents.error = last_line(error).encode()
            return 1
        finally:
            sample._struct = None
            _this_thread.stage = None
        return 0

    return StageFunction(call)
