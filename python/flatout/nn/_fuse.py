"""Finds BatchNorm2d with the add and the ReLU after it in a model, and puts BatchNormAddReLU2d in their place.

Each module that owns a BatchNorm2d is traced by itself (torch.fx, its children being opaque), so that one that cannot be traced spoils no
other. What is found is rewritten in the graph of that one forward; the module keeps its class's methods, its children, its state dict.
"""

import copy
import operator
from typing import Any, Dict, List, NamedTuple, Optional

import torch
from torch import fx
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ._module import BatchNormAddReLU2d

_ADDS = {operator.add, operator.iadd, torch.add}
_RELUS = {torch.relu, torch.relu_, torch.nn.functional.relu, torch.nn.functional.relu_}
_CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


class Fusion(NamedTuple):
    """What `fuse` did."""

    model: torch.nn.Module
    fused: Dict[str, str]
    """Name of each batch norm that was taken -> "norm", "norm + ReLU", "norm + add" or "norm + add + ReLU"."""
    not_fused: Dict[str, str]
    """Name of each batch norm that was left as it is, or alone -> why."""


class _Proxy(fx.Proxy):
    """One to which `+=` is an addition in place, as it is to a tensor; torch.fx makes it a new value."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _Shallow(fx.Tracer):
    """Traces the module's own forward; its children are opaque."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return True


def _attributes(module: torch.nn.Module) -> Dict[str, Any]:
    """What vars(module) holds now, so that a later look can tell what changed: containers by what is in them."""
    return {name: copy.copy(value) if isinstance(value, (list, dict, set)) else value for name, value in vars(module).items()}


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(a[key] is b[key] for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(x is y for x, y in zip(a, b))
    return a is b or isinstance(a, set) and a == b


def _trace(module: torch.nn.Module) -> fx.Graph:
    """The graph of module.forward. Raises ValueError with the reason where it has none; the module stays as it was."""
    who = f"forward of {type(module).__name__}"
    training, before = module.training, _attributes(module)
    kept = {tensor: (tensor._version, tensor.detach().clone()) for tensor in module.buffers(recurse=False)}
    try:
        graphs = []
        for mode in (True, False):
            module.training = mode
            graphs.append(_Shallow().trace(module))
    except Exception as error:  # whatever the forward does with what is no tensor
        raise ValueError(f"{who} cannot be traced: {(str(error).splitlines() or [type(error).__name__])[0]}") from error
    finally:
        module.training = training
        after = dict(vars(module))
        constants = [name for name in after if name.startswith("_tensor_constant") and name not in before]  # tensors that the forward makes
        changed = [name for name in {**before, **after} if name not in constants and not _same(before.get(name), after.get(name))]
        for name in (*constants, *changed):
            _restore(module, name, before, after)
        written = [tensor for tensor, (version, _) in kept.items() if tensor._version != version]
        with torch.no_grad():
            for tensor in written:
                tensor.copy_(kept[tensor][1])
    if changed or written:
        raise ValueError(f"{who} changes the module, which a trace would leave out")
    if constants:
        raise ValueError(f"{who} makes tensors of its own, which a trace would freeze")
    if str(graphs[0]) != str(graphs[1]):
        raise ValueError(f"{who} differs between training and evaluation")
    return graphs[0]


def _restore(module: torch.nn.Module, name: str, before: Dict[str, Any], after: Dict[str, Any]) -> None:
    """vars(module)[name] as it was; a container stays the same object."""
    if name not in before:
        del vars(module)[name]
    elif isinstance(before[name], list) and isinstance(after.get(name), list):
        after[name][:] = before[name]
    elif isinstance(before[name], (dict, set)) and type(after.get(name)) is type(before[name]):
        after[name].clear()
        after[name].update(before[name])
    else:
        vars(module)[name] = before[name]


def _has_hooks(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def _only_user(node: fx.Node) -> Optional[fx.Node]:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_relu(node: Optional[fx.Node], owner: torch.nn.Module) -> bool:
    if node is None:
        return False
    if node.op == "call_module":
        called = owner.get_submodule(node.target)
        return type(called) is torch.nn.ReLU and not _has_hooks(called)
    return node.op == "call_function" and node.target in _RELUS or node.op == "call_method" and node.target in ("relu", "relu_")


def _addend(node: Optional[fx.Node], norm: fx.Node) -> Optional[fx.Node]:
    """What `node` adds to `norm`; None if it is no addition of two tensors, or the norm cannot move down to it."""
    if node is None or len(node.args) != 2 or node.kwargs:
        return None
    if not (node.op == "call_function" and node.target in _ADDS or node.op == "call_method" and node.target in ("add", "add_")):
        return None
    left, right = node.args
    other = right if left is norm else left
    if not isinstance(other, fx.Node) or other is norm:
        return None
    if node.target in (operator.iadd, "add_") and left is other and (other.op != "call_module" or len(other.users) > 1):
        return None  # others would see the sum: the caller, who has a view of it, who uses it
    # The norm moves down to the addition: nothing in between may change what it reads.
    if norm.next is not node and any(len(i.users) > 1 for i in norm.all_input_nodes):
        return None
    return other


def _become(module: torch.nn.Module, graph: fx.Graph) -> None:
    """module.forward is what the graph says; the class gets a subclass, as torch.nn.utils.parametrize does it."""
    graph.lint()
    forward = type(fx.GraphModule(module, graph)).forward
    kind = type(module)
    module.__class__ = type(f"Fused{kind.__name__}", (kind,), {"forward": forward, "__module__": kind.__module__})


def _convert(norm: torch.nn.Module) -> None:
    norm.__class__ = BatchNormAddReLU2d
    norm.relu = False


def _owners(model: torch.nn.Module) -> Dict[torch.nn.Module, List[str]]:
    """Each batch norm -> every name that it has in the model."""
    names: Dict[torch.nn.Module, List[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, _BatchNorm):
            names.setdefault(module, []).append(name)
    return names


def fuse(model: torch.nn.Module) -> Fusion:
    """Lets every BatchNorm2d of the model, with the add and the ReLU that follow it, run as one operator. The model is changed in place.

    Parameters, buffers, names and the state dict stay as they are, so that an optimizer made before goes on working; so do training
    and evaluation mode. To be called last: what is inserted afterwards into a module whose forward was rewritten (a Sequential, say)
    is not called. Save state dicts rather than the model itself: the classes that are made here cannot be pickled.

        >>> model, fused, not_fused = flatout.nn.fuse(torchvision.models.resnet18())
    """
    fused: Dict[str, str] = {}
    not_fused: Dict[str, str] = {}
    norms: Dict[torch.nn.Module, List[str]] = _owners(model)
    ours = set()
    for norm, names in norms.items():
        if type(norm) is not torch.nn.BatchNorm2d:
            if not isinstance(norm, BatchNormAddReLU2d):
                not_fused[names[0]] = f"it is a {type(norm).__name__}; only BatchNorm2d is taken"
        elif _has_hooks(norm):
            not_fused[names[0]] = "it has hooks, which would see other values"
        else:
            ours.add(norm)
            fused[names[0]] = "norm"
            if len(names) > 1:
                not_fused[names[0]] = f"alone: it is used under several names ({', '.join(names)})"

    for owner_name, owner in list(model.named_modules()):
        own = {child: name for name, child in owner.named_children() if child in ours and len(norms[child]) == 1}
        if not own:
            continue
        prefix = f"{owner_name}." if owner_name else ""
        try:
            graph = _trace(owner)
        except ValueError as error:
            not_fused.update({prefix + name: f"alone: {error}" for name in own.values()})
            continue
        if _fuse_graph(owner, graph, own, prefix, fused, not_fused):
            _become(owner, graph)
    for norm in ours:
        if not isinstance(norm, BatchNormAddReLU2d):
            _convert(norm)
    return Fusion(model, fused, not_fused)


def _fuse_graph(owner, graph, own, prefix, fused, not_fused) -> bool:
    """Rewrites `graph`; whether there was anything to rewrite."""
    changed = False
    for norm, name in own.items():
        calls = [n for n in graph.nodes if n.op == "call_module" and n.target == name]
        if len(calls) != 1:
            not_fused[prefix + name] = f"alone: {type(owner).__name__}.forward calls it {len(calls)} times"
            continue
        call = calls[0]
        last = _only_user(call)
        addend = _addend(last, call)
        relu = _only_user(last) if addend is not None else last
        with_relu = _is_relu(relu, owner)
        if addend is None and not with_relu:
            continue
        end = relu if with_relu else last
        # Where the norm was, or where what is added is known to be what it was: the ReLU moves up, nobody else sees what it reads.
        with graph.inserting_before(call if addend is None else last):
            joint = graph.call_module(name, call.args, call.kwargs if addend is None else {**call.kwargs, "residual": addend})
        end.replace_all_uses_with(joint)
        for node in dict.fromkeys((end, last, call)):
            graph.erase_node(node)
        _convert(norm)
        norm.relu = with_relu
        fused[prefix + name] = "norm" + (" + add" if addend is not None else "") + (" + ReLU" if with_relu else "")
        changed = True
    return changed


def fold(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the model for inference, in evaluation mode, with batch norms folded into the convolutions before them.

    Of a fused norm the add and the ReLU stay. A norm that follows no convolution, or one whose result others use, stays as it is.
    The copy's state dict lacks the folded norms.
    """
    model = copy.deepcopy(model).eval()
    uses = _owners(model)
    for _, owner in list(model.named_modules()):
        if not any(isinstance(child, _BatchNorm) for child in owner.children()):
            continue
        try:
            graph = _trace(owner)
        except ValueError:
            continue
        children = dict(owner.named_children())
        called = [n.target for n in graph.nodes if n.op == "call_module"]
        changed = False
        for call in [n for n in graph.nodes if n.op == "call_module" and isinstance(children.get(n.target), _BatchNorm)]:
            norm = children[call.target]
            before = call.args[0] if call.args else call.kwargs.get("input")
            residual = call.args[1] if len(call.args) > 1 else call.kwargs.get("residual")
            if not (isinstance(before, fx.Node) and before.op == "call_module" and _only_user(before) is call and residual is not before
                    and isinstance(children.get(before.target), _CONVOLUTIONS) and norm.running_mean is not None
                    and called.count(call.target) == called.count(before.target) == 1 and len(uses[norm]) == 1
                    and not _has_hooks(norm) and not _has_hooks(children[before.target])):
                continue
            setattr(owner, before.target, fuse_conv_bn_eval(children[before.target], norm))
            result = before
            with graph.inserting_before(call):
                if residual is not None:
                    result = graph.call_function(operator.add, (before, residual))
                if isinstance(norm, BatchNormAddReLU2d) and norm.relu:
                    result = graph.call_function(torch.relu, (result,))
            call.replace_all_uses_with(result)
            graph.erase_node(call)
            delattr(owner, call.target)
            changed = True
        if changed:
            _become(owner, graph)
    return model
