"""When the model is called: forward, or validation.

Hooking every module would cost every submodule of every call. So we find the models, the modules
whose parameters an optimizer was made of and that no other such module contains, and hook `__call__`
of their classes only. Where a model is never called itself (Lightning modules), its children follow.
Without any forward seen, the timeline takes what lies before backward.
"""
import weakref
from types import FunctionType

from . import core
from .core import FORWARD, state

_module = None  # torch.nn.Module
_script_module = ()  # torch.jit.ScriptModule: its calls are not Python's
_asked = {}  # id(module) -> weak reference: modules whose parameters were asked for
_models = []  # weak references to the models whose classes are hooked
_hooked = set()  # ids of hooked classes; classes live on


def install(module):
    global _module, _script_module
    name = module.__name__
    if name == "torch":
        from . import training

        _module = module.nn.Module
        _script_module = getattr(getattr(module, "jit", None), "ScriptModule", ())
        core.replace(_module, "named_parameters", _named_parameters)
        for wrapper in ("DistributedDataParallel", "DataParallel"):
            _hook_class(getattr(module.nn.parallel, wrapper, None))
        training.each_while(_look_deeper)
    else:
        core.dynamo_is_here(module)
        for wrapper in ("OptimizedModule", "FullyShardedDataParallel"):
            _hook_class(getattr(module, wrapper, None))


def _named_parameters(named_parameters):
    is_compiling = core.compiling

    def hook(self, *args, **kwargs):
        if not is_compiling() and id(type(self)) not in _hooked:
            _remember(self)
        return named_parameters(self, *args, **kwargs)

    return hook


@core.guarded
def _remember(module):
    if len(_asked) > 256:
        _asked.clear()
    _asked[id(module)] = weakref.ref(module)


@core.guarded
def optimizer_made(optimizer):
    """Finds the models behind a new optimizer among the modules that were asked for parameters."""
    if _module is None:
        return
    mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
    found = [m for m in (ref() for ref in _asked.values()) if m is not None]
    _asked.clear()
    found = [m for m in found if any(id(p) in mine for p in _own_parameters(m))]
    within = set()
    for model in found:
        within.update(id(m) for m in model.modules() if m is not model)
    for model in found:
        if id(model) not in within:
            _models.append(weakref.ref(model))
            _hook_class(type(model))
    del _models[:-16]


def models():
    """Those that are known and live."""
    return [model for model in (ref() for ref in _models) if model is not None]


def _own_parameters(model):
    for module in model.modules():
        for parameter in vars(module).get("_parameters", {}).values():
            if parameter is not None:
                yield parameter


_depth = [0]


def _look_deeper(torch):
    """No model was called in the first steps: hook their children instead, three levels at most."""
    if state.forwards or state.steps < 3 or _depth[0] >= 3:
        return
    _depth[0] += 1
    children = []
    for model in (ref() for ref in _models):
        children.extend(model.children() if model is not None else ())
    if len(children) > 16:
        return
    for child in children:
        if any(True for _ in _own_parameters(child)):
            _hook_class(type(child))
    _models[:] = [weakref.ref(child) for child in children]


def _hook_class(cls):
    if cls is None or cls is _module or id(cls) in _hooked:
        return
    if isinstance(cls, type) and not issubclass(cls, _script_module):
        _hooked.add(id(cls))
        own = vars(cls).get("__call__")
        if own is None:
            _put(cls, cls.__call__)
        elif type(own) is FunctionType:
            core.put(cls, "__call__", core.calls.forward(FORWARD, own), own)


def _put(cls, inherited):
    """torch.fx and others replace Module.__call__ for a while: it is looked up at each call."""
    owner = next(base for base in cls.__mro__[1:] if "__call__" in vars(base))

    def __call__(self, *args, **kwargs):
        return super(cls, self).__call__(*args, **kwargs)

    hook = core.calls.forward(FORWARD, owner, "__call__")
    core.put(cls, "__call__", core.disguise(hook, inherited), core.disguise(__call__, inherited))
