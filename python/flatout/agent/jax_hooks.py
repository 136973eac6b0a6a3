"""JAX: the functions that the job itself compiles with jax.jit, and where it waits for what they compute.

A step ends where a compiled function has returned what it trains: a result that is made like one of its
arguments (parameters, the state of an optimizer). That is found in its first calls. Of a job that
compiles nothing the gradients are seen. What libraries do for themselves is left alone.
"""
import functools
import sys

from . import core, keeps, places
from .core import BACKWARD, FORWARD, OPTIMIZER, SYNC, cost, get_ident, mark, note, now, state

_LOOKS = 3  # calls of a function that are looked at
_SHORT = 20000  # ns; shorter waits are none
_KEPT = ("lower", "trace", "eval_shape", "clear_cache")  # that are the class's, not the function's


class _Loop:
    inside = 0  # the thread that is in a call
    trains = 0  # how surely a function that trains was found (_look)
    functions = {}  # by the line that has them compiled
    leaves = None  # jax.tree.leaves
    structure = None  # jax.tree.structure
    is_clean = None  # whether nothing is being traced


def install(jax):
    core.info("jax.version", getattr(jax, "__version__", None))
    if not {"torch", "tensorflow"} & set(sys.modules):
        from . import collector, settings

        for part in (collector, settings, keeps):
            part.install(jax)
    _Loop.leaves, _Loop.structure = jax.tree_util.tree_leaves, jax.tree_util.tree_structure
    array = getattr(sys.modules.get("jax._src.array"), "ArrayImpl", None)
    for name in ("block_until_ready", "_single_device_array_to_np_array_did_copy"):
        original = getattr(array, name, None)
        if original is not None:  # of C++, and no function that another could look like
            setattr(array, name, _waits(original))
    core.replace(jax, "block_until_ready", _waits)
    core.replace(jax, "jit", _jit)
    _Loop.is_clean = getattr(sys.modules.get("jax._src.core"), "trace_state_clean", None)
    if _Loop.is_clean is not None:
        for name in ("grad", "value_and_grad"):
            core.replace(jax, name, _differentiates)


def _jit(jit):
    def hook(*args, **kwargs):
        made = jit(*args, **kwargs)
        frame = sys._getframe(1)
        if places.users_file(frame.f_code.co_filename) is None:
            return made
        place = frame.f_code, frame.f_lineno
        if hasattr(made, "lower"):
            return _compiled(made, place)

        def decorator(function):
            return _compiled(made(function), place)

        return functools.update_wrapper(decorator, made) if callable(made) else made

    return hook


def _differentiates(transform):
    def hook(*args, **kwargs):
        made = transform(*args, **kwargs)
        if places.users_file(sys._getframe(1).f_code.co_filename) is None or not callable(made):
            return made
        return core.disguise(_gradient(made), made)

    return hook


def _gradient(made):
    """Gradients that are taken operation by operation; within what is compiled they only are traced."""

    def hook(*args, **kwargs):
        if _Loop.inside == get_ident() or core.is_off or not _Loop.is_clean():
            return made(*args, **kwargs)
        result, begin, end = _timed(made, args, kwargs)
        note(BACKWARD, begin, end)
        core.trains_with("jax")
        return result

    return hook


def _timed(made, args, kwargs):
    """A call in which other calls are not looked at, when it began and when it ended."""
    _Loop.inside = get_ident()
    begin = now()
    try:
        result = made(*args, **kwargs)
    finally:
        end = now()
        _Loop.inside = 0
    return result, begin, end


def _compiled(made, place):
    if not hasattr(made, "lower") or getattr(made, "_flatout", False):
        return made
    # One that is compiled anew in each step is always the same.
    known = _Loop.functions.setdefault(place, [len(_Loop.functions), 0, None])  # number, calls, trains
    number = known[0]

    def hook(*args, **kwargs):
        me = get_ident()
        if _Loop.inside == me or core.is_off:
            return made(*args, **kwargs)
        result, begin, end = _timed(made, args, kwargs)
        known[1] += 1
        if known[2] is None:
            known[2] = _look(args, result)
            if known[2] is None and known[1] >= _LOOKS:
                known[2] = 0
            spent = now() - end
            cost(1, spent, spent, 0)
            _Loop.trains = max(_Loop.trains, known[2] or 0)
        if known[2] and known[2] == _Loop.trains:
            mark(FORWARD, 0, begin, end, 0, 0)
            _stepped(me, end, number, known[1])
        elif _Loop.trains and me == state.train_thread:
            note(FORWARD, begin, end)
        return result

    core.disguise(hook, made)
    for name in _KEPT:
        if hasattr(made, name):
            setattr(hook, name, getattr(made, name))
    return hook


def _stepped(thread, end, number, calls):
    state.steps += 1
    state.train_thread = thread
    note(OPTIMIZER, end, end, number, calls)
    core.trains_with("jax")
    if end > state.look_due:
        keeps.look()


@core.guarded
def _look(args, result):
    """2 where it gave back something that is made like one of its arguments, 1 where that is a single array;
    None where it did not, or is traced."""
    found = None
    several = type(result) in (tuple, list)
    for arg in args:
        leaves = _Loop.leaves(arg)
        if not leaves or any(_is_traced(leaf) for leaf in leaves):
            continue
        # A single array is trained where a loss comes with it; else it may be worked on like any data.
        if len(leaves) < 2 and (not several or len(result) < 2 or not _is_float(leaves[0])):
            continue
        for one in (result, *result) if several else (result,):
            if _alike(leaves, arg, one):
                found = max(found or 0, min(len(leaves), 2))
    return found


def _alike(leaves, arg, one):
    others = _Loop.leaves(one)
    return (len(others) == len(leaves) and any(_is_float(leaf) for leaf in leaves)
            and all(getattr(a, "shape", None) == getattr(b, "shape", None) for a, b in zip(leaves, others))
            and _Loop.structure(arg) == _Loop.structure(one))


def _is_traced(leaf):
    return type(leaf).__name__.endswith("Tracer")


def _is_float(leaf):
    return "float" in str(getattr(leaf, "dtype", ""))


def _waits(original):
    def hook(*args, **kwargs):
        if not _Loop.trains or get_ident() != state.train_thread or _Loop.inside:
            return original(*args, **kwargs)
        begin = now()
        result = original(*args, **kwargs)
        end = now()
        if end - begin > _SHORT:
            note(SYNC, begin, end)
        else:
            cost(1, now() - end, 0, 0)
        return result

    return hook
