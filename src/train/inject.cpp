#include "train/inject.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <thread>

#include "base/fs.h"
#include "base/text.h"
#include "flatout/marker.h"

namespace flatout::train {

#define FLATOUT_NOINLINE __attribute__((noinline))

const std::vector<CauseInfo>& causes() {
  static const std::vector<CauseInfo> kCauses = {
      {Cause::kNone, "none", "nothing: a healthy job"},
      {Cause::kDecodeCpu, "input.decode_cpu",
       "samples are large pictures, decoded and scaled down"},
      {Cause::kTooFewWorkers, "input.too_few_workers",
       "one loader thread waits for a distant store, a sample at a time"},
      {Cause::kSmallFiles, "input.small_files", "a sample is a folder of 768 tiny files"},
      {Cause::kRandomSeek, "input.random_seek",
       "an archive without index is scanned for each sample"},
      {Cause::kCollate, "input.collate", "batches grow by concatenation, all copied each time"},
      {Cause::kWorkerSkew, "input.worker_skew", "one sample in two hundred is a huge picture"},
      {Cause::kNoisyNeighbour, "cpu.noisy_neighbour", "processes outside the job take the cores"},
      {Cause::kOversubscribed, "cpu.oversubscribed", "eight spinning compute threads per core"},
      {Cause::kAffinity, "cpu.affinity", "all threads are pinned to one core"},
      {Cause::kProcessChurn, "cpu.process_churn", "a process is started to read each sample"},
      {Cause::kPageFaults, "mem.page_faults", "big buffers are mapped and unmapped every step"},
      {Cause::kLeak, "mem.leak", "every batch is kept, with 1 MiB of history"},
      {Cause::kAllocator, "mem.allocator", "compute threads fight for malloc's only arena"},
      {Cause::kCheckpoint, "stall.checkpoint",
       "a large checkpoint is saved and synced in the loop"},
      {Cause::kLogging, "stall.logging", "12 log lines a step, each written through to the disk"},
      {Cause::kIdleWait, "stall.idle_wait",
       "the loop polls an answer every 30 ms that came at once"},
      {Cause::kHang, "stall.hang", "a loader thread waits for a lock that is never let go"},
      {Cause::kSignal, "crash.signal", "a loader thread writes to memory that is not there"},
      {Cause::kException, "crash.exception", "a loader thread throws what nobody catches"},
  };
  return kCauses;
}

namespace {

// Each makes the data set its own.
constexpr Cause kOfTheData[] = {Cause::kDecodeCpu,  Cause::kTooFewWorkers, Cause::kWorkerSkew,
                                Cause::kSmallFiles, Cause::kRandomSeek,    Cause::kProcessChurn};

}  // namespace

Result<Causes> parse_causes(const std::vector<std::string>& ids) {
  Causes out;
  std::string_view of_the_data;
  for (const std::string& id : ids) {
    const auto known = std::find_if(causes().begin(), causes().end(),
                                    [&](const CauseInfo& c) { return c.id == id; });
    if (known == causes().end()) {
      return Error{Code::kBadInput, fmt::format("unknown cause \"{}\"", escape_terminal(id)),
                   "flatout train --inject list shows those that there are"};
    }
    const bool data = std::find(std::begin(kOfTheData), std::end(kOfTheData), known->cause) !=
                      std::end(kOfTheData);
    if (data && !of_the_data.empty() && of_the_data != known->id) {
      return Error{Code::kBadInput,
                   fmt::format("{} and {} both change the data set", of_the_data, known->id),
                   "leave one of them out"};
    }
    if (data) of_the_data = known->id;
    out.add(known->cause);
  }
  return out;
}

std::string cause_list() {
  std::string out;
  for (const CauseInfo& c : causes()) out += fmt::format("{:<24}{}\n", c.id, c.text);
  return out;
}

Plan make_plan(const Causes& causes, const TrainOptions& options, int cores) {
  Plan plan;
  // The demo's job leaves half of the cores to its loaders; the layered models compute more.
  plan.threads = is_layered(options.model) ? std::clamp(cores, 1, 64) : std::clamp(cores / 2, 1, 8);
  plan.loaders = std::clamp(cores, 1, 4);
  if (causes.has(Cause::kDecodeCpu)) plan.loaders = std::clamp(cores, 1, 64);
  if (causes.has(Cause::kTooFewWorkers)) plan.loaders = 1;
  if (causes.has(Cause::kCollate)) plan.collate = Collate::kConcatenation;
  // Pinned, it needs more than the one core that is left.
  if (causes.has(Cause::kAffinity) || causes.has(Cause::kAllocator)) {
    plan.threads = std::clamp(cores, 2, 16);
  }
  if (causes.has(Cause::kOversubscribed)) {
    plan.threads = std::clamp(8 * cores, 8, 128);
    plan.spin = true;
  }
  if (options.threads > 0) plan.threads = options.threads;
  if (options.loaders > 0) plan.loaders = options.loaders;
  return plan;
}

Result<std::unique_ptr<Source>> make_source(const Causes& causes, const TrainOptions& options,
                                            int cores, std::unique_ptr<TemporaryFolder>& folder) {
  const auto samples = static_cast<size_t>(options.samples);
  const bool files = causes.has(Cause::kSmallFiles) || causes.has(Cause::kRandomSeek) ||
                     causes.has(Cause::kProcessChurn);
  if (files && folder == nullptr) {
    FLATOUT_TRY(folder, TemporaryFolder::make(options.data));
  }
  if (causes.has(Cause::kDecodeCpu)) {
    // Decoding costs side * side; with more cores there are more loader threads to keep busy.
    const int factor = std::clamp(static_cast<int>(12 * std::sqrt(cores / 2.0)), 12, 64);
    const size_t distinct = static_cast<size_t>(std::max(8, 48 * 144 / (factor * factor)));
    return memory_source(options.seed, samples, factor * kSide, distinct);
  }
  if (causes.has(Cause::kTooFewWorkers)) return distant_source(options.seed, samples);
  if (causes.has(Cause::kWorkerSkew)) return source_with_huge_samples(options.seed, samples);
  if (causes.has(Cause::kSmallFiles)) {
    return small_files_source(options.seed, samples, folder->path());
  }
  if (causes.has(Cause::kRandomSeek)) {
    return archive_source(options.seed, 4 * samples, folder->path());
  }
  if (causes.has(Cause::kProcessChurn)) {
    return command_source(options.seed, samples, folder->path());
  }
  return memory_source(options.seed, samples, kSide, samples);
}

// ---- what happens while training goes on ----

/// Answers every question at once, from a thread of its own.
struct Injection::Acknowledger {
  std::atomic<int64_t> asked{0}, answered{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable changed;
  std::thread thread{[this] {
    std::unique_lock lock(mutex);
    while (!stop) {
      changed.wait(lock, [&] { return stop || asked != answered; });
      answered = asked.load();
    }
  }};

  void ask(int64_t question) {
    const std::lock_guard lock(mutex);
    asked = question;
    changed.notify_one();
  }
  ~Acknowledger() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_one();
    thread.join();
  }
};

namespace {

FLATOUT_NOINLINE void wait_by_polling(const std::atomic<int64_t>& answered, int64_t question) {
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  } while (answered.load() != question);
}

FLATOUT_NOINLINE void use_fresh_buffers() {
  // 384 buffers of 256 KiB, each large enough for malloc to map and unmap it.
  constexpr size_t kSize = size_t{256} << 10;
  std::vector<char*> buffers;
  for (int i = 0; i < 384; ++i) {
    buffers.push_back(static_cast<char*>(std::malloc(kSize)));
    if (buffers.back() != nullptr) std::memset(buffers.back(), i, kSize);
  }
  for (char* b : buffers) std::free(b);
}

FLATOUT_NOINLINE void churn_small_blocks() {
  // Larger than malloc's caches per thread take (1 KiB), so that every call needs the arena.
  constexpr size_t kKeep = 64;
  void* ring[kKeep] = {};
  for (size_t i = 0; i < 120000; ++i) {
    void*& slot = ring[i % kKeep];
    std::free(slot);
    slot = std::malloc(1100 + i * 37 % 3000);
    if (slot != nullptr) *static_cast<volatile char*>(slot) = 1;
  }
  for (void* p : ring) std::free(p);
}

FLATOUT_NOINLINE void keep_history(const Batch& batch, std::vector<std::vector<float>>& kept) {
  kept.push_back(batch.x);
  kept.emplace_back(size_t{1} << 18, 0.5f);  // 1 MiB
}

FLATOUT_NOINLINE void save_checkpoint(const std::string& path) {
  const uint64_t begin = flatout_now();
  static const std::vector<char> kState(size_t{96} << 20, 'x');
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return;
  size_t done = 0;
  while (done < kState.size()) {
    const ssize_t n =
        write(fd, kState.data() + done, std::min(kState.size() - done, size_t{4} << 20));
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  fsync(fd);
  close(fd);
  flatout_slice_values(FLATOUT_CHECKPOINT, "save_checkpoint", begin, static_cast<int64_t>(done), 0);
}

FLATOUT_NOINLINE void write_log(int fd, int64_t step, double loss) {
  const uint64_t begin = flatout_now();
  for (int i = 0; i < 12; ++i) {
    const std::string line = fmt::format("step {} sample {} loss {:.6f}\n", step, i, loss);
    if (write(fd, line.data(), line.size()) < 0) return;
  }
  flatout_slice(FLATOUT_LOGGING, nullptr, begin);
}

std::mutex& held_lock() {
  static std::mutex mutex;
  return mutex;
}

FLATOUT_NOINLINE void wait_for_held_lock() { const std::lock_guard lock(held_lock()); }

/// Holds the lock for `seconds`, or for ever.
void hold_lock(double seconds) {
  std::atomic<bool> held{false};
  std::thread([seconds, &held] {
    held_lock().lock();
    held = true;
    if (seconds <= 0) {
      for (;;) pause();
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    held_lock().unlock();
  }).detach();
  while (!held) std::this_thread::yield();
}

FLATOUT_NOINLINE void write_out_of_bounds(int64_t batch) {
  volatile int64_t* volatile nowhere = nullptr;  // which the compiler is not to know
  nowhere[batch] = batch;  // NOLINT(clang-analyzer-core.NullDereference): this is the cause
}

FLATOUT_NOINLINE void throw_error(int64_t batch) {
  throw TrainError{fmt::format("label 7 of batch {} is out of range", batch), __FILE__, __LINE__,
                   __func__};
}

Status pin_to_one_core() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return fs::error_from_errno(errno, "sched_getaffinity");
  }
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) return {};
  }
  return fs::error_from_errno(errno, "sched_setaffinity");
}

constexpr int64_t kFailingBatch = 40;

}  // namespace

Result<std::unique_ptr<Injection>> Injection::make(const Causes& causes,
                                                   const TrainOptions& options,
                                                   std::unique_ptr<TemporaryFolder>& folder) {
  std::unique_ptr<Injection> out(new Injection(causes));
  for (const CauseInfo& c : flatout::train::causes()) {
    if (!causes.has(c.cause)) continue;
    FLATOUT_TRY_STATUS(out->start(c.cause, options, folder));
  }
  return out;
}

Status Injection::start(Cause cause, const TrainOptions& options,
                        std::unique_ptr<TemporaryFolder>& folder) {
  switch (cause) {
    case Cause::kNoisyNeighbour:
      // Whatever we start ourselves belongs to the job, also a daemon.
      if (!neighbours_are_running()) {
        return Error{Code::kNotFound, "no neighbours run",
                     "a neighbour must not be started by the job itself; first run, outside of it: "
                     "flatout train --neighbours 4 &"};
      }
      return {};
    case Cause::kAffinity:
      return pin_to_one_core();
    case Cause::kPageFaults:
      mallopt(M_MMAP_THRESHOLD, 128 << 10);  // set by hand it no longer adapts
      return {};
    case Cause::kAllocator:
      mallopt(M_ARENA_MAX, 1);
      return {};
    case Cause::kIdleWait:
      acknowledger_ = std::make_unique<Acknowledger>();
      return {};
    case Cause::kHang:
      hold_lock(options.hang_seconds);
      return {};
    case Cause::kCheckpoint:
    case Cause::kLogging:
      if (folder == nullptr) {
        FLATOUT_TRY(folder, TemporaryFolder::make(options.data));
      }
      return log_ >= 0 ? Status() : open_files(folder->path());
    default:
      return {};
  }
}

Status Injection::open_files(const std::string& folder) {
  checkpoint_ = folder + "/checkpoint.bin";
  const std::string path = folder + "/train.log";
  log_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_SYNC | O_CLOEXEC, 0600);
  if (log_ < 0) return fs::error_from_errno(errno, path);
  return {};
}

Injection::Injection(const Causes& causes) : causes_(causes) {}

Injection::~Injection() {
  if (log_ >= 0) close(log_);
}

void Injection::in_forward(Pool& pool) {
  if (causes_.has(Cause::kPageFaults)) use_fresh_buffers();
  if (causes_.has(Cause::kAllocator)) {
    pool.run(pool.threads(), [](int) { churn_small_blocks(); });
  }
}

void Injection::after_step(int64_t step, const Batch& batch, double loss) {
  if (causes_.has(Cause::kLeak)) keep_history(batch, kept_);
  if (causes_.has(Cause::kCheckpoint) && step % 10 == 9) save_checkpoint(checkpoint_);
  if (causes_.has(Cause::kLogging)) write_log(log_, step, loss);
  if (causes_.has(Cause::kIdleWait)) {
    acknowledger_->ask(step + 1);
    wait_by_polling(acknowledger_->answered, step + 1);
  }
}

void Injection::before_batch(int64_t batch) {
  if (batch != kFailingBatch) return;
  if (causes_.has(Cause::kHang)) wait_for_held_lock();
  if (causes_.has(Cause::kSignal)) write_out_of_bounds(batch);
  if (causes_.has(Cause::kException)) throw_error(batch);
}

}  // namespace flatout::train
