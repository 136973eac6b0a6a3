"""A module whose forward is a graph as long as what was proven of it holds, and the user's own forward else."""

import copy
import copyreg
import inspect
import linecache
from typing import Any, Dict, List

import torch
from torch import fx
from torch.nn.modules import module as _hooks
from torch.nn.utils import parametrize

from . import _ops
from ._trace import MISSING, Trace


# Hooks that are called for all modules: these dictionaries are never replaced.
_GLOBAL = (_hooks._global_forward_hooks, _hooks._global_forward_pre_hooks, _hooks._global_backward_hooks, _hooks._global_backward_pre_hooks)


class Guard:
    """What a graph rests on. `bypassed`: modules that the graph does not call, or of whose class it knows something. A deep copy is that of the
    copied modules."""

    def __init__(self, kind: type, trace: Trace, bypassed: List[torch.nn.Module]):
        self.kind, self.forward = kind, kind.forward
        self.children, self.attributes, self.of_classes, self.nones = trace.children, trace.attributes, trace.of_classes, trace.nones
        self.bypassed = [(module, type(module)) for module in dict.fromkeys(bypassed)]

    def __deepcopy__(self, memo):
        twin = copy.copy(self)
        twin.children = [(copy.deepcopy(m, memo), copy.deepcopy(held, memo)) for m, held in self.children]
        twin.attributes, twin.nones, twin.bypassed = ([(copy.deepcopy(m, memo), *rest) for m, *rest in entries]
                                                      for entries in (self.attributes, self.nones, self.bypassed))
        return twin

    def __reduce__(self):
        return _Never, ()

    def __copy__(self):
        twin = Guard.__new__(Guard)
        vars(twin).update(vars(self))
        return twin

    def holds(self, owner: torch.nn.Module, *tensors) -> bool:
        """Whether owner.forward, called with these, does what the graph does, and nobody looks at what the graph leaves out."""
        if torch.compiler.is_compiling():
            for t in tensors:
                if not isinstance(t, torch.Tensor):
                    return False
            return self._compiler_agrees(owner)
        if any(_GLOBAL) or _ops.pytorch_only():
            return False
        for t in tensors:
            if type(t) not in _ops.PLAIN:
                return False
        if self.children[0][0] is not owner or self.kind.forward is not self.forward:
            return False
        for module, children in self.children:
            if module._modules != children:
                return False
        for module, kind in self.bypassed:
            held = module.__dict__
            if type(module) is not kind or held["_forward_hooks"] or held["_forward_pre_hooks"] or held["_backward_hooks"] \
                    or held["_backward_pre_hooks"] or "forward" in held:
                return False
        return self._attributes_are_the_same()

    def _compiler_agrees(self, owner) -> bool:
        """The same as torch.compile understands it, which looks at what is read here before each call then."""
        if self.children[0][0] is not owner or self.kind.forward is not self.forward:
            return False
        for module, children in self.children:
            if len(module._modules) != len(children):
                return False
            for name, child in children.items():
                if module._modules.get(name) is not child:
                    return False
        for module, kind in self.bypassed:
            if type(module) is not kind or module._forward_hooks or module._forward_pre_hooks or module._backward_hooks \
                    or module._backward_pre_hooks or "forward" in module.__dict__:
                return False
        return self._attributes_are_the_same()

    def _attributes_are_the_same(self) -> bool:
        for module, name, value in self.attributes:
            now = module.__dict__.get(name, MISSING)
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        for kind, name, value in self.of_classes:
            if kind.__dict__.get(name, MISSING) is not value:
                return False
        for module, of, name, is_none in self.nones:
            if (module.__dict__[of].get(name) is None) is not is_none:
                return False
        return True


class _Never:
    """The guard of an object that somebody made of a fused module's class: it runs the user's forward."""

    def holds(self, *_) -> bool:
        return False


def kind_of(module: torch.nn.Module) -> type:
    """The user's class of a module that `become` has changed; else its class."""
    return vars(type(module)).get("_flatout_kind", type(module))


def restore(module: torch.nn.Module) -> None:
    """The module is what it was before `become`."""
    module.__class__ = kind_of(module)
    vars(module).pop("_flatout_guard", None)


def become(module: torch.nn.Module, trace: Trace, bypassed) -> None:
    """module.forward is trace.graph where what it rests on holds; the class gets a subclass, as torch.nn.utils.parametrize does it."""
    trace.graph.lint()
    kind = type(module)
    members = {"forward": _forward(kind, trace, type(fx.GraphModule(module, trace.graph)).forward), "_flatout_kind": kind,
               "_flatout_guard": _Never(), "__module__": kind.__module__, "__prepare_scriptable__": _unfused}
    if kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__:
        members["__reduce_ex__"] = _reduce
    if not hasattr(kind, "__deepcopy__"):
        members["__deepcopy__"] = deep_copy
    module.__class__ = type(f"Fused{kind.__name__}", (kind,), members)
    vars(module)["_flatout_guard"] = Guard(kind, trace, bypassed)


_SOURCE = """def forward(self, {parameters}):
    if {defaults}self._flatout_guard.holds(self, {tensors}):
        return fused(self, {tensors})
    return kind.forward(self, {arguments})
"""


def _forward(kind: type, trace: Trace, fused):
    """A forward with the user's parameters."""
    _, *parameters = inspect.signature(kind.forward).parameters.values()
    visible: Dict[str, Any] = {"kind": kind, "fused": fused}
    written, arguments, defaults, star = [], [], "", False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not star:
            star = True
            written.append("*")
        if p.default is p.empty:
            written.append(p.name)
        else:
            visible[f"default_of_{p.name}"] = p.default
            written.append(f"{p.name}=default_of_{p.name}")
            defaults += f"{p.name} is default_of_{p.name} and "
        arguments.append(f"{p.name}={p.name}" if star else p.name)
    source = _SOURCE.format(parameters=", ".join(written), defaults=defaults, tensors=", ".join(trace.tensors), arguments=", ".join(arguments))
    name = f"<flatout.nn.fuse {kind.__module__}.{kind.__qualname__}>"
    exec(compile(source, name, "exec"), visible)
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    forward = visible["forward"]
    forward.__doc__, forward.__annotations__ = kind.forward.__doc__, dict(kind.forward.__annotations__)
    return forward


def _state(module):
    state = module.__getstate__() if hasattr(module, "__getstate__") else vars(module)
    return dict(state)


def deep_copy(self, memo):
    """For copy.deepcopy, which would else take what pickle takes. Parametrised modules have no state for pickle, but may be copied."""
    twin = type(self).__new__(type(self))
    memo[id(self)] = twin
    state = dict(vars(self)) if parametrize.is_parametrized(self) else _state(self)
    twin.__setstate__(copy.deepcopy(state, memo))
    return twin


def reduced(module, kind: type, *left_out: str):
    """For pickle: an object of this class with the module's state but for some attributes. It is read without this package."""
    state = {name: value for name, value in _state(module).items() if name not in left_out}
    return copyreg._reconstructor, (kind, object, None), state


def _reduce(self, protocol):
    """For pickle, which finds the user's class only: what comes back is that, not fused."""
    return reduced(self, kind_of(self), "_flatout_guard")


def _unfused(self):
    """What torch.jit.script compiles."""
    kind = kind_of(self)
    twin = kind.__new__(kind)
    vars(twin).update({**vars(self), "_modules": dict(self._modules)})
    vars(twin).pop("_flatout_guard", None)
    return twin
