"""flatout.nn against PyTorch: values, gradients, errors, running statistics, whole networks; accuracy against float64."""

import copy
import itertools
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FLATOUT_BIN", ROOT / "build/release/flatout"))
LIBRARY = BIN.parent / "libflatout_nn.so"
pytestmark = [pytest.mark.parallel, pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")]
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
os.environ["FLATOUT_NN_LIBRARY"] = str(LIBRARY)
sys.path.insert(0, str(ROOT / "python"))

from ctypes import byref  # noqa: E402

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from flatout.nn import BatchNormAddReLU2d, _ops, fold, fuse  # noqa: E402
from flatout.nn._library import Forward, Shape, library  # noqa: E402
from networks import Block  # noqa: E402

FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
STEP = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-12}


def tensor(*shape, dtype=torch.float32, layout="nchw", mean=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64) + mean
    return values.to(dtype).contiguous(memory_format=FORMATS[layout])


def pair(channels, dtype=torch.float32, relu=True, **options):
    """BatchNorm2d and ours with the same parameters."""
    theirs = nn.BatchNorm2d(channels, dtype=dtype, **options)
    ours = BatchNormAddReLU2d(channels, dtype=dtype, relu=relu, **options)
    if theirs.affine:
        with torch.no_grad():
            theirs.weight.copy_(tensor(channels, 1, 1, 1, seed=8).flatten())
            theirs.bias.copy_(tensor(channels, 1, 1, 1, seed=9).flatten())
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def plain(norm, x, residual, relu):
    y = norm(x)
    y = y if residual is None else y + residual
    return functional.relu(y) if relu else y


def leaves(*tensors):
    return [None if t is None else t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors]


def step_of(function, x, residual, dy, parameters):
    x, residual = leaves(x, residual)
    y = function(x, residual)
    y.backward(dy)
    return y.detach(), x.grad, None if residual is None else residual.grad, *(None if p is None else p.grad for p in parameters)


@pytest.mark.parametrize("dtype", STEP, ids=str)
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("add,relu", list(itertools.product((False, True), repeat=2)))
def test_a_step_equals_pytorch(dtype, layout, add, relu):
    for shape in ((4, 24, 9, 7), (3, 5, 8, 8), (6, 16, 1, 1), (2, 1, 5, 5)):
        theirs, ours = pair(shape[1], torch.float64 if dtype is torch.float64 else torch.float32, relu)
        x = tensor(*shape, dtype=dtype, layout=layout, mean=0.3, seed=1)
        residual = tensor(*shape, dtype=dtype, layout=layout, seed=2) if add else None
        dy = tensor(*shape, dtype=dtype, layout=layout, seed=3)
        if relu:  # where rounding decides the sign of y, no gradient
            exact = plain(copy.deepcopy(theirs).double(), x.double(), None if residual is None else residual.double(), False)
            dy[(exact.abs() < 4 * STEP[dtype]).detach()] = 0
        want = step_of(lambda a, b: plain(theirs, a, b, relu), x, residual, dy, (theirs.weight, theirs.bias))
        got = step_of(ours, x, residual, dy, (ours.weight, ours.bias))
        for name, g, w in zip(("y", "dx", "d_residual", "d_weight", "d_bias"), got, want):
            if w is not None:
                assert g.dtype == w.dtype and g.shape == w.shape, name
                scale = STEP[dtype] * (1 if g.dim() == 4 else 40)
                torch.testing.assert_close(g, w, atol=scale, rtol=scale, msg=lambda m, name=name: f"{name} of {shape}: {m}")
        assert got[0].is_contiguous(memory_format=FORMATS[layout])
        assert got[1].is_contiguous(memory_format=FORMATS[layout])


def test_running_statistics_equal_pytorch():
    for momentum, layout in itertools.product((0.1, 0.9, None), FORMATS):
        theirs, ours = pair(12, momentum=momentum)
        for seed in range(3):
            x = tensor(5, 12, 6, 6, layout=layout, mean=2.0, seed=seed)
            theirs(x), ours(x)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        for key, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[key], value, atol=1e-7, rtol=2e-7)
        theirs.eval(), ours.eval()
        torch.testing.assert_close(ours(x), functional.relu(theirs(x)), atol=2e-6, rtol=2e-6)


def test_running_statistics_stay_where_they_are_not_tracked():
    theirs, ours = pair(4)
    for norm in (theirs, ours):
        norm.track_running_stats = False  # the buffers are there all the same
    x = tensor(3, 4, 5, 5, mean=2.0)
    torch.testing.assert_close(ours(x), functional.relu(theirs(x)), atol=2e-6, rtol=2e-6)
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value), key


def test_evaluation_has_gradients():
    theirs, ours = pair(8, torch.float64)
    x, residual, dy = (tensor(3, 8, 4, 4, dtype=torch.float64, seed=s) for s in (1, 2, 3))
    theirs(x), ours(x)
    theirs.eval(), ours.eval()
    want = step_of(lambda a, b: plain(theirs, a, b, True), x, residual, dy, (theirs.weight, theirs.bias))
    got = step_of(ours, x, residual, dy, (ours.weight, ours.bias))
    for g, w in zip(got, want):
        torch.testing.assert_close(g, w, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("training", (True, False))
@pytest.mark.parametrize("add,relu", list(itertools.product((False, True), repeat=2)))
def test_what_is_frozen_gets_no_gradient_and_the_rest_the_same(training, add, relu):
    theirs, ours = pair(8, torch.float64, relu)
    x, residual, dy = (tensor(3, 8, 4, 4, dtype=torch.float64, seed=s) for s in (1, 2, 3))
    theirs.train(training), ours.train(training)
    for wanted in itertools.product((False, True), repeat=4):
        if not any(w for i, w in enumerate(wanted) if add or i != 1):
            continue  # nobody asks for anything

        def gradients(function, norm):
            given = [t.detach().clone().requires_grad_(w) for t, w in zip((x, residual), wanted)]
            norm.weight.grad = norm.bias.grad = None
            norm.weight.requires_grad_(wanted[2]), norm.bias.requires_grad_(wanted[3])
            function(given[0], given[1] if add else None).backward(dy)
            return [t.grad for t in (*given, norm.weight, norm.bias)]

        want = gradients(lambda a, b: plain(theirs, a, b, relu), theirs)
        for g, w in zip(gradients(ours, ours), want):
            assert (g is None) == (w is None), wanted
            if w is not None:
                torch.testing.assert_close(g, w, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("training", (True, False))
def test_who_keeps_tensors_elsewhere_until_backward_may_lay_them_out_anew(training):
    theirs, ours = pair(64, torch.float64, True)
    theirs.train(training), ours.train(training)
    x, dy = (tensor(2, 64, 7, 7, dtype=torch.float64, seed=s).to(memory_format=torch.channels_last) for s in (1, 2))

    def gradient(function):
        given = x.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
            y = function(given)
        return torch.autograd.grad(y, given, dy)[0]

    torch.testing.assert_close(gradient(ours), gradient(lambda a: plain(theirs, a, None, True)), atol=1e-12, rtol=1e-12)


def test_without_parameters_or_running_statistics():
    for options in ({"affine": False}, {"track_running_stats": False}, {"affine": False, "track_running_stats": False}):
        theirs, ours = pair(4, **options)
        x = tensor(3, 4, 5, 5)
        for mode in (True, False):
            theirs.train(mode), ours.train(mode)
            torch.testing.assert_close(ours(x), functional.relu(theirs(x)), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("mean", (0.0, 1e4))
def test_errors_against_float64_are_no_larger_than_pytorchs(layout, mean):
    """Root mean square of the error of everything that a step gives."""
    shape = (16, 32, 28, 28)
    theirs, ours = pair(32, relu=False)
    x, dy = (tensor(*shape, layout=layout, mean=m, seed=s) for m, s in ((mean, 1), (0.0, 2)))
    exact = copy.deepcopy(theirs).double()
    want = step_of(lambda a, _: exact(a), x.double(), None, dy.double(), (exact.weight, exact.bias))
    want = (*want, exact.running_mean, exact.running_var)
    results = []
    for module in (theirs, ours):
        got = step_of(lambda a, _: module(a), x, None, dy, (module.weight, module.bias))
        got = (*got, module.running_mean, module.running_var)
        results.append([None if w is None else float((g.double() - w).square().mean().sqrt()) for g, w in zip(got, want)])
    names = ("y", "dx", "d_residual", "d_weight", "d_bias", "running_mean", "running_var")
    for name, their_error, our_error in zip(names, *results):
        if name != "d_residual":
            assert our_error <= 1.02 * their_error + 1e-12, (name, our_error, their_error)


@pytest.mark.parametrize("layout", FORMATS)
def test_gradcheck(layout):
    weight, bias = (tensor(3, 1, 1, 1, dtype=torch.float64, seed=s).flatten().requires_grad_() for s in (1, 2))
    x, residual = (tensor(4, 3, 3, 2, dtype=torch.float64, layout=layout, seed=s).requires_grad_() for s in (3, 4))
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    for add, relu in itertools.product((None, residual), (False, True)):
        assert torch.autograd.gradcheck(
            lambda x, r, w, b: torch.ops.flatout.batch_norm(x, r, w, b, mean, var, 0.1, 1e-5, relu, relu)[0], (x, add, weight, bias))
        assert torch.autograd.gradcheck(
            lambda x, r, w, b: torch.ops.flatout.batch_norm_inference(x, r, w, b, mean, var, 1e-5, relu, relu)[0],
            (x, add, weight, bias))


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("value", (float("nan"), float("inf"), -float("inf")))
def test_non_finite_values_behave_as_pytorchs(layout, value):
    for add in (False, True):
        theirs, ours = pair(3)
        x, residual, dy = (tensor(4, 3, 4, 4, layout=layout, seed=s) for s in (1, 2, 3))
        (residual if add else x)[1, 2, 3, 0] = value
        residual = residual if add else None
        want = step_of(lambda a, b: plain(theirs, a, b, True), x, residual, dy, (theirs.weight, theirs.bias))
        got = step_of(ours, x, residual, dy, (ours.weight, ours.bias))
        for g, w in zip((*got, ours.running_mean, ours.running_var), (*want, theirs.running_mean, theirs.running_var)):
            if w is not None:
                torch.testing.assert_close(g, w, atol=2e-5, rtol=2e-5, equal_nan=True)


def test_gradients_of_gradients_are_refused_not_wrong():
    _, ours = pair(3)
    x = tensor(4, 3, 4, 4).requires_grad_()
    for mode in (True, False):
        ours.train(mode)
        (dx,) = torch.autograd.grad(ours(x).square().sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="gradients of gradients"):
            dx.square().sum().backward()


def test_a_gradient_without_its_mask_is_refused():
    x = tensor(4, 3, 4, 4).requires_grad_()
    y = torch.ops.flatout.batch_norm(x, None, None, None, None, None, 0.1, 1e-5, True, False)[0]
    with pytest.raises(RuntimeError, match="keep_mask"):
        y.sum().backward()


def test_strides_of_any_kind_are_taken():
    theirs, ours = pair(6)
    wide = tensor(4, 12, 8, 8)
    for x in (wide[:, ::2], wide.transpose(2, 3)[:, :6], wide[:, :6, 1:, :3], tensor(4, 1, 5, 5).expand(4, 6, 5, 5)):
        torch.testing.assert_close(ours(x), functional.relu(theirs(x)), atol=2e-6, rtol=2e-6)
    x = tensor(4, 6, 8, 8).requires_grad_()
    ours(x).sum().backward()  # the gradient is one value, expanded
    mixed = ours(x, tensor(4, 6, 8, 8, layout="nhwc"))
    torch.testing.assert_close(mixed, functional.relu(theirs(x) + tensor(4, 6, 8, 8)), atol=2e-6, rtol=2e-6)


def test_what_the_kernels_do_not_take_goes_to_pytorch():
    theirs, ours = pair(6)
    x = tensor(2, 6, 4, 4)
    gate = tensor(2, 6, 1, 1)  # broadcasts
    torch.testing.assert_close(ours(x, gate), functional.relu(theirs(x) + gate))
    half = x.bfloat16()
    assert ours(half, x).dtype == torch.float32  # promoted
    torch.testing.assert_close(ours(x, 2), functional.relu(theirs(x) + 2), atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(ours(input=x), functional.relu(theirs(input=x)), atol=2e-6, rtol=2e-6)


def test_bad_input_is_named():
    _, ours = pair(6)
    with pytest.raises(ValueError, match="expected 4D input"):
        ours(torch.randn(2, 6))
    with pytest.raises(ValueError, match=r"more than 1 value per channel.*\[1, 6, 1, 1\]"):
        ours(torch.randn(1, 6, 1, 1))
    with pytest.raises(RuntimeError, match="running_mean should contain 5 elements"):
        ours(torch.randn(2, 5, 4, 4))
    with pytest.raises(RuntimeError, match=r"x \[1, 6, 1, 1\] NCHW f32: training needs more than one value"):
        torch.ops.flatout.batch_norm(torch.randn(1, 6, 1, 1), None, None, None, None, None, 0.1, 1e-5, False, False)


def test_the_operators_name_what_does_not_suit_x():
    x, mean, var = tensor(2, 6, 4, 4), torch.zeros(6), torch.ones(6)
    forward, inference, backward = torch.ops.flatout.batch_norm, torch.ops.flatout.batch_norm_inference, torch.ops.flatout.batch_norm_backward
    _, mask, statistics, *_ = forward(x, None, None, None, None, None, 0.1, 1e-5, True, True)
    for words, call in (
            (r"x must be \[N, C, H, W\], it is \[2, 6\] float32 on cpu", lambda: forward(x[:, :, 0, 0], *[None] * 5, 0.1, 1e-5, False, False)),
            (r"residual must be as x is, it is \[1, 6, 4, 4\]", lambda: forward(x, x[:1], *[None] * 4, 0.1, 1e-5, False, False)),
            (r"residual must be as x is, it is \[2, 6, 4, 4\] bfloat16", lambda: inference(x, x.bfloat16(), None, None, mean, var, 1e-5, False, False)),
            (r"weight must have 6 floats on cpu, it is \[5\] float32", lambda: forward(x, None, mean[:5], *[None] * 3, 0.1, 1e-5, False, False)),
            (r"running_var must have 6 floats on cpu, it is \[6\] int64", lambda: inference(x, None, None, None, mean, var.long(), 1e-5, False, False)),
            (r"dy must be as x is, it is \[2, 6, 2, 4\]", lambda: backward(x[:, :, :2], x, None, mask, statistics, True, True, False)),
            (r"statistics must be \[2, 6\] float64 on cpu, it is \[2, 6\] float32", lambda: backward(x, x, None, mask, statistics.float(), True, True, False))):
        with pytest.raises(ValueError, match=words):
            call()


def test_running_statistics_keep_their_digits_beside_parameters_of_16_bits():
    theirs, ours = pair(6)
    for norm in (theirs, ours):
        norm.weight.data, norm.bias.data = norm.weight.data.bfloat16(), norm.bias.data.bfloat16()
    ours.momentum = 0.01
    x = tensor(16, 6, 8, 8, mean=3)
    for _ in range(20):  # each step adds less than bfloat16 holds
        want = functional.batch_norm(x, theirs.running_mean, theirs.running_var, theirs.weight.float(), theirs.bias.float(), True, 0.01)
        got = ours(x)
    torch.testing.assert_close(got, functional.relu(want), atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(ours.running_var, theirs.running_var, atol=2e-6, rtol=2e-6)


def test_shapes_beyond_memory_are_errors_of_the_library():
    assert library().flatout_nn_mask_bytes(Shape(2**32, 1, 2**32, 1, 0, 0, 0, 1)) == 0
    values = torch.zeros(8, dtype=torch.float64)
    at = values.data_ptr()
    forward = Forward(at, 0, 0, 0, 1e-5, 0, at, 0, at, at, 0, 0, 0.1, 1)
    assert library().flatout_nn_batch_norm_training(Shape(2, 2**44, 1, 1, 0, 0, 0, 1), forward) == -1
    assert b"no memory" in library().flatout_nn_error()


def test_the_mask_is_as_long_as_the_library_says():
    for shape in itertools.product((1, 5), (1, 3, 16), (1, 7), (1, 8)):
        for layout in FORMATS:
            x = tensor(*shape, layout=layout)
            rows = _ops.memory_format(x) is torch.channels_last
            n, c, h, w = shape
            assert _ops.mask_bytes(x) == library().flatout_nn_mask_bytes(Shape(n, c, h, w, rows, 0, 0, 1)), shape


def test_the_operators_hold_what_torch_library_asks():
    weight, bias = (tensor(3, 1, 1, 1, seed=s).flatten().requires_grad_() for s in (1, 2))
    mean, var = torch.zeros(3), torch.ones(3)
    for layout in FORMATS:
        x, residual = (tensor(4, 3, 3, 2, layout=layout, seed=s).requires_grad_() for s in (3, 4))
        torch.library.opcheck(torch.ops.flatout.batch_norm.default, (x, residual, weight, bias, mean, var, 0.1, 1e-5, True, True))
        torch.library.opcheck(torch.ops.flatout.batch_norm.default, (x, None, None, None, None, None, 0.1, 1e-5, False, False))
        torch.library.opcheck(torch.ops.flatout.batch_norm_inference.default, (x, residual, weight, bias, mean, var, 1e-5, True, True))


class Seen(TorchDispatchMode):
    """Which operators are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", FORMATS)
def test_whoever_looks_at_operators_sees_them_and_gets_the_same_bits(layout):
    """The module calls its kernels itself, but where somebody looks."""
    _, direct = pair(5)
    watched = copy.deepcopy(direct)
    x, residual, dy = (tensor(3, 5, 4, 4, layout=layout, seed=s) for s in (1, 2, 3))
    for training in (True, False):
        direct.train(training), watched.train(training)
        want = step_of(direct, x, residual, dy, (direct.weight, direct.bias))
        assert "flatout_batch_norm" not in copy.deepcopy(direct)(x, residual).grad_fn.name()
        with Seen() as seen:
            got = step_of(watched, x, residual, dy, (watched.weight, watched.bias))
        assert {"flatout.batch_norm.default" if training else "flatout.batch_norm_inference.default",
                "flatout.batch_norm_backward.default"} <= set(seen.names)
        for a, b in zip((*want, direct.running_mean, direct.running_var), (*got, watched.running_mean, watched.running_var)):
            assert torch.equal(a, b)


# ---- whole networks


class Net(nn.Module):
    def __init__(self, block=Block):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(block(8, 8), block(8, 16, 2))
        self.head = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU())
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.head(self.layer1(x))
        return self.fc(x.mean((2, 3)))

    def features(self, x):
        return self.layer1(functional.relu(self.bn1(self.conv1(x))))


def net(seed=0, block=Block):
    torch.manual_seed(seed)
    return Net(block)


def losses(model, steps=8, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.05, 0.9)
    generator = torch.Generator().manual_seed(1)
    out = []
    for _ in range(steps):
        x = torch.randn(8, 3, 16, 16, generator=generator)
        labels = torch.randint(0, 10, (8,), generator=generator)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        out.append(float(loss.detach()))
    return out


def test_fuse_finds_norm_add_and_relu_and_keeps_the_rest():
    model = net()
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
    result, fused, not_fused = fuse(model)
    assert result is model and isinstance(model, Net) and isinstance(model.layer1[0], Block)
    assert not_fused == {}
    assert fused == {
        "bn1": "norm + ReLU", "layer1.0.bn1": "norm + ReLU", "layer1.0.bn2": "norm + add + ReLU", "layer1.1.bn1": "norm + ReLU",
        "layer1.1.bn2": "norm + add + ReLU", "layer1.1.downsample.1": "norm", "head.0": "norm + ReLU"}
    assert model.state_dict().keys() == before.state_dict().keys()
    for seed in (1, 2):
        x = tensor(4, 3, 16, 16, seed=seed)
        torch.testing.assert_close(model(x), before(x), atol=1e-4, rtol=1e-4)
    for (key, ours), theirs in zip(model.state_dict().items(), before.state_dict().values()):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4, msg=lambda m, key=key: f"{key}: {m}")
    model.eval(), before.eval()
    torch.testing.assert_close(model(x), before(x), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.features(x).shape, before.features(x).shape)
    model.train(), before.train()
    torch.testing.assert_close(torch.tensor(losses(model, 8, optimizer)), torch.tensor(losses(before)), atol=1e-3, rtol=1e-3)


def test_a_fused_model_is_copied_saved_and_fused_again():
    model = fuse(net()).model
    twin = copy.deepcopy(model)
    x = tensor(4, 3, 16, 16)
    torch.testing.assert_close(twin(x), model(x), atol=0, rtol=0)
    plain_model = net(5)
    plain_model.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain_model.eval()(x), model.eval()(x), atol=1e-4, rtol=1e-4)
    assert fuse(model) == (model, {}, {})


class DataDependent(Block):
    def forward(self, x):
        return super().forward(x) if x.sum() > -1e9 else x


class Masked(Block):
    def forward(self, x):
        return super().forward(x) * torch.ones(1)


class Twice(Block):
    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.bn2(out) if self.downsample is None else out


class OnlyTraining(Block):
    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        return functional.dropout(out, 0.0, training=self.training)


class Remembers(Block):
    last = None

    def forward(self, x):
        self.last = x
        return super().forward(x)


class Collects(Block):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        return super().forward(x)


class Counts(Block):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return super().forward(x)


@pytest.mark.parametrize("block,reason", (
    (DataDependent, "cannot be traced"), (Masked, "makes tensors of its own"), (Twice, "calls it 2 times"),
    (OnlyTraining, "differs between training and evaluation"), (Remembers, "changes the module"), (Collects, "without using its result"),
    (Counts, "changes the module")), ids=lambda p: getattr(p, "__name__", None))
def test_what_cannot_be_fused_is_named_and_still_right(block, reason):
    model = net(block=block)
    before = copy.deepcopy(model)
    _, fused, not_fused = fuse(model)
    assert reason in not_fused["layer1.0.bn2"]
    assert fused["layer1.0.bn2"] == "norm" and fused["bn1"] == "norm + ReLU"
    ours, theirs = model.layer1[0], before.layer1[0]
    assert vars(ours).keys() - {"_flatout_guard"} == vars(theirs).keys()
    x = tensor(4, 3, 16, 16)
    torch.testing.assert_close(model(x), before(x), atol=1e-4, rtol=1e-4)
    assert len(getattr(ours, "seen", [])) == len(getattr(theirs, "seen", []))
    assert getattr(ours, "count", 0) == getattr(theirs, "count", 0)
    assert type(getattr(ours, "last", None)) is type(getattr(theirs, "last", None))


def test_norms_that_are_not_ours_to_take_are_left():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.SyncBatchNorm(4)
            self.shared = self.b
            self.flat = nn.BatchNorm1d(4)

        def forward(self, x):
            y = functional.relu(self.a(x))
            z = self.b(x)  # its result has two users
            return functional.relu(z) + z + y

    model = Other()
    model.a.register_forward_hook(lambda *_: None)
    before = copy.deepcopy(model)
    _, fused, not_fused = fuse(model)
    assert "hooks" in not_fused["a"] and "SyncBatchNorm" in not_fused["c"] and "BatchNorm1d" in not_fused["flat"]
    assert "several names" in not_fused["b"] and fused == {"b": "norm"}
    x = tensor(4, 4, 5, 5)
    torch.testing.assert_close(model(x), before(x), atol=1e-5, rtol=1e-5)


def test_an_addition_in_place_keeps_what_others_see():
    class Shortcut(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(4)

        def forward(self, x):
            kept = x * 1
            kept += self.bn(x)
            return functional.relu(kept) + kept

    model = Shortcut()
    before = copy.deepcopy(model)
    fuse(model)
    x = tensor(4, 4, 5, 5)
    torch.testing.assert_close(model(x), before(x), atol=1e-5, rtol=1e-5)


class WrittenBetween(nn.Module):
    """What the norm or the addition reads is written to before the ReLU."""

    def __init__(self, what):
        super().__init__()
        self.bn, self.what = nn.BatchNorm2d(4), what

    def forward(self, x):
        x = x * 1
        addend = x * 2
        y = self.bn(x)
        if self.what == "input":
            x.mul_(3)
            return functional.relu(y) + x
        if self.what == "input before the addition":
            x.mul_(3)
            return functional.relu(y + addend) + x
        y = y + addend
        addend.mul_(5)
        return functional.relu(y) + addend


@pytest.mark.parametrize("what", ("input", "input before the addition", "addend"))
def test_what_is_written_in_place_is_read_where_it_was(what):
    model = WrittenBetween(what)
    before = copy.deepcopy(model)
    fuse(model)
    x = tensor(4, 4, 5, 5)
    torch.testing.assert_close(model(x), before(x), atol=1e-5, rtol=1e-5)


def test_an_addition_in_place_to_an_argument_is_seen_by_the_caller():
    class IntoArgument(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(4)

        def forward(self, x, total):
            total += self.bn(x)
            return functional.relu(total)

    model = IntoArgument()
    before = copy.deepcopy(model)
    fuse(model)
    totals = [tensor(4, 4, 5, 5, seed=3) for _ in range(2)]
    x = tensor(4, 4, 5, 5)
    torch.testing.assert_close(model(x, totals[0]), before(x, totals[1]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(*totals, atol=1e-5, rtol=1e-5)


def test_torch_compile_takes_a_fused_model_in_one_graph():
    model = fuse(net()).model
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.tensor(losses(compiled, 3)), torch.tensor(losses(eager, 3)), atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(model.state_dict().values(), eager.state_dict().values()):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_fold_takes_the_norms_out():
    for fused in (False, True):
        model = net()
        losses(model, 3)
        if fused:
            fuse(model)
        folded = fold(model)
        x = tensor(4, 3, 16, 16)
        torch.testing.assert_close(folded(x), model.eval()(x), atol=1e-4, rtol=1e-4)
        left = [name for name, m in folded.named_modules() if isinstance(m, nn.BatchNorm2d)]
        assert left == ["head.0"]  # follows no convolution
        assert any(isinstance(m, nn.BatchNorm2d) for m in model.layer1.modules())


def test_fold_keeps_what_is_called_by_name_or_added_twice():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
            self.conv2, self.bn2 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x):
            x = self.bn1(input=self.conv1(x)) + x.mean()
            x = self.conv2(x)
            return functional.relu(self.bn2(x) + x)

    for fused in (False, True):
        model = Odd()
        model(tensor(4, 3, 5, 5, mean=1.0))
        if fused:
            fuse(model)
        x = tensor(4, 3, 5, 5, seed=2)
        torch.testing.assert_close(fold(model)(x), model.eval()(x), atol=1e-5, rtol=1e-5)


def test_threads_give_the_same_bits():
    before = torch.get_num_threads()
    x, residual, dy = (tensor(9, 20, 30, 30, seed=s) for s in (1, 2, 3))
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            _, ours = pair(20)
            results.append(step_of(ours, x, residual, dy, (ours.weight, ours.bias)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))
