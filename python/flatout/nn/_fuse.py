"""Finds BatchNorm2d with the add and the ReLU after it in a model, and has the module that calls them run them as one operator.

Each module that owns a BatchNorm2d is traced by itself (_trace.py), so that one that cannot be traced spoils no other. What is found is
rewritten in the graph of that one forward, which runs where all that it rests on still holds (_guard.py). The norm stays a batch norm.
"""

import operator
from typing import Dict, List, NamedTuple, Optional

import torch
from torch import fx
from torch.nn.modules.batchnorm import _BatchNorm

from ._guard import become, kind_of, restore
from ._module import BatchNormAddReLU2d
from ._trace import trace

_ADDS = {operator.add, operator.iadd, torch.add}
_RELUS = {torch.relu, torch.relu_, torch.nn.functional.relu, torch.nn.functional.relu_}
# Their results are new tensors, which nobody else has.
_FRESH = {torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d}
_WITHOUT_FORWARD = (torch.nn.ModuleList, torch.nn.ModuleDict)


class Fusion(NamedTuple):
    """What `fuse` did."""

    model: torch.nn.Module
    fused: Dict[str, str]
    """Name of each batch norm that was taken -> "norm", "norm + ReLU", "norm + add" or "norm + add + ReLU"."""
    not_fused: Dict[str, str]
    """Name of each batch norm that was left as it is, or alone -> why."""


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether somebody sees or changes what the module is given or gives: hooks, a forward of its own."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks) or "forward" in vars(module)


def norms_of(model: torch.nn.Module) -> Dict[torch.nn.Module, List[str]]:
    """Each batch norm -> every name that it has in the model."""
    names: Dict[torch.nn.Module, List[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, _BatchNorm):
            names.setdefault(module, []).append(name)
    return names


def check_model(model, function: str) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{function} takes a torch.nn.Module; model is {model!r}"[:200])


def fuse(model: torch.nn.Module) -> Fusion:
    """Lets every BatchNorm2d of the model, with the add and the ReLU that follow it, run as one operator. The model is changed in place.

    Parameters, buffers, names and the state dict stay as they are, so that an optimizer made before goes on working; so do training
    and evaluation mode. A module runs fused while it is what it was: its own forward runs when children, attributes or arguments are others than
    now, when somebody hooks what was joined, and under torch.func, forward-mode AD, torch.jit and torch.fx. A pickled model comes back not fused.

        >>> model, fused, not_fused = flatout.nn.fuse(torchvision.models.resnet18())
    """
    check_model(model, "fuse")
    fused: Dict[str, str] = {}
    not_fused: Dict[str, str] = {}
    norms = norms_of(model)
    taken = []
    for norm, names in norms.items():
        if type(norm) is torch.nn.BatchNorm2d:
            if has_hooks(norm):
                not_fused[names[0]] = "it has hooks or a forward of its own, which would see other values"
                continue
            taken.append(norm)
            fused[names[0]] = "norm"
            if len(names) > 1:
                not_fused[names[0]] = f"alone: it is used under several names ({', '.join(names)})"
        elif type(norm) is not BatchNormAddReLU2d:
            not_fused[names[0]] = f"it is a {type(norm).__name__}; only BatchNorm2d is taken"
    for norm in taken:
        norm.__class__ = BatchNormAddReLU2d
        norm.relu, norm._flatout_taken = False, True

    modules = dict(model.named_modules())
    ours = {norm: names[0] for norm, names in norms.items() if type(norm) is BatchNormAddReLU2d and not norm.relu and len(names) == 1}
    owned: Dict[str, Dict[torch.nn.Module, str]] = {}
    for norm, name in ours.items():
        owner = name.rpartition(".")[0]
        while owner and type(modules[owner]) in _WITHOUT_FORWARD:
            owner = owner.rpartition(".")[0]
        owned.setdefault(owner, {})[norm] = name
    taken = set(taken)
    for owner_name, own in owned.items():
        owner = modules[owner_name]
        if kind_of(owner) is not type(owner):
            if own.keys().isdisjoint(taken):
                continue  # fused before
            restore(owner)
        try:
            proven = trace(owner)
        except ValueError as reason:
            not_fused.update({name: f"alone: {reason}" for norm, name in own.items() if norm in taken})
            continue
        before = len(owner_name) + 1 if owner_name else 0
        bypassed = []
        for norm, name in own.items():
            joined, others = _join(owner, proven.graph, name[before:], norm)
            if others:
                bypassed += others
                fused[name] = joined
            elif joined and norm in taken:
                not_fused[name] = f"alone: {joined}"
        if bypassed:
            become(owner, proven, bypassed)
    return Fusion(model, fused, not_fused)


def _join(owner, graph, name, norm):
    """Rewrites the call of the norm in the graph. What it became, and the modules that the graph relies on; or why not, and none."""
    calls = [n for n in graph.nodes if n.op == "call_module" and n.target == name]
    if len(calls) != 1:
        return f"{type(owner).__name__}.forward calls it {len(calls)} times", []
    call = calls[0]
    given = [*call.args, *call.kwargs.values()]
    if len(given) != 1 or not set(call.kwargs) <= {"input"} or not isinstance(given[0], fx.Node) or has_hooks(norm):
        return None, []
    bypassed = [norm]
    last = _only_user(call)
    addend = _addend(last, call, owner, bypassed) if not _reads(graph, name) else None
    relu = _only_user(last) if addend is not None else last
    with_relu = _is_relu(relu, owner)
    if addend is None and not with_relu:
        return None, []
    if with_relu and relu.op == "call_module":
        bypassed.append(owner.get_submodule(relu.target))
    end = relu if with_relu else last
    # Where the norm was, or where what is added is known to be what it was: the ReLU moves up, nobody else sees what it reads.
    with graph.inserting_before(call if addend is None else last):
        in_place = addend is not None and last.target in (operator.iadd, "add_")
        joint = graph.call_method("fused", (graph.get_attr(name), given[0], addend, with_relu, in_place))
    end.replace_all_uses_with(joint)
    for node in dict.fromkeys((end, last, call)):
        graph.erase_node(node)
    return "norm" + (" + add" if addend is not None else "") + (" + ReLU" if with_relu else ""), bypassed


def _only_user(node: fx.Node) -> Optional[fx.Node]:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _reads(graph, name) -> bool:
    """Whether the graph looks at the norm's parameters or statistics itself."""
    return any(n.op == "get_attr" and n.target.startswith(f"{name}.") for n in graph.nodes)


def _is_relu(node: Optional[fx.Node], owner: torch.nn.Module) -> bool:
    if node is None:
        return False
    if node.op == "call_module":
        called = owner.get_submodule(node.target)
        return type(called) is torch.nn.ReLU and not has_hooks(called)
    return node.op == "call_function" and node.target in _RELUS or node.op == "call_method" and node.target in ("relu", "relu_")


def _addend(node: Optional[fx.Node], norm: fx.Node, owner, bypassed) -> Optional[fx.Node]:
    """What `node` adds to `norm`; None if it is no addition of two tensors, or the norm cannot move down to it."""
    if node is None or len(node.args) != 2 or node.kwargs:
        return None
    if not (node.op == "call_function" and node.target in _ADDS or node.op == "call_method" and node.target in ("add", "add_")):
        return None
    left, right = node.args
    other = right if left is norm else left
    if not isinstance(other, fx.Node) or other is norm:
        return None
    if node.target in (operator.iadd, "add_") and left is other:
        return None  # whoever else has that tensor would see the sum
    if norm.next is not node:
        # The norm moves down to the addition: nothing in between may change what it reads, under whatever name.
        (read,) = norm.all_input_nodes
        if len(read.users) > 1 or read.op != "call_module":
            return None
        maker = owner.get_submodule(read.target)
        if type(maker) not in _FRESH or has_hooks(maker):
            return None
        bypassed.append(maker)
    return other
