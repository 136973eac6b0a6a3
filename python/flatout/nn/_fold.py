"""Folds batch norms into the convolutions before them, for inference."""

import ast
import collections
import copy
import types
from typing import Dict, List, Optional, Set, Tuple

import torch
from torch import Tensor, fx
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ._fuse import check_model, has_hooks
from ._guard import kind_of, restore
from ._module import BatchNormAddReLU2d
from ._trace import definitions, trace

_CONVOLUTIONS = {torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d}
_NORMS = {torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm, BatchNormAddReLU2d}


class AddReLU(torch.nn.Module):
    """What is left of a BatchNormAddReLU2d whose norm was folded."""

    def __init__(self, relu: bool):
        super().__init__()
        self.relu = relu

    def forward(self, input: Tensor, residual: Optional[Tensor] = None) -> Tensor:
        if residual is not None:
            input = input + residual
        return torch.relu(input) if self.relu else input


def fold(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the model for inference, in evaluation mode, with batch norms folded into the convolutions before them.

    Classes and methods are the model's own, also where it was fused, so that the copy can be pickled and scripted; an Identity, or what adds and
    applies the ReLU, is in the norm's place. So the state dict lacks the folded norms, and their convolutions have a bias. A norm stays where
    forward cannot be traced, where it follows no convolution or one of another class, where others use either, and where a method of the model's
    classes uses one without the other. What follows a convolution in a Sequential is not looked for: a slice that ends there has the norm in it.
    """
    check_model(model, "fold")
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if kind_of(module) is not type(module):
            restore(module)
    uses = collections.Counter(module for _, module in model.named_modules(remove_duplicate=False))
    codes = {method.__code__ for kind in {type(module) for module in model.modules()} for method in _methods(kind)}
    methods = {code: _mentions(code) for code in codes}
    for owner in list(model.modules()):
        children = dict(owner.named_children())
        if not any(type(child) in _NORMS for child in children.values()):
            continue
        try:
            proven = trace(owner)
        except ValueError:
            continue
        own = {method.__code__ for method in _methods(type(owner))} - proven.ran  # what ran is in the graph
        called = [n.target for n in proven.graph.nodes if n.op in ("call_module", "get_attr")]
        for call in [n for n in proven.graph.nodes if n.op == "call_module" and type(children.get(n.target)) in _NORMS]:
            norm, before = children[call.target], _convolution_before(call, children)
            if before is None or norm.running_mean is None or any(uses[m] > 1 or has_hooks(m) for m in (norm, children[before])):
                continue
            if any(_parts(code, mentions, call.target, before, code not in own) for code, mentions in methods.items()):
                continue
            if any(sum(n == one or n.startswith(f"{one}.") for n in called) > 1 for one in (call.target, before)):
                continue
            setattr(owner, before, fuse_conv_bn_eval(children[before], norm))
            setattr(owner, call.target, AddReLU(norm.relu) if isinstance(norm, BatchNormAddReLU2d) else torch.nn.Identity())
    return model


def _convolution_before(call: fx.Node, children) -> Optional[str]:
    """The name of the convolution whose result the norm alone reads."""
    before = call.args[0] if call.args else call.kwargs.get("input")
    if isinstance(before, fx.Node) and before.op == "call_module" and list(before.users) == [call] and call.all_input_nodes.count(before) == 1 \
            and type(children.get(before.target)) in _CONVOLUTIONS and before not in (*call.args[1:], call.kwargs.get("residual")):
        return before.target
    return None


def _methods(kind: type):
    """The functions of a class and of those that it is made of, but torch's."""
    for base in kind.__mro__:
        if base is object or base.__module__.startswith("torch."):
            continue
        for name, member in vars(base).items():
            member = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if isinstance(member, types.FunctionType) and name != "__init__":
                yield member


def _mentions(code: types.CodeType) -> Optional[Dict[str, List[Tuple[bool, Set[Tuple[str, str]]]]]]:
    """Attribute -> each time that the function names it: whether of another module than its own, and in what calls `x.outer(x.inner(...))`.

    None where its source is not at hand.
    """
    functions = definitions(code)
    found: Dict[str, List[Tuple[bool, Set[Tuple[str, str]]]]] = {}
    for function in functions:
        first = function.args.args[0].arg if function.args.args else None
        calls: Dict[int, Set[Tuple[str, str]]] = {}
        for n in ast.walk(function):  # a call comes before what it calls
            if isinstance(n, ast.Call) and len(n.args) == 1 and not n.keywords and isinstance(n.args[0], ast.Call):
                outer, inner = n.func, n.args[0].func
                if isinstance(outer, ast.Attribute) and isinstance(inner, ast.Attribute) and ast.dump(outer.value) == ast.dump(inner.value):
                    for f in (outer, inner):
                        calls.setdefault(id(f), set()).add((outer.attr, inner.attr))
            elif isinstance(n, ast.Attribute):
                foreign = not (isinstance(n.value, ast.Name) and n.value.id == first)
                found.setdefault(n.attr, []).append((foreign, calls.setdefault(id(n), set())))
            elif isinstance(n, ast.Constant) and isinstance(n.value, str):
                found.setdefault(n.value, []).append((True, set()))
    return found if functions else None


def _parts(code: types.CodeType, mentions, norm: str, convolution: str, of_others: bool) -> bool:
    """Whether the function may use one of the two without the other, `x.norm(x.convolution(...))`. of_others: of other modules than its own."""
    if mentions is None:
        return not {norm, convolution}.isdisjoint((*code.co_names, *code.co_consts))
    return any((foreign or not of_others) and (norm, convolution) not in calls
               for name in (norm, convolution) for foreign, calls in mentions.get(name, ()))
