"""Real programs with libflatout_malloc.so in LD_PRELOAD behave as they do without."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FLATOUT_BIN", ROOT / "build/release/flatout"))
LIBRARY = BIN.parent / "libflatout_malloc.so"
pytestmark = [pytest.mark.parallel, pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")]


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


def compiled(folder, source, *flags, name="program", compiler="g++"):
    if shutil.which(compiler) is None:
        pytest.skip(f"lacks {compiler}")
    path = folder / f"{name}.cpp"
    path.write_text(textwrap.dedent(source))
    out = folder / name
    subprocess.run([compiler, "-std=c++17", "-O1", "-g", "-fno-builtin", "-pthread", str(path), "-o", str(out), *flags], check=True)
    return out


def test_clang_compiles_the_same(tmp_path):
    clang = shutil.which("clang++") or shutil.which("clang++-14")
    if clang is None:
        pytest.skip("lacks clang")
    source = tmp_path / "x.cpp"
    source.write_text("#include <map>\n#include <regex>\nint main() { std::map<int, std::regex> m; return int(m.size()); }\n")
    for library, name in ((None, "a.s"), (LIBRARY, "b.s")):
        done = preloaded([clang, "-std=c++17", "-O1", "-S", str(source), "-o", str(tmp_path / name)], library)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.s").read_text() == (tmp_path / "b.s").read_text()


def test_it_can_be_linked(tmp_path):
    program = compiled(tmp_path, """
        #include <flatout/malloc.h>
        #include <cstdlib>
        int main() {
          flatout_malloc_stats s{};
          void* p = std::malloc(1000);
          const bool ours = flatout_malloc_get_stats(&s, sizeof s) == 0 && s.in_use_bytes > 0;
          std::free(p);
          return ours ? 0 : 1;
        }
    """, "-I", str(ROOT / "include"), str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}")
    assert preloaded([str(program)], None).returncode == 0


EARLY = """
    #include <cstdlib>
    #include <cstring>
    static char* kept;
    extern "C" char* from_library() { return kept; }
    __attribute__((constructor(101))) static void first() { kept = strdup("made before main"); }
    __attribute__((destructor(101))) static void last() {
      // After the program's own destructors, and after those of what was loaded later.
      for (int i = 1; i < 5000; ++i) std::free(std::malloc(i * 17));
      std::free(kept);
    }
"""


def test_constructors_before_and_destructors_after_may_allocate(tmp_path):
    early = compiled(tmp_path, EARLY, "-shared", "-fPIC", name="libearly.so")
    program = compiled(tmp_path, """
        #include <cstdio>
        #include <cstdlib>
        #include <cstring>
        #include <string>
        #include <thread>
        #include <vector>
        extern "C" char* from_library();
        struct Global {
          std::vector<std::string> text{1000, std::string(100, 'x')};
          ~Global() { text.push_back(std::string(100000, 'y')); }
        } global;
        struct Local {
          std::string text = std::string(1000, 'z');
          ~Local() { text += std::string(100000, 'w'); }
        };
        thread_local Local local;
        int main() {
          std::atexit([] { std::free(std::malloc(1 << 20)); });
          for (int i = 0; i < 20; ++i) std::thread([] { local.text += 'v'; }).join();
          std::puts(from_library());
          return local.text.size() == 1000 ? 0 : 1;
        }
    """, str(early), f"-Wl,-rpath,{tmp_path}")
    # Also where that library's constructors run before ours, and where it is loaded with the program.
    for preload in (str(LIBRARY), f"{early}:{LIBRARY}", f"{LIBRARY}:{early}"):
        done = preloaded([str(program)], preload)
        assert (done.returncode, done.stdout, done.stderr) == (0, "made before main\n", ""), preload


def test_a_library_bound_to_itself_may_hand_over_the_c_librarys_memory(tmp_path):
    """RTLD_DEEPBIND: its malloc is the C library's, and the program frees what it returns."""
    compiled(tmp_path, """
        #include <cstdlib>
        #include <cstring>
        extern "C" char* make(size_t size) {
          auto* p = static_cast<char*>(std::malloc(size));
          std::memset(p, 'm', size);
          return p;
        }
    """, "-shared", "-fPIC", name="libdeep.so")
    program = compiled(tmp_path, """
        #include <dlfcn.h>
        #include <malloc.h>
        #include <cstdlib>
        #include <initializer_list>
        int main() {
          void* library = dlopen("./libdeep.so", RTLD_NOW | RTLD_DEEPBIND);
          if (library == nullptr) return 2;
          auto make = reinterpret_cast<char* (*)(size_t)>(dlsym(library, "make"));
          for (size_t size : {10, 1000, 100000, 10000000}) {
            for (int i = 0; i < 100; ++i) {
              char* p = make(size);
              if (malloc_usable_size(p) < size) return 3;
              if (i % 2 == 0) p = static_cast<char*>(std::realloc(p, size * 2));
              if (p[size - 1] != 'm') return 4;
              std::free(p);
            }
          }
        }
    """, "-ldl")
    done = preloaded([str(program)], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_signals_interrupt_it_anywhere(tmp_path):
    """Thousands of signals into threads that allocate: nothing breaks, errno stays, and none goes to a thread of ours."""
    program = compiled(tmp_path, """
        #include <pthread.h>
        #include <signal.h>
        #include <sys/time.h>
        #include <unistd.h>
        #include <atomic>
        #include <cerrno>
        #include <cstdlib>
        #include <cstring>
        #include <thread>
        #include <vector>
        std::atomic<int> seen{0}, ours{0};
        void on_signal(int) {
          char name[16] = {};
          pthread_getname_np(pthread_self(), name, sizeof name);
          if (std::strcmp(name, "flatout_malloc") == 0) ++ours;
          ++seen;
          errno = 77;  // a handler that does not keep it; the interrupted call must not read it
        }
        void work(std::atomic<bool>* stop, unsigned seed) {
          std::vector<char*> kept(200);
          for (unsigned i = seed; !*stop; ++i) {
            char*& p = kept[i * 7 % kept.size()];
            if (p != nullptr && p[0] != static_cast<char>(i * 7 % kept.size())) abort();
            std::free(p);
            const size_t size = i % 64 == 0 ? 3000000 : 1 + i * 37 % 5000;
            p = static_cast<char*>(std::malloc(size));
            p[0] = static_cast<char>(i * 7 % kept.size());
            p[size - 1] = p[0];
          }
          for (char* p : kept) std::free(p);
        }
        int main() {
          struct sigaction action {};
          action.sa_handler = on_signal;
          sigaction(SIGALRM, &action, nullptr);
          std::atomic<bool> stop{false};
          std::thread a(work, &stop, 1), b(work, &stop, 2);
          // The thread that gives memory back exists from here on.
          std::vector<char*> big;
          for (int i = 0; i < 100; ++i) big.push_back(static_cast<char*>(std::memset(std::malloc(1 << 20), 1, 1 << 20)));
          for (char* p : big) std::free(p);
          itimerval often{{0, 300}, {0, 300}};
          setitimer(ITIMER_REAL, &often, nullptr);
          while (seen < 3000) std::free(std::malloc(100));
          itimerval never{};
          setitimer(ITIMER_REAL, &never, nullptr);
          stop = true;
          a.join();
          b.join();
          return ours == 0 ? 0 : 1;
        }
    """)
    done = preloaded([str(program)])
    assert (done.returncode, done.stderr) == (0, "")


def test_without_memory_every_call_says_so_and_the_process_goes_on(tmp_path):
    program = compiled(tmp_path, """
        #include <malloc.h>
        #include <sys/resource.h>
        #include <cerrno>
        #include <cstdio>
        #include <cstdlib>
        #include <cstring>
        #include <new>
        #include <vector>
        // Takes blocks until there are no more; they are touched, and freed again.
        bool runs_out(size_t size) {
          void* first = nullptr;
          for (;;) {
            errno = 0;
            void** p = static_cast<void**>(std::malloc(size));
            if (p == nullptr) break;
            std::memset(p, 1, size < 4096 ? size : 4096);
            *p = first;
            first = p;
          }
          const bool right = errno == ENOMEM;
          errno = 0;
          const bool calloc_right = std::calloc(1, size) == nullptr && errno == ENOMEM;
          void* other = nullptr;
          const bool aligned_right = posix_memalign(&other, 64, size) == ENOMEM && other == nullptr;
          bool threw = false;
          try {
            ::operator delete(::operator new(size));
          } catch (const std::bad_alloc&) {
            threw = true;
          }
          const bool grows = first != nullptr && std::realloc(first, size_t{1} << 32) == nullptr && errno == ENOMEM;
          while (first != nullptr) {
            void* next = *static_cast<void**>(first);
            std::free(first);
            first = next;
          }
          std::printf("%zu: %d %d %d %d %d\\n", size, right, calloc_right, aligned_right, threw, grows);
          return right && calloc_right && aligned_right && threw && grows;
        }
        int main() {
          bool good = true;
          for (int round = 0; round < 2; ++round) {
            for (size_t size : {size_t{48}, size_t{4000}, size_t{60000}, size_t{3000000}}) good = runs_out(size) && good;
          }
          for (int i = 0; i < 100; ++i) std::free(std::malloc(1000000));
          return good ? 0 : 1;
        }
    """)
    for limit in (400_000, 2_000_000):  # KiB of addresses
        done = preloaded(["sh", "-c", f"ulimit -v {limit}; exec {program}"])
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_process_that_sleeps_gives_memory_back(tmp_path):
    program = compiled(tmp_path, """
        #include <unistd.h>
        #include <cstdio>
        #include <cstdlib>
        #include <cstring>
        #include <vector>
        long resident_kib() {
          long pages = 0, resident = 0;
          FILE* f = fopen("/proc/self/statm", "r");
          if (fscanf(f, "%ld %ld", &pages, &resident) != 2) abort();
          fclose(f);
          return resident * 4;
        }
        int main() {
          std::vector<char*> p((size_t{200} << 20) / 64);
          const long before = resident_kib();  // what a round leaves counts against the next, too
          for (size_t size : {size_t{64}, size_t{1} << 20}) {
            const size_t count = (size_t{200} << 20) / size;
            for (size_t i = 0; i < count; ++i) memset(p[i] = static_cast<char*>(malloc(size)), 1, size);
            const long high = resident_kib();
            if (high - before < 200 * 1024) return 2;
            for (size_t i = 0; i < count; ++i) free(p[i]);
            int waited = 0;  // 2 s is the rule; a loaded machine may take longer
            while (resident_kib() - before > (high - before) / 20 && ++waited < 200) usleep(100000);
            if (waited == 200) return printf("%zu: %ld of %ld KiB\\n", size, resident_kib() - before, high - before), 1;
          }
        }
    """)
    done = preloaded([str(program)])
    assert done.returncode == 0, done.stdout


def test_a_forked_child_writes_a_heap_profile_of_its_own(tmp_path):
    done = preloaded([sys.executable, "-c", "import os, sys\nx = [bytes(1000) for _ in range(20000)]\n"
                      "pid = os.fork()\nif pid == 0: sys.exit(0)\nos.waitpid(pid, 0)"], env={"FLATOUT_MALLOC_PROFILE": str(tmp_path / "heap.%p")})
    assert done.returncode == 0
    assert len(list(tmp_path.glob("heap.*"))) == 2


def test_a_jvm_starts(tmp_path):
    if shutil.which("java") is None:
        pytest.skip("lacks java")
    done = preloaded(["java", "-version"])
    assert done.returncode == 0, done.stderr


def test_redis_answers(tmp_path):
    # One program under several names; Debian's redis-tools has it without a service that starts.
    program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if program is None:
        pytest.skip("lacks redis")
    (tmp_path / "redis-server").symlink_to(program)
    socket, said = tmp_path / "redis.sock", tmp_path / "said"
    env = {**os.environ, "LD_PRELOAD": str(LIBRARY), "FLATOUT_MALLOC_STATS": "1"}
    command = [str(tmp_path / "redis-server"), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(tmp_path)]
    with said.open("w") as errors, subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=errors) as server:
        try:
            deadline = time.monotonic() + 60
            while not socket.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            done = subprocess.run(["redis-benchmark", "-s", str(socket), "-n", "20000", "-q", "-t", "set,get,lpush,sadd,zadd"],
                                  capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0 and "SET" in done.stdout, done.stderr
            assert server.poll() is None
        finally:
            server.terminate()
        assert server.wait(30) == 0
    in_use = int(re.search(r"in use (\d+) B", said.read_text())[1])
    assert in_use > 1_000_000, "the benchmark's keys and lists are in this allocator"
