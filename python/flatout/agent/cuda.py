"""Host-to-device copies and waits for the device. Nothing is hooked before CUDA is in use.

Times are the host's, and nothing here synchronises: how long the device takes for a step is told by
events that are asked only once they have passed.
"""
from . import core
from .core import H2D, SYNC, cost, note, now, state

_torch = None
_PAGEABLE, _BLOCKING = 1, 2


def install(torch):
    global _torch
    _torch = torch
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and hasattr(cuda, "_lazy_init"):
        core.replace(cuda, "_lazy_init", _lazy_init)


def _lazy_init(lazy_init):
    done = [False]

    def hook():
        lazy_init()
        if not done[0] and _torch.cuda.is_initialized():
            done[0] = True
            _in_use()

    return hook


@core.guarded
def _in_use():
    tensor = _torch.Tensor
    for name in ("to", "cuda"):
        core.replace(tensor, name, _move)
    core.replace(tensor, "copy_", _copy)
    for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__"):
        core.replace(tensor, name, lambda f, id=core.intern("Tensor." + name): _sync(f, id))
    for owner, name in ((_torch.cuda, "synchronize"), (_torch.cuda.Event, "synchronize"),
                        (_torch.cuda.Stream, "synchronize")):
        core.replace(owner, name, lambda f, id=core.intern("cuda.synchronize"): core.calls.timed(SYNC | id << 32, f))
    properties = _torch.cuda.get_device_properties(_torch.cuda.current_device())
    core.info("cuda.device", properties.name)
    core.info("cuda.memory_bytes", properties.total_memory)
    core.info("cudnn.version", _torch.backends.cudnn.version())
    _Events.install()


def _flags(source, blocking):
    return (0 if source.is_pinned() else _PAGEABLE) | (_BLOCKING if blocking else 0)


def _move(move):
    def hook(self, *args, **kwargs):
        if self.is_cuda:
            return move(self, *args, **kwargs)
        begin = now()
        result = move(self, *args, **kwargs)
        end = now()
        if getattr(result, "is_cuda", False):
            _note_copy(self, args, kwargs, begin, end)
        else:
            cost(1, now() - end, 0, 0)
        return result

    return hook


@core.guarded
def _note_copy(source, args, kwargs, begin, end):
    blocking = not (kwargs.get("non_blocking", False) or any(a is True for a in args))
    note(H2D, begin, end, source.nbytes, _flags(source, blocking))


def _copy(copy):
    def hook(self, source, *args, **kwargs):
        if not self.is_cuda or getattr(source, "is_cuda", True):
            return copy(self, source, *args, **kwargs)
        begin = now()
        result = copy(self, source, *args, **kwargs)
        _note_copy(source, args, kwargs, begin, now())
        return result

    return hook


def _sync(sync, name):
    timed = core.calls.timed(SYNC | name << 32, sync)

    def hook(self, *args, **kwargs):
        if not self.is_cuda:
            return sync(self, *args, **kwargs)
        return timed(self, *args, **kwargs)

    return hook


class _Events:
    """The device's time for a step, as the counter `cuda.step_ms`: an event at the end of each."""

    waiting = []
    free = []

    @classmethod
    def install(cls):
        from . import training

        training.after_each(cls.step)

    @classmethod
    def step(cls):
        if state.is_worker or _torch.cuda.is_current_stream_capturing():
            return
        event = cls.free.pop() if cls.free else _torch.cuda.Event(enable_timing=True)
        event.record()
        cls.waiting.append(event)
        while len(cls.waiting) > 1 and cls.waiting[1].query():
            core.count(b"cuda.step_ms", cls.waiting[0].elapsed_time(cls.waiting[1]))
            cls.free.append(cls.waiting.pop(0))
        if len(cls.waiting) > 64:
            del cls.waiting[:32]
