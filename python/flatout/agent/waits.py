"""Batches that come from elsewhere than a DataLoader: the training thread waits for another thread or
process, between the end of a step and the next forward. Waits inside a loader, of other threads, or
that end in a time-out are not input."""
import sys

from . import core
from .core import INPUT_WAIT, cost, emit, get_ident, now, state

_SHORTEST = 20000  # ns; less is no wait
_PLACES = (  # module, class, method
    ("queue", "Queue", "get"),
    ("multiprocessing.queues", "Queue", "get"),
    ("multiprocessing.queues", "SimpleQueue", "get"),
    ("multiprocessing.connection", "_ConnectionBase", "recv"),
    ("multiprocessing.pool", "IMapIterator", "next"),
    ("concurrent.futures._base", "Future", "result"),
    ("multiprocessing.pool", "ApplyResult", "get"),
)


def install(_):
    for module, owner, method in _PLACES:
        if module not in sys.modules and not module.startswith("multiprocessing."):
            __import__(module)
        if module in sys.modules:
            core.replace(getattr(sys.modules[module], owner, None), method,
                         lambda f, name="%s.%s" % (owner, method): _wait(f, core.intern(name)))
    pool = sys.modules.get("multiprocessing.pool")
    iterator = getattr(pool, "IMapIterator", None)
    if iterator is not None and "next" in vars(iterator):
        iterator.__next__ = iterator.next


def _wait(wait, name):
    def hook(*args, **kwargs):
        if not state.waiting:
            return wait(*args, **kwargs)
        me = get_ident()
        if me != state.train_thread or me == state.loader_thread:
            return wait(*args, **kwargs)
        begin = now()
        state.loader_thread = me  # what this one is made of is the same wait
        try:
            result = wait(*args, **kwargs)
        finally:
            state.loader_thread = 0
        end = now()
        if end - begin >= _SHORTEST:
            emit(INPUT_WAIT, name, begin, end, 0, 0)
        else:
            cost(1, now() - end, 0, 0)
        return result

    return hook
