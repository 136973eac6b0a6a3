"""Keras' fit, evaluate and predict: how often the job calls them, and where. Each sets up a pipeline, callbacks
and an iterator, which is for many batches and not for one."""
import sys

from . import core, places
from .core import state

_NAMES = ("fit", "evaluate", "predict")
_TRAINERS = ("TensorFlowTrainer", "JAXTrainer", "TorchTrainer", "Model")
_FEW = 8  # calls that are not worth a word
_counts = dict.fromkeys(_NAMES, 0)
_inside = [False]


def install(module):
    for cls in (getattr(module, name, None) for name in _TRAINERS):
        for name in _NAMES if cls is not None else ():
            if name in vars(cls):
                core.replace(cls, name, lambda f, name=name: _counted(f, name))


def _counted(call, name):
    def hook(*args, **kwargs):
        if _inside[0]:  # fit evaluates
            return call(*args, **kwargs)
        _inside[0] = True
        _count(name)
        try:
            return call(*args, **kwargs)
        finally:
            _inside[0] = False

    return hook


@core.guarded
def _count(name):
    _counts[name] = count = _counts[name] + 1
    if count >= _FEW and count & (count - 1) == 0:
        core.info("keras.%s.calls" % name, "%d in %d steps" % (count, state.steps))
        core.info("keras.%s.called_at" % name, places.users_place(sys._getframe(2)))
