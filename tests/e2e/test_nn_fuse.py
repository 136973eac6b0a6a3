"""flatout.nn.fuse and fold against the model as it was: where they may change nothing, and what they must leave alone."""

import copy
import functools
import io
import itertools
import os
import pathlib
import pickle
import random
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FLATOUT_BIN", ROOT / "build/release/flatout"))
LIBRARY = BIN.parent / "libflatout_nn.so"
pytestmark = [pytest.mark.parallel, pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")]
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
os.environ["FLATOUT_NN_LIBRARY"] = str(LIBRARY)
sys.path.insert(0, str(ROOT / "python"))

from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from flatout.nn import BatchNormAddReLU2d, fold, fuse  # noqa: E402
from networks import Block, ResNet18, ResNet20  # noqa: E402


class Parts(nn.Module):
    """What the forwards below use."""

    def __init__(self, **attributes):
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        self.other, self.same, self.drop = nn.Conv2d(6, 6, 1), nn.Identity(), nn.Dropout(0.5)
        for name, value in attributes.items():
            setattr(self, name, value)


def inputs(*seeds, dtype=torch.float64):
    return [torch.randn(4, 6, 5, 5, generator=torch.Generator().manual_seed(seed), dtype=dtype) for seed in seeds]


def seeded(call, *arguments):
    torch.manual_seed(5)
    random.seed(5)
    return call(*arguments)


def step(model, call):
    """All that a step leaves: results, gradients of inputs and parameters, the state."""
    x, z = (t.requires_grad_() for t in inputs(1, 2))
    model.zero_grad()
    y = seeded(call, model, x, z)
    outputs = [y] if isinstance(y, torch.Tensor) else list(y)
    if any(o.requires_grad for o in outputs):
        sum((o * o).sum() for o in outputs if o.requires_grad).backward()
    return [*outputs, x.grad, z.grad, *(p.grad for p in model.parameters()), *model.state_dict().values()]


def same(got, want):
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert (g is None) == (w is None) and (g is None or g.requires_grad == w.requires_grad)
        if w is not None:
            torch.testing.assert_close(g, w, atol=1e-9, rtol=1e-9)


def check(model, call, after=lambda model: None):
    """fuse changes nothing of what `call` gives, in training and evaluation, whatever `after` does to both models. What it said."""
    model = model.double()
    plain = copy.deepcopy(model)
    result = fuse(model)
    after(model), after(plain)
    for training in (True, False):
        model.train(training), plain.train(training)
        same(step(model, call), step(plain, call))
    return result


# ---- joined while all is as it was, the user's forward else


class OptionalSkip(Parts):
    def forward(self, x, skip=None):
        y = self.bn(self.conv(x))
        if skip is not None:
            y = y + skip
        return self.relu(y)


class OwnSkip(Parts):
    def forward(self, x, skip=None):
        if skip is None:
            skip = x
        y = self.bn(self.conv(x))
        y += skip
        return self.relu(y)


class KeywordOnly(Parts):
    def forward(self, x, *, skip):
        return F.relu(self.bn(self.conv(x)) + skip)


class Switched(Parts):
    def forward(self, x):
        if hasattr(self, "fast") or self.deploy:
            return self.conv(x)
        for _ in range(self.depth):
            x = self.other(x)
        return F.dropout(self.act(self.bn(self.conv(x))), self.p, True) * self.alpha

    deploy = False


def switched():
    return Switched(depth=1, alpha=1.0, p=0.0, act=F.relu)


class Features(Parts):
    def forward(self, x):
        return self.relu(self.bn(self.conv(x)) + x)

    def features(self, x):
        return self.bn(self.conv(x))


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Features()

    def forward(self, x):
        return self.block.bn(self.block.conv(x)) - x


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs, self.norms = (nn.ModuleList(make() for _ in range(3)) for make in (lambda: nn.Conv2d(6, 6, 1), lambda: nn.BatchNorm2d(6)))

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = F.relu(norm(conv(x)) + x)
        return x


def sequential():
    return nn.Sequential(nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.ReLU())


JOINED = {
    "an argument left out": (OptionalSkip, lambda m, x, z: m(x)),
    "an argument given": (OptionalSkip, lambda m, x, z: m(x, z)),
    "an argument given as it is by default": (OptionalSkip, lambda m, x, z: m(x, skip=None)),
    "an argument given where there was None": (OwnSkip, lambda m, x, z: m(x, z)),
    "an argument by its name": (KeywordOnly, lambda m, x, z: m(x, skip=z)),
    "a number where a tensor was": (KeywordOnly, lambda m, x, z: m(x, skip=2.0)),
    "a number changed": (switched, lambda m, x, z: m(x), lambda m: setattr(m, "alpha", 0.5)),
    "a depth changed": (switched, lambda m, x, z: m(x), lambda m: setattr(m, "depth", 3)),
    "dropout raised": (switched, lambda m, x, z: m(x), lambda m: setattr(m, "p", 0.9)),
    "a function changed": (switched, lambda m, x, z: m(x), lambda m: setattr(m, "act", torch.tanh)),
    "an attribute that came": (switched, lambda m, x, z: m(x), lambda m: setattr(m, "fast", True)),
    "an attribute over that of the class": (switched, lambda m, x, z: m(x), lambda m: setattr(m, "deploy", True)),
    "another activation": (Features, lambda m, x, z: m(x), lambda m: setattr(m, "relu", nn.SiLU())),
    "another norm": (Features, lambda m, x, z: m(x), lambda m: setattr(m, "bn", nn.GroupNorm(2, 6).double())),
    "another convolution": (Features, lambda m, x, z: m(x), lambda m: setattr(m, "conv", nn.Sequential(m.conv, m.other))),
    "a method that ends before the ReLU": (Features, lambda m, x, z: m.features(x)),
    "a parent that calls the norm itself": (Outer, lambda m, x, z: m(x)),
    "a norm in a list": (Listed, lambda m, x, z: m(x)),
    "a layer appended": (sequential, lambda m, x, z: m(x), lambda m: m.append(nn.Sigmoid())),
    "a layer put in": (sequential, lambda m, x, z: m(x), lambda m: m.insert(2, nn.Tanh())),
    "a slice": (sequential, lambda m, x, z: m[:3](x)),
    "a slice that ends before the ReLU": (sequential, lambda m, x, z: m[:5](x)),
    "layers one by one": (sequential, lambda m, x, z: functools.reduce(lambda y, layer: layer(y), list(m)[:2], x)),
    "hooks on the norm": (Features, lambda m, x, z: m(x), lambda m: m.bn.register_forward_hook(lambda module, given, y: y * 2)),
    "hooks on the ReLU": (Features, lambda m, x, z: m(x), lambda m: m.relu.register_forward_pre_hook(lambda module, given: (given[0] - 1,))),
    "a forward put on the ReLU": (Features, lambda m, x, z: m(x), lambda m: setattr(m.relu, "forward", torch.tanh)),
    "a checkpoint": (Features, lambda m, x, z: checkpoint(m, x, use_reentrant=False)),
    "a checkpoint that reenters": (Features, lambda m, x, z: checkpoint(m, x, use_reentrant=True)),
}


@pytest.mark.parametrize("case", JOINED)
def test_a_joined_norm_gives_what_the_model_gave(case):
    make, call, *after = JOINED[case]
    result = check(make(), call, *after)
    assert any("ReLU" in what for what in result.fused.values()), result


def test_a_hook_on_the_norm_sees_the_norm_and_one_on_the_relu_is_called():
    seen = []
    model, plain = Features(), Features()
    plain.load_state_dict(model.state_dict())
    fuse(model)
    for m in (model, plain):
        m.bn.register_forward_hook(lambda module, given, y: seen.append(y.detach().clone()))
        m.relu.register_forward_hook(lambda module, given, y: seen.append(y.detach().clone()))
        m(*inputs(1, dtype=torch.float32))
    assert len(seen) == 4
    torch.testing.assert_close(seen[0], seen[2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen[1], seen[3], atol=1e-5, rtol=1e-5)


def test_hooks_for_all_modules_see_them_all():
    model = fuse(Features()).model
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, y: seen.append(type(module).__name__))
    try:
        model(*inputs(1, dtype=torch.float32))
    finally:
        handle.remove()
    assert seen == ["Conv2d", "BatchNormAddReLU2d", "ReLU", "FusedFeatures"]


def test_the_joined_operator_is_what_runs(monkeypatch):
    """That the cases above compare something: without changes the ReLU is not called."""
    model = fuse(Features()).model
    called = []
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: called.append(x) or torch.relu(x))
    x, = inputs(1, dtype=torch.float32)
    model(x)
    assert called == []
    model.relu.register_forward_hook(lambda *_: None)
    model(x)
    assert len(called) == 1


def test_a_norm_that_came_later_is_fused_by_another_call():
    model = Features()
    fuse(model)
    model.bn = nn.BatchNorm2d(6)
    plain = copy.deepcopy(model)
    assert fuse(model).fused == {"bn": "norm + add + ReLU"}
    x, = inputs(1, dtype=torch.float32)
    torch.testing.assert_close(model(x), plain(x), atol=1e-5, rtol=1e-5)


def test_a_sum_in_place_keeps_its_type():
    """`y += residual` has y's type, `y + residual` that of both."""
    for model in (OwnSkip(), OptionalSkip()):
        plain = copy.deepcopy(model)
        fuse(model)
        x, z = inputs(1, 2, dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            got, want = model(x, z), plain(x, z)
            assert got.dtype == want.dtype
            got, want = model(x), plain(x)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, atol=3e-2, rtol=3e-2)


# ---- what is left alone


class WithNoGrad(Parts):
    def forward(self, x):
        with torch.no_grad():
            x = self.other(x)
        return F.relu(self.bn(self.conv(x)))


class Decorated(Parts):
    @torch.no_grad()
    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Checkpointed(Parts):
    def inner(self, x):
        return F.relu(self.bn(self.conv(x)))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class Tries(Parts):
    def forward(self, x):
        try:
            return F.relu(self.bn(self.conv(x)))
        finally:
            pass


class TensorOrList(Parts):
    def forward(self, x):
        if not isinstance(x, torch.Tensor):
            x = x[0]
        return F.relu(self.bn(self.conv(x)))


class AsksType(Parts):
    def forward(self, x):
        if type(x) is list:
            x = x[0]
        return F.relu(self.bn(self.conv(x)))


class Compares(Parts):
    def forward(self, x):
        y = self.same(x)
        return F.relu(self.bn(self.conv(x))) if y is x else self.conv(x)


class DropsByTorch(Parts):
    def forward(self, x):
        if self.training and torch.rand(1).item() < 0.5:
            return x
        return F.relu(self.bn(self.conv(x)))


class DropsByPython(Parts):
    def forward(self, x):
        if random.random() < 0.5:
            return self.other(x)
        return F.relu(self.bn(self.conv(x)))


class GradMode(Parts):
    def forward(self, x):
        return F.relu(self.bn(self.conv(x))) if torch.is_grad_enabled() else self.conv(x)


class ReluInPlaceUnused(Parts):
    def forward(self, x):
        y = self.bn(self.conv(x))
        self.relu(y)
        return y


class AddsInPlaceUnused(Parts):
    def forward(self, x):
        y = self.bn(self.conv(x))
        y.add_(x)
        return F.relu(y)


SCALE = [1.0]


class ReadsGlobal(Parts):
    def forward(self, x):
        return F.relu(self.bn(self.conv(x))) * SCALE[0]


class ReadsConfiguration(Parts):
    def forward(self, x):
        return F.relu(self.bn(self.conv(x))) * self.settings["scale"]


class Variadic(Parts):
    def forward(self, *tensors):
        return F.relu(self.bn(self.conv(tensors[0])))


class OfChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x


class ReadsChild(Parts):
    def forward(self, x):
        y = F.relu(self.bn(self.child(x)))
        return y * self.child.calls


def forward_of_its_own():
    model = Features()
    model.forward = types.MethodType(lambda self, x: Features.forward(self, x) * 3, model)
    return model


def without_source():
    space = {"Parts": Parts, "F": F}
    exec("class Made(Parts):\n    def forward(self, x):\n        return F.relu(self.bn(self.conv(x)))\n", space)
    return space["Made"]()


ALONE = {
    "with": (WithNoGrad, "has `with`"), "a decorator": (Decorated, "is decorated"), "a checkpoint inside": (Checkpointed, "which a trace may not show"),
    "try": (Tries, "has `try`"), "isinstance": (TensorOrList, "asks for the type"), "type()": (AsksType, "type(x)"),
    "is": (Compares, "compares `y is x`"), "torch.rand": (DropsByTorch, "random numbers"), "random.random": (DropsByPython, "random"),
    "the gradient mode": (GradMode, "calls is_grad_enabled"), "a ReLU whose result is not used": (ReluInPlaceUnused, "without using its result"),
    "an addition whose result is not used": (AddsInPlaceUnused, "without using its result"), "a global": (ReadsGlobal, "reads SCALE"),
    "a dictionary": (lambda: ReadsConfiguration(settings={"scale": 2.0}), "reads settings"), "*tensors": (Variadic, "takes *tensors"),
    "what a child counts": (lambda: ReadsChild(child=OfChild()), "reads calls"), "a forward of its own": (forward_of_its_own, "put on the module"),
    "no source": (without_source, "source is not at hand"),
}


@pytest.mark.parametrize("case", ALONE)
def test_what_a_trace_does_not_show_is_left_alone(case):
    make, reason = ALONE[case]
    result = check(make(), lambda m, x, z: m(x))
    assert result.fused == {"bn": "norm"} and reason in result.not_fused["bn"], result


@pytest.mark.parametrize("make", (DropsByTorch, DropsByPython))
def test_fuse_leaves_random_numbers_as_they_were(make):
    model = make()
    torch.manual_seed(3), random.seed(3)
    fuse(model)
    drawn = torch.rand(2), random.random()
    torch.manual_seed(3), random.seed(3)
    assert torch.equal(drawn[0], torch.rand(2)) and drawn[1] == random.random()


class Aliased(Parts):
    """What the norm read, or is added to, is also somebody else's."""

    def forward(self, x):
        h = x * 1
        if self.what == "identity":
            y = self.same(h)
            y += self.bn(self.conv(x))
            return F.relu(y) + h
        if self.what == "dropout":
            y = self.drop(h)
            y += self.bn(self.conv(x))
            return F.relu(y) + h
        if self.what == "identity before":
            y = self.bn(self.same(h))
            h = h.mul_(2)
            return F.relu(y + h)
        if self.what == "multiplied in place":
            y = self.bn(self.conv(h))
            h *= 3
            return F.relu(y + h)
        if self.what == "statistics between":
            y = self.bn(self.conv(x))
            n = self.bn.running_mean.sum() * 1
            return F.relu(y + x) * n
        y = self.bn(h)
        z = self.relu(h)
        return F.relu(y + z)


@pytest.mark.parametrize("what", ("identity", "dropout", "identity before", "multiplied in place", "statistics between", "ReLU in place"))
def test_whoever_shares_a_tensor_sees_what_it_saw(what):
    model = Aliased(what=what)
    plain = copy.deepcopy(model)
    fuse(model)
    x, = inputs(1, dtype=torch.float32)
    for training, m in itertools.product((True, False), (model, plain)):
        m.train(training)
        with torch.no_grad():
            result = seeded(m, x)
        m.result = result
        if m is plain:
            torch.testing.assert_close(model.result, plain.result, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.bn.running_var, plain.bn.running_var, atol=1e-6, rtol=1e-6)


# ---- PyTorch's tools


def test_a_model_of_python_c_is_fused():
    """Its source is in no file."""
    script = """if True:
        import torch
        from torch import nn
        from flatout.nn import fuse
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.bn = nn.BatchNorm2d(3)
            def forward(self, x):
                return torch.relu(self.bn(x))
        print(fuse(Net()).fused)
    """
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.stdout == "{'bn': 'norm + ReLU'}\n", done.stderr


def pairs(make=sequential, dtype=torch.float64):
    plain = make().to(dtype)
    seeded(plain, *inputs(3, dtype=dtype))
    return plain.eval(), fuse(copy.deepcopy(plain)).model


def test_forward_mode_keeps_tangents():
    plain, model = pairs()
    x, t = inputs(1, 2)
    norm = BatchNormAddReLU2d(6).double().eval()
    for f, g in ((model, plain), (norm, lambda x: F.relu(F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)))):
        torch.testing.assert_close(torch.func.jvp(f, (x,), (t,)), torch.func.jvp(g, (x,), (t,)))
        with torch.no_grad(), forward_ad.dual_level():
            tangents = [forward_ad.unpack_dual(h(forward_ad.make_dual(x, t))).tangent for h in (f, g)]
            torch.testing.assert_close(*tangents)
    parameters = dict(plain.named_parameters())
    ones = {name: torch.ones_like(p) for name, p in parameters.items()}
    results = [torch.func.jvp(lambda p, m=m: torch.func.functional_call(m, p, (x,)), (parameters,), (ones,)) for m in (model, plain)]
    torch.testing.assert_close(*results)


def test_transforms_of_torch_func_give_what_they_gave():
    plain, model = pairs()
    x, = inputs(1)
    for transform in (lambda f: torch.func.grad(lambda x: f(x).square().sum())(x), lambda f: torch.func.jacrev(lambda x: f(x).sum((1, 2, 3)))(x),
                      lambda f: torch.func.vmap(f)(torch.stack([x, 2 * x])), lambda f: torch.func.hessian(lambda x: f(x).square().sum())(x[:1, :, :5, :5])):
        torch.testing.assert_close(transform(model), transform(plain))


def test_torch_jit_and_fx_take_the_users_forward():
    plain, model = pairs(lambda: nn.Sequential(Features(), nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.ReLU()), torch.float32)
    x, = inputs(1, dtype=torch.float32)
    want = plain(x)
    for tool in (lambda m: torch.jit.trace(m, x), torch.fx.symbolic_trace, torch.jit.script):
        other = tool(copy.deepcopy(model))
        torch.testing.assert_close(other(x), want, atol=1e-5, rtol=1e-5)
    traced = torch.jit.trace(copy.deepcopy(model), x)
    assert "flatout::" not in str(traced.inlined_graph) and "aten::batch_norm" in str(traced.inlined_graph)
    graph = torch.fx.symbolic_trace(model)
    assert {"0.bn", "0.relu", "2", "3"} <= {n.target for n in graph.graph.nodes if n.op == "call_module"}
    graph = torch.fx.symbolic_trace(plain)
    assert "alone: forward of Sequential is a graph" in fuse(graph).not_fused["2"]
    torch.testing.assert_close(graph(x), want, atol=1e-5, rtol=1e-5)


class Settable(Parts):
    def forward(self, x):
        return self.relu(self.bn(self.conv(x)) + x) * self.alpha


def test_torch_compile_sees_what_is_changed_after_it_compiled():
    model = Settable(alpha=1.0)
    plain = copy.deepcopy(model)
    fuse(model)
    graphs = []

    def backend(module, _):
        graphs.append(module)
        return module

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    x, = inputs(1, dtype=torch.float32)

    def agree():
        torch.testing.assert_close(compiled(x), plain(x), atol=1e-5, rtol=1e-5)

    agree()
    relu = [n.args[8] for n in graphs[0].graph.nodes if "batch_norm" in str(n.target) and len(n.args) > 8]
    assert relu == [True]  # joined
    for change in (lambda m: setattr(m, "alpha", 0.25), lambda m: setattr(m, "relu", nn.SiLU()), lambda m: setattr(m, "bn", nn.GroupNorm(2, 6))):
        change(model), change(plain)
        agree()


def test_torch_export_takes_a_joined_norm():
    plain, model = pairs(dtype=torch.float32)
    x, = inputs(1, dtype=torch.float32)
    exported = torch.export.export(model, (x,))
    assert "flatout.batch_norm_inference" in str(exported.graph)
    torch.testing.assert_close(exported.module()(x), plain(x), atol=1e-5, rtol=1e-5)


def test_copies_are_fused_and_pickles_are_the_users_classes():
    plain, model = pairs(lambda: nn.Sequential(Features(), Features()), torch.float32)
    x, = inputs(1, dtype=torch.float32)
    twin = copy.deepcopy(model)
    twin[0].relu = nn.SiLU()
    torch.testing.assert_close(model(x), plain(x), atol=1e-5, rtol=1e-5)
    plain[0].relu = nn.SiLU()
    torch.testing.assert_close(twin(x), plain(x), atol=1e-5, rtol=1e-5)
    loaded = pickle.loads(pickle.dumps(twin))
    assert type(loaded[0]) is Features and "_flatout_guard" not in vars(loaded[1])
    torch.testing.assert_close(loaded(x), plain(x), atol=1e-5, rtol=1e-5)
    assert fuse(loaded).fused == {"0.bn": "norm + add", "1.bn": "norm + add + ReLU"}
    torch.testing.assert_close(loaded(x), plain(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name,parameter", (("bn", "weight"), ("", "scale")))
def test_a_model_is_copied_with_what_is_parametrised(name, parameter):
    class Doubled(nn.Module):
        def forward(self, value):
            return 2 * value

    plain, model = pairs(Features, torch.float32)
    x, = inputs(1, dtype=torch.float32)
    for m in (plain, model):
        m.scale = nn.Parameter(torch.ones(()))
        nn.utils.parametrize.register_parametrization(m.get_submodule(name), parameter, Doubled())
    torch.testing.assert_close(copy.deepcopy(model)(x), plain(x), atol=1e-5, rtol=1e-5)


def test_a_saved_model_opens_where_there_is_no_flatout(tmp_path):
    """Torch's modules only, so that what is loaded needs nothing else."""
    made = "torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.ReLU())"
    plain = eval(made)
    model = fuse(copy.deepcopy(plain)).model
    x = inputs(1, dtype=torch.float32)[0][:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(model(x), plain(x), atol=1e-5, rtol=1e-5)
    assert type(copy.deepcopy(model)[1]) is BatchNormAddReLU2d
    by_hand = BatchNormAddReLU2d(4, relu=False)
    torch.save({"model": model, "x": x, "y": plain.eval()(x)}, tmp_path / "model.pt")
    assert type(pickle.loads(pickle.dumps(by_hand))) is BatchNormAddReLU2d
    code = ("import sys; sys.modules['flatout'] = None\nimport torch\nsaved = torch.load('model.pt', weights_only=False)\n"
            f"assert str(saved['model']) == str({made}), saved['model']\n"
            "torch.testing.assert_close(saved['model'].eval()(saved['x']), saved['y'], atol=1e-5, rtol=1e-5)")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_averaged_and_converted_models():
    plain, model = pairs(dtype=torch.float32)
    x, = inputs(1, dtype=torch.float32)
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    averaged.update_parameters(model)
    torch.testing.assert_close(averaged(x), plain(x), atol=1e-5, rtol=1e-5)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    assert sum(type(m) is nn.SyncBatchNorm for m in converted.modules()) == 2
    torch.testing.assert_close(converted(x), plain(x), atol=1e-5, rtol=1e-5)


def test_a_checkpoint_may_run_once_under_a_dispatch_mode():
    norm = BatchNormAddReLU2d(6)
    for relu in (True, False):
        norm.relu = relu
        x = inputs(1, dtype=torch.float32)[0].requires_grad_()
        with FlopCounterMode(display=False):
            y = checkpoint(norm, x, use_reentrant=False)
        y.square().sum().backward()
        got, x.grad = x.grad, None
        norm(x).square().sum().backward()
        torch.testing.assert_close(got, x.grad)


@pytest.mark.parametrize("make", (ResNet18, ResNet20))
def test_whole_networks_are_the_same(make):
    torch.manual_seed(0)
    model = make().double()
    plain = copy.deepcopy(model)
    _, fused, not_fused = fuse(model)
    assert not_fused == {} and list(fused.values()).count("norm + add + ReLU") == sum("Block" in type(m).__name__ for m in model.modules())
    x = torch.randn(8, 3, 64, 64, dtype=torch.float64)
    for training in (True, False):
        results = []
        for m in (model, plain):
            m.train(training).zero_grad()
            y = m(x)
            y.square().sum().backward()
            results.append([y.detach(), *(p.grad for p in m.parameters()), *m.state_dict().values()])
        for g, w in zip(*results):
            torch.testing.assert_close(g, w, atol=1e-8, rtol=1e-8)


# ---- fold


class Standardised(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)


class Activated(nn.BatchNorm2d):
    def forward(self, x):
        return F.silu(super().forward(x))


class Pair(nn.Module):
    def __init__(self, conv=None, norm=None):
        super().__init__()
        self.conv, self.norm = conv or nn.Conv2d(6, 6, 3), norm or nn.BatchNorm2d(6)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class PairAndFeatures(Pair):
    def features(self, x):
        return self.norm(self.conv(x))


class PairAndRaw(Pair):
    def raw(self, x):
        return self.conv(x)


class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = Pair()

    def forward(self, x):
        return self.pair(x) + self.pair.conv(x)


def warm(model):
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            m.running_mean.normal_(), m.running_var.uniform_(0.5, 2), nn.init.uniform_(m.weight, 0.5, 2), nn.init.normal_(m.bias)
    return model.double().eval()


def conv():
    return nn.Conv2d(6, 6, 3)


FOLDS = {  # a model, how many norms stay
    "plain": (Pair, 0), "groups, padding": (lambda: Pair(nn.Conv2d(6, 6, 3, padding=1, groups=2, padding_mode="circular")), 0),
    "sequential": (sequential, 0), "in a block": (lambda: nn.Sequential(Features(), Block(6, 6), Block(6, 12, 2)), 0),
    "SyncBatchNorm": (lambda: Pair(norm=nn.SyncBatchNorm(6)), 0), "by hand": (lambda: Pair(norm=BatchNormAddReLU2d(6)), 0),
    "a convolution with a forward": (lambda: Pair(Standardised(6, 6, 3)), 1), "a norm with an activation": (lambda: Pair(norm=Activated(6)), 1),
    "weight_norm": (lambda: Pair(nn.utils.parametrizations.weight_norm(conv())), 1),
    "spectral_norm": (lambda: Pair(nn.utils.parametrizations.spectral_norm(conv())), 1),
    "transposed": (lambda: Pair(nn.ConvTranspose2d(6, 6, 3)), 1), "a method beside": (PairAndFeatures, 0), "the convolution alone": (PairAndRaw, 1),
    "a parent that uses the convolution": (Looks, 1), "with": (WithNoGrad, 1),
}


@pytest.mark.parametrize("fused", (False, True))
@pytest.mark.parametrize("case", FOLDS)
def test_fold_gives_what_the_model_gave(case, fused):
    make, stay = FOLDS[case]
    model = warm(make())
    x, = inputs(1)
    calls = [lambda m: m(x), *(lambda m, name=name: getattr(m, name)(x) for name in ("features", "raw") if hasattr(model, name))]
    want = [call(model) for call in calls]
    if fused:
        fuse(model)
    folded = fold(model)
    assert sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in folded.modules()) == stay
    assert [type(m).__name__ for m in folded.modules() if "Fused" in type(m).__name__] == []
    same([call(folded) for call in calls], want)
    same([call(copy.deepcopy(folded)) for call in calls], want)
    same([call(model) for call in calls], want)


def test_a_folded_model_is_saved_scripted_and_sliced():
    model = warm(nn.Sequential(Pair(), Features(), nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.ReLU()))
    folded = fold(fuse(model).model)
    x, = inputs(1)
    file = io.BytesIO()
    torch.save(folded, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), torch.jit.script(fold(model)), nn.Sequential(*folded)):
        torch.testing.assert_close(other(x), model(x))
    torch.testing.assert_close(folded[:4](x), model[:4](x))
    assert [k for k in folded.state_dict() if "bn" in k or "norm" in k] == [] and "0.conv.bias" in folded.state_dict()


# ---- errors, and tensors that are not ours


def test_errors_name_argument_and_shape():
    with pytest.raises(TypeError, match="relu must be True or False, it is 'yes'"):
        BatchNormAddReLU2d(6, relu="yes")
    for function in (fuse, fold):
        with pytest.raises(TypeError, match=f"{function.__name__} takes a torch.nn.Module; model is None"):
            function(None)
    norm = BatchNormAddReLU2d(6)
    x, = inputs(1, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"x \[4, 6, 5, 5\]: residual must have its shape, or broadcast with it, it is \[4, 6, 3, 3\]"):
        norm(x, x[:, :, :3, :3])
    with pytest.raises(TypeError, match=r"residual must be a tensor or None, it is \[1\]"):
        norm(x, [1])
    assert int(norm.num_batches_tracked) == 0


def test_tensors_of_other_layouts_are_pytorchs():
    norm, theirs = BatchNormAddReLU2d(6, relu=False).eval(), nn.BatchNorm2d(6).eval()
    x, = inputs(1, dtype=torch.float32)
    if torch.backends.mkldnn.is_available():
        torch.testing.assert_close(norm(x.to_mkldnn()).to_dense(), theirs(x.to_mkldnn()).to_dense())
    with torch.no_grad():
        negative = torch._neg_view(x)
        torch.testing.assert_close(norm(negative), theirs(negative), atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(norm(x, negative), theirs(x) + negative, atol=1e-6, rtol=1e-6)


def test_profilers_stay_as_they_were():
    def watch(frame, event, arg):
        pass

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        fuse(Features())
        assert sys.getprofile() is watch
    finally:
        sys.setprofile(before)
