// What making a batch goes to: work on a core, files, others' answers, the interpreter, passing on.
#include "diagnose/input_causes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/contains.h"
#include "diagnose/allocator.h"
#include "diagnose/input_files.h"

namespace flatout::diagnose {

using model::Part;
using model::SignalId;

namespace {

// Reads per sample from which a sample is searched for rather than read.
constexpr double kSearched = 16;
constexpr double kStartedPerSample = 0.5;
constexpr double kRoomForPools = 1.1;  // of the cores
constexpr double kIdle = 0.15;         // of the cores, from which more workers find room
// Of the work on batches that would fall by chance into the time that the step computes, what is
// done then by producers who take turns with it, at most; and readings that tell.
constexpr double kAheadOfStep = 0.25;
constexpr int64_t kTellsTurns = 20;
constexpr double kMostOfIt = 0.7;      // of what faster decoding saves, that more workers save, too
constexpr double kHalfOfIt = 0.4;      // the same where there are workers, all busy, and cores idle
constexpr double kLittlePython = 0.1;  // of making a batch: more threads do so side by side
constexpr double kOneWord = 0.6;       // the same where a loader only has to be told how many
// Of what less work saves, that the lock alone must save to be what the makers of batches lack.
constexpr double kMuchOfWork = 0.25;
// The same for the interpreter's lock, less work and all waits for it then being saved.
constexpr double kHalfOfWork = 0.5;
// CPU time that a page fault and a byte of read cost in the kernel, roughly: to tell known kernel
// work from look-ups of files.
constexpr double kFaultSeconds = 0.7e-6, kReadByteSeconds = 0.2e-9;
// So rough that only more than twice as much is other work.
constexpr double kSurelyMore = 2;
// A virtual machine that is short of cores takes several times as long for a fault: look-ups of
// files are many times that.
constexpr double kManyTimes = 5;
// Share of the time on a core from which it is no detail of decoding.
constexpr double kMuchKernel = 0.4;
// Time on a core that opening and reading a small file takes at most.
constexpr double kFileSeconds = 0.5e-3;
constexpr double kQueueReads = 8;             // of a loader's queues, for a batch; at most
constexpr double kHugeFaultSeconds = 0.5e-3;  // to clear a huge page

int enough_workers(const RunView& view) {
  return std::max(2, static_cast<int>(std::lround(view.cpu().usable)));
}

/// What producers wait, per batch, for cores that others of their kind have: they would not wait if
/// these had less to do.
double queued_by_own_work(const RunView& view, const BatchTimes& times) {
  const LoaderView& loader = view.loader();
  // Where it is pools of threads that crowd the cores, or a mask, that is another finding. Pools
  // that had room without those who make batches do not.
  const Crowd crowd = view.crowd();
  const double usable = view.cpu().usable;
  const bool crowded =
      crowd.too_many(usable) && crowd.all() - crowd.producers > kRoomForPools * usable;
  const bool pinned = loader.mask > 0 && loader.mask < loader.workers;
  if (crowded || pinned) return 0;
  const double rivals = view.cpu().job + view.cpu().others;
  return times[Act::kRunQueue] * (rivals > 0 ? view.cpu().job / rivals : 1);
}

InputCause cpu_cause(const RunView& view, const BatchTimes& times, const ReadWork& read,
                     const WhatIf& whatif) {
  const LoaderView& loader = view.loader();
  // The kernel's time to hand out fresh memory, where it is most of all, has its own finding.
  const double kernel = times[Act::kKernel] + times[Act::kMemory];
  const bool faults =
      kernel > kMuchKernel * times.cpu() && kManyTimes * read.faults * kFaultSeconds > kernel;
  const double cpu = times.cpu() - (faults ? kernel : 0);
  const double queued = queued_by_own_work(view, times);
  InputCause decode{"input.decode_cpu",
                    "Decoding and augmenting samples bounds the loader",
                    {.fetch = cpu + queued, .fetch_cpu = cpu},
                    cpu + queued,
                    [&view](const Cell& c) {
                      return makes_samples(view, c) && (on_cpu(c.act) || c.act == Act::kRunQueue);
                    }};
  if (read.stored < 0.1 * read.bytes && scans(view, read.bytes)) {
    decode.id = "input.random_seek";
    decode.title = "Each sample is searched for from the beginning of the data";
    return decode;
  }
  if (loader.kind == LoaderKind::kSerial && fed_by_hand(view)) {
    decode.id = "input.feed_dict";
    decode.title = "Batches are made in Python and fed to TensorFlow";
    return decode;
  }
  // Who mostly waits for the interpreter lock does not lack a process: others hold it.
  const bool locked_out = times[Act::kGil] > times.cpu();
  if (!few_workers(view, times) || locked_out || view.cpu().throttled > 0.05 ||
      !view.cpu().idle_known) {
    return decode;
  }
  const int enough = enough_workers(view);
  const Relief more{.workers = std::max(enough, loader.workers + 1)};
  const double by_workers = whatif.saved_by(more), by_decode = whatif.saved_by(decode.relief);
  // Idle cores could do most of it: then what lacks is workers, not speed.
  const bool workers_lack =
      loader.kind != LoaderKind::kSerial && view.cpu().idle > 2 * kIdle * view.cpu().usable;
  const bool to_be_told = loader.kind == LoaderKind::kSerial && loader.measured;
  const double enough_of_it = workers_lack ? kHalfOfIt : to_be_told ? kOneWord : kMostOfIt;
  if (by_workers < enough_of_it * by_decode || view.cpu().idle < kIdle * view.cpu().usable) {
    return decode;
  }
  decode.id = "input.too_few_workers";
  decode.title = loader.kind == LoaderKind::kSerial
                     ? "Batches are made in the training thread while cores idle"
                 : loader.kind == LoaderKind::kThreads
                     ? "Too few threads make batches: all are busy while cores idle"
                     : "Too few loader workers: all are busy while cores idle";
  decode.relief = more;
  return decode;
}

/// Processes (and threads) that began on the host, per sample.
double started_per_sample(const RunView& view) {
  const LoaderView& loader = view.loader();
  const double samples = static_cast<double>(loader.batches) * std::max(loader.batch_samples, 1.0);
  const auto forks = view.increase(view.host(SignalId::kHostForks));
  return forks && samples > 0 ? *forks / samples : 0;
}

/// Time on a core that another cause explains better.
void take_cpu(InputCause& cause, double seconds) {
  cause.weight = std::max(0.0, cause.weight - seconds);
  cause.relief.fetch = std::max(0.0, cause.relief.fetch - seconds);
  cause.relief.fetch_cpu = std::max(0.0, cause.relief.fetch_cpu - seconds);
}

/// Whether more time in the kernel than opening the files takes went into look-ups of others.
bool looked_up(const ReadWork& read, const FileWork& files, double samples) {
  if (read.huge * kHugeFaultSeconds > 0.5 * files.kernel) return false;
  // Files are read, and nothing else was seen to call the kernel: neither reads nor faults (which
  // the caller knows) nor writes.
  const bool reads_files = read.calls - kQueueReads > 0.8 * samples;
  const double rest = reads_files && read.writes < read.calls ? files.by_unknown : 0;
  return files.by_lookups + rest > 0.5 * files.kernel;
}

/// Collects the causes of one run. The first is always the work on a core; what later ones explain
/// better is taken from it.
class Causes {
 public:
  Causes(const RunView& view, const BatchTimes& times, const WhatIf& whatif)
      : view_(view),
        loader_(view.loader()),
        times_(times),
        whatif_(whatif),
        read_(read_work(view)) {
    out_.push_back(cpu_cause(view, times, read_, whatif));
  }

  void take_contention();
  void add_files();
  void add_searches();
  double collected_in_searches() const;
  void add_waits_for_others();
  void add_interpreter();
  void add_lock();
  void add_turns();
  std::vector<InputCause> take() { return std::move(out_); }

 private:
  Profile::Filter samples_at(Act act) const {
    return [&view = view_, act](const Cell& c) { return makes_samples(view, c) && c.act == act; };
  }
  void add_blocked(const FileWork& files, const std::string& storage, bool from_storage,
                   double known);

  const RunView& view_;
  const LoaderView& loader_;
  const BatchTimes& times_;
  const WhatIf& whatif_;
  const ReadWork read_;
  std::vector<InputCause> out_;
};

// The allocator's lock, not the work, is what samples spend this time at.
void Causes::take_contention() {
  const double contended = malloc_contention(view_);
  if (contended <= 0) return;
  const auto samples = [this](const Cell& c) { return makes_samples(view_, c); };
  const double inside =
      view_.profile().seconds([&](const Cell& c) { return samples(c) && in_allocator(c); });
  const double all = view_.profile().seconds(samples);
  if (all > 0) take_cpu(out_.front(), times_.total * inside / all * contended);
}

void Causes::add_files() {
  const FileWork files = file_work(view_, times_, read_);
  const double samples = std::max(loader_.batch_samples, 1.0);
  const std::string storage = storage_cause(view_);
  const bool from_storage = read_.stored > 0.3 * read_.bytes && files.blocked > 0;
  // Faults in fresh buffers and copies out of the page cache are kernel time without a file's cost.
  const double known = read_.faults * kFaultSeconds + read_.bytes * kReadByteSeconds;
  const double surely = read_.are_all_of(times_.total) ? kSurelyMore : kManyTimes;
  const bool little = read_.calls >= 0.8 * samples && read_.small() &&
                      (storage == "input.small_files" || !from_storage);
  if (little && files.lookups + files.kernel + files.blocked > 0.1 * times_.total &&
      files.lookups + files.blocked + files.kernel > surely * known &&
      (files.kernel < kFileSeconds * read_.calls || looked_up(read_, files, samples))) {
    take_cpu(out_.front(), files.kernel + files.interpreter);
    const bool searched = read_.calls > kSearched * samples && big_file_open(view_);
    out_.push_back({searched ? "input.random_seek" : "input.small_files",
                    searched ? "Each sample is searched for in many short reads of a big file"
                             : "Opening and looking up many small files bounds the loader",
                    {.fetch = files.all(), .fetch_cpu = cpu_among(view_, times_, files.all())},
                    files.all(),
                    files.cells});
    return;
  }
  if (files.lookups > 0) {
    out_.push_back({"input.small_files",
                    "Opening and looking up many small files bounds the loader",
                    {.fetch = files.lookups, .fetch_cpu = cpu_among(view_, times_, files.lookups)},
                    files.lookups,
                    samples_at(Act::kMetadata)});
  }
  if (files.blocked > 0) add_blocked(files, storage, from_storage, known);
}

/// Reads that wait for storage; known: kernel time that is no file's.
void Causes::add_blocked(const FileWork& files, const std::string& storage, bool from_storage,
                         double known) {
  const std::string id = storage == "input.small_files" ? "input.disk" : storage;
  const std::string title =
      id == "input.disk_throttled" ? "A limit on the job's reads holds up the loader"
      : id == "input.cold_cache"   ? "The data set is read from the disk again every epoch"
      : id == "input.random_seek"  ? "Reads jump about the data, so that read-ahead cannot help"
                                   : "Reads that wait for storage bound the loader";
  // Fetching from the disk takes time on a core around each read, too; copying out of the page
  // cache and faults in the buffer remain.
  const double on_core = files.kernel + files.interpreter;
  const double fetching = from_storage ? std::max(0.0, on_core - known) : 0;
  const double all = files.blocked + fetching;
  if (from_storage) take_cpu(out_.front(), on_core);
  out_.push_back({id, title, {.fetch = all, .fetch_cpu = fetching}, all, files.cells});
}

void Causes::add_searches() {
  const double seeks = times_[Act::kSeek];
  if (seeks <= 0) return;
  // Of the waits for cores, those that come with this part of the work. The collector runs for the
  // members that are listed.
  const double found = seeks + collected_in_searches();
  const double worked = std::max(times_.total - times_[Act::kRunQueue], found);
  const double searched = found * (1 + queued_by_own_work(view_, times_) / worked);
  out_.push_back({"input.random_seek",
                  "Each sample is searched for in an archive or stream",
                  {.fetch = searched, .fetch_cpu = cpu_among(view_, times_, searched)},
                  found,
                  samples_at(Act::kSeek)});
}

/// Garbage collection within searches, per batch, unless it is more than they are themselves.
double Causes::collected_in_searches() const {
  const auto collects = [this](const Cell& c) {
    return makes_samples(view_, c) && c.act == Act::kGc;
  };
  const double all = view_.profile().seconds(collects);
  const double inside = view_.profile().seconds(
      [&](const Cell& c) { return collects(c) && (c.traits & kInArchive) != 0; });
  const double collected = all > 0 ? times_[Act::kGc] * inside / all : 0;
  return collected < times_[Act::kSeek] ? collected : 0;
}

// Peers, processes started for a sample, and the clock.
void Causes::add_waits_for_others() {
  // Who starts a process for each sample waits at its pipe for what it says.
  const bool asks_children =
      times_[Act::kChild] > 0 && started_per_sample(view_) > kStartedPerSample;
  const auto in_child = [=](Act act) {
    return act == Act::kChild || (asks_children && act == Act::kPoll);
  };
  const double children = times_[Act::kChild] + (asks_children ? times_[Act::kPoll] : 0);
  const double remote = times_[Act::kNetwork] + (asks_children ? 0 : times_[Act::kPoll]);
  if (remote > 0) {
    // Waiting for a peer takes no core: more requests at a time hide it.
    const bool few = loader_.kind != LoaderKind::kThreads || !view_.is_python();
    const int enough = std::max({4, 4 * loader_.workers, static_cast<int>(view_.cpu().usable)});
    InputCause cause{few ? "input.too_few_workers" : "input.disk",
                     few ? "Too few requests at a time: the workers wait for remote data one after "
                           "the other"
                         : "Reads that wait for remote storage bound the loader",
                     {},
                     remote,
                     [&view = view_, in_child](const Cell& c) {
                       return makes_samples(view, c) && !in_child(c.act) &&
                              (c.act == Act::kNetwork || c.act == Act::kPoll);
                     }};
    if (few) {
      cause.relief.workers = enough;
    } else {
      cause.relief.fetch = remote;
    }
    out_.push_back(cause);
  }
  if (const double slept = times_[Act::kSleep]; slept > 0) {
    out_.push_back({"stall.idle_wait",
                    (times_.mostly_in_loop() ? "The training loop sleeps" : "The loader sleeps") +
                        while_nothing_works(view_),
                    {.fetch = slept},
                    slept,
                    samples_at(Act::kSleep)});
  }
  if (children > 0) {
    out_.push_back({"cpu.process_churn",
                    "A process is started for each sample",
                    {.fetch = children,
                     .fetch_cpu = cpu_among(view_, times_, children),
                     // The children's own CPU time goes with them.
                     .trainer_cpu = std::max(0.0, view_.cpu().job - view_.cpu().trainer -
                                                      view_.cpu().producers) *
                                    view_.steps().mean},
                    children,
                    [&view = view_, in_child](const Cell& c) {
                      return makes_samples(view, c) && in_child(c.act);
                    }});
  }
}

// Its collector and its lock.
void Causes::add_interpreter() {
  if (const double collecting = times_[Act::kGc] - collected_in_searches();
      collecting > 0 && loader_.kind == LoaderKind::kProcesses) {
    out_.push_back({"cpu.gc",
                    "Garbage collection holds up the loader",
                    {.fetch = collecting, .fetch_cpu = collecting},
                    collecting,
                    samples_at(Act::kGc)});
  }
  const double waits = times_[Act::kGil];
  if (loader_.kind != LoaderKind::kThreads || waits <= 0) return;
  const double trainer_waits =
      view_.per_step(Role::kTrainer, [](const Cell& c) { return c.act == Act::kGil; });
  const bool fight = waits > 0.2 * times_.total || trainer_waits > 0.1 * view_.steps().mean;
  if (!fight || times_[Act::kPython] <= times_[Act::kNative]) return;
  const Relief unlocked{.fetch = waits, .trainer = trainer_waits};
  // Without the work nobody waits for its lock either.
  InputCause& work = out_.front();
  Relief without = work.relief;
  without.fetch += waits;
  without.trainer += trainer_waits;
  if (whatif_.saved_by(unlocked) < kHalfOfWork * whatif_.saved_by(without)) {
    work.relief = without;
    work.weight += waits;
    return;
  }
  // The work itself would run beside the training thread if it were not for the lock.
  out_.front().weight = 0;
  out_.push_back({"input.gil", "Loader threads and the training thread fight for the GIL", unlocked,
                  waits + times_[Act::kPython], [&view = view_](const Cell& c) {
                    return makes_samples(view, c) && (c.act == Act::kPython || c.act == Act::kGil);
                  }});
}

// A lock of the job's own, that one of those who make batches holds while others wait for it.
void Causes::add_lock() {
  const double waits = times_.at_mutex;
  if (loader_.kind == LoaderKind::kSerial || loader_.workers < 2 || waits <= 0) return;
  const Relief unlocked{.fetch = waits};
  InputCause& work = out_.front();
  const double saved = whatif_.saved_by(unlocked);
  if (saved <= 0 || saved < kMuchOfWork * whatif_.saved_by(work.relief)) return;
  // The work itself would be done side by side if it were not for the lock.
  const double all = waits + work.weight;
  work.weight = 0;
  out_.push_back({"input.lock", "Those who make batches wait for one another at a lock", unlocked,
                  all, [&view = view_](const Cell& c) {
                    return makes_samples(view, c) && (c.traits & kAtMutex) != 0;
                  }});
}

// Producers of the job's own that begin a batch only once the step waits for it (a handshake, a
// queue that is joined, a pool that is asked in the loop): the two take turns.
void Causes::add_turns() {
  const double wait = whatif_.step() - whatif_.compute();
  if (loader_.measured || loader_.kind == LoaderKind::kSerial || wait <= 0) return;
  const auto turn_of = [&view = view_](bool waits) {
    return [&view, waits](const Cell& c) {
      return makes_batches(view, c) && (c.part == Part::kInputWait) == waits;
    };
  };
  const double ahead = view_.profile().seconds(turn_of(false));
  const double waited_for = view_.profile().seconds(turn_of(true));
  const double by_chance = whatif_.compute() / whatif_.step() * (ahead + waited_for);
  if (times_.readings < kTellsTurns || ahead > kAheadOfStep * by_chance) return;
  const Relief beside{.uneven = wait};
  // Where the work takes longer than the step it is that which bounds, beside the step or not.
  if (whatif_.saved_by(beside) < kMostOfIt * wait) return;
  out_.front().weight = 0;
  out_.push_back({"input.too_few_workers", "Batches are made only while the step waits for them",
                  beside, times_.total, [](const Cell& c) {
                    return c.role == Role::kProducer && c.part != Part::kInputWait &&
                           !waits_for_nobody(c.act);
                  }});
}

}  // namespace

bool few_workers(const RunView& view, const BatchTimes& times) {
  const LoaderView& loader = view.loader();
  if (loader.kind == LoaderKind::kSerial) return true;
  if (loader.workers >= enough_workers(view)) return false;
  return loader.kind == LoaderKind::kProcesses ||
         (loader.kind == LoaderKind::kThreads &&
          times[Act::kPython] + times[Act::kGil] < kLittlePython * times.cpu());
}

bool has_idle_cores(const RunView& view) {
  return view.cpu().idle_known && view.cpu().idle > kIdle * view.cpu().usable;
}

double cpu_among(const RunView& view, const BatchTimes& times, double seconds) {
  const LoaderView& loader = view.loader();
  if (loader.batches == 0 || times.total <= 0) return seconds;
  const double per_batch =
      view.cpu().producers * view.seconds() / static_cast<double>(loader.batches);
  return std::min(seconds, seconds / times.total * per_batch);
}

std::vector<InputCause> input_causes(const RunView& view, const BatchTimes& times,
                                     const WhatIf& whatif) {
  Causes causes(view, times, whatif);
  causes.take_contention();
  causes.add_files();
  causes.add_searches();
  causes.add_waits_for_others();
  causes.add_interpreter();
  causes.add_lock();
  causes.add_turns();
  std::vector<InputCause> all = causes.take();
  if (auto passing = passing_cause(view, times)) all.push_back(std::move(*passing));
  return all;
}

}  // namespace flatout::diagnose
