"""What all hooks share: the connection, the clock, the state of the training loop."""
import ctypes
import functools
import os
import struct
import sys
import threading
from time import monotonic_ns as now  # CLOCK_MONOTONIC, as the recorder

# flatout_slice_kind in src/wire/messages.h
INPUT_WAIT, FORWARD, BACKWARD, OPTIMIZER, H2D, SYNC, COMMUNICATION, CHECKPOINT, GC = range(2, 11)
VALIDATION, LOADER_START, FETCH, SAMPLE, COLLATE, HANDOVER, WORKER, LOGGING = range(11, 19)
ZERO_GRAD, PHASE, EPOCH, FEED = range(19, 23)

get_ident = threading.get_ident
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
    flushed = 0  # when that was last done
    look_due = 1 << 62  # when keeps wants to look at the job's containers next


state = _State()


# Hooks on the hot path only note what they saw: note((kind, get_ident(), begin, end, value, value2,
# now())), one atomic operation. flush() sends all of it in one call, once a step or so.
_pending = []
note = _pending.extend
_FIELDS = 7
SOON = 5000000  # ns between two flushes at the end of a step: fast steps share one
LATE = 200000000  # ns after which other hooks flush too
_MOST = 64 * _FIELDS
_buffer = bytearray(8 * _MOST)
_flushing = threading.Lock()  # only ever tried, never waited for
_packers = {}
_NOBODY = 0xFFFFFFFF  # a thread that is not Python's: what it noted is left out


def emit(kind, name, begin, end, value, value2):
    """A slice sent at once, `end` taken right after the job's code returned (flatout_agent_hook)."""


def mark(kind, name, begin, end, value, value2):
    """A slice at any time (flatout_agent_slice)."""


def cost(hooks, sum_ns, max_ns, steps):
    """Counts what a hook cost that sent nothing."""


def flush():
    """Sends what was noted."""
    began = now()
    state.flushed = began
    if not _flushing.acquire(False):
        return
    try:
        while _pending:
            values = _pending[:_MOST]
            count = len(values)
            packer = _packers.get(count)
            if packer is None:
                packer = _packers[count] = struct.Struct("<%dq" % count).pack_into
            packer(_buffer, 0, *values)
            unknown = _send(_address, count // _FIELDS, began)
            while unknown:
                thread = threading._active.get(unknown)
                _library.flatout_agent_thread(unknown, getattr(thread, "native_id", None) or _NOBODY)
                unknown = _send(_address, count // _FIELDS, began)
            del _pending[:count]
            began = now()
    except Exception as error:
        off("sending", error)
    finally:
        _flushing.release()


def connect():
    """Finds and starts the C agent. Hook modules are imported after this, and take emit from here."""
    global connected, _library, _send, _address, emit, mark, cost
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
    library.flatout_agent_records.argtypes = [ctypes.c_void_p, u32, u64]
    library.flatout_agent_records.restype = u64
    library.flatout_agent_thread.argtypes = [u64, u32]
    library.flatout_agent_thread.restype = None
    library.flatout_agent_info.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    library.flatout_agent_info.restype = None
    library.flatout_agent_intern.argtypes = [ctypes.c_char_p]
    library.flatout_agent_intern.restype = u32
    library.flatout_agent_overhead.argtypes = [u64]
    library.flatout_agent_overhead.restype = None
    library.flatout_agent_count.argtypes = [ctypes.c_char_p, ctypes.c_double]
    library.flatout_agent_count.restype = None
    library.flatout_agent_stop.restype = None
    _library = library
    _send = library.flatout_agent_records
    _address = ctypes.addressof((ctypes.c_char * len(_buffer)).from_buffer(_buffer))
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
    state.is_worker = False
    global _flushing
    _flushing = threading.Lock()
    del _pending[:]


def intern(name):
    return _library.flatout_agent_intern(name.encode("utf-8", "replace"))


def info(key, value):
    """A fact; None is none."""
    if value is not None and _library is not None:
        _library.flatout_agent_info(key.encode(), str(value).encode("utf-8", "replace")[:30000])


def count(name, value):
    """A value over time."""
    _library.flatout_agent_count(name, value)


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
    setattr(owner, name, disguise(make(original), original))
    return True


def disguise(hook, original):
    """Makes `hook` look like `original`."""
    functools.update_wrapper(hook, original)
    hook._flatout = True
    _codes.append(hook.__code__)
    if _skip_code is not None:
        _skip_code(hook.__code__)
    return hook


# torch.compile either traces a hook as a part of something: then `if compiling()`, a constant to it,
# leaves of the hook just the call of the original. Or it would compile the hook's own frame: not so.
compiling = bool  # False, until torch is here to ask
_codes = []  # of our hooks
_skip_code = None


def dynamo_is_here(module):
    global _skip_code
    skip = getattr(module, "skip_code", None)
    if skip is not None:
        for code in _codes:
            skip(code)
        _skip_code = skip


def timed(kind, original):
    """The plainest hook: `original`, with a slice of that kind."""

    is_compiling = compiling

    def hook(*args, **kwargs):
        if is_compiling():
            return original(*args, **kwargs)
        begin = now()
        result = original(*args, **kwargs)
        note((kind, get_ident(), begin, now(), 0, 0, now()))
        return result

    return hook


def _wrapper_cost():
    """What a hook costs besides what it counts by itself: its call, the first clock, the note."""
    scratch = []

    def hook(*args, **kwargs):
        begin = now()
        scratch.extend((0, 0, begin, begin, 0, 0, begin))

    costs = []
    for _ in range(51):
        begin = now()
        hook(1)
        costs.append(now() - begin)
    return sorted(costs)[25]
