"""Pauses of Python's garbage collector."""
import gc

from . import core
from .core import GC, emit, now

_SHORTEST = 50000  # ns: young collections are many and short


def install(_):
    begin = [0]

    def watch(phase, info):
        if phase == "start":
            begin[0] = now()
        else:
            end = now()
            if begin[0] and end - begin[0] >= _SHORTEST:
                emit(GC, 0, begin[0], end, info.get("generation", -1), info.get("collected", 0))

    if core.connected:
        gc.callbacks.append(watch)
