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
ZERO_GRAD, PHASE, EPOCH, FEED, _, PROFILER = range(19, 25)

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
        "rare_step", "look_due", "graph_step", "graph_due", "sample_cost", "batch_step")]


NEVER = 1 << 62  # a time, or a step
state = None  # the one _Loop
calls = None  # what the C agent has for Python (python_hooks.h, python_calls.c), or plain_calls


def note(kind, begin, end, value=0, value2=0):
    """A slice of kind | name << 32 that a hook took, `end` right after the job's code returned."""


def emit(kind, name, begin, end, value, value2):
    """A slice sent at once, `end` taken right after the job's code returned (flatout_agent_hook)."""


def mark(kind, name, begin, end, value, value2):
    """A slice at any time (flatout_agent_slice)."""


def cost(hooks, sum_ns, max_ns, steps):
    """Counts what a hook cost that sent nothing. Of what may last a look's time, this thread's CPU
    time: it may have to wait for a core, or for the interpreter."""


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


def _bytes(text):
    """Names of files as the bytes that they are, also those that are no UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def intern(name):
    return _library.flatout_agent_intern(_bytes(name))


def info(key, value):
    """A fact; None is none."""
    if value is not None and _library is not None:
        _library.flatout_agent_info(key.encode(), _bytes(str(value))[:30000])


_trains = []


def trains_with(library):
    """Which of the imported libraries takes the steps; the first that does."""
    if not _trains:
        _trains.append(library)
        info("steps.framework", library)


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
    if owner is None or original is None or getattr(original, "_flatout", False):
        return False
    put(owner, name, make(original), original)
    return True


def put(owner, name, hook, original):
    """owner.name = hook, looking like `original`: what torch.compile is to see instead."""
    setattr(owner, name, disguise(hook, original))
    if type(hook) is calls.Hook:
        _hooks.append((owner, name, hook, original))
        if _compiles:
            _let_trace()


def disguise(hook, original):
    """Makes `hook` look like `original`."""
    functools.update_wrapper(hook, original)
    hook._flatout = True
    if type(hook) is FunctionType:
        _hide(hook.__code__)
    return hook


def _hide(code):
    """Frames of ours are not to be compiled where they interrupt a compiled function."""
    _codes.append(code)
    if _skip_code is not None:
        _skip_code(code)


# Where torch.compile traces a hook as a part of something it knows nothing of calls.Hook. So from when
# the job first has something compiled on, functions of Python's stand before the hooks: in their
# `if compiling()`, a constant to it, it sees just the call of the original. Asking takes longer than a hook.
# (_torchdynamo_inline would need no asking, but loses a method's self where the graph breaks.)
compiling = bool  # False, until torch is here to ask
_compiles = False
_codes = []  # of our functions
_skip_code = None
_hooks = []  # [(owner, name, hook, original)], as long as nothing is compiled


def dynamo_is_here(module):
    global _skip_code
    skip = getattr(module, "skip_code", None)
    if skip is not None:
        for code in _codes:
            skip(code)
        _skip_code = skip
    if module.__name__ != "torch._dynamo.eval_frame":
        return
    if not hasattr(module, "OptimizeContext") or not replace(module.OptimizeContext, "__init__", _optimize):
        _let_trace()


def _optimize(init):
    def __init__(self, *args, **kwargs):
        _let_trace()
        return init(self, *args, **kwargs)

    return __init__


@guarded
def _let_trace():
    global _compiles
    _compiles = True
    while _hooks:
        owner, name, hook, original = _hooks.pop()
        if vars(owner).get(name) is hook:
            setattr(owner, name, disguise(_traceable(hook, original), original))


def _traceable(hook, original):
    is_compiling = compiling

    def traceable(*args, **kwargs):
        if is_compiling():
            return original(*args, **kwargs)
        return hook(*args, **kwargs)

    return traceable


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
