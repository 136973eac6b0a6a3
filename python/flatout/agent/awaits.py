"""Where an asyncio job waits. From outside an event loop without work looks the same, whatever its coroutines wait for."""
import asyncio
import gc
import weakref
from types import AsyncGeneratorType

from . import core, places, training
from .core import cost, get_ident, now, state

_LONG = 1000000  # ns; shorter waits are no matter
_MOST_PLACES = 64
_trainer = [None]  # a weak reference to the task that trains
_waits = {}  # place of the user's -> ns
_sent = [None]


def install(_):
    from asyncio import selector_events

    core.replace(selector_events.BaseSelectorEventLoop, "__init__", _loop_init)
    training.each_while(_send)


def _loop_init(init):
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        _watch(self)

    return __init__


@core.guarded
def _watch(loop):
    select = loop._selector.select

    def hook(timeout=None):
        begin = now()
        ready = select(timeout)
        took = now() - begin
        if took > _LONG and state.train_thread == get_ident():
            _waited(took)
        return ready

    loop._selector.select = hook


@core.guarded
def _waited(took):
    begin = now()
    task = _trainer[0]() if _trainer[0] is not None else None
    place = _place(task) if task is not None else None
    if place is not None:
        if len(_waits) >= _MOST_PLACES:
            _waits.clear()
        _waits[place] = _waits.get(place, 0) + took
    spent = now() - begin
    cost(0, spent, spent, 0)


def _place(awaited):
    """FILE:LINE in FUNCTION of the user's innermost frame on the way from a task to what it waits for."""
    found = None
    for _ in range(100):
        if isinstance(awaited, asyncio.Task):
            awaited = awaited.get_coro()
        for frame, inner in (("cr_frame", "cr_await"), ("ag_frame", "ag_await"), ("gi_frame", "gi_yieldfrom")):
            if hasattr(awaited, frame):
                at = getattr(awaited, frame)
                path = places.users_file(at.f_code.co_filename) if at is not None else None
                if path is not None:
                    found = "%s:%d in %s" % (path, at.f_lineno or 0, at.f_code.co_name)
                awaited = getattr(awaited, inner)
                break
        else:  # what lies between two of those tells only the collector what it waits for
            kinds = (asyncio.Task, AsyncGeneratorType)
            awaited = next((one for one in gc.get_referents(awaited) if isinstance(one, kinds)), None)
        if awaited is None:
            break
    return found


def _send(_):
    try:
        _trainer[0] = weakref.ref(asyncio.current_task())
    except (RuntimeError, TypeError):
        return  # it trains outside of the event loop
    place = max(_waits, key=_waits.get) if _waits else None
    if place != _sent[0]:
        _sent[0] = place
        core.info("asyncio.waits_at", place)
