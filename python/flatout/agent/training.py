"""backward, zero_grad and the optimizer's step: where a step ends, whatever drives the loop."""
from time import thread_time_ns

from . import core, graph, keeps, padding
from .core import BACKWARD, OPTIMIZER, ZERO_GRAD, cost, now, state

_at_step = []  # called now and then with torch, from the training thread, at the end of a step
_each = []  # called at the end of each step
_at_making = []  # called with each optimizer that is made
_torch = None


def install(torch):
    global _torch
    _torch = torch
    core.calls.set_callbacks(_after_step, graph.look, torch.is_grad_enabled, padding.look)
    graph.install(torch)
    padding.install(torch)
    core.replace(torch.autograd, "backward", lambda f: core.calls.backward(BACKWARD, f))
    optimizer = getattr(torch.optim, "Optimizer", None)
    if optimizer is not None:
        core.replace(optimizer, "__init__", _optimizer_init)
        core.replace(optimizer, "zero_grad", lambda f: core.calls.timed(ZERO_GRAD, f))
    core.replace(torch.nn.Module, "zero_grad", lambda f: core.calls.timed(ZERO_GRAD, f))
    for owner in (getattr(torch, "amp", None), getattr(torch.cuda, "amp", None)):
        scaler = getattr(owner, "GradScaler", None)
        if scaler is not None and "step" in vars(scaler):
            core.replace(scaler, "step", lambda f: core.calls.scaled(OPTIMIZER, f))
    _at_step.append(_threads)


def each_while(function):
    """Calls function(torch) at step 1, 2, 3, 5, 10, 20, 50, each 200th, and about every 5 s (of quick steps)."""
    _at_step.append(function)


def optimizer_is_made(function):
    """Calls function(optimizer) when one is made."""
    _at_making.append(function)


def after_each(function):
    """Calls function() at the end of each step."""
    _each.append(function)
    state.rare_step = 0


def no_longer_after_each(function):
    _each.remove(function)


def _optimizer_init(init):
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        _hook_class(type(self))
        from . import forward

        forward.optimizer_made(self)
        for function in _at_making:
            function(self)
        keeps.find_modules()

    return __init__


@core.guarded
def _hook_class(cls):
    """Wraps the step of this class, or of the one that it inherits it from."""
    for owner in cls.__mro__:
        if "step" in vars(owner):
            core.replace(owner, "step", lambda f: core.calls.step(OPTIMIZER, f))
            return


_SOME = (1, 2, 3, 5, 10, 20, 50)
_EVERY = 5000000000  # ns
_OFTEN = 20  # steps after which the clock is looked at
_due = [0, 0, 0]  # the step that _now_and_then is due at, the iterator that it saw last, and a time


def _after_step():
    """Called at the end of a step that is due: state.rare_step is reached, or state.look_due past."""
    if _each:
        _after_each()
    steps = state.steps
    if steps >= _due[0] or state.iterator != _due[1] or now() > _due[2]:
        ran = thread_time_ns()
        _due[:] = next((n for n in _SOME if n > steps), steps - steps % 200 + 200), state.iterator, now() + _EVERY
        _now_and_then()
        spent = thread_time_ns() - ran
        cost(0, spent, spent, 0)
    if now() > state.look_due:
        keeps.look()
    state.rare_step = 0 if _each else min(_due[0], steps + _OFTEN)


@core.guarded
def _after_each():
    for function in list(_each):
        function()


@core.guarded
def _now_and_then():
    core.trains_with("torch")
    for function in _at_step:
        function(_torch)


_sent_threads = [None]


def _threads(torch):
    """As they are now, not as they were asked for."""
    threads = (torch.get_num_threads(), torch.get_num_interop_threads())
    if threads != _sent_threads[0]:
        _sent_threads[0] = threads
        core.info("torch.num_threads", threads[0])
        core.info("torch.interop_threads", threads[1])
