"""Batches that come from elsewhere than a DataLoader: the training thread waits for another thread or
process, between the end of a step and the next forward. Waits inside a loader, of other threads, or
that end in a time-out are not input."""
import sys

from . import core
from .core import INPUT_WAIT

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
                         lambda f, name="%s.%s" % (owner, method): core.calls.wait_for_input(
                             INPUT_WAIT | core.intern(name) << 32, f))
    pool = sys.modules.get("multiprocessing.pool")
    iterator = getattr(pool, "IMapIterator", None)
    if iterator is not None and "next" in vars(iterator):
        iterator.__next__ = iterator.next
