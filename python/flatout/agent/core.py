"""What all hooks share: the connection, the clock, the state of the training loop."""
import ctypes
import functools
import os
import sys
import threading
from time import monotonic_ns as now  # CLOCK_MONOTONIC, as the recorder
from types import FunctionType

# flatout_slice_kind in src/wire/messages.h
INPUT_WAIT, FORWARD, BACKWARD, OPTIMIZER, H2D, SYNC, COMMUNICATION, CHECKPOINT, GC = range(2, 11)
VALIDATION, LOADER_START, FETCH, SAMPLE, COLLATE, HANDOVER, WORKER, LOGGING = range(11, 19)
ZERO_GRAD, PHASE, EPOCH, FEED = range(19, 23)

get_ident = threading.get_ident
connected = False
is_off = False
_library = None


class _Loop(ctypes.Structure):
    """Where the training loop is: struct flatout_agent_loop (src/agent/python_calls.h) has the same
    fields and says what they are."""

    _fields_ = [(name, ctypes.c_int64) for name in (
        "waiting", "loader_thread", "step_thread", "train_thread", "last_backward", "backwards", "steps",
        "forwards", "iterator", "eval_call", "trains_in_eval_mode", "epochs", "is_worker", "batch", "collates",
        "rare_step", "look_due", "graph_step", "graph_due", "sample_cost")]


NEVER = 1 << 62  # a time, or a step
state = None  # the one _Loop
calls = None  # the builtins of python_calls.c, or plain_calls


def note(kind, begin, end, value=0, value2=0):
    """A slice of kind | name << 32 that a hook took, `end` right after the job's code returned."""


def emit(kind, name, begin, end, value, value2):
    """A slice sent at once, `end` taken right after the job's code returned (flatout_agent_hook)."""


def mark(kind, name, begin, end, value, value2):
    """A slice at any time (flatout_agent_slice)."""


def cost(hooks, sum_ns, max_ns, steps):
    """Counts what a hook cost that sent nothing."""


def connect():
    """Finds and starts the C agent. Hook modules are imported after this, and take emit from here."""
    global connected, _library, emit, mark, cost, state, calls, note
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
    library.flatout_agent_overhead.restype = u64
    library.flatout_agent_count.argtypes = [ctypes.c_char_p, ctypes.c_double]
    library.flatout_agent_count.restype = None
    library.flatout_agent_stop.restype = None
    _library = library
    emit = library.flatout_agent_hook
    mark = library.flatout_agent_slice
    cost = library.flatout_agent_cost
    state = _Loop.in_dll(library, "flatout_agent_loop")
    calls = _builtins(library)
    note = calls.note
    library.flatout_agent_overhead(_idle_cost())
    state.sample_cost = _sample_cost()
    os.register_at_fork(after_in_child=_after_fork)
    connected = True
    return True


_OBJECT_SIZE = object.__basicsize__  # of what each object begins with; 0 asks for plain_calls


class _Builtins:
    def __init__(self, builtins):
        self.__dict__.update(builtins)


def _builtins(library):
    make = library.flatout_agent_python
    make.argtypes = [ctypes.c_uint64]
    make.restype = ctypes.c_void_p
    builtins = make(_OBJECT_SIZE)
    if builtins:
        return _Builtins(ctypes.cast(builtins, ctypes.py_object).value)
    from . import plain_calls

    info("agent.calls", "plain")
    return plain_calls


def _after_fork():
    state.loader_thread = state.step_thread = state.train_thread = 0
    state.waiting = state.is_worker = 0


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
    _hide(hook.__code__)
    return hook


def _hide(code):
    """Frames of ours are not to be compiled where they interrupt a compiled function."""
    _codes.append(code)
    if _skip_code is not None:
        _skip_code(code)


# torch.compile either traces a hook as a part of something: then `if compiling()`, a constant to it,
# leaves of the hook just the call of the original. Or it would compile the hook's own frame: not so.
# Asking takes as long as the rest of a hook: hooks do only once the job has something compiled.
# (_torchdynamo_inline would need no asking, but loses a method's self where the graph breaks.)
compiling = bool  # False, until torch is here to ask
_codes = []  # of our hooks
_skip_code = None
_unasking = []  # [(hook, the code of it that asks)], as long as nothing is compiled
_asks = [False]


def dynamo_is_here(module):
    global _skip_code
    skip = getattr(module, "skip_code", None)
    if skip is not None:
        for code in _codes:
            skip(code)
        _skip_code = skip
    if module.__name__ != "torch._dynamo.eval_frame":
        return
    if not hasattr(module, "OptimizeContext") or not replace(module.OptimizeContext, "__init__", _compiles):
        _ask()


def _compiles(init):
    def __init__(self, *args, **kwargs):
        if not _asks[0]:
            _ask()
        return init(self, *args, **kwargs)

    return __init__


@guarded
def _ask():
    _asks[0] = True
    while _unasking:
        hook, code = _unasking.pop()
        _hide(code)
        hook.__code__ = code


def asking_when_compiled(hook, asking):
    """`hook`; from when the job first has something compiled on, with the code of `asking`. Both are to
    have the same free variables."""
    if _asks[0]:
        hook.__code__ = asking.__code__
    else:
        _unasking.append((hook, asking.__code__))
    return hook


def hook(call, kind, original):
    """call(kind, original, args, kwargs) in place of `original`: all else is up to the call."""
    is_compiling = compiling

    def hook(*args, **kwargs):
        return call(kind, original, args, kwargs)
        is_compiling  # only named: a free variable here as it is there

    def asking(*args, **kwargs):
        if is_compiling():
            return original(*args, **kwargs)
        return call(kind, original, args, kwargs)

    return asking_when_compiled(hook, asking)


def timed(kind, original):
    """The plainest hook: `original`, with a slice of that kind."""
    return hook(calls.timed, kind, original)


def idle_hook():
    """A function that gives how long a hook round nothing takes now. All code of that hook is its own:
    only these calls bring it into the caches."""
    hook = timed(0, int)
    idle = FunctionType(hook.__code__.replace(co_name="idle"), hook.__globals__, "idle", None, hook.__closure__)
    clock = now

    def measure():
        begin = clock()
        idle()
        return clock() - begin

    _hide(idle.__code__)
    _hide(measure.__code__)
    return measure


def _idle_cost():
    """What a hook costs besides what it counts by itself: its call, the way into the builtin and back.
    At first with caches as after a walk through much memory; python_calls.c asks again."""
    other = bytearray(b"\1") * (3 << 20)  # more than the caches of a core hold
    measure = idle_hook()
    costs = []
    for _ in range(9):
        other.find(b"\0")
        costs.append(measure())
    return sorted(costs)[4]


def _sample_cost():
    """What the clocks round one sample cost."""
    data = (0,) * 16
    inside = calls.samples(data)
    costs = []
    for _ in range(9):
        begin = now()
        for i in range(16):
            inside[i]
        middle = now()
        for i in range(16):
            data[i]
        costs.append(2 * middle - begin - now())
    return max(0, sorted(costs)[4]) // 16
