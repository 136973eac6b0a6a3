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
    core.replace(gc, "set_threshold", lambda f: _noted(f, _threshold))
    if core.replace(os, "sched_setaffinity", lambda f: _noted(f, _affinity)):
        home = sys.modules.get(getattr(os.sched_setaffinity, "__module__", None))
        if home is not None and home is not os:  # where pickle looks for it
            home.sched_setaffinity = os.sched_setaffinity
    core.replace(torch, "set_num_threads", lambda f: _noted(
        f, lambda _: _send("torch.num_threads", torch.get_num_threads())))
    core.replace(torch, "set_num_interop_threads", lambda f: _noted(
        f, lambda _: _send("torch.interop_threads", torch.get_num_interop_threads())))
    anomaly = getattr(getattr(torch, "autograd", None), "anomaly_mode", None)
    for name, method in (("set_detect_anomaly", "__init__"), ("detect_anomaly", "__enter__")) if anomaly else ():
        core.replace(getattr(anomaly, name, None), method, lambda f: _noted(
            f, lambda _: "torch.anomaly" if torch.is_anomaly_enabled() else None))  # graph.py says whether it lasts
    _element_types(torch)
    subprocess = sys.modules.get("subprocess")
    if not core.replace(subprocess, "_fork_exec", _telling_programs):  # CPython before 3.11
        core.replace(getattr(subprocess, "_posixsubprocess", None), "fork_exec", _telling_programs)


def _element_types(torch):
    """Where the job asks for other types than float32."""
    module = getattr(getattr(torch, "nn", None), "Module", None)
    facts = {getattr(torch, "float64", None): "model.float64"}
    facts.update((getattr(torch, name, None), "model.half") for name in ("bfloat16", "float16"))

    def asked_for(kinds):
        """The fact, by types or tensors of that type."""
        kinds = [getattr(kind, "dtype", kind) for kind in kinds]
        return next((facts[kind] for kind in kinds if type(kind) is torch.dtype and kind in facts), None)

    core.replace(torch, "set_default_dtype", lambda f: _noted(f, asked_for))
    core.replace(module, "to", lambda f: _noted(f, lambda args: asked_for(args[1:])))
    core.replace(module, "double", lambda f: _noted(f, lambda _: "model.float64"))
    for name in ("half", "bfloat16"):
        core.replace(module, name, lambda f: _noted(f, lambda _: "model.half"))

    def casts(args):
        """In the order of the parameters: all but the type and whether it is enabled."""
        if any(a is False for a in args[2:4]) or "model.half.set_at" in _sent:  # not for each step
            return None
        return "model.half" if "cpu" in args[1:2] else asked_for(args[1:])

    core.replace(getattr(torch, "autocast", None), "__init__", lambda f: _noted(f, casts))


def _noted(original, asked_for):
    """`asked_for`: from the call's arguments, the fact that it asks for; None if it asks for none."""
    is_compiling = core.compiling

    def hook(*args, **kwargs):
        result = original(*args, **kwargs)
        if not is_compiling() and not core.is_off:
            begin = now()
            _note(asked_for, (*args, *kwargs.values()), sys._getframe(1))
            spent = now() - begin
            cost(1, spent, spent, 0)
        return result

    return hook


@core.guarded
def _note(asked_for, args, frame):
    """What PyTorch sets itself, as in each worker of a loader, is nobody's wish."""
    if places.caller_is_in("torch", frame):
        return
    place = places.users_place(frame)
    key = asked_for(args) if place is not None else None
    if key is not None:
        _send(key + ".set_at", place)


def _send(key, value):
    """Returns the key."""
    if _sent.get(key) != value:  # some set it again for each sample
        _sent[key] = value
        core.info(key, value)
    return key


def _threshold(_):
    return _send("gc.threshold", ",".join(map(str, gc.get_threshold())))


def _affinity(args):
    """None for the affinity of others."""
    return "affinity" if args and type(args[0]) is int and args[0] in (0, os.getpid()) else None


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
