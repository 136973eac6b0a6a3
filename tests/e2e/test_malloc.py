"""Real programs with libflatout_malloc.so in LD_PRELOAD behave as they do without."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FLATOUT_BIN", ROOT / "build/release/flatout"))
LIBRARY = BIN.parent / "libflatout_malloc.so"
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")


def preloaded(command, library=LIBRARY, **kw):
    env = dict(os.environ, **kw.pop("env", {}))
    env.pop("LD_PRELOAD", None)
    if library:
        env["LD_PRELOAD"] = str(library)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=kw.pop("timeout", 300), check=False, **kw)


def python(code, library=LIBRARY, interpreter=sys.executable, **kw):
    done = preloaded([interpreter, "-c", textwrap.dedent(code)], library, **kw)
    assert done.returncode == 0, done.stderr
    assert "malloc:" not in done.stderr, done.stderr
    return done.stdout


def test_python_threads_processes_and_ctypes():
    out = python("""
        import ctypes, multiprocessing, subprocess, sys, threading

        def work(n):
            return sum(len(bytes(i * 13)) for i in range(n))

        def main():
            results = []
            threads = [threading.Thread(target=lambda: results.append(work(3000))) for _ in range(8)]
            for t in threads: t.start()
            with multiprocessing.get_context("fork").Pool(3) as pool:
                results += pool.map(work, [3000] * 6)
            for t in threads: t.join()
            libc = ctypes.CDLL(None)
            libc.malloc.restype = ctypes.c_void_p
            libc.realloc.restype = ctypes.c_void_p
            p = libc.malloc(ctypes.c_size_t(100))
            ctypes.memset(p, 65, 100)
            p = libc.realloc(ctypes.c_void_p(p), ctypes.c_size_t(100000))
            assert ctypes.string_at(p, 100) == b"A" * 100
            libc.free(ctypes.c_void_p(p))
            libc.strdup.restype = ctypes.c_void_p
            libc.free(ctypes.c_void_p(libc.strdup(b"hello")))
            assert subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True, check=True).stdout == b"child\\n"
            print(len(set(results)), len(results))

        if __name__ == "__main__":
            main()
    """)
    assert out.split() == ["1", "14"]


def test_it_is_in_use_and_its_header_answers():
    out = python("""
        import ctypes
        lib = ctypes.CDLL(None)
        s = (ctypes.c_uint64 * 8)()
        assert lib.flatout_malloc_get_stats(s, ctypes.c_size_t(64)) == 0
        print(s[0] > 100000, s[6])
    """)
    assert out.split() == ["True", "0"]


def test_loaded_late_it_frees_what_came_before():
    """dlopen: static TLS still has room, and pointers of glibc's find their way home."""
    out = python(f"""
        import ctypes
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        old = [libc.malloc(ctypes.c_size_t(n)) for n in (20, 2000, 200000, 20000000)]
        ours = ctypes.CDLL({str(LIBRARY)!r})
        ours.malloc.restype = ours.realloc.restype = ctypes.c_void_p
        for p in old[:2]:
            ours.free(ctypes.c_void_p(p))
        moved = ours.realloc(ctypes.c_void_p(old[2]), ctypes.c_size_t(300000))
        assert moved and moved != old[2]
        new = ours.malloc(ctypes.c_size_t(1000))
        ours.free(ctypes.c_void_p(new))
        ours.free(ctypes.c_void_p(old[3]))
        ours.free(ctypes.c_void_p(moved))
        print("fine")
    """, library=None)
    assert out.strip() == "fine"


def test_gcc_compiles_the_same(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("lacks g++")
    source = tmp_path / "x.cpp"
    source.write_text("#include <map>\n#include <regex>\nint main() { std::map<int, std::regex> m; return int(m.size()); }\n")
    for library, name in ((None, "a.s"), (LIBRARY, "b.s")):
        done = preloaded(["g++", "-std=c++17", "-O1", "-S", str(source), "-o", str(tmp_path / name)], library)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.s").read_text() == (tmp_path / "b.s").read_text()


TRAIN = """
    import resource, torch
    torch.set_num_threads(2)
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
                                torch.nn.Conv2d(16, 16, 3), torch.nn.Flatten(), torch.nn.LazyLinear(10))
    data = torch.utils.data.TensorDataset(torch.randn(256, 3, 64, 64), torch.randint(0, 10, (256,)))
    loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=2)
    losses, optimizer = [], None
    for epoch in range(2):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            losses.append(loss.item().hex())
    print(" ".join(losses))
"""


def test_pytorch_losses_are_bit_identical(job_python):
    if subprocess.run([job_python, "-c", "import torch"], capture_output=True, check=False).returncode != 0:
        pytest.skip("lacks torch")
    plain = python(TRAIN, library=None, interpreter=job_python)
    assert python(TRAIN, interpreter=job_python) == plain
    assert len(plain.split()) == 16


def test_a_steady_step_takes_no_faults(job_python):
    if subprocess.run([job_python, "-c", "import torch"], capture_output=True, check=False).returncode != 0:
        pytest.skip("lacks torch")
    out = python("""
        import resource, torch
        torch.set_num_threads(1)
        x = torch.randn(4 << 20, requires_grad=True)
        def step():
            y = x
            for _ in range(6):
                y = torch.nn.functional.silu(y * 1.01)
            y.sum().backward()
            x.grad = None
        for _ in range(4):
            step()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            step()
        print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / 5)
    """, interpreter=job_python)
    assert float(out) <= 5  # glibc: about 90,000


def test_run_malloc_preloads_it_behind_what_is_there(tmp_path):
    if not os.access(BIN, os.X_OK):
        pytest.skip(f"{BIN} is not built")
    libc = re.search(r"\S+/libm\.so\.6", subprocess.run(["ldd", str(BIN)], capture_output=True, text=True, check=False).stdout)
    before = libc.group(0) if libc else ""
    script = "import os; print(os.environ['LD_PRELOAD']); print('libflatout_malloc.so' in open('/proc/self/maps').read())"
    done = subprocess.run([str(BIN), "run", "--quiet", "--malloc", "--", sys.executable, "-c", script], cwd=tmp_path,
                          env=dict(os.environ, LD_PRELOAD=before), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    preload, loaded = done.stdout.split("\n")[:2]
    assert preload == (f"{before}:" if before else "") + str(LIBRARY.resolve())
    assert loaded == "True"
    plain = subprocess.run([str(BIN), "run", "--quiet", "--", sys.executable, "-c", "import os; print(os.environ.get('LD_PRELOAD'))"],
                           cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "libflatout_malloc" not in plain.stdout


def test_the_heap_profile_is_written_at_the_end(tmp_path):
    done = preloaded([sys.executable, "-c", "x = [bytes(1000) for _ in range(20000)]"],
                     env={"FLATOUT_MALLOC_PROFILE": str(tmp_path / "heap.%p")})
    assert done.returncode == 0
    texts = [p.read_text() for p in tmp_path.glob("heap.*")]
    assert texts and all(t.startswith("heap profile: ") and "MAPPED_LIBRARIES:" in t for t in texts)
