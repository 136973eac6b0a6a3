#include "remedy/catalogue.h"

#include <algorithm>

namespace flatout::remedy {
namespace {

constexpr double kWaitsForInput = 0.1;  // of a step

bool always(const Situation&) { return true; }
bool has_torch(const Situation& s) { return s.torch; }
bool is_free_threaded(const Situation& s) { return s.free_threaded; }
bool has_workers(const Situation& s) { return s.workers > 0; }
bool has_torch_workers(const Situation& s) { return s.torch && s.workers > 0; }
bool has_feed(const Situation& s) { return s.torch && s.feeding > 0 && s.cores > 1; }
bool wants_workers(const Situation& s) { return s.loader && s.workers < s.cores; }
bool wants_more_workers(const Situation& s) { return s.loader && s.workers < 2 * s.cores; }
// Where loader workers are to have cores of their own, that is one of the numbers tried already.
bool has_cores_to_leave(const Situation& s) {
  return s.cores > 1 && (!has_torch_workers(s) || s.cores - s.workers > 1);
}
bool has_loader(const Situation& s) { return s.loader; }
bool has_gpu_loader(const Situation& s) { return s.loader && s.gpu; }
bool has_allocator(const Situation& s) { return s.allocator; }
bool has_arena_limit(const Situation& s) { return s.arenas; }
bool uses_pillow(const Situation& s) { return s.pillow; }
bool decodes_pictures(const Situation& s) { return s.pillow || s.opencv; }
bool reads_pictures(const Situation& s) { return s.pictures; }
bool may_be_pinned(const Situation& s) { return s.torch && s.cores < s.online_cores; }
bool may_weigh(const Situation& s) { return s.may_weigh; }
bool has_gpu(const Situation& s) { return s.torch && s.gpu; }
bool has_device_pools(const Situation& s) { return has_gpu(s) && s.devmem; }
bool forks_safely(const Situation& s) { return s.torch && s.workers > 0 && !s.gpu; }
bool has_convolutions(const Situation& s) { return s.torch && s.convolutions > 0; }
bool has_norms_on_cpu(const Situation& s) { return s.torch && s.norms > 0 && !s.gpu && s.fuses; }
bool has_gpu_convolutions(const Situation& s) { return has_gpu(s) && s.convolutions > 0; }
// Below a tenth of the step there is nothing in it to win that could be told.
bool has_heavy_optimizer(const Situation& s) { return s.torch && s.optimizer_share >= 0.1; }

const std::vector<Remedy>& rows() {
  static const std::vector<Remedy> kRows = {
      {.id = "affinity",
       .what = "all {online} cores allowed",
       .effect = Effect::kEquivalent,  // more threads: sums in another order
       .answers = {"cpu.affinity", "cpu.oversubscribed"},
       .fits = may_be_pinned,
       .agent = {{"affinity", ""}},
       .code = "os.sched_setaffinity(0, range({online}))"},
      {.id = "threads",
       .what = "{cores} threads, one in each loader worker",
       .effect = Effect::kEquivalent,  // sums in another order
       .answers = {"cpu.oversubscribed", "cpu.throttled"},
       .fits = always,
       .environment = {{"OMP_NUM_THREADS", "{cores}"},
                       {"MKL_NUM_THREADS", "{cores}"},
                       {"OPENBLAS_NUM_THREADS", "{cores}"},
                       {"TF_NUM_INTRAOP_THREADS", "{cores}"}},
       .agent = {{"threads", "{cores}"}},
       .code = "torch.set_num_threads({cores})"},
      {.id = "feed",
       .what = "flatout.feed in place of the DataLoader over pictures",
       .effect = Effect::kEquivalent,  // other random draws
       .answers = {"input.decode_cpu", "input.too_few_workers", "input.collate",
                   "input.small_files", "input.worker_skew", "input.worker_restart"},
       .fits = reads_pictures,
       .agent = {{"feed", ""}},
       .code = "flatout.feed.Loader(FOLDER, batch_size, transform=transform)  # for DataLoader",
       .risk = "crops, flips and the order of samples are drawn otherwise"},
      {.id = "keep_decoded",
       .what = "decoded pictures kept in memory, for the next epoch",
       .answers = {"input.decode_cpu"},
       .fits = decodes_pictures,
       .agent = {{"keep_decoded", ""}},
       .risk = "memory that was free holds the pictures, some seven times the size of their files"},
      {.id = "scaled_decode",
       .what = "JPEG files decoded near the size that is needed",
       .effect = Effect::kEquivalent,  // pixels of another filter
       .answers = {"input.decode_cpu"},
       .fits = uses_pillow,
       .agent = {{"scaled_decode", ""}},
       .code = "image.draft(\"RGB\", size)  # before convert() and resize()",
       .risk = "pixels differ as those of two resampling filters do"},
      {.id = "keep_cache",
       .what = "files stay in the page cache",
       .answers = {"input.cold_cache", "input.disk"},
       .fits = has_torch,
       .agent = {{"keep_cache", ""}},
       .code = "no os.posix_fadvise(..., os.POSIX_FADV_DONTNEED) on files that are read again"},
      {.id = "warm_cache",
       .what = "files read into memory before their turn comes, where all fit",
       .answers = {"input.cold_cache", "input.disk", "input.random_seek"},
       .fits = has_torch,
       .agent = {{"warm_cache", ""}},
       .shell = "flatout cache warm FOLDER  # of the data, before the job starts",
       .risk = "gains until every file was read once; memory that was free holds files"},
      {.id = "gil_off",
       .what = "Python's lock left off, which an extension switched on",
       .effect = Effect::kChanging,  // threads race where the extension is not safe
       .answers = {"input.gil"},
       .fits = is_free_threaded,
       .environment = {{"PYTHON_GIL", "0"}},
       .risk = "the extension has not declared that it is safe without the lock"},
      {.id = "num_workers",
       .what = "{cores} loader workers",
       .effect = Effect::kEquivalent,  // random draws in other processes
       .answers = {"input.too_few_workers", "input.decode_cpu", "input.collate", "input.gil",
                   "input.small_files", "input.disk", "input.random_seek", "stall.idle_wait"},
       .fits = wants_workers,
       .agent = {{"num_workers", "{cores}"}, {"persistent_workers", ""}},
       .code = "DataLoader(..., num_workers={cores}, persistent_workers=True)",
       .risk = "each worker holds a copy of the data set object"},
      {.id = "more_workers",
       .what = "{twice} loader workers, for reads that wait",
       .effect = Effect::kEquivalent,
       .answers = {"input.too_few_workers", "input.disk", "input.small_files", "input.random_seek",
                   "stall.idle_wait"},
       .fits = wants_more_workers,
       .agent = {{"num_workers", "{twice}"}, {"persistent_workers", ""}},
       .code = "DataLoader(..., num_workers={twice}, persistent_workers=True)",
       .risk = "each worker holds a copy of the data set object"},
      {.id = "threads_beside_workers",
       .what = "{spare} threads, the cores that loader workers leave",
       .effect = Effect::kEquivalent,
       .answers = {"cpu.oversubscribed", "cpu.throttled", "input.decode_cpu"},
       .fits = has_torch_workers,
       .environment = {{"OMP_NUM_THREADS", "{spare}"},
                       {"MKL_NUM_THREADS", "{spare}"},
                       {"OPENBLAS_NUM_THREADS", "{spare}"}},
       .agent = {{"threads", "{spare}"}},
       .code = "torch.set_num_threads({spare})"},
      {.id = "one_thread",
       .what = "one thread",
       .effect = Effect::kEquivalent,
       .answers = {"cpu.oversubscribed"},
       .fits = has_cores_to_leave,
       .environment = {{"OMP_NUM_THREADS", "1"},
                       {"MKL_NUM_THREADS", "1"},
                       {"OPENBLAS_NUM_THREADS", "1"},
                       {"TF_NUM_INTRAOP_THREADS", "1"}},
       .agent = {{"threads", "1"}},
       .code = "torch.set_num_threads(1)"},
      {.id = "persistent_workers",
       .what = "loader workers kept between epochs",
       .effect = Effect::kEquivalent,  // workers go on with their random state
       .answers = {"input.worker_restart"},
       .fits = has_workers,
       .agent = {{"persistent_workers", ""}},
       .code = "DataLoader(..., persistent_workers=True)",
       .risk = "what a worker's data set remembers lasts for the whole run"},
      {.id = "out_of_order",
       .what = "batches that overtake each other, prefetched further",
       .effect = Effect::kEquivalent,  // another order of batches
       .answers = {"input.worker_skew"},
       .fits = has_workers,
       .agent = {{"in_order", "0"}, {"prefetch_factor", "8"}},
       .code = "DataLoader(..., in_order=False, prefetch_factor=8)",
       .risk = "the order of batches depends on time; more batches in memory"},
      {.id = "prefetch_factor",
       .what = "8 batches ahead for each worker",
       .answers = {"input.worker_skew", "input.too_few_workers"},
       .fits = has_workers,
       .agent = {{"prefetch_factor", "8"}},
       .code = "DataLoader(..., prefetch_factor=8)",
       .risk = "more batches in memory"},
      {.id = "start_method",
       .what = "loader workers forked, not started anew",
       .effect = Effect::kEquivalent,  // what the main process did first is in them
       .answers = {"input.worker_restart"},
       .fits = forks_safely,
       .agent = {{"multiprocessing_context", "fork"}},
       .code = "DataLoader(..., multiprocessing_context=\"fork\")",
       .risk = "threads and open connections of the main process are not in the workers"},
      {.id = "non_blocking",
       .what = "batches in pinned memory, copied without waiting",
       .answers = {"input.h2d_sync"},
       .fits = has_gpu_loader,
       .agent = {{"non_blocking", ""}, {"pin_memory", ""}},
       .code = "DataLoader(..., pin_memory=True); batch = batch.to(device, non_blocking=True)"},
      {.id = "batch_size",
       .what = "twice the batch size, judged by the time for a sample",
       .effect = Effect::kChanging,
       .answers = {"gpu.small_batch", "gpu.launch_bound", "cpu.python_bound"},
       .fits = has_loader,
       .agent = {{"batch_size", "2"}},
       .code = "DataLoader(..., batch_size=2 * batch_size)",
       .risk = "another loss curve: the learning rate has to be chosen anew; more memory"},
      {.id = "pin_memory",
       .what = "batches in pinned memory",
       .answers = {"input.h2d_sync"},
       .fits = has_gpu_loader,
       .agent = {{"pin_memory", ""}},
       .code = "DataLoader(..., pin_memory=True)"},
      {.id = "gc",
       .what = "garbage collector: objects frozen after start-up, higher thresholds",
       .answers = {"cpu.gc", "input.gil"},
       .fits = always,
       .agent = {{"gc", ""}},
       .code = "gc.freeze(); gc.set_threshold(20000, 50, 50)",
       .risk = "objects in reference cycles are freed later"},
      {.id = "background_save",
       .what = "checkpoints written by a thread, from a copy",
       .answers = {"stall.checkpoint"},
       .fits = has_torch,
       .agent = {{"background_save", ""}},
       .risk = "memory for a copy of what is saved; after a power failure the last file may lack"},
      {.id = "background_log",
       .what = "output and fsync() by a thread",
       .answers = {"stall.logging"},
       .fits = always,
       .agent = {{"background_log", ""}},
       .code = "no flush=True, flush() or os.fsync() in each step; "
               "logging.handlers.QueueHandler for logs",
       .risk = "after a crash the last lines may lack"},
      {.id = "arenas",
       .what = "glibc's arenas: {arenas}",
       .answers = {"mem.allocator"},
       .fits = has_arena_limit,
       .environment = {{"MALLOC_ARENA_MAX", "{arenas}"}}},
      {.id = "allocator",
       .what = "Flatout's allocator",
       .answers = {"mem.page_faults", "mem.allocator"},
       .fits = has_allocator,
       .allocator = true},
      {.id = "glibc_thresholds",
       .what = "glibc keeps freed memory",
       .answers = {"mem.page_faults"},
       .fits = always,
       .environment = {{"MALLOC_MMAP_MAX_", "0"},
                       {"MALLOC_TRIM_THRESHOLD_", "17179869184"},
                       {"MALLOC_TOP_PAD_", "67108864"}},
       .risk = "freed memory stays with the process"},
      {.id = "huge_pages",
       .what = "huge pages for malloc",
       .answers = {"mem.page_faults"},
       .fits = always,
       .environment = {{"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"}},
       .risk = "memory in pieces of 2 MiB"},
      {.id = "expandable_segments",
       .what = "PyTorch's memory of the GPU in segments that grow",
       .answers = {"gpu.oom_fragmented"},
       .fits = has_gpu,
       .environment = {{"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"}}},
      {.id = "device_arena",
       .what = "PyTorch's memory of the GPU from Flatout's pools",
       .answers = {"gpu.oom_fragmented"},
       .fits = has_device_pools,
       .agent = {{"devmem", "arena"}},
       .code = "flatout.devmem.install()  # before the first tensor on a card",
       .shell = "flatout run --devmem arena -- COMMAND",
       .risk = "no CUDA graphs, no tensors shared by CUDA IPC, no PyTorch snapshots of its memory"},
      {.id = "memory_growth",
       .what = "TensorFlow takes the GPU's memory as it needs it",
       .answers = {"gpu.memory_taken"},
       .fits = always,
       .environment = {{"TF_FORCE_GPU_ALLOW_GROWTH", "true"}},
       .code = "tf.config.experimental.set_memory_growth(gpu, True)"},
      {.id = "priority",
       .what = "a session of its own with all the weight there is",
       .answers = {"cpu.noisy_neighbour"},
       .fits = may_weigh,
       .prefix = {"setsid", "-w", "sh", "-c",
                  "echo -20 > /proc/self/autogroup 2>/dev/null; exec nice -n -20 \"$@\"", "sh"},
       .risk = "others on this machine get less"},
      {.id = "threads_beside_feed",
       .what = "{rest} threads, the cores that flatout.feed leaves",
       .effect = Effect::kEquivalent,
       .answers = {},
       .fits = has_feed,
       .environment = {{"OMP_NUM_THREADS", "{rest}"},
                       {"MKL_NUM_THREADS", "{rest}"},
                       {"OPENBLAS_NUM_THREADS", "{rest}"}},
       .agent = {{"threads", "{rest}"}},
       .code = "torch.set_num_threads({rest})"},
      {.id = "fused_norm",
       .what = "batch norm, add and ReLU as one operator (flatout.nn)",
       .effect = Effect::kEquivalent,  // sums in another order
       .answers = {},
       .fits = has_norms_on_cpu,
       .agent = {{"fused_norm", ""}},
       .code = "model = flatout.nn.fuse(model).model"},
      {.id = "channels_last",
       .what = "convolutions with their channels innermost",
       .effect = Effect::kEquivalent,
       .answers = {},
       .fits = has_convolutions,
       .agent = {{"channels_last", ""}},
       .code = "model.to(memory_format=torch.channels_last)"},
      {.id = "fused_optimizer",
       .what = "the optimizer's step as one operator",
       .effect = Effect::kEquivalent,
       .answers = {},
       .fits = has_heavy_optimizer,
       .agent = {{"fused_optimizer", ""}},
       .code = "fused=True  # in the call that makes the job's optimizer"},
      {.id = "cudnn_benchmark",
       .what = "cuDNN's fastest algorithm, measured for each shape",
       .effect = Effect::kEquivalent,  // another algorithm sums in another order
       .answers = {},
       .fits = has_gpu_convolutions,
       .agent = {{"cudnn_benchmark", ""}},
       .code = "torch.backends.cudnn.benchmark = True",
       .risk = "each new shape costs a pause; results differ from run to run"},
      {.id = "tf32",
       .what = "float32 products with TF32's 10 bits",
       .effect = Effect::kChanging,
       .answers = {},
       .fits = has_gpu,
       .agent = {{"tf32", ""}},
       .code = "torch.set_float32_matmul_precision(\"high\")",
       .risk = "float32 products keep 10 bits of mantissa"},
      {.id = "allocator_anyway",
       .what = "Flatout's allocator",
       .answers = {},
       .fits = has_allocator,
       .allocator = true},
  };
  return kRows;
}

std::string number_of(std::string_view key, const Situation& s) {
  if (key == "cores") return std::to_string(s.cores);
  if (key == "online") return std::to_string(s.online_cores);
  if (key == "twice") return std::to_string(2 * s.cores);
  if (key == "spare") return std::to_string(std::max(1, s.cores - s.workers));
  if (key == "rest") return std::to_string(std::max(1, s.cores - s.feeding));
  if (key == "arenas") return std::to_string(8 * s.online_cores);
  return "";
}

bool same_change(const Remedy& a, const Remedy& b) {
  return a.environment == b.environment && a.agent == b.agent && a.allocator == b.allocator &&
         a.prefix == b.prefix;
}

}  // namespace

std::string_view name(Effect effect) {
  switch (effect) {
    case Effect::kExact:
      return "exact";
    case Effect::kEquivalent:
      return "equivalent";
    case Effect::kChanging:
      break;
  }
  return "changing";
}

Setting merged(Setting base, const Setting& more) {
  for (const auto& [name, value] : more.environment) base.environment[name] = value;
  for (const auto& [name, value] : more.agent) base.agent[name] = value;
  base.allocator |= more.allocator;
  base.prefix.insert(base.prefix.end(), more.prefix.begin(), more.prefix.end());
  return base;
}

std::string agent_words(const Setting& setting) {
  std::string out;
  for (const auto& [name, value] : setting.agent) {
    if (!out.empty()) out += ',';
    out += name;
    if (!value.empty()) out += "=" + value;
  }
  return out;
}

std::span<const Remedy> catalogue() { return rows(); }

const Remedy* find_remedy(std::string_view id) {
  const auto found = std::find_if(rows().begin(), rows().end(),
                                  [&](const Remedy& remedy) { return remedy.id == id; });
  return found == rows().end() ? nullptr : &*found;
}

std::string filled(std::string_view text, const Situation& situation) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text[at] == '{' ? text.find('}', at) : std::string_view::npos;
    const std::string number = end == std::string_view::npos
                                   ? ""
                                   : number_of(text.substr(at + 1, end - at - 1), situation);
    if (number.empty()) {
      out += text[at++];
    } else {
      out += number;
      at = end + 1;
    }
  }
  return out;
}

Setting setting_of(const Remedy& remedy, const Situation& situation) {
  Setting out;
  for (const auto& [name, value] : remedy.environment) {
    out.environment[std::string(name)] = filled(value, situation);
  }
  for (const auto& [name, value] : remedy.agent) {
    out.agent[std::string(name)] = filled(value, situation);
  }
  out.allocator = remedy.allocator;
  out.prefix.assign(remedy.prefix.begin(), remedy.prefix.end());
  return out;
}

std::vector<Candidate> candidates(const std::vector<model::Finding>& findings,
                                  const Situation& situation, bool allow_changing) {
  std::vector<const model::Finding*> ranked;
  ranked.reserve(findings.size());
  for (const model::Finding& finding : findings) ranked.push_back(&finding);
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto* a, const auto* b) {
    return a->gain.value_or(1) > b->gain.value_or(1);
  });
  std::vector<Candidate> out;
  const auto offer = [&](const Remedy& remedy, const model::Finding* finding) {
    if (!remedy.fits(situation) || (remedy.effect == Effect::kChanging && !allow_changing)) return;
    const bool known = std::any_of(out.begin(), out.end(), [&](const Candidate& candidate) {
      return same_change(*candidate.remedy, remedy);
    });
    if (known) return;
    Candidate candidate{&remedy, "", std::nullopt, std::nullopt};
    if (finding != nullptr) {
      candidate.finding = finding->id;
      candidate.predicted = finding->gain;
      candidate.where = finding->where;
    }
    out.push_back(std::move(candidate));
  };
  for (const model::Finding* finding : ranked) {
    // What answers a wait is for those in the making of batches.
    if (finding->id == "stall.idle_wait" && situation.input_share < kWaitsForInput) continue;
    for (const Remedy& remedy : catalogue()) {
      const auto& ids = remedy.answers;
      if (std::find(ids.begin(), ids.end(), finding->id) != ids.end()) offer(remedy, finding);
    }
  }
  for (const Remedy& remedy : catalogue()) {
    if (remedy.answers.empty()) offer(remedy, nullptr);
  }
  return out;
}

}  // namespace flatout::remedy
