"""torch.distributed: collectives that the job's own thread calls and waits for, and what it waits for
in a backward pass of DistributedDataParallel, whose collectives C++ begins and ends."""
import os
from threading import get_native_id
from time import thread_time_ns

from . import core
from .core import COMMUNICATION, now

_COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
    "monitored_barrier", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
    "scatter_object_list", "send",
)
_inside = [0]


def install(torch):
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available():
        return
    home = getattr(dist, "distributed_c10d", dist)
    for name in _COLLECTIVES:
        if core.replace(home, name, lambda f, id=core.intern(name): _collective(f, id)):
            setattr(dist, name, getattr(home, name))
    # Buffers that DistributedDataParallel keeps equal, and collectives that go on meanwhile.
    core.replace(dist, "_broadcast_coalesced", lambda f: _collective(f, core.intern("broadcast")))
    work = getattr(dist, "Work", None)
    if work is not None:
        core.replace(work, "wait", lambda f: _collective(f, core.intern("wait")))
    if core.replace(home, "init_process_group", lambda f: _init(f, dist)):
        dist.init_process_group = home.init_process_group
    parallel = getattr(torch.nn.parallel, "DistributedDataParallel", None)
    if parallel is not None:
        core.replace(parallel, "__init__", lambda f: _parallel_init(f, torch))


def _collective(collective, name):
    call, is_compiling = core.calls.timed(COMMUNICATION | name << 32, collective), core.compiling

    def hook(*args, **kwargs):
        if is_compiling() or _inside[0]:  # one that is made of others
            return collective(*args, **kwargs)
        _inside[0] = 1
        try:
            return call(*args, **kwargs)
        finally:
            _inside[0] = 0

    return hook


def _init(init, dist):
    def hook(*args, **kwargs):
        result = init(*args, **kwargs)
        _facts(dist)
        return result

    return hook


@core.guarded
def _facts(dist):
    core.info("dist.rank", dist.get_rank())
    core.info("dist.world_size", dist.get_world_size())
    core.info("dist.backend", dist.get_backend())


def _parallel_init(init, torch):
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        _watch_backward(torch)

    return __init__


_watching = [False]


@core.guarded
def _watch_backward(torch):
    """On a CPU the thread that runs a backward pass also waits at its end for the last gradients of
    the other ranks. With a device the engine's threads do, and this one waits for them."""
    dist = torch.distributed
    if _watching[0] or not dist.is_initialized() or "nccl" in str(dist.get_backend()):
        return
    if torch.cuda.is_initialized():
        return
    _watching[0] = True
    backward = torch.autograd.backward
    torch.autograd.backward = core.disguise(_waiting(backward), backward)


def _waiting(backward):
    name, is_compiling = core.intern("gradients"), core.compiling
    depth = [0]

    def hook(*args, **kwargs):
        if depth[0] or is_compiling():
            return backward(*args, **kwargs)
        depth[0] = 1
        try:
            entered = now()
            queued, ran = _run_delay(), thread_time_ns()
            begin = now()
            result = backward(*args, **kwargs)
            _note(name, begin, ran, queued)
            core.cost(0, begin - entered, begin - entered, 0)
            return result
        finally:
            depth[0] = 0

    return hook


@core.guarded
def _note(name, begin, ran, queued):
    """What the pass took and this thread neither ran nor stood in line for a core: it waited."""
    end = core.state.last_backward
    ran, queued = thread_time_ns() - ran, _run_delay() - queued
    waited = end - begin - ran - max(queued, 0)
    if waited > 0:
        core.note(COMMUNICATION | name << 32, end - waited, end)


_schedstat = [0, -1]  # the thread that it is of (as the kernel numbers them), descriptor


def _run_delay():
    """Nanoseconds that this thread has stood in line for a core; 0 where the kernel does not tell."""
    try:
        me = get_native_id()  # another one after a fork
        if _schedstat[0] != me:
            if _schedstat[1] >= 0:
                os.close(_schedstat[1])
            _schedstat[:] = me, -1
            _schedstat[1] = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        return int(os.pread(_schedstat[1], 64, 0).split()[1])
    except (OSError, IndexError, ValueError):
        return 0
