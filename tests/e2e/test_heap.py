"""flatout heap: planted leaks are named by file and line, and what only looks like one is not."""

import collections
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import xml.etree.ElementTree
from pathlib import Path

import interpreters
import pytest

pytestmark = pytest.mark.parallel


@pytest.fixture(autouse=True)
def built(flatout):
    if not (Path(flatout).parent / "libflatout_malloc_debug.so").exists():
        pytest.skip("lacks libflatout_malloc_debug.so beside the program")


def heap(flatout, folder, *words, code=0, env=None):
    """(JSON, standard output of the job, standard error)."""
    out = Path(folder) / "heap.json"
    done = subprocess.run([flatout, "heap", f"--json={out}", "--out", str(Path(folder) / "run"), *map(str, words)],
                          cwd=folder, capture_output=True, text=True, timeout=240, check=False, env=dict(os.environ, **(env or {})))
    assert done.returncode == code, done.stderr
    return json.loads(out.read_text()), done.stdout, done.stderr


# Bytes between samples, at most 16 times more where they come fast: enough of them that no test is left to chance.
OFTEN = {"FLATOUT_MALLOC_SAMPLE": "4096"}


def write(folder, name, text):
    path = Path(folder) / name
    path.write_text(textwrap.dedent(text))
    return path


def line_of(path, mark):
    return next(i for i, line in enumerate(path.read_text().splitlines(), 1) if line.rstrip().endswith(mark))


def compiled(folder, source):
    if shutil.which("g++") is None:
        pytest.skip("lacks g++")
    program = Path(folder) / "program"
    subprocess.run(["g++", "-g", "-O2", "-fomit-frame-pointer", "-std=c++17", str(source), "-o", str(program)], check=True)
    return program


CPP = """
    #include <cstdlib>
    #include <cstring>
    #include <map>
    #include <memory>
    #include <string>
    #include <vector>

    struct Record {
      std::string text;
      std::vector<double> values;
    };
    std::map<int, std::unique_ptr<Record>> cache;   // bounded
    std::vector<double*> forgotten;

    __attribute__((noinline)) void remember(int i) {
      auto r = std::make_unique<Record>();
      r->text = std::string(3000, 'x');
      cache[i % 500] = std::move(r);
    }
    __attribute__((noinline)) void leak(int i) {
      forgotten.push_back(new double[400]{double(i)});  // LEAK
    }
    int main() {
      for (int i = 0; i < 60000; ++i) {
        remember(i);
        if (i % 2 == 0) leak(i);
        std::vector<char> temporary(20000, 1);
        asm volatile("" ::"r"(temporary.data()) : "memory");
      }
    }
"""


def test_a_leak_in_cpp_is_named_by_its_line(flatout, tmp_path):
    source = write(tmp_path, "leaky.cpp", CPP)
    got, _, text = heap(flatout, tmp_path, "--", compiled(tmp_path, source), env=OFTEN)
    assert [(Path(s["file"]).name, s["line"]) for s in got["leaks"]] == [("leaky.cpp", line_of(source, "// LEAK"))], text
    leak = got["leaks"][0]
    assert "leak" in leak["function"]
    # 30,000 x 3200 bytes are there at the end: 1,400 samples or more, six standard deviations.
    assert 0.84 < leak["live_bytes"] / (30_000 * 3200) < 1.16
    assert f"leaky.cpp:{leak['line']} in leak" in text and "temporary" not in text
    # The line is the user's though the standard library allocates; the caller is there.
    assert any(f["function"].startswith("main") for f in leak["stack"])


PYTHON = """
    import collections

    class Batch:
        def __init__(self, i):
            self.values = [1000 + i + k for k in range(200)]  # not floats: CPython keeps freed ones for the next line that needs one

    history = []
    recent = collections.deque(maxlen=300)

    def step(i):
        recent.append(Batch(i))
        history.append([1000 + i + k for k in range(40)])  # LEAK
        return sum(len(b.values) for b in recent)

    for i in range(20000):
        step(i)
    print("done")
"""


def test_a_leak_of_small_python_objects_is_named_by_its_line(flatout, tmp_path):
    script = write(tmp_path, "train.py", PYTHON)
    got, out, text = heap(flatout, tmp_path, "--leaks", "--", sys.executable, script, env=OFTEN)
    assert out == "done\n"
    leaks = {(Path(s["file"]).name, s["line"]) for s in got["leaks"]}
    assert leaks == {("train.py", line_of(script, "# LEAK"))}, text
    assert "at peak" not in text  # --leaks says nothing else


@pytest.mark.parametrize("version", ["3.13t", "3.14t", "3.15t"])
def test_a_free_threaded_python_runs_and_its_objects_are_said_to_lack(flatout, tmp_path, version):
    python = interpreters.found([version]).get(version)
    if python is None:
        pytest.skip(f"CPython {version} is not installed")
    script = write(tmp_path, "train.py", """
        import ctypes, sys
        malloc = ctypes.CDLL(None).malloc
        malloc.restype = ctypes.c_void_p
        malloc.argtypes = [ctypes.c_size_t]
        history = []
        for i in range(4000):
            history.append(malloc(20000))  # LEAK
        print("done", sys._is_gil_enabled())
    """)
    got, out, text = heap(flatout, tmp_path, "--leaks", "--", python, script, env=OFTEN)
    assert out == "done False\n"
    assert [(Path(s["file"]).name, s["line"]) for s in got["leaks"]] == [("train.py", line_of(script, "# LEAK"))], text
    assert "free-threaded" in text and not got["python_objects"]


def test_what_reaches_a_level_is_no_leak(flatout, tmp_path):
    script = write(tmp_path, "train.py", PYTHON.replace("history.append(", "history[i % 50:i % 50 + 1] = ("))
    script.write_text(script.read_text().replace("for k in range(40)])", "for k in range(40)],)"))
    got, _, text = heap(flatout, tmp_path, "--", sys.executable, script, env=OFTEN)
    assert got["leaks"] == [], text
    assert "No leak" in text
    assert got["peak_bytes"] > 0 and got["sites"]


CHURN = """
    #include <cstdlib>
    #include <cstring>
    #include <string>
    #include <vector>
    std::vector<char*> kept;
    char* grown = nullptr;
    void churn() {
      for (int i = 0; i < 100; ++i) {
        char* p = (char*)malloc(20000);
        memset(p, 0, 20000);
        free(p);
      }
    }
    __attribute__((noinline)) void leak() {
      kept.push_back((char*)malloc(30000));  // LEAK
      memset(kept.back(), 1, 30000);
    }
    __attribute__((noinline)) void grow(size_t bytes) {
      grown = (char*)realloc(grown, bytes);  // GROWN
      memset(grown + bytes - 5000, 1, 5000);
    }
    int main() {
      std::vector<std::string> loaded;
      for (int i = 0; i < 2000; ++i) loaded.emplace_back(5000, 'x');
      for (int i = 1; i <= 3000; ++i) { churn(); leak(); grow(5000 * i); }
      volatile bool at_end = true;
      if (at_end) _Exit(0);
    }
"""


def test_a_leak_of_a_second_is_found_beside_what_comes_and_goes(flatout, tmp_path):
    """86 MiB of 6 GiB that it allocates, at the usual rate of samples; and a buffer that grows in place, without a copy of each step."""
    source = write(tmp_path, "churn.cpp", CHURN)
    program = compiled(tmp_path, source)
    for _ in range(3):
        got, _, text = heap(flatout, tmp_path, "--", program)
        lines = {s["line"] for s in got["leaks"] + got["may_leak"]}
        assert line_of(source, "// LEAK") in lines, text
        assert lines <= {line_of(source, "// LEAK"), line_of(source, "// GROWN")}, text
        assert "No leak" not in text
        grown = next(s for s in got["sites"] if s["line"] == line_of(source, "// GROWN"))
        # Copied at each of 3,000 steps it would have allocated 22 GB.
        assert grown["allocated_bytes"] < 2e9, text


def test_a_line_of_a_library_that_was_closed_is_named(flatout, tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("lacks g++")
    library = write(tmp_path, "plugin.cpp", """
        #include <cstdlib>
        #include <cstring>
        extern "C" void* plugin(size_t n) {
          void* p = malloc(n);  // KEPT
          memset(p, 2, n);
          return p;
        }
    """)
    subprocess.run(["g++", "-g", "-O1", "-fPIC", "-shared", str(library), "-o", str(tmp_path / "plugin.so")], check=True)
    program = compiled(tmp_path, write(tmp_path, "host.cpp", """
        #include <dlfcn.h>
        #include <cstddef>
        int main() {
          void* library = dlopen("./plugin.so", RTLD_NOW);
          auto plugin = (void* (*)(size_t))dlsym(library, "plugin");
          for (int i = 0; i < 1000; ++i) plugin(20000);
          dlclose(library);
        }
    """))
    for how in ([], ["--full"]):
        got, _, text = heap(flatout, tmp_path, *how, "--", program, env=OFTEN if not how else {})
        largest = got["sites"][0]
        assert (Path(largest["file"]).name, largest["line"]) == ("plugin.cpp", line_of(library, "// KEPT")), text


def test_few_samples_are_no_proof_that_nothing_leaks(flatout, tmp_path):
    script = write(tmp_path, "small.cpp", """
        #include <cstdlib>
        void* volatile sink;
        int main() { for (int i = 0; i < 40; ++i) sink = malloc(100000); }
    """)
    got, _, text = heap(flatout, tmp_path, "--", compiled(tmp_path, script), env={"FLATOUT_MALLOC_SAMPLE": "1000000"})
    assert got["leaks"] == [] and not got["enough_moments"]
    assert "No leak" not in text and "--full" in text


@pytest.mark.parametrize("steps", [150, 600])
def test_what_is_kept_of_each_step_is_told_and_not_the_imports(flatout, job_python, tmp_path, steps):
    """Importing PyTorch is most of a short job's allocations: they are before its first step."""
    script = write(tmp_path, "graphs.py", """
        import torch
        torch.set_num_threads(1)
        net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
        sgd = torch.optim.SGD(net.parameters(), 0.01)
        kept = []
        for i in range(STEPS):
            x = torch.randn(64, 256)
            loss = net(x).square().mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            kept.append(net(x.clone()))  # KEPT
    """.replace("STEPS", str(steps)))
    got, _, text = heap(flatout, tmp_path, "--", job_python, script)
    assert got["enough_moments"], text
    told = got["leaks"] if steps == 600 else got["leaks"] + got["may_leak"]  # by some 60 samples of it
    assert line_of(script, "# KEPT") in {s["line"] for s in told if Path(s["file"]) == script}, text
    assert {Path(s["file"]) for s in got["leaks"]} <= {script}, text
    leak = next(s for s in told if s["line"] == line_of(script, "# KEPT"))
    # x and what the layers keep for the way back: 64 KiB, 128 KiB twice or once.
    assert 100_000 < leak["bytes_per_step"] < 500_000


EXACT = """
    #include <cstdlib>
    #include <cstring>
    static void* volatile sink;
    __attribute__((noinline)) void kept() {
      for (int i = 0; i < 1000; ++i) { sink = malloc(1000); }  // KEPT
      asm volatile("");
    }
    __attribute__((noinline)) void passing() {
      for (int i = 0; i < 5000; ++i) { void* p = malloc(700); sink = p; free(p); }  // PASSING
      asm volatile("");
    }
    __attribute__((noinline)) void large() {
      void* p = malloc(9000000);  // LARGE
      sink = p;
      free(p);
    }
    int main() {
      kept();
      passing();
      large();
    }
"""


def test_full_counts_every_allocation(flatout, tmp_path):
    source = write(tmp_path, "exact.cpp", EXACT)
    got, _, _ = heap(flatout, tmp_path, "--full", "--", compiled(tmp_path, source))
    assert got["exact"] is True
    sites = {s["line"]: s for s in got["sites"] if Path(s["file"]).name == "exact.cpp"}
    kept, passing, large = (sites[line_of(source, mark)] for mark in ("// KEPT", "// PASSING", "// LARGE"))
    assert (kept["allocations"], kept["allocated_bytes"], kept["live_bytes"], kept["count"]) == (1000, 1_000_000, 1_000_000, 1000)
    assert (passing["allocations"], passing["allocated_bytes"], passing["live_bytes"]) == (5000, 3_500_000, 0)
    assert (large["allocations"], large["peak_bytes"], large["live_bytes"]) == (1, 9_000_000, 0)
    assert kept["peak_bytes"] == 1_000_000  # what it had when the process had most
    assert got["peak_bytes"] == sum(s["peak_bytes"] for s in got["sites"])


def test_processes_that_end_without_destructors_are_there(flatout, tmp_path):
    """A worker that is killed and a fork's child that ends by _exit leave what they wrote last; neither spoils its parent's."""
    script = write(tmp_path, "job.py", """
        import os, signal
        kept = []
        def grow(n):
            for i in range(n):
                kept.append(bytes(100_000))  # KEPT
        grow(500)
        for end in (lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL)):
            pid = os.fork()
            if pid == 0:
                grow(3000)
                end()
            os.waitpid(pid, 0)
    """)
    got, _, text = heap(flatout, tmp_path, "--", sys.executable, script, env=OFTEN)
    heaps = [got, *got["processes"]]
    assert len({h["pid"] for h in heaps}) == 3, text
    peaks = sorted(h["peak_bytes"] for h in heaps)
    assert peaks[0] < 120e6 < peaks[1], peaks  # the parent's 50 MB are its own
    for h in heaps:
        assert any(Path(s["file"]).name == "job.py" and s["line"] == line_of(script, "# KEPT") for s in h["sites"]), text


def test_a_leak_in_a_worker_is_found_beside_what_its_parent_did(flatout, tmp_path):
    script = write(tmp_path, "train.py", """
        import os, time
        loaded = [bytes(2000) for _ in range(20000)]  # 40 MiB, long before the worker begins
        for _ in range(200):
            loaded[:2000] = [bytes(2000) for _ in range(2000)]
            time.sleep(0.02)
        pid = os.fork()
        if pid == 0:
            kept = []
            for i in range(1500):
                kept.append(bytearray(8000))  # grows
                time.sleep(0.0005)
            os._exit(0)
        os.waitpid(pid, 0)
    """)
    got, _, _ = heap(flatout, tmp_path, "--leaks", "--", sys.executable, script, env=OFTEN)
    worker = next(process for process in [got, *got["processes"]] if process["leaks"])
    assert worker["leaks"][0]["line"] == line_of(script, "# grows")


def test_of_a_process_that_is_interrupted_there_is_nearly_all_and_when_it_was(flatout, tmp_path):
    script = write(tmp_path, "job.py", """
        import os, signal, time
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have it ignored
        kept = []
        for i in range(1000):
            kept.append(bytes(100_000))  # KEPT
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    """)
    got, _, text = heap(flatout, tmp_path, "--", sys.executable, script, code=130)
    assert not got["at_end"] and got["written_s"] > 0
    assert "as of its last record" in text and "at its end" not in text
    # Records come five times a second or when samples have doubled: more than the half that doubling alone leaves.
    assert got["live_bytes"] > 60e6, text
    got, _, text = heap(flatout, tmp_path, "--", sys.executable, "-c", "x = [bytes(100_000) for _ in range(100)]")
    assert got["at_end"] and "at its end" in text and "killed" not in text


def test_the_job_is_as_without(flatout, tmp_path):
    script = write(tmp_path, "job.py", "import sys; print('out'); sys.exit(7)")
    _, out, _ = heap(flatout, tmp_path, "--", sys.executable, script, code=7)
    assert out == "out\n"
    done = subprocess.run([flatout, "heap", "--quiet", "--out", str(tmp_path / "none"), "--", "/nonexistent/program"], capture_output=True, text=True, check=False)
    assert done.returncode == 127 and "/nonexistent/program" in done.stderr
    killed = subprocess.run([flatout, "heap", "--quiet", "--out", str(tmp_path / "killed"), "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"],
                            capture_output=True, text=True, check=False)
    assert killed.returncode == 128 + signal.SIGKILL


def fields(data):
    """(field, value) of a protobuf message: ints, and bytes of what is nested."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 2:
            size = varint()
            yield key >> 3, data[at:at + size]
            at += size
        else:
            assert key & 7 == 0
            yield key >> 3, varint()


def packed(data):
    return [value for _, value in fields(b"".join(b"\x08" + part for part in split_varints(data)))]


def split_varints(data):
    part = b""
    for byte in data:
        part += bytes([byte])
        if byte < 0x80:
            yield part
            part = b""


def test_the_profile_for_pprof_says_the_same(flatout, tmp_path):
    source = write(tmp_path, "exact.cpp", EXACT)
    got, _, text = heap(flatout, tmp_path, "--full", "--", compiled(tmp_path, source))
    data = gzip.decompress((tmp_path / "run" / "heap.pb.gz").read_bytes())
    assert "heap.pb.gz" in text
    profile = list(fields(data))
    strings = [value.decode() for field, value in profile if field == 6]
    assert strings[0] == ""
    types = [strings[dict(fields(value))[1]] for field, value in profile if field == 1]
    assert types == ["inuse_objects", "inuse_space", "peak_space", "alloc_objects", "alloc_space"]
    functions = {m[1]: (strings[m[2]], strings[m.get(4, 0)]) for m in (dict(fields(v)) for f, v in profile if f == 5)}
    locations = {}
    for location in (dict(fields(v)) for f, v in profile if f == 4):
        line = dict(fields(location[4]))
        locations[location[1]] = (functions[line[1]][1], line.get(2, 0))
    totals = [0] * 5
    kept = 0
    for sample in (dict(fields(v)) for f, v in profile if f == 2):
        values = packed(sample[2])
        totals = [a + b for a, b in zip(totals, values, strict=True)]
        places = [locations[i] for i in packed(sample[1])]
        if any(Path(file).name == "exact.cpp" and line == line_of(source, "// KEPT") for file, line in places):
            kept += values[1]
    assert kept == 1_000_000
    assert totals[1] == got["live_bytes"] and totals[2] == got["peak_bytes"]
    assert totals[4] == sum(s["allocated_bytes"] for s in got["sites"])
    # And so does the flame graph, whose widths are shares of the peak.
    frames = [f.attrib for f in xml.etree.ElementTree.parse(tmp_path / "run" / "heap.svg").iter("{http://www.w3.org/2000/svg}g")]
    share = sum(float(f["data-w"]) for f in frames if f["data-n"].endswith(f"(exact.cpp:{line_of(source, '// KEPT')})"))
    assert share == pytest.approx(1_000_000 / got["peak_bytes"], abs=0.001)


def test_bad_usage_says_the_way_out(flatout):
    done = subprocess.run([flatout, "heap"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "flatout heap" in done.stderr
    done = subprocess.run([flatout, "heap", "--leak", "--", "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--leaks" in done.stderr


REQUESTS = """
    #include <dlfcn.h>
    #include <stdlib.h>
    #include <unistd.h>
    #include <sys/wait.h>
    __attribute__((noinline)) extern "C" void *take(size_t n) { void *p = malloc(n); asm volatile("" ::"r"(p)); return p; }
    int main() {
      auto mark = (void (*)())dlsym(RTLD_DEFAULT, "flatout_malloc_mark_step");
      void *kept = take(3000000);
      take(999);
      for (int i = 0; i < 3; ++i) {
        mark();
        void *a = take(2000000), *b = take(1000000 + i);
        free(a);
        b = realloc(b, 5000000);
        free(b);
      }
      int pid = fork();
      if (pid == 0) { free(kept); free(take(7000000)); _exit(0); }
      waitpid(pid, nullptr, 0);
    }
"""


def test_each_large_request_is_recorded_as_it_was(flatout, tmp_path):
    program = compiled(tmp_path, write(tmp_path, "requests.cpp", REQUESTS))
    heap(flatout, tmp_path, "--record=t.jsonl", "--", program, env={"FLATOUT_MALLOC_RECORD_LEAST": "1000000"})
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert lines[0]["name"] == "program"
    assert all(line["site"].startswith(("program+0x", "take+0x")) for line in lines if "size" in line)
    events = [(line["op"], line.get("size", line.get("id"))) for line in lines[1:]]
    step = [("mark", None), ("a", 2000000), ("a", 1000000), ("f", 2), ("a", 5000000), ("f", 3), ("f", 4)]
    assert events[:8] == [("a", 3000000), *step]
    assert events[8:15] == [("mark", None), ("a", 2000000), ("a", 1000001), ("f", 5), ("a", 5000000), ("f", 6), ("f", 7)]
    # A forked child has a file of its own, without its parent's blocks.
    child = [json.loads(line) for path in tmp_path.glob("t.jsonl.*") for line in path.read_text().splitlines()]
    assert [(line["op"], line.get("size", line.get("id"))) for line in child[1:]] == [("a", 7000000), ("f", 11)]
    replayed = subprocess.run([flatout, "devmem", "replay", "--json", "t.jsonl"], cwd=tmp_path, capture_output=True, text=True, check=True)
    bound = next(r for r in json.loads(replayed.stdout) if r["policy"] == "bound")
    assert bound["peak_live_bytes"] == 3000000 + 1000002 + 5000000  # realloc has both for a moment
    refused = subprocess.run([flatout, "heap", "--record=t.jsonl", "--", program], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2 and "t.jsonl is there already" in refused.stderr


TRAINS = """
    import torch
    net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10))
    sgd = torch.optim.SGD(net.parameters(), 0.01)
    for i in range(40):
        images = torch.randn(400, 512)  # BATCH
        loss = net(images).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
"""


def test_what_pytorch_asks_for_has_its_line_and_steps(flatout, job_python, tmp_path):
    script = write(tmp_path, "trains.py", TRAINS)
    heap(flatout, tmp_path, "--record=t.jsonl", "--", job_python, script)
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    batches = [line for line in lines if line.get("size") == 400 * 512 * 4 and line.get("site", "").endswith("<module>")]
    at = f"{script}:{line_of(script, '# BATCH')} <module>"
    assert sum(line["site"] == at for line in batches) == 40
    assert 35 <= sum(line["op"] == "mark" for line in lines) <= 40
    steps = lines[next(i for i, x in enumerate(lines) if x["op"] == "mark"):]
    asked = collections.Counter(line["size"] for line in steps if line["op"] == "a")
    live, peak, sizes = 0, 0, {}
    for line in steps:
        if line["op"] == "a" and asked[line["size"]] >= 39:  # MKL's own buffers are asked for once
            sizes[line["id"]] = line["size"]
            live += line["size"]
        elif line["op"] == "f":
            live -= sizes.pop(line["id"], 0)
        peak = max(peak, live)
    # Batch, first layer's output and its gradient, and the gradients of the weights: 12.3 MB of activations and weights.
    floats = 400 * 512 + 2 * 400 * 2048 + 512 * 2048
    assert 1.0 <= peak / (4 * floats) < 1.5
