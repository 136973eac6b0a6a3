"""The graph of a module's forward (torch.fx, its children being opaque), where it is proven that this is all that the forward does.

A trace sees operations on tensors and nothing else: it freezes what Python decides and leaves out what Python does besides. So what ran in it is
watched, and its source is read (`_Reader`): it may depend on the arguments, on the module's attributes and on constants alone, and do nothing but
compute. What the graph rests on (children, attributes) comes with it, for whoever uses the graph to look at again (_guard.py).
"""

import ast
import builtins
import copy
import enum
import functools
import inspect
import linecache
import math
import operator
import os
import random
import sys
import types
from typing import Any, Dict, List, NamedTuple, Set, Tuple

import torch
from torch import fx

PLAIN = (bool, int, float, complex, str, bytes, type(None))
_FIXED = (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, torch.dtype, torch.device,
          torch.layout, torch.memory_format, enum.Enum)
_TORCH, _OURS, _PYTHON = (os.path.dirname(os.path.abspath(file)) + os.sep for file in (torch.__file__, __file__, os.__file__))
_LAYERS = os.path.join(_TORCH, "nn", "modules", "")
_INSIDE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # part of the function that they are written in
MISSING = object()


class Trace(NamedTuple):
    graph: fx.Graph
    tensors: List[str]
    """The parameters of forward that were tensors; all others had their defaults."""
    children: List[Tuple[torch.nn.Module, Dict[str, Any]]]
    """Modules whose children were looked at -> those children."""
    attributes: List[Tuple[torch.nn.Module, str, Any]]
    """What vars(module) held; MISSING: nothing."""
    of_classes: List[Tuple[type, str, Any]]
    """What classes held."""
    nones: List[Tuple[torch.nn.Module, str, str, bool]]
    """Whether a parameter or buffer was None: module, "_parameters" or "_buffers", name."""
    ran: Set[types.CodeType]
    """The user's functions that the trace went through."""


class _Unproven(Exception):
    """Why the graph is not known to be what the forward does."""


def is_plain(value: Any) -> bool:
    return type(value) in PLAIN or type(value) is tuple and all(map(is_plain, value))


def _is_fixed(value: Any) -> bool:
    """Whether it cannot change by itself: a function, a class, a type of data, ..."""
    return isinstance(value, _FIXED) or type(value).__module__.startswith("torch._") and not isinstance(value, (torch.Tensor, torch.nn.Module))


def _is_torchs(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] == "torch" or kind.__module__.startswith(f"{__package__}.")


def _is_users(code: types.CodeType) -> bool:
    """Whether it is neither torch's nor ours nor of Python's own library (in whose folder packages may lie)."""
    file = code.co_filename
    return not (file.startswith((_TORCH, _OURS, "<frozen ")) or file.startswith(_PYTHON) and "-packages" not in file)


class _Proxy(fx.Proxy):
    """One to which `+=` is an addition in place, as it is to a tensor (torch.fx makes it a new value), and which does not say that it is none."""

    @property
    def __class__(self):
        if _is_users(sys._getframe(1).f_code):
            raise fx.proxy.TraceError("it asks for the type of a tensor")
        return type(self)


def _in_place(function):
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift", "imatmul"):
    setattr(_Proxy, f"__{_name}__", _in_place(getattr(operator, _name)))


class _Shallow(fx.Tracer):
    """Traces the module's own forward; its children are opaque, arguments that have defaults have these."""

    proxy_buffer_attributes = True

    def __init__(self, parameters):
        super().__init__()
        self.parameters, self.touched = parameters, []

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return True

    def getattr(self, attr, attr_val, parameter_proxy_cache):
        if isinstance(attr_val, torch.nn.Module):
            self.touched.append(attr_val)
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(self, m, forward, args, kwargs):
        self.touched.append(m)
        return super().call_module(m, forward, args, kwargs)

    def create_args_for_root(self, root_fn, is_module, concrete_args=None):
        given = {p.name: self.create_proxy("placeholder", p.name, (), {}) if p.default is p.empty else p.default for p in self.parameters}
        return functools.partial(root_fn, self.root, **given), []


class _Watch:
    """What runs in a trace, as sys.setprofile tells it: the user's functions, and what they call that is no operation on a tensor."""

    # What gives the same for the same, or is looked at elsewhere.
    FUNCTIONS = {len, isinstance, getattr, hasattr, sum, min, max, abs, all, any, iter, next, sorted, round, divmod}
    OF_MODULES = {"module_getattr_wrapper", "module_call_wrapper", "__getattr__", "children", "named_children"}
    OF_TORCH = {"nn/functional.py": None, "functional.py": None, "nn/modules/container.py": None, "nn/modules/module.py": OF_MODULES,
                "_jit_internal.py": {"is_scripting", "fn"}, "jit/_trace.py": {"is_tracing"}}

    def __init__(self, tracer: _Shallow, forward: types.CodeType):
        self.tracer, self.forward, self.ran, self.reason = tracer, forward, {}, None
        self._users, self._calls = set(), {}

    def __call__(self, frame, event, arg) -> None:
        code, caller = frame.f_code, frame.f_back
        if event == "call":
            by_user = caller in self._users
            if _is_users(code):
                if by_user or code is self.forward or caller.f_code.co_filename.startswith(_LAYERS):
                    self._users.add(frame)
                    if code not in self.ran:
                        self.ran[code] = {**frame.f_globals, **{n: frame.f_locals[n] for n in code.co_freevars if n in frame.f_locals}}
            elif by_user and not self._is_known(code):
                self._refuse(code.co_name)
        elif event == "return":
            self._users.discard(frame)
        elif frame in self._users:
            if event == "c_call":
                self._calls[frame] = self._nodes()
            elif self._calls.pop(frame, None) == self._nodes() and not self._is_pure(arg):
                self._refuse(getattr(arg, "__name__", str(arg)))

    def _nodes(self) -> int:
        return len(self.tracer.graph.nodes) if hasattr(self.tracer, "graph") else 0

    def _refuse(self, name: str) -> None:
        self.reason = self.reason or f"calls {name}, which a trace may not show"

    def _is_known(self, code) -> bool:
        if code.co_filename.startswith(_OURS):
            return True
        if not code.co_filename.startswith(_TORCH):
            return False
        file = code.co_filename[len(_TORCH):].replace(os.sep, "/")
        names = self.OF_TORCH.get(file, ())
        return file.startswith("fx/") or names is None or code.co_name in names

    def _is_pure(self, function) -> bool:
        of = getattr(function, "__self__", None)
        if of is builtins:
            return function in self.FUNCTIONS
        return of is math or of is sys.modules["_operator"] or type(of) in (list, tuple, dict, set, *PLAIN[:-1])


class _Reader:
    """Reads the source of one function that ran in a trace. Raises _Unproven. `names`: what attributes it reads; `asked`: those of getattr."""

    STATEMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.If, ast.For, ast.Pass, ast.Break, ast.Continue, ast.Assert, ast.Raise)
    WORDS = {ast.With: "with", ast.Try: "try", ast.While: "while", ast.FunctionDef: "a function inside", ast.Delete: "del", ast.Import: "import",
             ast.ImportFrom: "import", ast.Global: "global", ast.Nonlocal: "nonlocal"}

    def __init__(self, code, visible, is_forward):
        self.code, self.visible, self.is_forward = code, visible, is_forward
        self.names: Set[str] = set()
        self.asked: Set[str] = set()

    def read(self) -> None:
        nodes = [] if self.code.co_flags & inspect.CO_GENERATOR else definitions(self.code)
        if not nodes:
            raise _Unproven(f"runs {self.code.co_name}, whose source is not at hand")
        for node in nodes:  # several lambdas in a line look alike
            self._function(node)

    def _function(self, function) -> None:
        arguments = function.args
        self.parameters = [a.arg for a in (*getattr(arguments, "posonlyargs", ()), *arguments.args, *arguments.kwonlyargs)]
        body = function.body if isinstance(function.body, list) else [function.body]
        nodes = [n for statement in body for n in ast.walk(statement)]
        self.stores = {}
        for n in nodes:
            if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load):
                self.stores[n.id] = min(n.lineno, self.stores.get(n.id, n.lineno))
        self.local = {*self.parameters, *self.stores, *(n.arg for n in nodes if isinstance(n, ast.arg))}
        self.in_loops = {id(n) for loop in nodes if isinstance(loop, ast.For) for n in ast.walk(loop)}
        inner = {id(n.value) for n in nodes if isinstance(n, ast.Attribute)}
        for n in nodes:
            if isinstance(n, ast.stmt):
                self._statement(n)
            elif isinstance(n, (ast.Await, ast.Yield, ast.YieldFrom)):
                raise _Unproven("is a generator")
            elif isinstance(n, ast.Compare):
                self._comparison(n)
            elif isinstance(n, ast.Call):
                self._call(n)
            if isinstance(n, (ast.Attribute, ast.Subscript)) and not isinstance(n.ctx, ast.Load):
                raise _Unproven(f"changes the module or what it was given ({self._text(n)}), which a trace would leave out")
            if isinstance(n, ast.Attribute):
                if n.attr.startswith("__"):
                    raise _Unproven(f"reads {n.attr}")
                self.names.add(n.attr)
            if isinstance(n, (ast.Attribute, ast.Name)) and id(n) not in inner:
                self._constant(n)

    def _statement(self, n) -> None:
        if isinstance(n, ast.Expr):
            if not isinstance(n.value, ast.Constant):
                raise _Unproven(f"calls {self._text(n.value)} without using its result, which a trace may leave out")
        elif not isinstance(n, self.STATEMENTS):
            word = next((w for kind, w in self.WORDS.items() if isinstance(n, kind)), type(n).__name__.lower())
            raise _Unproven(f"has `{word}`, which a trace does not show")

    def _comparison(self, n) -> None:
        """`is` tells a tensor of the trace from None, but not what a child gave from another value."""
        for left, operation, right in zip((n.left, *n.comparators), n.ops, n.comparators):
            if isinstance(operation, (ast.Is, ast.IsNot)) and not (isinstance(right, ast.Constant) and self._is_given(left)):
                raise _Unproven(f"compares `{self._text(n)}`, which a trace may decide otherwise")

    def _is_given(self, n) -> bool:
        """Whether n is an attribute of the module, or an argument of its forward as it came."""
        if isinstance(n, ast.Name):
            return self.is_forward and n.id in self.parameters and n.lineno <= self.stores.get(n.id, n.lineno) and id(n) not in self.in_loops
        while isinstance(n, ast.Attribute):
            n = n.value
            if isinstance(n, ast.Name):
                return n.id == self.parameters[0] and n.id not in self.stores
        return False

    def _call(self, n) -> None:
        name = n.func.id if isinstance(n.func, ast.Name) else None
        if name == "type":
            raise _Unproven("asks for a type, which a trace may answer otherwise")
        if name in ("getattr", "hasattr"):
            if len(n.args) < 2 or not isinstance(n.args[1], ast.Constant):
                raise _Unproven(f"reads attributes whose names it makes ({self._text(n)})")
            self.names.add(n.args[1].value)
            self.asked.add(n.args[1].value)

    def _constant(self, n) -> None:
        """What is no local variable must be what never changes."""
        chain = []
        at = n
        while isinstance(at, ast.Attribute):
            chain.append(at.attr)
            at = at.value
        if not isinstance(at, ast.Name) or at.id in self.local or at.id == "__class__":
            return
        value = self.visible.get(at.id, getattr(builtins, at.id, MISSING))
        for name in reversed(chain):
            value = getattr(value, name, MISSING)
        if value is MISSING or not _is_fixed(value):
            raise _Unproven(f"reads {self._text(n)}, which may change")

    @staticmethod
    def _text(n) -> str:
        text = ast.unparse(n) if hasattr(ast, "unparse") else type(n).__name__
        return text if len(text) < 60 else f"{text[:57]}..."


def definitions(code: types.CodeType) -> List[ast.AST]:
    """The functions in source text that `code` may be; none where that text is not at hand or another one."""
    text = "".join(linecache.getlines(code.co_filename))
    started = getattr(sys, "orig_argv", ())
    if not text and code.co_filename == "<string>" and "-c" in started[:-1]:
        text = started[started.index("-c") + 1]
    found, codes = _parsed(text, code.co_filename)
    return found.get((code.co_firstlineno, code.co_name), []) if code in codes else []


@functools.lru_cache(maxsize=16)
def _parsed(text: str, filename: str):
    """Functions of a file by first line and name, and the code of all."""
    try:
        tree, compiled = ast.parse(text), compile(text, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return {}, set()
    found: Dict[Tuple[int, str], List[ast.AST]] = {}
    for n in ast.walk(tree):
        if isinstance(n, (ast.FunctionDef, ast.Lambda)):
            line = min([n.lineno, *(d.lineno for d in getattr(n, "decorator_list", ()))])
            found.setdefault((line, getattr(n, "name", "<lambda>")), []).append(n)
    codes, left = set(), [compiled]
    while left:
        for constant in left.pop().co_consts:
            if isinstance(constant, types.CodeType):
                codes.add(constant)
                left.append(constant)
    return found, codes


def _parameters(forward) -> List[inspect.Parameter]:
    """Those of forward after self. Raises _Unproven where arguments may be what a trace does not know."""
    if forward is torch.nn.Module.forward:
        raise _Unproven("is not its own: another module calls its children")
    if not isinstance(forward, types.FunctionType) or hasattr(forward, "__wrapped__"):
        raise _Unproven("is decorated")
    _, *parameters = inspect.signature(forward).parameters.values()
    for p in parameters:
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise _Unproven(f"takes {p}" + (" by position only" if p.kind is p.POSITIONAL_ONLY else ""))
        if p.default is not p.empty and not (is_plain(p.default) or _is_fixed(p.default)):
            raise _Unproven(f"has a default for {p.name} that may change")
    if not any(p.default is p.empty for p in parameters):
        raise _Unproven("takes no argument that must be given")
    return parameters


def trace(module: torch.nn.Module) -> Trace:
    """The graph of module.forward. Raises ValueError with the reason where it has none, or may do more; the module stays as it was."""
    who = f"forward of {type(module).__name__}"
    try:
        if isinstance(module, fx.GraphModule):
            raise _Unproven("is a graph that was traced: fuse the model before")
        if "forward" in vars(module):
            raise _Unproven("was put on the module itself (torch.compile, a wrapper)")
        return _prove(module, _parameters(type(module).forward))
    except _Unproven as reason:
        raise ValueError(f"{who} {reason}") from None


def _prove(module, parameters) -> Trace:
    forward = type(module).forward
    names, asked = set(), set()

    def read(code, visible):
        if code.co_name not in _INSIDE:
            reader = _Reader(code, visible, code is forward.__code__)
            reader.read()
            names.update(reader.names)
            asked.update(reader.asked)

    if _is_users(forward.__code__):  # before it runs
        read(forward.__code__, {**forward.__globals__, **inspect.getclosurevars(forward).nonlocals})
    training, before = module.training, _attributes(module)
    kept = {tensor: (tensor._version, tensor.detach().clone()) for tensor in module.buffers(recurse=False)}
    states = _random_states()
    traces, failure = [], None
    try:
        for mode in (True, False):
            module.training = mode
            traces.append(_run(module, parameters))
            if traces[-1][3] is not None:
                raise traces[-1][3]
    except Exception as error:  # whatever the forward does with what is no tensor
        failure = error
    finally:
        module.training = training
        drew = _restore_random_states(states)
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
        raise _Unproven("changes the module, which a trace would leave out")
    if drew:
        raise _Unproven("draws random numbers, which a trace would freeze")
    for _, _, watch, _ in traces:
        for code, visible in watch.ran.items():
            read(code, visible)
    if failure is not None:
        raise _Unproven(f"cannot be traced: {(str(failure).splitlines() or [type(failure).__name__])[0]}")
    if constants:
        raise _Unproven("makes tensors of its own, which a trace would freeze")
    for _, _, watch, _ in traces:
        if watch.reason:
            raise _Unproven(watch.reason)
    if _is_users(forward.__code__) and forward.__code__ not in traces[0][2].ran:
        raise _Unproven("was not seen to run")
    if str(traces[0][0]) != str(traces[1][0]):
        raise _Unproven("differs between training and evaluation")
    touched = list(dict.fromkeys([module, *(m for _, tracer, _, _ in traces for m in tracer.touched)]))
    tensors = [p.name for p in parameters if p.default is p.empty]
    return Trace(traces[0][0], tensors, *_premises(module, touched, names, asked), {code for _, _, watch, _ in traces for code in watch.ran})


def _run(module, parameters):
    """graph, tracer, watch, error of one trace."""
    tracer = _Shallow(parameters)
    watch = _Watch(tracer, type(module).forward.__code__)
    others, graph, error = sys.getprofile(), None, None
    sys.setprofile(watch)
    try:
        graph = tracer.trace(module)
    except Exception as e:
        error = e
    finally:
        sys.setprofile(None)
        if callable(others) or others is None:
            sys.setprofile(others)
        else:
            others.enable()  # cProfile
    return graph, tracer, watch, error


def _premises(owner, touched, names, asked):
    """What must stay for the graph to hold: children, attributes, of_classes, nones of Trace."""
    own = set(vars(torch.nn.Module())) - {"training"}
    children = [(m, dict(m._modules)) for m in touched if m is owner or m._modules]
    attributes, of_classes, nones = [], {}, []
    for module in touched:
        held = vars(module)
        for name in names & held.keys():
            value = held[name]
            if name == "training" and module is owner:
                continue
            if module is not owner and not _is_torchs(type(module)):
                raise _Unproven(f"reads {name} of {type(module).__name__}, which that module may change as it runs")
            if name in own or not (is_plain(value) or _is_fixed(value)):
                raise _Unproven(f"reads {name} of {type(module).__name__}, a {type(value).__name__}, which may change")
            attributes.append((module, name, value))
        for name in asked - held.keys():
            if not any(name in held[of] for of in ("_modules", "_parameters", "_buffers")):
                attributes.append((module, name, MISSING))
        nones += [(module, of, name, held[of][name] is None) for of in ("_parameters", "_buffers") for name in names & held[of].keys()]
        for kind in type(module).__mro__:
            if _is_torchs(kind):
                continue
            for name in names & vars(kind).keys():
                value = vars(kind)[name]
                if not (is_plain(value) or _is_fixed(value) or isinstance(value, (property, staticmethod, classmethod))):
                    raise _Unproven(f"reads {name} of class {kind.__name__}, a {type(value).__name__}, which may change")
                of_classes[kind, name] = value
                if name not in held:
                    attributes.append((module, name, MISSING))
    return children, attributes, [(kind, name, value) for (kind, name), value in of_classes.items()], nones


def _attributes(module: torch.nn.Module) -> Dict[str, Any]:
    """What vars(module) holds now, so that a later look can tell what changed: containers by what is in them."""
    return {name: copy.copy(value) if isinstance(value, (list, dict, set)) else value for name, value in vars(module).items()}


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(a[key] is b[key] for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(x is y for x, y in zip(a, b))
    return a is b or isinstance(a, set) and a == b


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


def _random_states():
    """The states of Python's, NumPy's and PyTorch's generators: how to read and to set one, and what it is."""
    of = [(random.getstate, random.setstate), (torch.default_generator.get_state, torch.default_generator.set_state)]
    if "numpy" in sys.modules:
        numbers = sys.modules["numpy"].random
        of.append((lambda: numbers.get_state(legacy=False), numbers.set_state))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        of += [(g.get_state, g.set_state) for g in torch.cuda.default_generators]
    return [(read, write, read()) for read, write in of]


def _restore_random_states(states) -> bool:
    """Whether any had changed."""
    changed = False
    for read, write, state in states:
        if str(_values(read())) != str(_values(state)):
            changed = True
            write(state)
    return changed


def _values(state):
    if isinstance(state, torch.Tensor):
        return bytes(state.tolist())
    if isinstance(state, dict):
        return {key: _values(value) for key, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state
