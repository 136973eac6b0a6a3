"""Pauses of Python's garbage collector."""
import gc

from . import core


def install(_):
    if core.connected:
        gc.callbacks.append(core.calls.collected)
