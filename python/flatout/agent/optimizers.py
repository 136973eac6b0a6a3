"""An Adam on the CPU that could update all of a tensor in one go: `torch.optimizer`.

PyTorch runs it tensor by tensor and operation by operation unless it is told fused=True.
"""
import sys
import weakref

from . import core, places, training

_NAMES = ("Adam", "AdamW")  # SGD gains nothing by it
_MOST = 16
_FEW_STEPS = 3

_made = []  # (weak reference, where it was made)
_told = [None]


def install(torch):
    foreach = getattr(torch.utils, "_foreach_utils", None)
    supported = getattr(foreach, "_get_fused_kernels_supported_devices", None)
    if supported is not None and "cpu" in supported():
        training.optimizer_is_made(made)
        training.each_while(look)


@core.guarded
def made(optimizer):
    """Called while `optimizer` is made."""
    _made.append((weakref.ref(optimizer), places.users_place(sys._getframe(1))))
    del _made[:-_MOST]


def look(torch):
    """Tells what takes the steps; nothing where any of it is another kind of optimizer, or elsewhere."""
    if core.state.steps < _FEW_STEPS:
        return
    steps = [(optimizer, place) for optimizer, place in ((ref(), place) for ref, place in _made)
             if optimizer is not None and _steps(optimizer)]
    found = None
    if steps and all(_can_be_fused(torch, optimizer) for optimizer, _ in steps):
        sizes = [p.numel() for optimizer, _ in steps for p in _parameters(optimizer)]
        found = "%s: %d tensors, %d elements" % (type(steps[0][0]).__name__, len(sizes), sum(sizes))
    if found != _told[0]:
        _told[0] = found
        core.info("torch.optimizer", found or "")
        core.info("torch.optimizer.made_at", found and steps[0][1] or "")


def _steps(optimizer):
    """An Adam that was never stepped has no state; others may have none at all."""
    return object.__getattribute__(optimizer, "__dict__").get("state") or type(optimizer).__name__ not in _NAMES


def _parameters(optimizer):
    return (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)


def _can_be_fused(torch, optimizer):
    if type(optimizer).__module__.partition(".")[0] != "torch" or type(optimizer).__name__ not in _NAMES:
        return False
    if any(group.get("fused") or group.get("differentiable") for group in optimizer.param_groups):
        return False
    return all(p.device.type == "cpu" and p.is_floating_point() and p.grad.layout is torch.strided
               for p in _parameters(optimizer))
