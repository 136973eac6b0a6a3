#include "diagnose/stacks.h"

#include <algorithm>
#include <array>

#include "base/contains.h"
#include "diagnose/blame.h"
#include "model/source_files.h"

namespace flatout::diagnose {
namespace {

using model::FrameKind;
using model::Run;

bool ends(std::string_view text, std::string_view tail) { return text.ends_with(tail); }

// Folders of libraries that a training job is built on, wherever they were installed or built.
constexpr std::array<std::string_view, 13> kLibraryFolders = {"/torch/nn/",
                                                              "/torch/utils/",
                                                              "/torch/optim/",
                                                              "/torch/autograd/",
                                                              "/torch/_",
                                                              "/torchvision/",
                                                              "/torchaudio/",
                                                              "/numpy/",
                                                              "/PIL/",
                                                              "/cv2/",
                                                              "/tensorflow/",
                                                              "/keras/",
                                                              "/lightning/pytorch"};

/// Source that a library wrote: AutoGraph's of a tf.function, TorchInductor's and Triton's kernels.
bool is_generated(std::string_view file) {
  return contains(file, "/__autograph_generated_file") || contains(file, "/torchinductor_") ||
         contains(file, "/.triton/cache/");
}

bool in_stdlib(std::string_view file) {
  const size_t at = file.find("/lib/python3");
  if (at != std::string_view::npos) return true;
  return file.starts_with("/usr/lib/") || file.starts_with("/lib/") ||
         contains(file, "/lib64/python3");
}

/// "genericpath.py" of ".../genericpath.py" and of "<frozen genericpath>" (3.11 and later).
std::string module_file(std::string_view file) {
  constexpr std::string_view kFrozen = "<frozen ";
  if (file.starts_with(kFrozen) && file.ends_with('>')) {
    file = file.substr(kFrozen.size(), file.size() - kFrozen.size() - 1);
    return std::string(file.substr(file.rfind('.') + 1)) + ".py";
  }
  return std::string(file.substr(file.rfind('/') + 1));
}

/// The functions through which Keras, TensorFlow and Orbax save.
bool saves_model(std::string_view function, std::string_view file) {
  static constexpr std::array<std::string_view, 7> kFolders = {
      "/keras/src/saving/",
      "/keras/saving/",
      "/keras/src/models/model.py",
      "/tensorflow/python/checkpoint/",
      "/tensorflow/python/saved_model/",
      "/tensorflow/python/training/saver.py",
      "/orbax/checkpoint/"};
  return (contains(function, "save") || function == "write") && contains_any(file, kFolders);
}

Traits python_traits(std::string_view function, std::string_view file, bool generator) {
  Traits traits = 0;
  const std::string base = module_file(file);
  if (base == "subprocess.py" || base == "popen_fork.py" || base == "popen_spawn_posix.py" ||
      (base == "os.py" && (function == "popen" || function.starts_with("spawn")))) {
    traits |= kInSubprocess;
  }
  if (ends(file, "_utils/collate.py") ||
      (contains(function, "collate") && model::is_installed(file))) {
    traits |= kInCollate;
  }
  if (contains(file, "/multiprocessing/") || contains(file, "/torch/multiprocessing/")) {
    const bool over_pipe =
        base == "connection.py" && (contains(function, "send") || contains(function, "recv"));
    const bool of_pool = base == "pool.py" && function.starts_with("_handle_");
    if (over_pipe || of_pool || base == "queues.py" || base == "reductions.py" ||
        base == "reduction.py" || base == "resource_sharer.py") {
      traits |= kInQueue;
    }
    if (base == "resource_sharer.py" || function.starts_with("rebuild_")) traits |= kTakesOver;
    if (base == "process.py" && function == "start") traits |= kInSpawn;
    if (base == "process.py" && function == "_bootstrap") traits |= kInChild;
  }
  if (ends(file, "concurrent/futures/process.py") && function == "run") traits |= kInQueue;
  if (base == "tarfile.py" && (function == "next" || function == "_load" || function == "open" ||
                               contains(function, "getmember") || function == "fromtarfile" ||
                               contains(function, "_proc_") || function == "__init__" ||
                               function == "_getmember" || function == "__iter__")) {
    traits |= kInArchive;
  }
  if (base == "zipfile.py" || contains(file, "/zipfile/")) {
    if (contains(function, "GetContents") || function == "seek" || contains(function, "EndRec")) {
      traits |= kInArchive;
    }
  }
  if ((base == "gzip.py" || base == "_compression.py" || base == "bz2.py" || base == "lzma.py" ||
       base == "_streams.py") &&
      (function == "seek" || function == "rewind" || function == "_rewind")) {
    traits |= kInArchive;
  }
  if (base == "genericpath.py" || base == "glob.py" || base == "fnmatch.py" ||
      (base == "posixpath.py" &&
       (contains(function, "realpath") || function == "lexists" || function == "ismount")) ||
      (base == "os.py" && (function == "walk" || function == "listdir" || function == "scandir" ||
                           function == "_walk")) ||
      ((base == "pathlib.py" || contains(file, "/pathlib/")) &&
       (function == "stat" || function == "exists" || contains(function, "glob") ||
        function.starts_with("is_") || function == "iterdir" || function == "resolve" ||
        contains(function, "_select")))) {
    traits |= kInMetadata;
  }
  const bool as_text = (function == "savetxt" && contains(file, "/numpy/")) ||
                       (function == "dump" && ends(file, "/json/__init__.py"));
  if (as_text) traits |= kInText;
  if ((model::in_logging_library(file) && !model::hands_out_items(function, generator)) ||
      ends(file, "torch/_tensor_str.py") || as_text || contains(file, "/pandas/io/formats/")) {
    traits |= kInLogging;
  }
  if ((ends(file, "torch/serialization.py") && contains(function, "save")) ||
      (contains(function, "savez") && contains(file, "/numpy/")) ||
      (contains(function, "save_checkpoint") && model::is_installed(file)) ||
      (model::in_package(file, "safetensors") && contains(function, "save")) ||
      saves_model(function, file) ||
      (function == "write" && in_stdlib(file) &&
       (base == "gzip.py" || base == "bz2.py" || base == "lzma.py"))) {
    traits |= kInSave;
  }
  if (contains(file, "/torch/autograd/") &&
      (function == "grad" || function == "backward" || function == "_engine_run_backward")) {
    traits |= kInGradient;
  }
  if (base == "distributed_c10d.py" || base == "_functional_collectives.py" ||
      contains(function, "broadcast_coalesced") ||
      (contains(file, "/torch/autograd/") &&
       (function == "backward" || function == "_engine_run_backward"))) {
    traits |= kInCollective;
  }
  if (ends(file, "torch/_dynamo/convert_frame.py") || ends(file, "_inductor/compile_fx.py") ||
      (base == "tracing_compilation.py" && contains(function, "create_concrete_function")) ||
      (contains(file, "/jax/_src/") &&
       (function == "compile_or_get_cached" || function.starts_with("trace_to_jaxpr")))) {
    traits |= kInCompile;
  }
  if ((function == "fit" || function == "evaluate" || function == "predict") &&
      contains(file, "/keras/") && (base == "trainer.py" || base == "training.py")) {
    traits |= kInFit;
  }
  if (contains(file, "/torch/utils/data/")) {
    traits |= kInLoader;
    if (base == "worker.py" && function == "_worker_loop") traits |= kInWorkerLoop;
    if (base == "fetch.py") traits |= kInFetch;
  }
  return traits;
}

/// What PyTorch's fetcher calls is the data set's own method, a generator, or the collate function.
bool is_collate_function(const Run& run, const model::Frame& caller, const model::Frame& callee) {
  const std::string_view function = run.string(callee.function);
  return ends(run.string(caller.file), "torch/utils/data/_utils/fetch.py") &&
         run.string(caller.function) == "fetch" && callee.kind != FrameKind::kGenerator &&
         function != "__getitem__" && function != "__getitems__" && !function.starts_with('<');
}

/// The C library's calls that look files up: "__fstatat64" is "fstatat".
bool is_lookup(std::string_view function) {
  static constexpr std::array<std::string_view, 14> kCalls = {
      "stat",    "lstat",   "fstat",   "fstatat", "statx",  "access",   "faccessat",
      "opendir", "readdir", "scandir", "open",    "openat", "readlink", "getdents"};
  while (function.starts_with('_')) function.remove_prefix(1);
  if (function.ends_with("64")) function.remove_suffix(2);
  return std::find(kCalls.begin(), kCalls.end(), function) != kCalls.end();
}

/// The C library's other calls: those that enter the kernel, and copies of memory
/// ("__memmove_avx_unaligned_erms" is memmove). The kernel's own page in each process holds clocks.
bool is_other_call(std::string_view function) {
  static constexpr std::array<std::string_view, 28> kCalls = {"[vdso]",       "vdso",
                                                              "memmove",      "memcpy",
                                                              "memset",       "clock_gettime",
                                                              "getrusage",    "futex",
                                                              "pthread_cond", "sem_",
                                                              "poll",         "epoll",
                                                              "select",       "recv",
                                                              "send",         "mmap",
                                                              "munmap",       "madvise",
                                                              "mprotect",     "mremap",
                                                              "brk",          "ioctl",
                                                              "sched_yield",  "write",
                                                              "nanosleep",    "clock_nanosleep",
                                                              "fsync",        "fork"};
  while (function.starts_with('_')) function.remove_prefix(1);
  return std::any_of(kCalls.begin(), kCalls.end(),
                     [&](std::string_view call) { return function.starts_with(call); });
}

NativeCall call_of(std::string_view function) {
  return is_lookup(function)       ? NativeCall::kLookup
         : is_other_call(function) ? NativeCall::kOther
                                   : NativeCall::kUnclear;
}

bool is_mpi(std::string_view function) {
  return function.starts_with("MPI_") || function.starts_with("PMPI_");
}

/// How a thread without Python waits for a lock; waits for a condition have names of their own.
bool locks_mutex(std::string_view function) {
  return contains(function, "pthread_mutex_lock") ||
         contains(function, "pthread_mutex_timedlock") || contains(function, "pthread_rwlock_");
}

/// What may lie between a Python line that takes a lock and the kernel: the interpreter's own calls
/// are not part of a stack, so it is the C library, and multiprocessing's lock.
bool takes_lock(std::string_view function, std::string_view file) {
  if (contains(function, "pthread_cond")) return false;
  const std::string_view base = file.substr(file.rfind('/') + 1);
  return base.starts_with("libc.") || base.starts_with("libc-") || base.starts_with("libpthread") ||
         base.starts_with("ld-musl") || contains(function, "SemLock") ||
         contains(function, "PyThread_acquire_lock") || contains(function, "PyMutex_Lock");
}

/// What a futex that is waited for in `frame` is, where `above` is what its caller says.
FutexWait wait_in(const Run& run, model::FrameId frame, Owner owner, FutexWait above) {
  const model::Frame& f = run.frames[frame];
  const std::string_view function = run.string(f.function), file = run.string(f.file);
  switch (f.kind) {
    case FrameKind::kPython:
    case FrameKind::kGenerator:
      if (owner != Owner::kLibrary) return FutexWait::kUnseen;
      return function == "__enter__" && ends(file, "multiprocessing/synchronize.py")
                 ? FutexWait::kMutex
                 : FutexWait::kOther;
    case FrameKind::kUnderPython:
      if (above == FutexWait::kOther || above == FutexWait::kNotAtLine) return above;
      if (takes_lock(function, file)) return FutexWait::kMutex;
      return FutexWait::kNotAtLine;
    case FrameKind::kNative:
      break;
  }
  return locks_mutex(function) ? FutexWait::kMutex : above;
}

/// Takes a lock or releases it. (In a wait for a condition that happens, too, but hardly shows.)
bool at_lock(std::string_view function) {
  static constexpr std::array<std::string_view, 6> kCalls = {"mutex_lock",    "mutex_unlock",
                                                             "lll_lock_w",    "pthread_rwlock_",
                                                             "GOMP_critical", "kmpc_critical"};
  static constexpr std::array<std::string_view, 4> kClasses = {
      "std::mutex::", "std::lock_guard<", "std::unique_lock<", "std::scoped_lock<"};
  return contains_any(function, kCalls) ||
         std::ranges::any_of(kClasses,
                             [&](std::string_view name) { return function.starts_with(name); });
}

Traits native_traits(std::string_view function) {
  static constexpr std::array<std::string_view, 8> kSpin = {
      model::kSpinWaitFrame, "gomp_barrier",  "gomp_team_barrier",  "do_spin", "do_wait",
      "__kmp_wait",          "__kmp_barrier", "__kmp_hyper_barrier"};
  static constexpr std::array<std::string_view, 9> kMalloc = {
      "malloc",    "_int_free", "cfree",        "calloc",         "realloc",
      "arena_get", "tcache",    "operator new", "operator delete"};
  Traits traits = 0;
  if (contains_any(function, kSpin)) traits |= kInSpin;
  if (contains_any(function, kMalloc) || function == "free") traits |= kInMalloc;
  if (model::writes_stream(function)) traits |= kInText;
  if (at_lock(function)) traits |= kInMutex;
  if (model::parses_text(function)) traits |= kInParser;
  if (is_mpi(function) || function.starts_with("gloo::") || function.starts_with("ncclAll")) {
    traits |= kInCollective;
  }
  return traits;
}

/// The function through which PyTorch calls a module: its hooks, and forward().
bool calls_module(const Run& run, const model::Frame& f) {
  const std::string_view function = run.string(f.function);
  return (function == "inner" || function == "_call_impl") &&
         ends(run.string(f.file), "torch/nn/modules/module.py");
}

/// Whether it is a module's forward(), or leads to one: one that was replaced often has "forward"
/// in its name.
bool is_forward(const Run& run, const model::Frame& f) {
  return contains(run.string(f.function), "forward") || calls_module(run, f);
}

// The folder that holds the job's own code where it is installed as a package: that of the
// outermost frame that is not a launcher's.
std::string project_folder(const Run& run) {
  const model::Process* main = run.main_process();
  if (main == nullptr) return {};
  std::string_view command = main->command;
  while (!command.empty()) {
    const size_t blank = command.find(' ');
    const std::string_view word = command.substr(0, blank);
    command = blank == std::string_view::npos ? std::string_view() : command.substr(blank + 1);
    if (!ends(word, ".py")) continue;
    const size_t slash = word.rfind('/');
    if (slash == std::string_view::npos || !contains(word, "-packages/")) return {};
    return std::string(word.substr(0, slash + 1));
  }
  return {};
}

bool in_system(std::string_view file) {
  return file.empty() || file.front() == '[' || file.starts_with("/usr/") ||
         file.starts_with("/lib") || contains(file, ".so") ||
         ends(file, "flatout/marker.h");  // ours, wherever the job has it
}

}  // namespace

Owner owner_of(std::string_view file, std::string_view project) {
  if (!project.empty() && file.starts_with(project)) return Owner::kUser;
  if (file.empty() || file == "~" || model::is_agent(file)) return Owner::kLibrary;
  if (is_generated(file)) return Owner::kLibrary;
  if (file.front() == '<') {
    return file.starts_with("<ipython") || file == "<stdin>" ? Owner::kUser : Owner::kLibrary;
  }
  const bool installed = model::is_installed(file);
  if (contains_any(file, kLibraryFolders)) {
    // A user's own folder may bear such a name; a library's lies in an installation or its root.
    return installed || contains(file, "/torch/") ? Owner::kLibrary : Owner::kUser;
  }
  if (installed) return contains(file, "/torch/") ? Owner::kLibrary : Owner::kPackage;
  return in_stdlib(file) ? Owner::kLibrary : Owner::kUser;
}

/// What a frame adds to the stacks that it is in.
struct StackIndex::FrameFacts {
  Owner owner = Owner::kLibrary;
  Traits traits = 0;
  NativeCall call = NativeCall::kUnseen;
  bool event_loop = false;
  bool runs_graph = false;  // calls what TensorFlow compiled
  bool mpi = false;
};

StackIndex::StackIndex(const Run& run) : run_(run), known_(run.stacks.size()) {
  if (known_.empty()) known_.resize(1);
  known_[0].done = true;
  awaited_ = setting_line(run, "asyncio.waits_at");
  // Worked out once: there are far fewer frames than stacks.
  const std::vector<FrameFacts> facts = look_at_frames();
  for (const FrameFacts& f : facts) owners_.push_back(f.owner);
  std::vector<model::StackId> chain;
  for (model::StackId stack = 1; stack < run.stacks.size(); ++stack) {
    chain.clear();
    model::StackId at = stack;
    while (at < known_.size() && !known_[at].done && chain.size() < 4096) {
      known_[at].done = true;  // also what ends a cycle
      chain.push_back(at);
      at = run.stacks[at].parent;
    }
    Known above = at < known_.size() ? known_[at] : Known{};
    for (size_t i = chain.size(); i-- > 0;)
      above = known_[chain[i]] = below(above, chain[i], facts);
  }
}

std::vector<StackIndex::FrameFacts> StackIndex::look_at_frames() const {
  const std::string project = project_folder(run_);
  const bool python = std::ranges::any_of(
      run_.frames, [](const model::Frame& f) { return is_python(f.kind) && f.function != 0; });
  std::vector<FrameFacts> out(run_.frames.size());
  for (size_t i = 1; i < run_.frames.size(); ++i) {
    const model::Frame& f = run_.frames[i];
    const std::string_view file = run_.string(f.file), function = run_.string(f.function);
    FrameFacts& facts = out[i];
    if (is_python(f.kind)) {
      facts.owner = owner_of(file, project);
      facts.traits =
          python_traits(function, file, f.kind == FrameKind::kGenerator) | Traits{kHasPython};
      facts.event_loop = function == "run_until_complete" && ends(file, "asyncio/base_events.py");
      facts.runs_graph =
          function == "__call__" && ends(file, "polymorphic_function/polymorphic_function.py");
      continue;
    }
    facts.mpi = is_mpi(function);
    if (f.kind == FrameKind::kUnderPython) {  // no traits, and a library's
      facts.call = call_of(function);
      continue;
    }
    // Native lines are to blame only in native jobs: under Python the Python line is the user's.
    facts.owner = in_system(file) || python ? Owner::kLibrary : Owner::kUser;
    facts.traits = native_traits(function);
  }
  return out;
}

/// A stack, of what is known of the one that it is called from.
StackIndex::Known StackIndex::below(const Known& above, model::StackId stack,
                                    const std::vector<FrameFacts>& all) {
  const model::FrameId frame = run_.stacks[stack].frame;
  Known node = above;
  node.done = true;
  if (frame >= all.size()) return node;
  const FrameFacts& facts = all[frame];
  const model::Frame& called = run_.frames[frame];
  const model::FrameId caller_id = run_.stacks[run_.stacks[stack].parent].frame;
  const model::Frame* caller = caller_id < run_.frames.size() ? &run_.frames[caller_id] : nullptr;
  // A forked process keeps the stack of the one that started it.
  if ((facts.traits & kInChild) != 0) node = Known{.done = true};
  node.traits |= facts.traits;
  node.call = facts.call;
  node.futex = wait_in(run_, frame, facts.owner, above.futex);
  if (node.futex == FutexWait::kUnseen) node.line = frame;
  node.mpi |= facts.mpi;
  if (facts.runs_graph) node.traits &= ~Traits{kInFit};
  if (facts.event_loop && node.user != 0) event_loops_.insert(node.user);
  const bool python = is_python(called.kind);
  if (python && caller != nullptr && is_collate_function(run_, *caller, called)) {
    node.traits |= kInCollate;
  }
  const bool own = facts.owner != Owner::kLibrary;
  if (python && is_forward(run_, called)) {
    node.traits &= ~Traits{kInHook};
  } else if (own && caller != nullptr && calls_module(run_, *caller)) {
    node.traits |= kInHook;
  }
  if (facts.owner == Owner::kUser) node.user = frame;
  if (facts.owner == Owner::kPackage) node.package = frame;
  if (own && called.kind == FrameKind::kGenerator) node.generator = frame;
  return node;
}

model::Where StackIndex::where(model::FrameId frame) const {
  if (frame == 0 || frame >= run_.frames.size()) return {};
  if (awaited_ && event_loops_.contains(frame)) return *awaited_;
  const model::Frame& f = run_.frames[frame];
  return {std::string(run_.string(f.file)), f.line, std::string(run_.string(f.function))};
}

}  // namespace flatout::diagnose
