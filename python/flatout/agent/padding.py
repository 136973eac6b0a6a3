"""How far batches are padded beyond what their longest sample needs: `batch.padding`, of some batches of token ids.

What a loader hands out is looked at as it comes, on the host: no device is asked. Columns at an end of a batch
that hold one and the same value in all its rows are padding that no row needs. Nothing is held after a look.
No code of the job's runs: of a mapping, what a dict or a UserDict (a tokenizer's) holds is looked at, and no other.
"""
import sys
from collections import UserDict
from time import thread_time_ns

from . import core, forward, places
from .core import NEVER, cost, state

_STEPS = (3, 10, 20, 35, 50, 100, 200)  # looks come at these steps, then
_EVERY = 400
_NARROW = 16  # columns: fewer are no texts
_MOST = 1 << 22  # elements that are looked at
_whole = ()  # types of token ids
_Tensor = None
_seen = [0, 0, 0]  # looks, columns, those that no row needs
_sent = [None, None]


def install(torch):
    global _Tensor, _whole
    _Tensor, _whole = torch.Tensor, (torch.int64, torch.int32)
    state.batch_step = _STEPS[0]


def look(batch):
    """Called with a batch that is due, right after it came."""
    try:
        ran = thread_time_ns()
        _look(batch, sys._getframe(1))
        spent = thread_time_ns() - ran
        cost(0, spent, spent, 0)
    except Exception:
        state.batch_step = NEVER  # the agent goes on without


def _look(batch, frame):
    steps = state.steps
    state.batch_step = next((n for n in _STEPS if n > steps), steps - steps % _EVERY + _EVERY)
    if core.is_off or core.compiling():
        state.batch_step = NEVER if core.is_off else state.batch_step
        return
    found = [unneeded(ids) for ids in _token_ids(batch)]
    if not found:
        return
    if not _seen[0] and not _embeds():
        state.batch_step = NEVER  # its integers are no ids
        return
    widest = max(columns for columns, _ in found)
    _seen[0] += 1
    _seen[1] += widest
    _seen[2] += min(spare for columns, spare in found if columns == widest)
    if _seen[2] and (_seen[0] < 10 or not _seen[0] % 10):
        core.info("batch.padding", "%d of %d columns in %d batches" % (_seen[2], _seen[1], _seen[0]))
        place = places.users_place(frame)
        if place != _sent[0]:
            _sent[0] = place
            core.info("batch.padding.at", place)


def _embeds():
    """Whether a model looks ids up, as far as the models are known."""
    models = forward.models()
    return not models or any("Embedding" in type(part).__name__ for model in models for part in model.modules())


def _token_ids(batch):
    """The integer matrices of a batch, on the host; none where most of the batch is no text (pictures)."""
    tensors = [p for p in _parts(batch) if type(p) is _Tensor]
    ids = [p for p in tensors if p.dtype in _whole and p.dim() == 2 and p.device.type == "cpu"
           and p.shape[0] > 1 and p.shape[1] >= _NARROW and p.numel() <= _MOST and not _flags(p)]
    most = max((p.numel() for p in ids), default=0)
    return [] if any(p.is_floating_point() and p.numel() > most for p in tensors) else ids


def _parts(batch):
    kind = type(batch)
    if kind in (tuple, list):
        return batch
    if UserDict in kind.__mro__:
        batch = object.__getattribute__(batch, "__dict__").get("data")
    return list(batch.values()) if type(batch) is dict else (batch,)


def _flags(matrix):
    """Whether it holds two values at most: a mask, or labels of which several may hold; no ids."""
    least, most = matrix.min(), matrix.max()
    return bool(((matrix == least) | (matrix == most)).all())


def unneeded(ids):
    """(columns of a matrix, those at one of its ends that hold one value)."""
    rows, columns = ids.shape
    spare = 0
    for end, step in ((columns - 1, -1), (0, 1)):
        filling = ids[0, end].item()
        same = (ids == filling).all(0).tolist()
        run = 0
        for at in range(end, columns if step > 0 else -1, step):
            if not same[at]:
                break
            run += 1
        spare = max(spare, run)
    return columns, spare
