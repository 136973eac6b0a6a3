"""What all hooks share: the connection, the clock, the state of the training loop."""
import ctypes
import functools
import os
import sys
import threading
from time import monotonic_ns as now  # CLOCK_MONOTONIC, as the recorder

# flatout_slice_kind in src/wire/messages.h
INPUT_WAIT, FORWARD, BACKWARD, OPTIMIZER, H2D, SYNC, COMMUNICATION, CHECKPOINT, GC = range(2, 11)
VALIDATION, LOADER_START, FETCH, SAMPLE, COLLATE, HANDOVER, WORKER, LOGGING = range(11, 19)
ZERO_GRAD, PHASE, EPOCH, FEED = range(19, 23)

connected = False
is_off = False
_library = None


class _State:
    """Where the training loop is. Plain attributes, written without locks: a race between training
    threads may lose a hint, never a slice."""

    loader_thread = 0  # thread that is inside a loader's __next__
    step_thread = 0  # thread that is inside an optimizer's step
    train_thread = 0  # thread that did the last step
    waiting = False  # between the end of a step and the next forward or backward
    last_backward = 0  # when it ended
    steps = 0
    eval_call = False  # the model was called in eval mode, with gradients
    trains_in_eval_mode = False  # and a backward came after such a call
    iterator = 0  # id() of the loader's iterator that was asked last
    is_worker = False


state = _State()


def emit(kind, name, begin, end, value, value2):
    """A slice from a hook, `end` taken right after the job's code returned (flatout_agent_hook)."""


def mark(kind, name, begin, end, value, value2):
    """A slice at any time (flatout_agent_slice)."""


def cost(hooks, sum_ns, max_ns, steps):
    """Counts what a hook cost that emitted nothing."""


def connect():
    """Finds and starts the C agent. Hook modules are imported after this, and take emit from here."""
    global connected, _library, emit, mark, cost
    # PyDLL: these calls take a microsecond; letting go of the GIL for them would cost more.
    library = ctypes.PyDLL(os.environ["FLATOUT_AGENT"])
    start = ctypes.CDLL(os.environ["FLATOUT_AGENT"]).flatout_agent_start
    start.argtypes = [ctypes.c_uint32]
    if not start(2):
        return False
    u32, u64, i64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64
    for name in ("flatout_agent_hook", "flatout_agent_slice"):
        getattr(library, name).argtypes = [u32, u32, u64, u64, i64, i64]
        getattr(library, name).restype = None
    library.flatout_agent_cost.argtypes = [u64, u64, u64, u64]
    library.flatout_agent_cost.restype = None
    library.flatout_agent_info.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    library.flatout_agent_info.restype = None
    library.flatout_agent_intern.argtypes = [ctypes.c_char_p]
    library.flatout_agent_intern.restype = u32
    library.flatout_agent_overhead.argtypes = [u64]
    library.flatout_agent_overhead.restype = None
    library.flatout_agent_stop.restype = None
    _library = library
    emit = library.flatout_agent_hook
    mark = library.flatout_agent_slice
    cost = library.flatout_agent_cost
    library.flatout_agent_overhead(_wrapper_cost())
    os.register_at_fork(after_in_child=_after_fork)
    connected = True
    return True


def _after_fork():
    state.loader_thread = state.step_thread = state.train_thread = 0
    state.waiting = False


def intern(name):
    return _library.flatout_agent_intern(name.encode("utf-8", "replace"))


def info(key, value):
    """A fact; None is none."""
    if value is not None and _library is not None:
        _library.flatout_agent_info(key.encode(), str(value).encode("utf-8", "replace")[:30000])


def off(what, error):
    """Something of ours failed: no more of it, said once. Hooks that are in place go quiet."""
    global is_off
    if is_off:
        return
    is_off = True
    reason = "%s: %s: %s" % (what, type(error).__name__, error)
    try:
        info("agent.off", reason)
        if _library is not None:
            _library.flatout_agent_stop()
        sys.stderr.write("flatout: warning: the agent in pid %d is off: %s\n" % (
            os.getpid(), reason))
    except Exception:
        pass


def guarded(function):
    """For our own code around the job's: it must not fail into the job."""

    @functools.wraps(function)
    def wrapper(*args):
        try:
            return function(*args)
        except Exception as error:
            off(function.__name__, error)

    return wrapper


def replace(owner, name, make):
    """owner.name = make(owner.name), looking the same. Nothing happens where there is no such name."""
    original = getattr(owner, name, None)
    if original is None or getattr(original, "_flatout", False):
        return False
    wrapper = functools.wraps(original)(make(original))
    wrapper._flatout = True
    setattr(owner, name, wrapper)
    return True


def timed(kind, original, name=0):
    """The plainest hook: `original`, with a slice of that kind."""

    def hook(*args, **kwargs):
        begin = now()
        result = original(*args, **kwargs)
        emit(kind, name, begin, now(), 0, 0)
        return result

    return hook


def _wrapper_cost():
    """What a hook costs besides what flatout_agent_hook counts by itself: the least of some tries."""
    nothing = int

    def hook(*args, **kwargs):
        begin = now()
        result = nothing()
        now()
        return begin and result

    least = 1 << 30
    for _ in range(50):
        begin = now()
        hook(1)
        least = min(least, now() - begin)
    return least


get_ident = threading.get_ident
