"""Numbers too small for the format's exponent (below 1.2e-38 in float32), on which a CPU takes up to a hundred times
as long: `denormals`, now and then.

Looked at are the tensors on the host, trained or changed since the last look, that the loop's own frames lead to in a step or two: variables, what lists and
dicts hold, parameters, buffers and attributes of modules, states of optimizers. Of each, some elements evenly apart,
unless the first few are not in memory: those of a mapped file, or of what was swapped out.
Where the job has them flushed to zero (torch.set_flush_denormal), comparisons see none. Nothing is held after a look.
"""
import ctypes
import mmap
import resource
import sys
from time import thread_time_ns

from . import core, naming, places, training

_SAMPLE, _FEW = 1024, 8  # elements of a tensor
_SMALL = 4096  # elements: smaller ones cost nothing
_MOST = 256  # tensors
_ITEMS = 64  # of a container
_FRAMES = 16
_VISITS = 20000  # of variables and what they hold
_BUDGET = 1500000  # ns of this thread's CPU time
_SHARE = 0.02  # of a tensor's elements: fewer happen anywhere
_Tensor = _Parameter = _Module = _Optimizer = None
_on = [True]
_sent = [""]
_versions = [None]  # id -> version, of the tensors that the last look saw
_on_disk = set()  # addresses that were read from there all the same
_resident = (ctypes.c_ubyte * 1)()
_left = [0]  # visits
_next = [0]  # the tensor that the next look starts at: one that ran out of time did not see all


def install(torch):
    global _Tensor, _Parameter, _Module, _Optimizer, _mincore
    _mincore = ctypes.CDLL(None).mincore
    _mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    _Tensor, _Parameter, _Module = torch.Tensor, torch.nn.Parameter, torch.nn.Module
    _Optimizer = torch.optim.Optimizer
    training.each_while(_look)


def _look(torch):
    modes = getattr(torch._C, "_len_torch_dispatch_stack", int)()  # the job's own see each operation
    if _on[0] and not core.is_off and not core.compiling() and not modes:
        try:
            with torch._C.DisableTorchFunction():
                _look_at(_tensors(sys._getframe(1), torch), torch)
        except Exception as error:  # the other hooks are well without this one
            _on[0] = False
            core.info("agent.denormals_off", "%s: %s" % (type(error).__name__, error))


def _look_at(tensors, torch):
    until = thread_time_ns() + _BUDGET
    elements = many = 0
    most = (0, "", None)
    first = _next[0] % max(len(tensors), 1)
    tensors = tensors[first:] + tensors[:first]
    _next[0] = 0
    for n, (name, tensor) in enumerate(tensors):
        if thread_time_ns() > until:
            _next[0] = first + n
            break
        flat = tensor.detach().view(-1)
        if not _in_memory(flat):
            continue
        flat = flat[::max(1, tensor.numel() // _SAMPLE)]
        tiny = (flat != 0) & (flat.abs() < torch.finfo(tensor.dtype).tiny)
        share = int(tiny.sum()) / flat.numel()
        if share < _SHARE:
            continue
        elements += int(share * tensor.numel())
        many += 1
        most = max(most, (share * tensor.numel(), name, flat[tiny]), key=lambda one: one[0])
    if not many and (_next[0] or not _sent[0]):
        return
    told = ""
    if many:
        told = "%d elements of %d tensors, %s, %.2f ns each" % (elements, many, most[1], _extra(most[2], torch))
    if told.partition(" ")[0] != _sent[0]:
        _sent[0] = told.partition(" ")[0]
        core.info("denormals", told)


def _in_memory(flat):
    address = flat.data_ptr()
    if address in _on_disk:
        return False
    bytes_apart = max(1, flat.numel() // _FEW) * flat.element_size()
    for at in range(address, address + flat.numel() * flat.element_size(), bytes_apart):
        if _mincore(at & -mmap.PAGESIZE, 1, _resident) != 0 or not _resident[0] & 1:
            return False
    before = _major_faults()
    flat[::max(1, flat.numel() // _FEW)].sum()
    if _major_faults() > before:
        _on_disk.add(address)
    return address not in _on_disk


def _major_faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def _extra(some, torch):
    """ns that a multiplication of one of them takes longer than of another number."""
    some = some.repeat(_SAMPLE // some.numel() + 1)[:_SAMPLE]
    ones = torch.ones_like(some)
    return max(min(_time(some) for _ in range(3)) - min(_time(ones) for _ in range(3)), 0) / _SAMPLE


def _time(numbers):
    begin = thread_time_ns()
    numbers.mul(0.75)
    return thread_time_ns() - begin


def _tensors(frame, torch):
    """[(name, tensor)]"""
    found, seen, modules = [], set(), set()
    _left[0] = _VISITS
    for _ in range(_FRAMES):
        if frame is None:
            break
        if places.users_file(frame.f_code.co_filename) is not None:
            named = naming.locals_of(frame)
            if id(frame.f_globals) not in seen:
                seen.add(id(frame.f_globals))
                named = named + list(frame.f_globals.items())
            for name, value in named:
                if type(name) is str and name[:2] != "__":
                    _collect(name, value, 0, found, seen, modules)
        frame = frame.f_back
    before, _versions[0] = _versions[0], {id(t): t._version for _, t in found if not t.is_inference()}
    # What is as it was when it was last looked at is data: a step goes through some of it only.
    found = [(name, t) for name, t in found if t.requires_grad or (
        before is not None and not t.is_inference() and before.get(id(t)) != t._version)]
    dtypes = (torch.float32, torch.float64)
    return [(name, t) for name, t in found if t.dtype in dtypes and t.device.type == "cpu" and t.numel() >= _SMALL
            and t.layout is torch.strided and t.is_contiguous()][:_MOST]


def _collect(name, value, depth, found, seen, modules):
    _left[0] -= 1
    if _left[0] < 0:
        return
    kind = type(value)
    if kind is _Tensor or kind is _Parameter:
        if id(value) not in seen and len(found) < 4 * _MOST:
            seen.add(id(value))
            found.append((name, value))
    elif issubclass(kind, _Module):
        if id(value) in modules or len(modules) > 4 * _MOST:
            return
        modules.add(id(value))
        for key, part in list(object.__getattribute__(value, "__dict__").items()):
            if key in ("_parameters", "_buffers", "_modules") and part:
                for key, one in list(part.items()):
                    _collect(name + "." + key, one, depth, found, seen, modules)
            elif type(part) is _Tensor:
                _collect(name + "." + key, part, depth, found, seen, modules)
    elif depth > 2 or id(value) in seen:
        return
    elif kind in (list, tuple):
        seen.add(id(value))
        for one in value[:_ITEMS]:
            _collect(name + "[]", one, depth + 1, found, seen, modules)
    elif kind is dict:
        seen.add(id(value))
        if len(value) <= 4 * _ITEMS:
            for key, one in list(value.items()):
                _collect("%s[%r]" % (name, key) if type(key) is str and len(key) < 32 else name + "[]",
                         one, depth + 1, found, seen, modules)
    elif issubclass(kind, _Optimizer):
        states = object.__getattribute__(value, "__dict__").get("state") or {}
        for state in list(states.values())[:_MOST]:
            _collect(name, state, depth + 1, found, seen, modules)
