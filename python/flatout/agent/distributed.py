"""torch.distributed: collectives that the job's own thread calls and waits for."""
from . import core
from .core import COMMUNICATION

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
    if core.replace(home, "init_process_group", lambda f: _init(f, dist)):
        dist.init_process_group = home.init_process_group


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
