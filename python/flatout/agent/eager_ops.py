"""TensorFlow: how many operations a step runs one by one, from Python, where it is not compiled. Counted in
a step now and then: in between nothing stands before them."""
import sys

from . import core
from .core import state

_NAMES = ("TFE_Py_FastPathExecute", "TFE_Py_Execute")
_AT = (10, 30, 100)  # steps; then each thousandth
_count = [0]
_originals = {}  # while it counts
_due = [_AT[0]]


@core.guarded
def step_ended():
    """A step that ran operation by operation has ended."""
    if _originals:
        _stop()
        core.info("tensorflow.eager_ops", _count[0])
    elif state.steps >= _due[0]:
        _due[0] = next((n for n in _AT if n > state.steps), state.steps + 1000)
        _start()


def _start():
    module = sys.modules.get("tensorflow.python.pywrap_tfe")
    _count[0] = 0
    for name in _NAMES:
        original = getattr(module, name, None)
        if original is not None:
            _originals[name] = original
            setattr(module, name, _counting(original))


def _stop():
    module = sys.modules["tensorflow.python.pywrap_tfe"]
    while _originals:
        setattr(module, *_originals.popitem())


def _counting(execute):
    def hook(*args, **kwargs):
        _count[0] += 1
        return execute(*args, **kwargs)

    return hook
