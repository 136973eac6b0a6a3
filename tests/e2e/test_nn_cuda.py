"""flatout.nn on CUDA against PyTorch: on a card (marker gpu), and its kernels as plain C++ on tensors of the CPU (src/nn/testing/on_host)."""

import itertools
import os
import sys
import threading
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("FLATOUT_BIN", ROOT / "build/release/flatout"))
LIBRARY = BIN.parent / "libflatout_nn_cuda.so"
ON_HOST = BIN.parent / "src/nn/on_host/libflatout_nn_cuda.so"
pytestmark = [pytest.mark.e2e, pytest.mark.parallel]
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
os.environ["FLATOUT_NN_LIBRARY"] = str(BIN.parent / "libflatout_nn.so")
sys.path.insert(0, str(ROOT / "python"))

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from flatout.nn import BatchNormAddReLU2d, _library, _ops, fuse  # noqa: E402
from networks import Block  # noqa: E402

FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
STEP = {torch.float32: 4e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
CARD = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(params=("on_host", CARD))
def device(request, monkeypatch):
    """The device whose tensors the library takes."""
    library = LIBRARY if request.param == "cuda" else ON_HOST
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no card")
    if not library.exists():
        pytest.skip(f"{library} is not built")
    monkeypatch.setenv("FLATOUT_NN_CUDA_LIBRARY", str(library))
    monkeypatch.setattr(_ops, "_workspaces", {})
    _library.cuda_library.cache_clear()
    if request.param == "on_host":
        monkeypatch.setenv("FLATOUT_TEST_DEVICE", "1,20000")
        monkeypatch.setattr(_ops, "_is_cuda", lambda device: True)
        monkeypatch.setattr(_ops, "_stream", lambda device: 0)
    yield "cuda" if request.param == "cuda" else "cpu"
    _library.cuda_library.cache_clear()


on_a_card = pytest.mark.parametrize("device", (CARD,), indirect=True)


def tensor(*shape, dtype=torch.float32, layout="nchw", mean=0.0, seed=0, device="cpu"):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + mean
    return values.to(dtype).to(device).contiguous(memory_format=FORMATS[layout])


def pair(channels, device, relu=True, **options):
    """BatchNorm2d in float64 and ours, with the same parameters."""
    theirs, ours = nn.BatchNorm2d(channels, **options), BatchNormAddReLU2d(channels, relu=relu, **options)
    with torch.no_grad():
        theirs.weight.copy_(tensor(channels, 1, 1, 1, seed=8).flatten())
        theirs.bias.copy_(tensor(channels, 1, 1, 1, seed=9).flatten())
    ours.load_state_dict(theirs.state_dict())
    return theirs.double().to(device), ours.to(device)


def plain(norm, x, residual, relu):
    y = norm(x)
    y = y if residual is None else y + residual
    return functional.relu(y) if relu else y


def step_of(function, x, residual, dy, module):
    x, residual = (None if t is None else t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, residual))
    y = function(x, residual)
    y.backward(dy)
    return y.detach(), x.grad, None if residual is None else residual.grad, module.weight.grad, module.bias.grad


def double(t):
    return None if t is None else t.double()


@pytest.mark.parametrize("dtype", STEP, ids=str)
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("add,relu", list(itertools.product((False, True), repeat=2)))
def test_a_step_equals_pytorch(device, dtype, layout, add, relu):
    for shape in ((4, 24, 9, 7), (3, 5, 8, 8), (6, 16, 1, 1)):
        theirs, ours = pair(shape[1], device, relu)
        x = tensor(*shape, dtype=dtype, layout=layout, mean=0.3, seed=1, device=device)
        residual = tensor(*shape, dtype=dtype, layout=layout, seed=2, device=device) if add else None
        dy = tensor(*shape, dtype=dtype, layout=layout, seed=3, device=device)
        if relu:  # where rounding decides the sign of y, no gradient
            dy[plain(theirs, x.double(), double(residual), False).abs() < 4 * STEP[dtype]] = 0
            theirs.load_state_dict(ours.state_dict())
        want = step_of(lambda a, b: plain(theirs, a, b, relu), x.double(), double(residual), dy.double(), theirs)
        got = step_of(ours, x, residual, dy, ours)
        for name, g, w in zip(("y", "dx", "d_residual", "d_weight", "d_bias"), got, want):
            if w is not None:
                scale = STEP[dtype] * (1 if g.dim() == 4 else 40)
                torch.testing.assert_close(g.double(), w, atol=scale, rtol=scale, msg=lambda m, name=name: f"{name} of {shape}: {m}")
        for key in ("running_mean", "running_var"):
            torch.testing.assert_close(getattr(ours, key).double(), getattr(theirs, key), atol=1e-6, rtol=1e-6)
        assert got[0].is_contiguous(memory_format=FORMATS[layout]) and got[0].dtype == dtype
        theirs.eval(), ours.eval()
        want = step_of(lambda a, b: plain(theirs, a, b, relu), x.double(), double(residual), dy.double(), theirs)
        got = step_of(ours, x, residual, dy, ours)
        torch.testing.assert_close(got[0].double(), want[0], atol=STEP[dtype], rtol=STEP[dtype])
        if not relu:
            torch.testing.assert_close(got[1].double(), want[1], atol=STEP[dtype], rtol=STEP[dtype])


def test_the_library_is_what_is_called(device, monkeypatch):
    _, ours = pair(8, device)
    called = []
    queue = _ops._queue
    monkeypatch.setattr(_ops, "_queue", lambda name, *rest: (called.append(name), queue(name, *rest)))
    x = tensor(2, 8, 4, 4, device=device).requires_grad_()
    ours(x).sum().backward()
    ours.eval()(x)
    assert called == ["batch_norm_training", "batch_norm_backward", "batch_norm_inference"]
    called.clear()
    ours.double()(x.double())  # no float64 there
    assert called == []


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("value", (float("nan"), float("inf"), -float("inf")))
def test_non_finite_values_behave_as_pytorchs(device, layout, value):
    for add in (False, True):
        theirs, ours = pair(3, device)
        x, residual, dy = (tensor(4, 3, 4, 4, layout=layout, seed=s, device=device) for s in (1, 2, 3))
        (residual if add else x)[1, 2, 3, 0] = value
        residual = residual if add else None
        want = step_of(lambda a, b: plain(theirs, a, b, True), x.double(), double(residual), dy.double(), theirs)
        got = step_of(ours, x, residual, dy, ours)
        for g, w in zip((*got, ours.running_mean, ours.running_var), (*want, theirs.running_mean, theirs.running_var)):
            if w is not None:
                torch.testing.assert_close(g.double(), w, atol=2e-5, rtol=2e-5, equal_nan=True)


def test_a_large_mean_costs_no_digits(device):
    for layout in FORMATS:
        theirs, ours = pair(6, device, relu=False)
        x = tensor(8, 6, 12, 12, layout=layout, mean=1e4, seed=1, device=device)
        torch.testing.assert_close(ours(x).double(), theirs(x.double()), atol=1e-5, rtol=1e-5)


def test_the_same_call_gives_the_same_bits(device):
    _, ours = pair(24, device)
    x, residual, dy = (tensor(4, 24, 14, 14, dtype=torch.bfloat16, seed=s, device=device) for s in (1, 2, 3))
    first = step_of(ours, x, residual, dy, ours)
    first = [t.clone() for t in first]
    ours.zero_grad()
    for a, b in zip(first, step_of(ours, x, residual, dy, ours)):
        assert torch.equal(a, b)


def test_without_the_library_pytorch_does_it(device, monkeypatch):
    theirs, ours = pair(6, device)
    monkeypatch.setattr(_library, "find", lambda *names: (_ for _ in ()).throw(ImportError("not installed")))
    _library.cuda_library.cache_clear()
    monkeypatch.setattr(_ops, "_workspaces", {})
    x = tensor(4, 6, 8, 8, device=device)
    assert not _ops.supports(x.device, x.dtype)
    torch.testing.assert_close(ours(x).double(), functional.relu(theirs(x.double())), atol=2e-5, rtol=2e-5)
    with pytest.raises(RuntimeError, match="built without FLATOUT_CUDA"):
        torch.ops.flatout.batch_norm(x, None, None, None, None, None, 0.1, 1e-5, False, False)


def test_errors_name_argument_and_shape(device):
    x = torch.randn(1, 6, 1, 1, device=device)
    with pytest.raises(RuntimeError, match=r"x \[1, 6, 1, 1\] NCHW f32: training needs more than one value"):
        torch.ops.flatout.batch_norm(x, None, None, None, None, None, 0.1, 1e-5, False, False)
    with pytest.raises(RuntimeError, match="no f64 on CUDA"):
        torch.ops.flatout.batch_norm(torch.zeros(2, 6, 4, 4, device=device).double(), None, None, None, None, None, 0.1, 1e-5, False, False)


def test_multiprocessors_are_left_to_other_kernels(device, monkeypatch):
    _, ours = pair(24, device)
    x = tensor(4, 24, 14, 14, layout="nhwc", seed=1, device=device)
    want = [t.clone() for t in step_of(ours, x, None, x, ours)[:2]]
    given = []
    queue = _ops.CudaQueue
    monkeypatch.setattr(_ops, "CudaQueue", lambda *arguments: (given.append(arguments[1]), queue(*arguments))[1])
    monkeypatch.setattr(_ops, "_SPARE", 1000)  # one is taken at least
    for a, b in zip(step_of(ours, x, None, x, ours)[:2], want):
        torch.testing.assert_close(a, b)
    assert given == [1000, 1000]
    monkeypatch.setenv("FLATOUT_NN_SPARE_MULTIPROCESSORS", "-1")
    with pytest.raises(ValueError, match="FLATOUT_NN_SPARE_MULTIPROCESSORS is '-1'; it must be a number"):
        _ops._spare_multiprocessors()


def test_kernels_that_do_not_run_are_said_once(device, monkeypatch):
    class Old:
        @staticmethod
        def flatout_nn_cuda_workspace_bytes(_):
            return 0

        @staticmethod
        def flatout_nn_cuda_error():
            return b"the driver is too old"

    monkeypatch.setattr(_ops, "cuda_library", Old)
    theirs, ours = pair(6, device)
    x = tensor(4, 6, 8, 8, device=device)
    with pytest.warns(UserWarning, match="leaves batch norm to PyTorch: the driver is too old"):
        y = ours(x)
    torch.testing.assert_close(y.double(), functional.relu(theirs(x.double())), atol=2e-5, rtol=2e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(x)


def test_torch_compile_asks_once_whether_the_kernels_run(device):
    """Without a break in the graph."""
    asks = torch.compile(lambda x: x + _ops._workspace_bytes(-1 if device == "cpu" else 0), backend="eager", fullgraph=True)
    assert float(asks(torch.zeros(()))) == _ops._workspace_bytes(-1 if device == "cpu" else 0) > 0


# ---- on a card only


class Net(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(Block(3, 16), Block(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def losses(model, layout, autocast):
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
    out = []
    for seed in range(8):
        x = tensor(16, 3, 24, 24, layout=layout, seed=seed, device="cuda")
        labels = torch.arange(16, device="cuda") % 10
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        out.append(float(loss.detach()))
    return torch.tensor(out)


@on_a_card
@pytest.mark.parametrize("autocast", (False, True))
@pytest.mark.parametrize("layout", FORMATS)
def test_a_fused_network_learns_the_same(device, layout, autocast):
    model, fused = (Net().to("cuda", memory_format=FORMATS[layout]) for _ in range(2))
    assert len(fuse(fused).fused) == 6
    close = 5e-2 if autocast else 2e-3
    torch.testing.assert_close(losses(fused, layout, autocast), losses(model, layout, autocast), atol=close, rtol=close)


@on_a_card
def test_a_fused_network_is_compiled_whole(device):
    model, compiled = (Net().to("cuda") for _ in range(2))
    fuse(compiled)
    compiled = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(losses(compiled, "nchw", False), losses(model, "nchw", False), atol=2e-3, rtol=2e-3)


@on_a_card
def test_a_step_is_captured_into_a_graph(device):
    _, ours = pair(32, device)
    x, residual = (tensor(8, 32, 28, 28, seed=s, device=device).requires_grad_() for s in (1, 2))
    dy = tensor(8, 32, 28, 28, seed=3, device=device)

    def step():
        return (y := ours(x, residual), *torch.autograd.grad(y, (x, residual, ours.weight, ours.bias), dy))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in (4, 5):
        with torch.no_grad():
            x.copy_(tensor(8, 32, 28, 28, seed=seed, device=device))
        graph.replay()
        for a, b in zip(captured, step()):
            assert torch.equal(a, b)


@on_a_card
def test_layers_of_several_shapes_are_captured_into_one_graph(device):
    """What a kernel is launched with differs; capture forbids what would wait."""
    norms = [pair(channels, device)[1] for channels in (16, 64, 512)]
    inputs = [tensor(8, n, s, s, seed=n, device=device) for n, s in ((16, 64), (64, 28), (512, 7))]
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            want = [norm(x) for norm, x in zip(norms, inputs)]
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = [norm(x) for norm, x in zip(norms, inputs)]
        graph.replay()
        torch.cuda.synchronize()
    for a, b in zip(got, want):
        assert torch.equal(a, b)


@on_a_card
def test_threads_do_not_disturb_each_other(device):
    cases = [(pair(channels, device)[1], tensor(16, channels, s, s, seed=s, device=device)) for channels, s in ((32, 56), (256, 14))]
    want = [step_of(norm, x, None, x, norm)[:2] for norm, x in cases]
    wrong = []

    def work(case, expected):
        norm, x = case
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                got = step_of(norm, x, None, x, norm)[:2]
                torch.cuda.current_stream().synchronize()
                wrong.extend(1 for a, b in zip(got, expected) if not torch.equal(a, b))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=both) for both in zip(cases, want)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@on_a_card
def test_another_device_than_the_current_one(device):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one card")
    _, ours = pair(24, device)
    x = tensor(4, 24, 14, 14, seed=1, device=device)
    want = step_of(ours, x, None, x, ours)[:2]
    there = ours.to("cuda:1")
    got = step_of(there, x.to("cuda:1"), None, x.to("cuda:1"), there)[:2]
    assert torch.cuda.current_device() == 0
    for a, b in zip(got, want):
        torch.testing.assert_close(a.cpu(), b.cpu())


@on_a_card
def test_more_than_2_to_the_31_elements(device):
    if torch.cuda.mem_get_info()[1] < 40 << 30:
        pytest.skip("the card has less than 40 GB")
    _, ours = pair(70, device)
    for layout in FORMATS:
        x = torch.randn(40, 70, 880, 880, device=device, dtype=torch.bfloat16).contiguous(memory_format=FORMATS[layout])
        assert x.numel() > 2**31
        with torch.no_grad():
            y = ours(x)
            for n in (0, 39):  # statistics are those of all images
                want = functional.batch_norm(x[n:n + 1].float(), ours.running_mean * 10, (ours.running_var - 0.9) * 10, ours.weight, ours.bias)
                torch.testing.assert_close(y[n:n + 1].float(), functional.relu(want), atol=5e-2, rtol=5e-2)
        ours.reset_running_stats()
        del x, y


@on_a_card
@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
def test_inductor_compiles_a_fused_network(device, mode):
    model, compiled = (Net().to("cuda") for _ in range(2))
    fuse(compiled)
    compiled = torch.compile(compiled, mode=mode)
    torch.testing.assert_close(losses(compiled, "nchw", False), losses(model, "nchw", False), atol=2e-3, rtol=2e-3)


@on_a_card
def test_streams_do_not_disturb_each_other(device):
    _, ours = pair(64, device)
    inputs = [tensor(16, 64, 28, 28, dtype=torch.bfloat16, seed=s, device=device) for s in range(4)]
    with torch.no_grad():
        want = [ours(x) for x in inputs]
        streams = [torch.cuda.Stream() for _ in inputs]
        torch.cuda.synchronize()
        got = []
        for _ in range(20):
            for x, stream in zip(inputs, streams):
                with torch.cuda.stream(stream):
                    got.append(ours(x))
        torch.cuda.synchronize()
    for i, y in enumerate(got):
        assert torch.equal(y, want[i % len(want)])


@on_a_card
def test_large_tensors(device):
    for layout, dtype in itertools.product(FORMATS, (torch.float32, torch.bfloat16)):
        theirs, ours = pair(64, device)
        x = torch.randn(32, 64, 112, 112, device=device).to(dtype).contiguous(memory_format=FORMATS[layout])
        dy = torch.randn_like(x)
        dy[plain(theirs, x.double(), x.double(), False).abs() < 4 * STEP[dtype]] = 0
        want = step_of(lambda a, b: plain(theirs, a, b, True), x.double(), x.double(), dy.double(), theirs)
        got = step_of(ours, x, x, dy, ours)
        for g, w in zip(got[:3], want):
            torch.testing.assert_close(g.double(), w, atol=STEP[dtype], rtol=STEP[dtype])
        for g, w in zip(got[3:], want[3:]):
            torch.testing.assert_close(g.double(), w, atol=1.0 if dtype is torch.bfloat16 else 1e-2, rtol=1e-3)
