"""Remedies of flatout fix for models, optimizers and loaders: that each does what it says, and changes nothing else."""

import json

import pytest

import remedied

pytestmark = [pytest.mark.parallel, pytest.mark.e2e]


def changed(job_python, remedies, script, folder):
    """What a script prints last, as JSON, with remedies in force; and which took effect."""
    out, applied = remedied.changed(job_python, remedies, script, folder)
    return json.loads(out.splitlines()[-1]), applied


NET = """
    import json, torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.conv, self.norm, self.relu = nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU()

        def forward(self, x):
            return self.relu(self.norm(self.conv(x)) + x)

    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    inputs, labels = torch.randn(8, 3, 16, 16), torch.randint(0, 4, (8,))
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(net(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(json.dumps({"losses": losses, "keys": sorted(net.state_dict()), "fused": bool(optimizer.defaults.get("fused")),
                      "last": net[0].weight.is_contiguous(memory_format=torch.channels_last), "class": type(net[3]).__name__,
                      "hooks": len(torch.nn.modules.module._global_forward_pre_hooks)}))
"""


@pytest.mark.parametrize("remedy, what", [("channels_last", {"last": True}), ("fused_norm", {"class": "FusedBlock"}),
                                          ("fused_optimizer", {"fused": True})])
def test_a_model_trains_on_as_it_did(job_python, tmp_path, remedy, what):
    pytest.importorskip("torch")
    plain, none = changed(job_python, "", NET, tmp_path)
    other, applied = changed(job_python, remedy, NET, tmp_path)
    assert (none, applied) == (set(), {remedy})
    assert {k: other[k] for k in what} == what and all(plain[k] != v for k, v in what.items())
    assert other["keys"] == plain["keys"]
    assert other["losses"] == pytest.approx(plain["losses"], rel=2e-2)
    assert other["losses"][0] == pytest.approx(plain["losses"][0], rel=1e-5)
    assert other["hooks"] == 0  # nothing is left that costs each call of a module


def test_all_of_them_together(job_python, tmp_path):
    pytest.importorskip("torch")
    plain, _ = changed(job_python, "", NET, tmp_path)
    other, applied = changed(job_python, "channels_last,fused_norm,fused_optimizer", NET, tmp_path)
    assert applied == {"channels_last", "fused_norm", "fused_optimizer"}
    assert other["losses"] == pytest.approx(plain["losses"], rel=2e-2)


def test_an_optimizer_that_has_no_fused_step_stays(job_python, tmp_path):
    pytest.importorskip("torch")
    script = """
        import json, torch
        out = []
        for make in (lambda p: torch.optim.Adam(p, foreach=True), lambda p: torch.optim.Adam(p, fused=False),
                     lambda p: torch.optim.LBFGS(p), lambda p: torch.optim.SGD(p, 0.1)):
            parameter = torch.nn.Parameter(torch.ones(3))
            optimizer = make(q for q in [parameter])
            out.append(bool(optimizer.defaults.get("fused")))
        out.append(len(optimizer.param_groups[0]["params"]))
        try:
            torch.optim.Adam([])
        except ValueError as error:
            out.append(str(error))
        print(json.dumps(out))
    """
    out, _ = changed(job_python, "fused_optimizer", script, tmp_path)
    assert out[:5] == [False, False, False, True, 1]
    assert "empty parameter list" in out[5]


def test_loaders_fork_and_have_larger_batches(job_python, tmp_path):
    pytest.importorskip("torch")
    script = """
        import json, multiprocessing, torch
        from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
        data = TensorDataset(torch.arange(8))
        made = DataLoader(data, 2, num_workers=1, multiprocessing_context="spawn")
        own = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 2, False))
        whole = DataLoader(data, batch_size=None)
        print(json.dumps([made.multiprocessing_context.get_start_method(), made.batch_size,
                          [len(b[0]) for b in made], [len(b[0]) for b in own], len(list(whole))]))
    """
    out, applied = changed(job_python, "multiprocessing_context=fork,batch_size=2", script, tmp_path)
    assert out == ["fork", 4, [4, 4], [2, 2, 2, 2], 8]
    assert applied == {"multiprocessing_context", "batch_size"}


def test_copies_from_pinned_memory_do_not_wait(job_python, tmp_path):
    pytest.importorskip("torch")
    script = """
        import json, torch
        x = torch.arange(4.0)
        torch.Tensor.is_pinned = lambda self: True  # as beside a GPU; the copies themselves work anywhere
        out = [x.to(torch.float64), x.to("cpu", torch.float64), x.to("cpu", torch.float64, False), x.to(x.double()),
               x.to(device="cpu", dtype=torch.float64), x.to(torch.float64, non_blocking=False)]
        same = x.to("cpu") is x
        try:
            x.to("no such device")
        except RuntimeError as error:
            wrong = "device" in str(error)
        print(json.dumps([[y.dtype == torch.float64 and y.tolist() == [0, 1, 2, 3] for y in out], same, wrong]))
    """
    out, applied = changed(job_python, "non_blocking", script, tmp_path)
    assert out == [[True] * 6, True, True]
    assert applied == {"non_blocking"}


def test_settings_of_a_gpu_are_left_where_there_is_none(job_python, tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    script = """
        import json, torch
        print(json.dumps([torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()]))
    """
    assert changed(job_python, "cudnn_benchmark,tf32", script, tmp_path) == ([False, "highest"], set())
