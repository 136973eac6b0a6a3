"""flatout.devmem in PyTorch: the real PyTorch over stand-ins for libcuda and the CUDA runtime that the build makes, by install() and by
environment alone; the errors where it cannot be installed; and, with the marker gpu, the same on a card."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.parallel

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def run(python, script, env, *, command=()):
    done = subprocess.run([*command, python, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **env}, capture_output=True,
                          text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="session")
def library(flatout):
    path = Path(flatout).resolve().parent / "libflatout_devmem.so"
    if not path.exists():
        pytest.skip("lacks libflatout_devmem.so beside the program: make build")
    return {"FLATOUT_DEVMEM_LIBRARY": str(path)}


@pytest.fixture(scope="session")
def stand_in(flatout, job_python, library):
    """The environment in which the job's PyTorch sees two cards of 16 GiB that exist in numbers only."""
    built = Path(flatout).resolve().parent / "src"
    runtime, driver = built / "devmem" / "fake" / "libfake_cudart.so", built / "devlimit" / "fake"
    if not runtime.exists() or not (driver / "libcuda.so.1").exists():
        pytest.skip("lacks the stand-ins for libcuda and the CUDA runtime: build all targets where CUDA's headers are")
    # Read, not imported: that takes seconds.
    find = "import importlib.util as u; print(open(u.find_spec('torch').submodule_search_locations[0] + '/version.py').read() + 'print(cuda)')"
    code, out, _ = run(job_python, find, {})
    code, out, _ = run(job_python, out, {}) if code == 0 else (code, out, "")
    version = ctypes.CDLL(str(runtime)).fakeRuntimeVersion() // 1000
    if code != 0 or out.split(".")[0].strip() != str(version):
        pytest.skip("lacks a PyTorch for CUDA %d" % version)
    return {**library, "LD_LIBRARY_PATH": str(driver), "LD_PRELOAD": str(runtime)}


JOB = """
import torch, flatout.devmem as devmem
devmem.install(limits={0: "1GiB"}, record=RECORD, debug=True)
devmem.install(limits={0: "1GiB"}, record=RECORD)   # the same again is nothing new
assert devmem.installed() and devmem.stats()["blocks"] == 0
x = torch.zeros(1000, 1000, device="cuda")
assert devmem.stats()["live"] == torch.cuda.memory_allocated() == 4_000_000
assert torch.empty(0, device="cuda").data_ptr() == 0
y = torch.zeros(5000, device="cuda:1")
assert devmem.stats(device="cuda:1")["live"] == 20_000 and devmem.stats(1)["limit"] == 16 << 30

# A tensor that another stream works with waits for it.
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    z = x + 1
x.record_stream(side)
at, x = x.data_ptr(), None
assert devmem.stats()["waiting"] == 4_000_000
other = torch.zeros(1000, 1000, device="cuda")
assert other.data_ptr() != at
side.synchronize()
again = torch.zeros(1000, 1000, device="cuda")
assert again.data_ptr() == at and devmem.stats()["waiting"] == 0

try:
    torch.zeros(2000, 1 << 20, device="cuda")
except torch.OutOfMemoryError as error:
    assert "CUDA out of memory. Tried to allocate 7.81 GiB. GPU 0 has" in str(error) and "1.00 GiB allowed;" in str(error), error
else:
    raise AssertionError("8 GiB within 1")
del other, z
torch.cuda.empty_cache()
assert devmem.stats()["reserved"] < 8 << 20 and torch.cuda.max_memory_allocated() >= 12_000_000
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == 4_000_000 and "OOMs: 1" in torch.cuda.memory_summary()
devmem.snapshot(RECORD + ".now")
try:
    torch.cuda.memory._snapshot()
except RuntimeError as error:
    assert "flatout.devmem.snapshot" in str(error)
print("done")
"""


def test_tensors_streams_limits_and_statistics(stand_in, job_python, flatout, tmp_path):
    record = str(tmp_path / "memory.jsonl")
    code, out, err = run(job_python, "RECORD = %r\n" % record + JOB, stand_in)
    assert code == 0 and out == "done\n", err
    # Both the recording and the snapshot are what replay reads; the requests carry their lines.
    for file in (record, record + ".now"):
        told = subprocess.run([flatout, "devmem", "replay", "--json", file], capture_output=True, text=True, timeout=60)
        arena = next(r for r in json.loads(told.stdout) if r["policy"] == "arena")
        assert arena["trace"] == "GPU 0" and 12_000_000 <= arena["peak_live_bytes"] < 13_000_000, told.stderr
    lines = [json.loads(line) for line in Path(record).read_text().splitlines()]
    sites = {line["site"] for line in lines if line["op"] == "a"}
    assert "<string>:7 <module>" in sites, sites
    assert [line["size"] for line in lines if line["op"] == "oom"] == [2000 * 4 * MIB]
    assert len(list(tmp_path.glob("memory.jsonl.[0-9]*"))) == 1, "device 1 has a file of its own"


def test_logical_devices(stand_in, job_python):
    script = """
import os, torch, flatout.devmem as devmem
devmem.install(limits={0: ["100MiB", "2GiB"]})
w = torch.ones(1000, device="cuda", requires_grad=True)
with devmem.logical_device(1):
    big = torch.zeros(300 << 20, dtype=torch.uint8, device="cuda")
    loss = (w * 2).sum()
used = devmem.stats(index=1)["allocations"]
loss.backward()
assert devmem.stats(index=1)["allocations"] > used, "backward follows forward"
assert devmem.stats(index=1)["live"] > 300 << 20 > 100 << 20 > devmem.stats()["live"]
try:
    torch.zeros(300 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    assert "logical device 0" in str(error) and "100 MiB allowed;" in str(error), error
else:
    raise AssertionError
for index, words in ((2, "no logical device 2: it has 2"), (-1, "no logical device -1")):
    try:
        with devmem.logical_device(index):
            pass
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError
print("done", flush=True)
# Backward has a thread for each card, which Python's end may meet where PyTorch 2.13 aborts: one run of ten on a busy
# machine, without Flatout too.
os._exit(0)
"""
    code, out, err = run(job_python, script, stand_in)
    assert code == 0 and out == "done\n", err


def test_a_logical_device_is_waited_for_where_an_error_ends_it_too(stand_in, job_python):
    script = """
import torch, flatout.devmem as devmem
devmem.install(limits={0: ["100MiB", "2GiB"]})
outside, waits = torch.cuda.current_stream(), []
torch.cuda.Stream.wait_stream = lambda one, other: waits.append((one, other))
for size in (1000, 3 << 30):
    waits.clear()
    try:
        with devmem.logical_device(1) as inside:
            torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        assert size > 1000
    assert waits == [(inside, outside), (outside, inside)], (size, waits)
print("done")
"""
    code, out, err = run(job_python, script, stand_in)
    assert code == 0 and out == "done\n", err


def test_a_mem_pool_beside_pytorchs_own_allocator(stand_in, job_python):
    script = """
import torch, flatout.devmem as devmem
outside = torch.zeros(1000, device="cuda")
pool = devmem.mem_pool()
with torch.cuda.use_mem_pool(pool):
    inside = torch.zeros(8 << 20, dtype=torch.uint8, device="cuda")
    try:
        torch.zeros(4 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        print("full")
assert 8 << 20 <= devmem.stats()["live"] <= 20 << 20 and not devmem.installed()
try:
    devmem.install()
except RuntimeError as error:
    print(error)
"""
    code, out, err = run(job_python, script, {**stand_in, "FLATOUT_DEVMEM_LIMIT": "1GiB"})
    assert code == 0, err
    assert out.startswith("full\nPyTorch has begun to use the card with its own allocator"), out


def test_what_cannot_be_is_said(stand_in, job_python):
    script = """
import flatout.devmem as devmem, torch
for words in (dict(limits="lots"), dict(policy="best"), dict(policy="tf_growth"), dict(limits={0: True}), dict(limits="1GiB,0=2GiB"),
              dict(limits={"cuda:0": "1GiB"}), dict(limits={0: []})):
    try:
        devmem.install(**words)
    except ValueError as error:
        print(error)
devmem.install()
try:
    devmem.install(limits=0.5)
except RuntimeError as error:
    print(error)
try:
    devmem.snapshot("x")
except RuntimeError as error:
    print(error)
torch.zeros(1, device="cuda")
try:
    devmem.snapshot("/nowhere/at/all")
except OSError as error:
    print(error)
"""
    code, out, err = run(job_python, script, stand_in)
    assert code == 0, err
    says = ["'lots' is neither a size", "no policy 'best'", "takes no care of streams", "True is neither", "says twice", "'cuda:0' is no number of a device",
            "an empty list makes", "installed already",
            "no tensor has been on device 0", "/nowhere/at/all"]
    lines = out.splitlines()
    assert len(lines) == len(says)
    for line, words in zip(lines, says):
        assert words in line


def test_a_machine_without_a_driver_gets_a_clear_error(library, job_python):
    script = """
import flatout.devmem as devmem
try:
    devmem.install()
except RuntimeError as error:
    print(error)
"""
    try:
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("there is a driver here")
    except OSError:
        pass
    code, out, err = run(job_python, script, library)
    assert code == 0, err
    assert "no NVIDIA driver" in out or "without CUDA" in out


def make_torch(folder, words):
    """A package `torch` in `folder` that has what install() looks at first."""
    inside = folder / "torch" / "cuda"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("from . import memory\n")
    (inside / "memory.py").write_text("CUDAPluggableAllocator = change_current_allocator = None\n")
    (folder / "torch" / "version.py").write_text("cuda, hip = '13.0', None\n")
    (folder / "torch" / "__init__.py").write_text("__version__ = '9.9'\nfrom . import cuda, version\n" + words + "\n")


@pytest.mark.parametrize("torch, says", [
    ("version.cuda = None", "is built without CUDA"), ("version.hip = '6.0'", "is built for ROCm"), ("cuda.memory.__dict__.pop('change_current_allocator')", "cannot change its allocator: 2.0 can")])
def test_another_kind_of_torch_gets_a_clear_error(library, tmp_path, torch, says):
    make_torch(tmp_path, torch)
    script = "import flatout.devmem as d\ntry:\n    d.install()\nexcept RuntimeError as e:\n    print(e)"
    code, out, err = run(sys.executable, script, {**library, "PYTHONPATH": "%s:%s" % (tmp_path, ROOT / "python")})
    assert code == 0 and out.startswith("torch 9.9 ") and says in out, err


def test_by_environment_with_no_change_to_the_program(stand_in, job_python, flatout, tmp_path):
    if not (Path(flatout).resolve().parent / "libflatout_agent.so").exists():
        pytest.skip("lacks libflatout_agent.so")
    script = """
import torch
x = torch.zeros(1 << 20, device="cuda")
print(torch.cuda.memory_reserved(), torch.cuda.memory_allocated())
try:
    torch.zeros(1 << 30, device="cuda")
except torch.OutOfMemoryError as error:
    print(error)
"""
    record = tmp_path / "memory.jsonl"
    env = {**stand_in, "PYTHONPATH": "", "FLATOUT_DEVMEM_RECORD": str(record)}
    command = [flatout, "run", "--quiet", "--out", str(tmp_path / "run"), "--devmem", "arena", "--devmem-limit", "0=512MiB", "--"]
    code, out, err = run(job_python, script, env, command=command)
    assert code == 0, err
    first, second = out.splitlines()
    assert first.split()[1] == str(4 * MIB)
    assert "Flatout's arena holds" in second and "512 MiB allowed;" in second
    assert '"op":"oom"' in record.read_text()


def test_by_what_flatout_fix_kept(stand_in, job_python, flatout, tmp_path):
    if not (Path(flatout).resolve().parent / "libflatout_agent.so").exists():
        pytest.skip("lacks libflatout_agent.so")
    script = """
import torch
try:
    torch.zeros(1 << 36, device="cuda")
except torch.OutOfMemoryError as error:
    print(error)
"""
    kept = {"environment": {}, "agent": {"devmem": "arena"}, "allocator": False, "prefix": []}
    (tmp_path / "fix.json").write_text(json.dumps({"schema": 1, "apply": kept}))
    command = [flatout, "run", "--quiet", "--out", str(tmp_path / "run"), "--with", str(tmp_path / "fix.json"), "--"]
    code, out, err = run(job_python, script, {**stand_in, "PYTHONPATH": ""}, command=command)
    assert code == 0, err
    assert "Flatout's arena holds" in out
    # Where it cannot be installed, the job has PyTorch's own, and no word is said: fix saw that it changed nothing.
    make_torch(tmp_path, "version.cuda = None")
    code, out, err = run(sys.executable, "import torch; print(torch.__version__)", {"PYTHONPATH": str(tmp_path)}, command=command)
    assert (code, out) == (0, "9.9\n") and "flatout" not in err


def test_a_job_that_cannot_have_it_runs_as_ever_and_is_told_once(library, flatout, tmp_path):
    if not (Path(flatout).resolve().parent / "libflatout_agent.so").exists():
        pytest.skip("lacks libflatout_agent.so")
    make_torch(tmp_path, "version.cuda = None")
    command = [flatout, "run", "--quiet", "--out", str(tmp_path / "run"), "--devmem", "arena", "--"]
    code, out, err = run(sys.executable, "import torch; print(torch.__version__)", {"PYTHONPATH": str(tmp_path)}, command=command)
    assert (code, out) == (0, "9.9\n")
    assert err.count("flatout: warning: what flatout changes in torch is left out: RuntimeError: torch 9.9 is built without CUDA") == 1


@pytest.mark.parametrize("words, says", [(["--devmem", "best"], "no policy 'best'"), (["--devmem", "arena", "--devmem-limit", "lots"], "neither a size")])
def test_bad_options_of_run_are_named(flatout, words, says):
    done = subprocess.run([flatout, "run", *words, "--", "true"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and says in done.stderr


@pytest.mark.gpu
def test_on_a_card(library, job_python, tmp_path):
    """The numbers are PyTorch's own: a training step gives the same losses with Flatout's pools as without."""
    script = """
import sys, torch
if len(sys.argv) > 1:
    import flatout.devmem
    flatout.devmem.install(limits=sys.argv[1], debug=True)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
side = torch.cuda.Stream()
for step in range(20):
    x = torch.randn(64 + step, 512, device="cuda")
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        y = x.sum(1) > 0
    x.record_stream(side)
    torch.cuda.default_stream().wait_stream(side)
    y.record_stream(torch.cuda.default_stream())
    loss = torch.nn.functional.cross_entropy(model(x), y.long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("%.4f" % loss.item())
if len(sys.argv) > 1:
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    assert flatout.devmem.stats()["peak_reserved"] <= 1 << 30
"""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pytest.skip("lacks a card's driver")
    file = tmp_path / "job.py"
    file.write_text(script)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), **library}
    check = subprocess.run([job_python, "-c", "import torch; print(torch.cuda.is_available())"], capture_output=True, text=True, env=env)
    if check.stdout.strip() != "True":
        pytest.skip("lacks a card")
    plain = subprocess.run([job_python, file], capture_output=True, text=True, env=env, timeout=300)
    ours = subprocess.run([job_python, file, "1GiB"], capture_output=True, text=True, env=env, timeout=300)
    assert plain.returncode == ours.returncode == 0, plain.stderr + ours.stderr
    assert plain.stdout == ours.stdout and not ours.stderr
