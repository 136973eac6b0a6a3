// What making a batch goes to: work on a core, files, others' answers, the interpreter, passing on.
#include "diagnose/input_causes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/contains.h"
#include "diagnose/allocator.h"
#include "diagnose/input_files.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::SignalId;

namespace {

constexpr double kUnpickle = 2.0;  // times what pickling took: more than that is no unpickling
// In the queue of producers that idle: in any way, and with batches that have come.
constexpr double kMostOfStep = 0.3, kMuchOfStep = 0.2;
constexpr double kHandles = 0.25;  // of that time on a core, from which passing on is work
constexpr double kPasses = 0.5;    // the same, with what those who send take meanwhile
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
constexpr int64_t kManyBatches = 4;           // of one sample for a step: too little at a time
constexpr double kHugeFaultSeconds = 0.5e-3;  // to clear a huge page

int enough_workers(const RunView& view) {
  return std::max(2, static_cast<int>(std::lround(view.cpu().usable)));
}

/// Whether there are fewer than could work side by side. Threads that need the interpreter's lock
/// could not.
bool few_workers(const RunView& view, const BatchTimes& times) {
  const LoaderView& loader = view.loader();
  if (loader.kind == LoaderKind::kSerial) return true;
  if (loader.workers >= enough_workers(view)) return false;
  return loader.kind == LoaderKind::kProcesses ||
         (loader.kind == LoaderKind::kThreads &&
          times[Act::kPython] + times[Act::kGil] < kLittlePython * times.cpu());
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

/// CPU time per batch among a part of the producers' time: a part of all that they use.
double cpu_among(const RunView& view, const BatchTimes& times, double seconds) {
  const LoaderView& loader = view.loader();
  if (loader.batches == 0 || times.total <= 0) return seconds;
  const double per_batch =
      view.cpu().producers * view.seconds() / static_cast<double>(loader.batches);
  return std::min(seconds, seconds / times.total * per_batch);
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
  void add_passing();
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

void Causes::add_passing() {
  const RunView& view = view_;
  // Taking a batch out of the queue is passing it, too: the training thread unpickles it, and frees
  // the objects of the one before at the same line.
  const auto takes = [](const Cell& c) {
    return c.role == Role::kTrainer && c.part == Part::kInputWait && on_cpu(c.act);
  };
  const auto from_queue = [=](const Cell& c) { return takes(c) && (c.traits & kInQueue) != 0; };
  const auto hot = view.profile().hottest(from_queue, view.run());
  const auto unpickles = [=, line = hot ? hot->frame : 0](const Cell& c) {
    return from_queue(c) || (takes(c) && line != 0 && c.user == line);
  };
  double handling =
      loader_.kind == LoaderKind::kProcesses ? view.per_step(Role::kTrainer, unpickles) : 0;
  // Producers that idle while the step waits in their queue for most of its time: what lies between
  // them, hundreds of descriptors for as many little tensors, holds both up.
  const double in_queue = view.per_step(Role::kTrainer, [](const Cell& c) {
    return c.part == Part::kInputWait && (c.traits & kInQueue) != 0 && c.act != Act::kRunQueue;
  }) * (1 - std::min(1.0, view.cpu().others / std::max(view.cpu().usable, 1e-9)));
  // A pipe holds little: who sends much waits for the training thread to take it, and the other way
  // round.
  const double sending = view.per_step(Role::kProducer, [](const Cell& c) {
    return c.part == Part::kInputWait && (c.traits & kInQueue) != 0 && on_cpu(c.act);
  });
  const bool has_come = taken_over(view) > kPasses * in_queue;
  const bool passes =
      has_come || handling > kHandles * in_queue || handling + sending > kPasses * in_queue;
  const bool between = loader_.kind == LoaderKind::kProcesses && loader_.busy < kProducersBusy &&
                       in_queue > (has_come ? kMuchOfStep : kMostOfStep) * view.steps().mean &&
                       passes;
  // Few readings may say more, but it takes about as long as pickling, which is measured.
  if (times_.handover > 0 && !between) handling = std::min(handling, kUnpickle * times_.handover);
  const bool taking = between || handling + times_.handover > times_.collate;
  // Whatever makes a batch, it is handed over.
  const double passing = times_.collate + (taking ? times_.handover : 0);
  if (passing + handling <= 0 && !has_come) return;
  const auto collates = [&view](const Cell& c) {
    return makes_batches(view, c) && !makes_samples(view, c);
  };
  // Who puts so much into a batch is to blame, where that is code of the user's.
  const bool at_loop = taking && !(between && view.where(collates));
  // Threads of the training process that only pass batches on take cores and the lock from it.
  const double beside = view.per_step(Role::kHelper, [](const Cell& c) {
    return !c.aside && (c.traits & kInQueue) != 0 && on_cpu(c.act);
  });
  Relief relief{.fetch = passing,
                .fetch_cpu = cpu_among(view, times_, passing),
                .trainer = gil_for_passing(view),
                .trainer_cpu = (taking ? handling : 0) + beside,
                .handling = taking ? handling : 0,
                .uneven = between ? in_queue - handling : 0};
  if (between) {
    // What both sides take on a core for it goes with it, in whichever thread. Most of that is too
    // short for readings: they say what else is done.
    const auto works = [](const Cell& c) { return on_cpu(c.act); };
    const double samples = view.per_step(Role::kProducerPool, works) +
                           view.per_step(Role::kProducer, [&](const Cell& c) {
                             return works(c) && makes_samples(view, c);
                           });
    const double trains =
        view.per_step(Role::kPool, works) +
        view.per_step(Role::kTrainer, [&](const Cell& c) { return works(c) && !unpickles(c); }) +
        view.per_step(Role::kHelper, [&](const Cell& c) {
          return works(c) && !c.aside && (c.traits & kInQueue) == 0;
        });
    const double step = view.steps().mean, producers = view.cpu().producers;
    relief.fetch_cpu = std::max(0.0, producers * step - samples) / batches_per_step(view);
    relief.trainer_cpu = std::max(0.0, (view.cpu().job - producers) * step - trains);
  }
  out_.push_back({"input.collate", "Putting batches together and passing them on bounds the loader",
                  relief, between ? std::max(in_queue, times_.total) : passing + handling,
                  [at_loop, unpickles, collates](const Cell& c) {
                    return at_loop ? unpickles(c) : collates(c);
                  }});
}

/// Whether a finding's line is in a function of the user's that PyTorch's loader calls (a
/// collate_fn that augments).
bool called_by_loader(const RunView& view, const Finding& f) {
  const model::Run& run = view.run();
  for (model::StackId stack = 1; stack < run.stacks.size(); ++stack) {
    const model::FrameId user = view.stacks().user_frame(stack);
    if (user == 0 || !same_line(f.where, view.stacks().where(user))) continue;
    bool below = false;  // the user's line was passed: what follows has called it
    for (model::StackId at = stack; at != 0; at = run.stacks[at].parent) {
      const model::FrameId frame = run.stacks[at].frame;
      if (below && contains(run.string(run.frames[frame].file), "/torch/utils/data/")) return true;
      below = below || frame == user;
    }
  }
  return false;
}

}  // namespace

double taken_over(const RunView& view) {
  return view.per_step(Role::kTrainer, [](const Cell& c) {
    return c.part == Part::kInputWait && (c.traits & kTakesOver) != 0 && c.act != Act::kRunQueue;
  });
}

double batches_per_step(const RunView& view) {
  const double batches = static_cast<double>(view.loader().batches);
  const double steps = static_cast<double>(view.steps().count);
  return batches > 0 && steps > 0 ? batches / steps : 1;
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
  causes.add_passing();
  return causes.take();
}

void add_input_remedies(Finding& f, const RunView& view, const BatchTimes& times, bool in_turns) {
  const bool tensors = view.loader().kind == LoaderKind::kSerial &&
                       view.run().fact("loader.dataset_class") == "TensorDataset" &&
                       !called_by_loader(view, f);
  const bool decodes = f.id == "input.decode_cpu";
  if (tensors && (decodes || f.id == "input.too_few_workers")) {
    remedy(f, "by_batch",
           "Index the tensors once for a batch: DataLoader(data, batch_size=None, "
           "sampler=BatchSampler(RandomSampler(data), n, False)), or data[rows] in the loop.");
  }
  if (tensors && decodes) {
    f.title = "Samples are taken out of tensors one by one";
  } else if (decodes) {
    remedy(f, "feed", "Decode faster: at the size that is needed, or with a native decoder.");
    if (few_workers(view, times) && view.cpu().idle_known &&
        view.cpu().idle > kIdle * view.cpu().usable) {
      remedy(f, "num_workers", "Give the loader more workers: cores idle.");
    }
    remedy(f, "preprocess",
           "Do it once, beforehand: store pictures decoded and resized, texts and tables parsed.");
  } else if (f.id == "input.feed_dict") {
    remedy(f, "dataset", "Build the input with the Dataset API and native operations.");
  } else if (f.id == "input.too_few_workers" && in_turns) {
    remedy(f, "prefetch",
           "Begin the next batch while the step computes: a queue of two that is not waited for, "
           "or the next request before the step (prefetch).");
  } else if (f.id == "input.too_few_workers") {
    remedy(f, "num_workers",
           view.loader().kind == LoaderKind::kThreads
               ? "Make batches in more threads: the cores and the data source can serve more."
           : view.loader().kind != LoaderKind::kSerial
               ? "Raise num_workers, the cores and the data source can serve more."
           : times.mostly_in_loop()
               ? "Move what this line does into the dataset and give the DataLoader workers of its "
                 "own (num_workers above 0)."
               : "Give the DataLoader workers of its own (num_workers above 0).");
    remedy(f, "prefetch_factor", "Raise prefetch_factor where batches take uneven time.");
  } else if (f.id == "input.small_files") {
    remedy(f, "shards", "Pack the files into shards (tar or records) that are read in one piece.");
    remedy(f, "index",
           "List and look up files once, before the training, and keep what was found.");
  } else if (f.id == "input.random_seek") {
    remedy(f, "shards", "Read shards in sequence and shuffle in a buffer; index archives once.");
  } else if (f.id == "input.disk") {
    remedy(f, "cache_warm", "Read the data into the page cache first, or onto a faster disk.");
    remedy(f, "shards", "Read larger pieces ahead.");
  } else if (f.id == "input.disk_throttled") {
    remedy(f, "io_limit", "Raise the limit, or store the data in a smaller format.");
  } else if (f.id == "input.cold_cache") {
    remedy(f, "memory", "Give the job memory for its data, or make the data smaller.");
  } else if (f.id == "input.collate") {
    const LoaderView& loader = view.loader();
    if (loader.measured && loader.batch_samples <= 1 &&
        loader.batches > kManyBatches * view.steps().count) {
      remedy(f, "batch_in_workers",
             "Let the workers put the samples of a step together (batch_size, or in the data set): "
             "each hand-over costs the same, however little it passes on.");
    }
    if (taken_over(view) / batches_per_step(view) > times.total) {
      remedy(
          f, "in_the_loop",
          "Make larger batches, or make them in the loop itself (num_workers=0): that takes less "
          "than to take one over from a worker.");
    }
    remedy(f, "collate", "Collate into a buffer that is used again; pass tensors, not objects.");
    remedy(f, "preprocess",
           "What the collate function works out itself (tokenizing, parsing) belongs into the "
           "samples: once, beforehand, or in workers.");
  } else if (f.id == "input.gil") {
    unlock(view, f, "Load in processes, or decode in code that releases the GIL.");
  } else if (f.id == "input.lock") {
    remedy(f, "own_state",
           "Give each thread or worker what the lock protects (decoder, file handle, random "
           "generator) for itself.");
    remedy(f, "shorter_lock",
           "Hold the lock only while what is shared is used, not while decoding.");
  } else if (f.id == "stall.idle_wait") {
    remedy(f, "event", "Wait for an event instead of sleeping.");
  } else if (f.id == "cpu.process_churn") {
    remedy(f, "pool", "Call in process, or keep a pool of processes.");
  } else if (f.id == "cpu.gc") {
    remedy(f, "gc_freeze", "Call gc.freeze() after start-up or raise the thresholds.");
  }
}

}  // namespace flatout::diagnose
