"""Where the job itself changes a setting that a finding may blame: threads, affinity, the collector;
where it forks most, and where it starts other programs."""
import gc
import os
import sys

from . import core, places
from .core import cost, now

_sent = {}  # key -> value


def install(torch):
    places.not_users(torch)
    _threshold(None)
    os.register_at_fork(before=_forks, after_in_child=_sent.clear)
    core.replace(gc, "set_threshold", lambda f: _noted(f, "gc.threshold", _threshold))
    if core.replace(os, "sched_setaffinity", lambda f: _noted(f, "affinity", _affinity)):
        home = sys.modules.get(getattr(os.sched_setaffinity, "__module__", None))
        if home is not None and home is not os:  # where pickle looks for it
            home.sched_setaffinity = os.sched_setaffinity
    core.replace(torch, "set_num_threads", lambda f: _noted(
        f, "torch.num_threads", lambda _: _send("torch.num_threads", torch.get_num_threads())))
    core.replace(torch, "set_num_interop_threads", lambda f: _noted(
        f, "torch.interop_threads",
        lambda _: _send("torch.interop_threads", torch.get_num_interop_threads())))
    anomaly = getattr(getattr(torch, "autograd", None), "anomaly_mode", None)
    for name, method in (("set_detect_anomaly", "__init__"), ("detect_anomaly", "__enter__")) if anomaly else ():
        core.replace(getattr(anomaly, name, None), method, lambda f: _noted(
            f, "torch.anomaly", lambda _: torch.is_anomaly_enabled()))  # graph.py says whether it lasts
    double = getattr(torch, "float64", None)
    module = getattr(getattr(torch, "nn", None), "Module", None)
    core.replace(torch, "set_default_dtype", lambda f: _noted(
        f, "model.float64", lambda args: any(a is double for a in args)))
    core.replace(module, "double", lambda f: _noted(f, "model.float64", lambda _: True))
    core.replace(module, "to", lambda f: _noted(  # the type alone, or that of a tensor
        f, "model.float64", lambda args: any(getattr(a, "dtype", a) is double for a in args[1:])))
    subprocess = sys.modules.get("subprocess")
    if not core.replace(subprocess, "_fork_exec", _telling_programs):  # CPython before 3.11
        core.replace(getattr(subprocess, "_posixsubprocess", None), "fork_exec", _telling_programs)


def _noted(original, key, tell):
    is_compiling = core.compiling

    def hook(*args, **kwargs):
        result = original(*args, **kwargs)
        if not is_compiling() and not core.is_off:
            begin = now()
            _note(key, tell, (*args, *kwargs.values()), sys._getframe(1))
            spent = now() - begin
            cost(1, spent, spent, 0)
        return result

    return hook


@core.guarded
def _note(key, tell, args, frame):
    """What PyTorch sets itself, as in each worker of a loader, is nobody's wish."""
    if places.caller_is_in("torch", frame):
        return
    place = places.users_place(frame)
    if place is not None and tell(args) is not False:
        _send(key + ".set_at", place)


def _send(key, value):
    if _sent.get(key) != value:  # some set it again for each sample
        _sent[key] = value
        core.info(key, value)


def _threshold(_):
    _send("gc.threshold", ",".join(map(str, gc.get_threshold())))


def _affinity(args):
    """False for the affinity of others."""
    return bool(args) and type(args[0]) is int and args[0] in (0, os.getpid())


_forked_at = {}  # place -> forks, of the first few places
_forks_seen = [0]


@core.guarded
def _forks():
    """Counts forks by the user's line; tells the most frequent one ever more seldom."""
    begin = now()
    place = places.users_place(sys._getframe(1))
    if place is not None and (place in _forked_at or len(_forked_at) < 64):
        _forked_at[place] = _forked_at.get(place, 0) + 1
        _forks_seen[0] += 1
        if _forks_seen[0] & (_forks_seen[0] - 1) == 0:
            _send("forks.most_at", max(_forked_at, key=_forked_at.get))
    spent = now() - begin
    cost(1, spent, spent, 0)


_MOST_PROGRAMS = 64  # who starts more starts them all the time
_programs = [0]


def _telling_programs(original):
    def hook(*args):
        pid = original(*args)
        if _programs[0] < _MOST_PROGRAMS and not core.is_off:
            begin = now()
            _note_program(pid, sys._getframe(1))
            spent = now() - begin
            cost(1, spent, spent, 0)
        return pid

    return hook


@core.guarded
def _note_program(pid, frame):
    _programs[0] += 1
    place = places.users_place(frame)
    if place is not None:
        _send("program.%d.started_at" % pid, place)
