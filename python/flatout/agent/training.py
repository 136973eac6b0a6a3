"""backward, zero_grad and the optimizer's step: where a step ends, whatever drives the loop."""
from . import core, keeps
from .core import BACKWARD, OPTIMIZER, SOON, ZERO_GRAD, flush, get_ident, note, now, state

_optimizers = {}  # id(optimizer) -> [number, steps done]
_at_step = []  # called now and then with torch, from the training thread, at the end of a step
_each = []  # called at the end of each step
_torch = None


def install(torch):
    global _torch
    _torch = torch
    core.replace(torch.autograd, "backward", _backward)
    optimizer = getattr(torch.optim, "Optimizer", None)
    if optimizer is not None:
        core.replace(optimizer, "__init__", _optimizer_init)
        core.replace(optimizer, "zero_grad", lambda f: core.timed(ZERO_GRAD, f))
    core.replace(torch.nn.Module, "zero_grad", lambda f: core.timed(ZERO_GRAD, f))
    for owner in (getattr(torch, "amp", None), getattr(torch.cuda, "amp", None)):
        scaler = getattr(owner, "GradScaler", None)
        if scaler is not None and "step" in vars(scaler):
            core.replace(scaler, "step", _scaler_step)
    _at_step.append(_threads)


def each_while(function):
    """Calls function(torch) at step 1, 2, 3, 5, 10, 20, 50 and each 200th."""
    _at_step.append(function)


def after_each(function):
    """Calls function() at the end of each step."""
    _each.append(function)


def _backward(backward):
    is_compiling = core.compiling

    def hook(*args, **kwargs):
        if is_compiling():
            return backward(*args, **kwargs)
        state.waiting = False
        if state.eval_call and not state.trains_in_eval_mode:
            state.trains_in_eval_mode = True
        begin = now()
        result = backward(*args, **kwargs)
        state.last_backward = end = now()
        note((BACKWARD, get_ident(), begin, end, 0, 0, now()))
        return result

    return hook


def _optimizer_init(init):
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        _hook_class(type(self))
        from . import forward

        forward.optimizer_made(self)

    return __init__


@core.guarded
def _hook_class(cls):
    """Wraps the step of this class, or of the one that it inherits it from."""
    for owner in cls.__mro__:
        if "step" in vars(owner):
            core.replace(owner, "step", _step)
            return


def _step(step):
    is_compiling = core.compiling

    def hook(self, *args, **kwargs):
        if is_compiling():
            return step(self, *args, **kwargs)
        me = get_ident()
        if state.step_thread == me:  # an optimizer inside an optimizer: one step
            return step(self, *args, **kwargs)
        state.step_thread = me
        begin = now()
        try:
            result = step(self, *args, **kwargs)
        finally:
            end = now()
            state.step_thread = 0
        # A closure (LBFGS, Lightning) has done its forward and backward inside: they are their own.
        if state.last_backward > begin:
            begin = state.last_backward
        entry = _optimizers.get(id(self))
        if entry is None:
            entry = _optimizers[id(self)] = [len(_optimizers), 0]
        entry[1] += 1
        state.waiting = True
        state.train_thread = me
        state.steps = steps = state.steps + 1
        note((OPTIMIZER, me, begin, end, entry[0], entry[1], now()))
        if _each:
            _after_each()
        if end - state.flushed > SOON:
            flush()
        if end > state.look_due:
            keeps.look()
        if steps in _SOME or steps % 200 == 0 or state.iterator != _seen[0]:
            _now_and_then()
        return result

    return hook


@core.guarded
def _after_each():
    for function in _each:
        function()


_SOME = frozenset((1, 2, 3, 5, 10, 20, 50))
_seen = [0]


@core.guarded
def _now_and_then():
    _seen[0] = state.iterator
    for function in _at_step:
        function(_torch)


def _scaler_step(step):
    def hook(self, optimizer, *args, **kwargs):
        before = state.steps
        begin = now()
        result = step(self, optimizer, *args, **kwargs)
        if state.steps == before:  # the scaler left this step out: it is one all the same
            entry = _optimizers.get(id(optimizer), (0, 0))
            state.waiting = True
            note((OPTIMIZER, get_ident(), begin, now(), entry[0], entry[1], now()))
        return result

    return hook


_sent_threads = [None]


def _threads(torch):
    """As they are now, not as they were asked for."""
    threads = (torch.get_num_threads(), torch.get_num_interop_threads())
    if threads != _sent_threads[0]:
        _sent_threads[0] = threads
        core.info("torch.num_threads", threads[0])
        core.info("torch.interop_threads", threads[1])
