"""What the C agent has for Python (src/agent/python_hooks.h, python_calls.c), in Python: where that cannot
be had (an interpreter that is not CPython, or hides its symbols). Some ten times slower.
"""
import threading
from time import monotonic_ns as now
from types import FunctionType

from . import core
from .core import (BACKWARD, COLLATE, EPOCH, FETCH, FORWARD, GC, OPTIMIZER, SAMPLE,
                   VALIDATION, cost, get_ident, mark, state)

_SHORTEST_WAIT = 20000
_SHORTEST_GC = 50000
_optimizers = {}  # id(optimizer) -> [number, steps done]
_callbacks = [None, None, None, None]
Hook = FunctionType


class _Local(threading.local):
    inside_model = False


_local = _Local()


def set_callbacks(after_step, before_backward, grad_enabled, after_batch):
    _callbacks[:] = after_step, before_backward, grad_enabled, after_batch


def note(kind, begin, end, value=0, value2=0):
    core.emit(kind & 0xFFFFFFFF, kind >> 32, begin, end, value, value2)


def timed(kind, original):
    def timed(*args, **kwargs):
        begin = now()
        result = original(*args, **kwargs)
        note(kind, begin, now())
        return result

    return timed


def backward(_, original):
    def backward(*args, **kwargs):
        state.waiting = 0
        if state.eval_call:
            state.trains_in_eval_mode = 1
        if _callbacks[1] is not None and (state.steps >= state.graph_step or now() >= state.graph_due):
            _callbacks[1](*args, **kwargs)
        begin = now()
        result = original(*args, **kwargs)
        state.last_backward = end = now()
        state.backwards += 1
        note(BACKWARD, begin, end)
        return result

    return backward


def _entry(optimizer):
    return _optimizers.setdefault(id(optimizer), [len(_optimizers), 0])


def step(_, original):
    def step(*args, **kwargs):
        me = get_ident()
        if state.step_thread == me:
            return original(*args, **kwargs)
        state.step_thread = me
        backwards = state.backwards
        begin = now()
        try:
            result = original(*args, **kwargs)
        finally:
            end = now()
            state.step_thread = 0
        entry = _entry(args[0] if args else None)
        entry[1] += 1
        state.waiting = 1
        state.train_thread = me
        state.steps += 1
        if state.backwards - backwards == 1:
            begin = state.last_backward
        note(OPTIMIZER, begin, end, entry[0], entry[1])
        if state.steps >= state.rare_step or end > state.look_due:
            _callbacks[0]()
        return result

    return step


def scaled(_, original):
    def scaled(*args, **kwargs):
        before = state.steps
        begin = now()
        result = original(*args, **kwargs)
        if state.steps == before:
            state.waiting = 1
            note(OPTIMIZER, begin, now(), *_entry(args[1] if len(args) > 1 else None))
        return result

    return scaled


def forward(_, original, name=None):
    def forward(*args, **kwargs):
        call = original if name is None else getattr(original, name)
        if _local.inside_model:
            return call(*args, **kwargs)
        _local.inside_model = True
        state.waiting = 0
        begin = now()
        try:
            result = call(*args, **kwargs)
        finally:
            _local.inside_model = False
        end = now()
        kind = FORWARD
        evaluates = not getattr(args[0], "training", True)
        if not _callbacks[2]():
            kind = VALIDATION
        elif evaluates:
            state.eval_call = 1
            kind = FORWARD if state.trains_in_eval_mode else VALIDATION
        state.forwards += 1
        note(kind, begin, end, int(kind == VALIDATION and evaluates and not state.trains_in_eval_mode))
        return result

    return forward


def wait_for_input(kind, original):
    def wait_for_input(*args, **kwargs):
        me = get_ident()
        if not state.waiting or state.train_thread != me or state.loader_thread == me:
            return original(*args, **kwargs)
        state.loader_thread = me
        begin = now()
        in_vain = 1
        try:
            result = original(*args, **kwargs)
            in_vain = 0
        finally:
            end = now()
            state.loader_thread = 0
            if end - begin >= _SHORTEST_WAIT:
                note(kind, begin, end, in_vain)
            else:
                cost(1, now() - end, 0, 0)
        return result

    return wait_for_input


def next(kind, original):
    def next(iterator):
        if state.iterator != id(iterator):
            state.iterator = id(iterator)
            state.rare_step = 0
        state.loader_thread = get_ident()
        begin = now()
        ended = False
        try:
            batch = original(iterator)
        except StopIteration:
            ended = True
            raise
        finally:
            end = now()
            state.loader_thread = 0
            if ended:
                state.epochs += 1
                note(kind, begin, end)
                mark(EPOCH, 0, end, end, state.epochs, 0)
        note(kind, begin, end)
        if state.steps >= state.batch_step and _callbacks[3] is not None:
            _callbacks[3](batch)
        return batch

    return next


class samples:
    """Stands for the data set inside a fetcher."""

    def __init__(self, inner):
        self._inner = inner
        self._batches = 0
        self._clear()

    def _clear(self):
        self._count = self._sum = self._most = self._begin = 0
        self._index = -1

    def _add(self, begin, index):
        took = now() - begin
        self._count += 1
        self._sum += took
        if took > self._most:
            self._most, self._begin = took, begin
            self._index = index if type(index) is int else -1

    def __getitem__(self, index):
        begin = now()
        sample = self._inner[index]
        self._add(begin, index)
        return sample

    def __getattr__(self, name):  # __getitems__ and whatever else a fetcher may ask for
        return getattr(self.__dict__["_inner"], name)


class sample_iterator(samples):
    """The same for an IterableDataset's iterator."""

    def __iter__(self):
        return self

    def __next__(self):
        begin = now()
        sample = self._inner.__next__()
        self._add(begin, None)
        return sample


def fetch(both):
    inside, original = both

    def fetch(index):
        inside._clear()
        begin = now()
        batch = original(index)
        end = now()
        number = state.batch if state.is_worker else inside._batches
        inside._batches += 1
        try:
            count = inside._count or len(index)
        except TypeError:
            count = 1
        if inside._most:
            mark(SAMPLE, 0, inside._begin, inside._begin + inside._most, inside._index, inside._sum)
        cost(0, inside._count * state.sample_cost, 0, 0)
        note(FETCH, begin, end, count, number)
        return batch

    return fetch


def collate(original):
    def collate(samples):
        begin = now()
        batch = original(samples)
        end = now()
        number = state.collates
        state.collates += 1
        note(COLLATE, begin, end, _bytes_of(batch) if number < 8 or number % 16 == 0 else 0)
        return batch

    return collate


def _bytes_of(batch):
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    elif not isinstance(batch, (list, tuple)):
        batch = (batch,)
    sizes = [getattr(part, "nbytes", 0) for part in batch[:16]]
    return sum(size for size in sizes if type(size) is int)


_began = [0]


def collected(phase, facts):
    if phase == "start":
        _began[0] = now()
    else:
        end = now()
        if _began[0] and end - _began[0] >= _SHORTEST_GC:
            note(GC, _began[0], end, facts.get("generation", -1), facts.get("collected", 0))
