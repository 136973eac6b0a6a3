"""TensorFlow and Keras: fit, custom loops, tf.data, TF 1 sessions. What a version lacks is left out.

A step ends where an optimizer has applied its gradients. Eagerly that is seen directly. Inside a
tf.function it is seen once, while the function is traced; from then on each call of that function
is a step (this is how Keras' fit runs, too). What such a function waits for inside is for pipelines.py.
"""
import sys
from math import prod

from . import core, eager_ops, half, keeps, pipelines
from .core import (BACKWARD, EPOCH, FEED, FORWARD, INPUT_WAIT, OPTIMIZER, VALIDATION, get_ident, mark,
                   note, now, state)


class _Functions:
    """What is known of tf.functions, by id()."""

    inside = 0  # the thread that is in a call
    applied = False  # while that call traced, an optimizer applied gradients
    differentiated = False  # ... a tape gave gradients
    precision_known = False
    trains = set()
    differentiates = set()


def install(module):
    parts = _PARTS if module.__name__ == "tensorflow" else (_optimizer,)
    missing = []
    for part in parts:
        try:
            part(module)
        except (ImportError, AttributeError) as error:
            missing.append("%s: %s" % (part.__name__, error))
    if missing:
        core.info("agent.missing", "; ".join(missing))


def _versions(tensorflow):
    core.info("tensorflow.version", getattr(tensorflow, "__version__", None))
    from . import collector, settings

    if "torch" not in sys.modules and "jax" not in sys.modules:
        for part in (collector, settings, keeps):
            part.install(tensorflow)


def _eager():
    """False while a function is being traced: what runs then is no step."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is None or tensorflow.executing_eagerly()


# ---- tf.data ----


def _iterators(_):
    from tensorflow.python.data.ops import iterator_ops

    for name in ("__next__", "get_next"):
        core.replace(iterator_ops.OwnedIterator, name, _next)


def _next(next_):
    def hook(self, *args, **kwargs):
        me = get_ident()
        if state.loader_thread == me or not _eager():
            return next_(self, *args, **kwargs)
        state.loader_thread = me
        begin = now()
        ended = False
        try:
            return next_(self, *args, **kwargs)
        except Exception as error:
            ended = type(error).__name__ in ("StopIteration", "OutOfRangeError")
            raise
        finally:
            end = now()
            state.loader_thread = 0
            note(INPUT_WAIT, begin, end)
            pipelines.asked(self, end)
            if ended:
                mark(EPOCH, 0, end, end, 0, 0)

    return hook


def _pipelines(tensorflow):
    pipelines.install(tensorflow)


# ---- functions, tapes, optimizers ----


def _functions(_):
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    core.replace(polymorphic_function.Function, "__call__", _call)


def _call(call):
    def hook(self, *args, **kwargs):
        me = get_ident()
        if _Functions.inside == me or not _eager():
            return call(self, *args, **kwargs)
        _Functions.inside = me
        _Functions.applied = _Functions.differentiated = False
        state.waiting = False
        begin = now()
        try:
            result = call(self, *args, **kwargs)
        finally:
            end = now()
            _Functions.inside = 0
        if _Functions.applied:
            _Functions.trains.add(id(self))
        elif _Functions.differentiated:
            _Functions.differentiates.add(id(self))
        if id(self) in _Functions.trains:
            pipelines.called(args, begin, end)
            _stepped(me, end, end)
        else:
            other = _Functions.trains and id(self) not in _Functions.differentiates
            note(VALIDATION if other else FORWARD, begin, end, 1 if other else 0)
        return result

    return hook


def _stepped(thread, begin, end):
    state.steps = steps = state.steps + 1
    state.waiting = True
    state.train_thread = thread
    note(OPTIMIZER, begin, end, 0, steps)
    core.trains_with("tensorflow")
    if end > state.look_due:
        keeps.look()


def _tapes(_):
    from tensorflow.python.eager import backprop

    core.replace(backprop.GradientTape, "gradient", _gradient)


def _gradient(gradient):
    def hook(self, *args, **kwargs):
        if not _eager():
            _Functions.differentiated = True
            return gradient(self, *args, **kwargs)
        state.waiting = False
        begin = now()
        result = gradient(self, *args, **kwargs)
        note(BACKWARD, begin, now())
        return result

    return hook


def _optimizer(module):
    for name in ("BaseOptimizer", "_BaseOptimizer", "Optimizer", "OptimizerV2"):
        cls = getattr(module, name, None)
        if cls is not None and "apply_gradients" in vars(cls):
            core.replace(cls, "apply_gradients", _apply)


def _apply(apply_gradients):
    def hook(self, *args, **kwargs):
        if not _eager():
            _Functions.applied = True
            result = apply_gradients(self, *args, **kwargs)
            _note_precision(self)
            return result
        me = get_ident()
        if state.step_thread == me:
            return apply_gradients(self, *args, **kwargs)
        state.step_thread = me
        begin = now()
        try:
            result = apply_gradients(self, *args, **kwargs)
        finally:
            end = now()
            state.step_thread = 0
        _stepped(me, begin, end)
        eager_ops.step_ended()
        if not _Functions.precision_known:
            _note_precision(self)
        return result

    return hook


@core.guarded
def _note_precision(optimizer):
    """How much of what is trained is in float64, and what computes in half precision: by the first optimizer."""
    if _Functions.precision_known:
        return
    variables = getattr(optimizer, "_trainable_variables", None) or ()  # Keras 3
    half.look_at_keras(variables)
    sizes = [(prod(v.shape), "float64" in str(v.dtype)) for v in variables]
    _Functions.precision_known = True
    doubles = sum(size for size, double in sizes if double)
    if doubles:
        core.info("model.float64", "%d/%d" % (doubles, sum(size for size, _ in sizes)))


# ---- Python data on its way into the graph ----


def _python_functions(_):
    """py_function, numpy_function, from_generator: TensorFlow's threads call back into Python."""
    from tensorflow.python.ops import script_ops

    name = core.intern("py_function")
    core.replace(script_ops.FuncRegistry, "__call__", lambda f: _feed(f, name))
    core.replace(script_ops.EagerFunc, "__call__", lambda f: _feed(f, name))


def _feed(function, name):
    def hook(*args, **kwargs):
        begin = now()
        result = function(*args, **kwargs)
        note(FEED | name << 32, begin, now())
        return result

    return hook


def _sessions(_):
    from tensorflow.python.client import session

    local = {"inside": 0, "inner": 0, "thread": 0, "ended": 0}
    core.replace(session.BaseSession, "run", lambda f: _run(f, local, core.intern("feed_dict")))
    core.replace(session.BaseSession, "_do_run", lambda f: _do_run(f, local))


def _run(run, local, name):
    def hook(self, fetches, feed_dict=None, *args, **kwargs):
        me = get_ident()
        state.waiting = False
        begin = local["inner"] = now()
        result = run(self, fetches, feed_dict, *args, **kwargs)
        end = now()
        if feed_dict:  # from here until the graph runs, NumPy arrays are made and copied
            if local["thread"] == me:  # and since the step before, the batch was made
                mark(INPUT_WAIT, 0, local["ended"], begin, 0, 0)
            fed = sum(getattr(value, "nbytes", 0) for value in feed_dict.values())
            mark(FEED, name, begin, max(begin, local["inner"]), fed, 0)
        mark(FORWARD, 0, max(begin, local["inner"]), end, 0, 0)
        local["thread"] = 0
        if _runs_operation(fetches, bool(feed_dict)):
            _stepped(me, end, end)
            local["thread"], local["ended"] = me, end
        return result

    return hook


def _do_run(do_run, local):
    def hook(*args, **kwargs):
        local["inner"] = now()
        return do_run(*args, **kwargs)

    return hook


_operations = set()  # ids of operations that were run before


def _runs_operation(fetches, fed):
    """Something is run for its effect, not its value, and not just once as an initializer."""
    if isinstance(fetches, dict):
        fetches = tuple(fetches.values())
    if not isinstance(fetches, (list, tuple)):
        fetches = (fetches,)
    found = {id(f) for f in fetches if type(f).__name__ == "Operation"}
    again = bool(found & _operations)
    _operations.update(found)
    return bool(found) and (fed or again)


_PARTS = (_versions, _iterators, _pipelines, _functions, _tapes, _python_functions, _sessions)
