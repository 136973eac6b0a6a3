// Why the step waits for input. One main cause is chosen: what takes most of the time that bounds
// the making of batches; others are told beside it only where they are large in their own right.
#include "diagnose/input.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "diagnose/allocator.h"
#include "diagnose/input_files.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::SignalId;

namespace {

// A second cause must explain this much of a batch's time.
constexpr double kSecondCause = 0.25;
// Share of their time that producers work from which they can be what the step waits for.
constexpr double kBusy = 0.5;
constexpr double kUnpickle = 2.0;    // times what pickling took: more than that is no unpickling
constexpr double kMostOfStep = 0.3;  // in the queue of producers that idle
constexpr double kHandles = 0.25;    // of that time on a core, from which passing on is work
// Reads per sample from which a sample is searched for rather than read.
constexpr double kSearched = 16;
constexpr double kStartedPerSample = 0.5;
constexpr double kMadeInGenerator = 0.5;  // of the input wait
constexpr double kMadeByHand = 0.5;       // of the input wait, in Python before the forward pass
constexpr double kMuchByHand = 0.1;       // of the step: less may be bookkeeping
constexpr double kIdle = 0.15;            // of the cores, from which more workers find room
constexpr double kMostOfIt = 0.7;  // of what faster decoding saves, that more workers save, too
constexpr double kHalfOfIt = 0.4;  // the same where there are workers, all busy, and cores idle
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

void add_common_evidence(const RunView& view, Finding& f) {
  const double step = view.steps().mean, wait = view.steps().part(Part::kInputWait);
  evidence(f, fmt::format("the step waits for input {} of its time", format_percent(wait / step)),
           wait / step, "ratio", "timeline", view.steps().count);
  const LoaderView& loader = view.loader();
  if (loader.measured) {
    evidence(f,
             fmt::format("making a batch takes {} {}", ms(loader.fetch),
                         loader.kind == LoaderKind::kSerial ? "in the training thread"
                                                            : "of a worker's time"),
             loader.fetch * 1e3, "ms", "agent.loader", loader.batches);
  }
  if (loader.kind != LoaderKind::kSerial) {
    evidence(f, fmt::format("{} of them side by side", loader.workers), loader.workers, "workers",
             "agent.loader", loader.batches);
  }
  if (view.cpu().idle_known) {
    evidence(f,
             fmt::format("{} of {} cores were idle", format_number(view.cpu().idle),
                         format_number(view.cpu().cores)),
             view.cpu().idle, "cores", "probe.host", view.steps().count);
    evidence(f, fmt::format("the host has {} cores", format_number(view.cpu().cores)),
             view.cpu().cores, "cores", "probe.host");
  }
}

int enough_workers(const RunView& view) {
  return std::max(2, static_cast<int>(std::lround(view.cpu().usable)));
}

/// Whether there are fewer than could work side by side.
bool few_workers(const RunView& view) {
  const LoaderView& loader = view.loader();
  return loader.kind == LoaderKind::kSerial ||
         (loader.kind == LoaderKind::kProcesses && loader.workers < enough_workers(view));
}

/// Whether the loop hands a batch to TensorFlow by itself in most steps.
bool fed_by_hand(const RunView& view) {
  int64_t feeds = 0;
  for (const model::Slice& s : view.run().slices)
    feeds += s.kind == model::SliceKind::kFeed && s.thread == view.trainer() ? 1 : 0;
  return feeds > 0 && 2 * feeds >= view.steps().count;
}

InputCause cpu_cause(const RunView& view, const BatchTimes& times, const ReadWork& read,
                     const WhatIf& whatif) {
  const LoaderView& loader = view.loader();
  // The kernel's time to hand out fresh memory, where it is most of all, has its own finding.
  const double kernel = times[Act::kKernel] + times[Act::kMemory];
  const bool faults =
      kernel > kMuchKernel * times.cpu() && kManyTimes * read.faults * kFaultSeconds > kernel;
  const double cpu = times.cpu() - (faults ? kernel : 0);
  // A producer that waits for a core because the others of its kind have them would not wait if
  // they had less to do.
  const double rivals = view.cpu().job + view.cpu().others;
  const double own = rivals > 0 ? view.cpu().job / rivals : 1;
  // Where it is pools of threads that crowd the cores, or a mask, that is another finding.
  const bool crowded = view.crowd().too_many(view.cpu().usable);
  const bool pinned = loader.mask > 0 && loader.mask < loader.workers;
  const double queued = crowded || pinned ? 0 : times[Act::kRunQueue] * own;
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
  if (!few_workers(view) || view.cpu().throttled > 0.05 || !view.cpu().idle_known) return decode;
  const int enough = enough_workers(view);
  const Relief more{.workers = std::max(enough, loader.workers + 1)};
  const double by_workers = whatif.saved_by(more), by_decode = whatif.saved_by(decode.relief);
  // Idle cores could do most of it: then what lacks is workers, not speed.
  const bool workers_lack =
      loader.kind == LoaderKind::kProcesses && view.cpu().idle > 2 * kIdle * view.cpu().usable;
  if (by_workers < (workers_lack ? kHalfOfIt : kMostOfIt) * by_decode ||
      view.cpu().idle < kIdle * view.cpu().usable) {
    return decode;
  }
  decode.id = "input.too_few_workers";
  decode.title = loader.kind == LoaderKind::kSerial
                     ? "Batches are made in the training thread while cores idle"
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

std::vector<InputCause> causes(const RunView& view, const BatchTimes& times, const WhatIf& whatif) {
  std::vector<InputCause> out;
  const LoaderView& loader = view.loader();
  const auto act_is = [&view](Act act) {
    return [&view, act](const Cell& c) { return makes_samples(view, c) && c.act == act; };
  };
  const ReadWork read = read_work(view);
  out.push_back(cpu_cause(view, times, read, whatif));
  if (const double contended = malloc_contention(view); contended > 0) {
    const double inside = view.profile().seconds(
        [&](const Cell& c) { return makes_samples(view, c) && in_allocator(c); });
    const double all =
        view.profile().seconds([&](const Cell& c) { return makes_samples(view, c); });
    if (all > 0) take_cpu(out.front(), times.total * inside / all * contended);
  }
  const FileWork files = file_work(view, times, read);
  const double samples = std::max(loader.batch_samples, 1.0);
  const std::string storage = storage_cause(view);
  const bool from_storage = read.stored > 0.3 * read.bytes && files.blocked > 0;
  // Faults in fresh buffers and copies out of the page cache are kernel time without a file's cost.
  const double known = read.faults * kFaultSeconds + read.bytes * kReadByteSeconds;
  const double surely = read.are_all_of(times.total) ? kSurelyMore : kManyTimes;
  const bool little = read.calls >= 0.8 * samples && read.small() &&
                      (storage == "input.small_files" || !from_storage);
  if (little && files.lookups + files.kernel + files.blocked > 0.1 * times.total &&
      files.lookups + files.blocked + files.kernel > surely * known &&
      (files.kernel < kFileSeconds * read.calls || looked_up(read, files, samples))) {
    take_cpu(out.front(), files.kernel + files.interpreter);
    const bool searched = read.calls > kSearched * samples && big_file_open(view);
    out.push_back({searched ? "input.random_seek" : "input.small_files",
                   searched ? "Each sample is searched for in many short reads of a big file"
                            : "Opening and looking up many small files bounds the loader",
                   {.fetch = files.all(), .fetch_cpu = cpu_among(view, times, files.all())},
                   files.all(),
                   files.cells});
  } else {
    if (files.lookups > 0) {
      out.push_back({"input.small_files",
                     "Opening and looking up many small files bounds the loader",
                     {.fetch = files.lookups, .fetch_cpu = cpu_among(view, times, files.lookups)},
                     files.lookups,
                     act_is(Act::kMetadata)});
    }
    if (files.blocked > 0) {
      const std::string id = storage == "input.small_files" ? "input.disk" : storage;
      const std::string title =
          id == "input.disk_throttled" ? "A limit on the job's reads holds up the loader"
          : id == "input.cold_cache"   ? "The data set is read from the disk again every epoch"
          : id == "input.random_seek"  ? "Reads jump about the data, so that read-ahead cannot help"
                                       : "Reads that wait for storage bound the loader";
      // Fetching from the disk takes time on a core around each read, too; copying out of the
      // page cache and faults in the buffer remain.
      const double on_core = files.kernel + files.interpreter;
      const double fetching = from_storage ? std::max(0.0, on_core - known) : 0;
      const double all = files.blocked + fetching;
      if (from_storage) take_cpu(out.front(), on_core);
      out.push_back({id, title, {.fetch = all, .fetch_cpu = fetching}, all, files.cells});
    }
  }
  if (times[Act::kSeek] > 0) {
    out.push_back(
        {"input.random_seek",
         "Each sample is searched for in an archive or stream",
         {.fetch = times[Act::kSeek], .fetch_cpu = cpu_among(view, times, times[Act::kSeek])},
         times[Act::kSeek],
         act_is(Act::kSeek)});
  }
  // Who starts a process for each sample waits at its pipe for what it says.
  const bool asks_children = times[Act::kChild] > 0 && started_per_sample(view) > kStartedPerSample;
  const auto in_child = [=](Act act) {
    return act == Act::kChild || (asks_children && act == Act::kPoll);
  };
  const double children = times[Act::kChild] + (asks_children ? times[Act::kPoll] : 0);
  const double remote = times[Act::kNetwork] + (asks_children ? 0 : times[Act::kPoll]);
  if (remote > 0) {
    // Waiting for a peer takes no core: more requests at a time hide it.
    const bool few = loader.kind != LoaderKind::kThreads || !view.is_python();
    const int enough = std::max({4, 4 * loader.workers, static_cast<int>(view.cpu().usable)});
    InputCause cause{few ? "input.too_few_workers" : "input.disk",
                     few ? "Too few requests at a time: the workers wait for remote data one after "
                           "the other"
                         : "Reads that wait for remote storage bound the loader",
                     {},
                     remote,
                     [&view, in_child](const Cell& c) {
                       return makes_samples(view, c) && !in_child(c.act) &&
                              (c.act == Act::kNetwork || c.act == Act::kPoll);
                     }};
    if (few) {
      cause.relief.workers = enough;
    } else {
      cause.relief.fetch = remote;
    }
    out.push_back(cause);
  }
  if (times[Act::kSleep] > 0) {
    out.push_back({"stall.idle_wait",
                   times.mostly_in_loop() ? "The training loop sleeps while nothing works"
                                          : "The loader sleeps while nothing works",
                   {.fetch = times[Act::kSleep]},
                   times[Act::kSleep],
                   act_is(Act::kSleep)});
  }
  if (children > 0) {
    out.push_back(
        {"cpu.process_churn",
         "A process is started for each sample",
         {.fetch = children,
          .fetch_cpu = cpu_among(view, times, children),
          // The children's own CPU time goes with them.
          .trainer_cpu = std::max(0.0, view.cpu().job - view.cpu().trainer - view.cpu().producers) *
                         view.steps().mean},
         children,
         [&view, in_child](const Cell& c) { return makes_samples(view, c) && in_child(c.act); }});
  }
  if (times[Act::kGc] > 0 && loader.kind == LoaderKind::kProcesses) {
    out.push_back({"cpu.gc",
                   "Garbage collection holds up the loader",
                   {.fetch = times[Act::kGc], .fetch_cpu = times[Act::kGc]},
                   times[Act::kGc],
                   act_is(Act::kGc)});
  }
  if (loader.kind == LoaderKind::kThreads && times[Act::kGil] > 0) {
    const double trainer_gil =
        view.per_step(Role::kTrainer, [](const Cell& c) { return c.act == Act::kGil; });
    const bool fight =
        times[Act::kGil] > 0.2 * times.total || trainer_gil > 0.1 * view.steps().mean;
    if (fight && times[Act::kPython] > times[Act::kNative]) {
      // The work itself would run beside the training thread if it were not for the lock.
      out.front().weight = 0;
      out.push_back({"input.gil",
                     "Loader threads and the training thread fight for the GIL",
                     {.fetch = times[Act::kGil], .trainer = trainer_gil},
                     times[Act::kGil] + times[Act::kPython],
                     [&view](const Cell& c) {
                       return makes_samples(view, c) &&
                              (c.act == Act::kPython || c.act == Act::kGil);
                     }});
    }
  }
  // Taking a batch out of the queue is passing it, too: the training thread unpickles it, and frees
  // the objects of the one before at the same line.
  const auto takes = [](const Cell& c) {
    return c.role == Role::kTrainer && c.part == Part::kInputWait && on_cpu(c.act);
  };
  const auto from_queue = [&](const Cell& c) { return takes(c) && (c.traits & kInQueue) != 0; };
  const auto hot = view.profile().hottest(from_queue, view.run());
  const auto unpickles = [=, line = hot ? hot->frame : 0](const Cell& c) {
    return from_queue(c) || (takes(c) && line != 0 && c.user == line);
  };
  double handling = loader.kind == LoaderKind::kProcesses
                        ? view.per_step(Role::kTrainer, [&](const Cell& c) { return unpickles(c); })
                        : 0;
  // Producers that idle while the step waits in their queue for most of its time: what lies between
  // them, hundreds of descriptors for as many little tensors, holds both up.
  const double in_queue = view.per_step(Role::kTrainer, [](const Cell& c) {
    return c.part == Part::kInputWait && (c.traits & kInQueue) != 0 && c.act != Act::kRunQueue;
  }) * (1 - std::min(1.0, view.cpu().others / std::max(view.cpu().usable, 1e-9)));
  const bool between = loader.measured && loader.kind == LoaderKind::kProcesses &&
                       loader.busy < kBusy && in_queue > kMostOfStep * view.steps().mean &&
                       handling > kHandles * in_queue;
  // Few readings may say more, but it takes about as long as pickling, which is measured.
  if (times.handover > 0 && !between) handling = std::min(handling, kUnpickle * times.handover);
  const bool taking = between || handling + times.handover > times.collate;
  // Whatever makes a batch, it is handed over.
  const double passing = times.collate + (taking ? times.handover : 0);
  const auto collates = [&view](const Cell& c) {
    return makes_batches(view, c) && !makes_samples(view, c);
  };
  // Who puts so much into a batch is to blame, where that is code of the user's.
  const bool at_loop = taking && !(between && view.where(collates));
  if (passing + handling > 0) {
    // Threads of the training process that only pass batches on take cores and the lock from it.
    const double beside = view.per_step(Role::kHelper, [](const Cell& c) {
      return !c.aside && (c.traits & kInQueue) != 0 && on_cpu(c.act);
    });
    out.push_back({"input.collate",
                   "Putting batches together and passing them on bounds the loader",
                   {.fetch = passing,
                    .fetch_cpu = cpu_among(view, times, passing),
                    .trainer = gil_for_passing(view),
                    .trainer_cpu = (taking ? handling : 0) + beside,
                    .handling = taking ? handling : 0,
                    .uneven = between ? in_queue - handling : 0},
                   between ? std::max(in_queue, times.total) : passing + handling,
                   [&view, at_loop, unpickles, collates](const Cell& c) {
                     return at_loop ? unpickles(c) : collates(c);
                   }});
  }
  return out;
}

void add_remedies(Finding& f, const RunView& view, const BatchTimes& times) {
  if (f.id == "input.decode_cpu") {
    remedy(f, "feed", "Decode faster: at the size that is needed, or with a native decoder.");
    if (few_workers(view) && view.cpu().idle_known && view.cpu().idle > kIdle * view.cpu().usable) {
      remedy(f, "num_workers", "Give the loader more workers: cores idle.");
    }
    remedy(f, "preprocess", "Store the samples decoded and resized.");
  } else if (f.id == "input.feed_dict") {
    remedy(f, "dataset", "Build the input with the Dataset API and native operations.");
  } else if (f.id == "input.too_few_workers") {
    remedy(f, "num_workers",
           view.loader().kind != LoaderKind::kSerial
               ? "Raise num_workers, the cores and the data source can serve more."
           : times.mostly_in_loop()
               ? "Move what this line does into the dataset and give the DataLoader workers of its "
                 "own (num_workers above 0)."
               : "Give the DataLoader workers of its own (num_workers above 0).");
    remedy(f, "prefetch_factor", "Raise prefetch_factor where batches take uneven time.");
  } else if (f.id == "input.small_files") {
    remedy(f, "shards", "Pack the files into shards (tar or records) that are read in one piece.");
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
    remedy(f, "collate", "Collate into a buffer that is used again; pass tensors, not objects.");
  } else if (f.id == "input.gil") {
    remedy(f, "processes", "Load in processes, or decode in code that releases the GIL.");
  } else if (f.id == "stall.idle_wait") {
    remedy(f, "event", "Wait for an event instead of sleeping.");
  } else if (f.id == "cpu.process_churn") {
    remedy(f, "pool", "Call in process, or keep a pool of processes.");
  } else if (f.id == "cpu.gc") {
    remedy(f, "gc_freeze", "Call gc.freeze() after start-up or raise the thresholds.");
  }
}

}  // namespace

double gil_for_passing(const RunView& view) {
  const auto holds = [](const Cell& c) {
    return !c.aside && c.role != Role::kTrainer && c.act == Act::kPython;
  };
  const double all = view.profile().seconds(holds);
  const double passing =
      view.profile().seconds([&](const Cell& c) { return holds(c) && (c.traits & kInQueue) != 0; });
  if (all <= 0) return 0;
  return passing / all * view.per_step(Role::kTrainer, [](const Cell& c) {
    return c.act == Act::kGil && c.part != Part::kInputWait;
  });
}

bool makes_batches(const RunView& view, const Cell& c) {
  const LoaderView& loader = view.loader();
  if (loader.kind == LoaderKind::kSerial) {
    return c.role == Role::kTrainer && c.part == Part::kInputWait;
  }
  // A worker's queue may pickle in a thread of its own.
  if (c.role == Role::kHelper && c.stage == Stage::kHandover) return true;
  if (c.role != Role::kProducer) return false;
  if (loader.measured) return c.stage != Stage::kNone;
  return c.act != Act::kIdle && c.act != Act::kPoll && c.act != Act::kLock &&
         c.act != Act::kUnknown;
}

bool makes_samples(const RunView& view, const Cell& c) {
  // Where nobody measures the stages the stack tells them.
  const bool collates =
      view.loader().measured ? c.stage == Stage::kCollate : (c.traits & kInCollate) != 0;
  return makes_batches(view, c) && !collates && c.stage != Stage::kHandover &&
         (c.traits & kInQueue) == 0;
}

BatchTimes batch_times(const RunView& view) {
  BatchTimes out;
  const LoaderView& loader = view.loader();
  double samples = 0, all = 0, collate = 0;
  for (const Cell& c : view.profile().cells()) {
    if (!makes_batches(view, c)) continue;
    out.readings += c.readings;
    all += c.seconds;
    if (!makes_samples(view, c)) {
      collate += c.seconds;
      continue;
    }
    samples += c.seconds;
    out.act[static_cast<size_t>(c.act)] += c.seconds;
  }
  out.total = loader.fetch;
  if (loader.kind == LoaderKind::kSerial && loader.measured && loader.batches > 0) {
    // What the loop itself does to a batch before the forward pass is part of making it.
    const double waited = view.steps().part(Part::kInputWait) *
                          static_cast<double>(view.steps().count) /
                          static_cast<double>(loader.batches);
    out.in_loop = std::max(0.0, waited - loader.fetch);
    out.total += out.in_loop;
  }
  if (all <= 0) return out;
  if (loader.measured) {
    out.collate = loader.collate;
    out.handover = loader.handover;
  } else {
    out.collate = loader.fetch * collate / all;
  }
  const double for_samples = std::max(0.0, out.total - out.collate - out.handover);
  for (double& t : out.act) t *= samples > 0 ? for_samples / samples : 0;
  return out;
}

/// Work before the forward pass in a loop without a loader is input only if it brings data in, is
/// done in a generator that the loop runs over, or is Python's rather than the framework's.
bool is_input(const RunView& view, const BatchTimes& times) {
  if (view.loader().measured || view.loader().kind != LoaderKind::kSerial) return true;
  const double waits = times[Act::kRead] + times[Act::kMetadata] + times[Act::kNetwork] +
                       times[Act::kSeek] + times[Act::kChild] + times[Act::kPoll];
  if (waits > 0.1 * times.total) return true;
  if (fed_by_hand(view)) return true;
  const ReadWork read = read_work(view);
  if ((read.calls >= 1 && read.bytes > 1024) || view.in_generators() > kMadeInGenerator)
    return true;
  const double by_hand = view.python_before_forward();
  return by_hand > kMadeByHand &&
         by_hand * view.steps().part(Part::kInputWait) > kMuchByHand * view.steps().mean;
}

void detect_input(const RunView& view, Findings& findings) {
  if (!view.has_steps()) return;
  detect_boundary(view, findings);
  const double step = view.steps().mean, wait = view.steps().part(Part::kInputWait);
  if (wait < kWorthSaying * step) return;
  detect_restart(view, findings);
  const double left = wait - findings.cost("input.worker_restart");
  if (left < kWorthSaying * step || left < 0.3 * wait) return;
  const WhatIf whatif(view);
  detect_skew(view, whatif, findings);
  if (findings.has("input.worker_skew")) return;
  const LoaderView& loader = view.loader();
  if (loader.kind == LoaderKind::kNone) return;
  const BatchTimes times = batch_times(view);
  if (!is_input(view, times)) return;
  if (times.readings < kFewReadings || times.total <= 0) return;
  // Where a library does it all, the line that waits for it is the user's.
  const auto waits_for_batch = [](const Cell& c) {
    return c.role == Role::kTrainer && c.part == Part::kInputWait;
  };
  std::vector<InputCause> all = causes(view, times, whatif);
  std::sort(all.begin(), all.end(),
            [](const InputCause& a, const InputCause& b) { return a.weight > b.weight; });
  bool first = true;
  for (const InputCause& cause : all) {
    if (!first && cause.weight < kSecondCause * times.total) break;
    if (findings.has(cause.id)) continue;
    const double saved = whatif.saved_by(cause.relief);
    // Any loader passes batches on; only much of it is a cause. And workers that idle bound
    // nothing.
    const bool handling = cause.relief.handling > 2 * kWorthSaying * step;
    if (loader.measured && loader.kind != LoaderKind::kSerial && loader.busy < kBusy && !handling) {
      continue;
    }
    if (cause.id == "input.collate" && saved < 2 * kWorthSaying * step) continue;
    const double sure = std::min(0.97, 0.5 + 0.5 * cause.weight / times.total);
    Finding* f = findings.add(cause.id, cause.title, sure, saved);
    if (f == nullptr) continue;
    first = false;
    f->where = view.where(cause.cells);
    if (!f->where) f->where = view.where(waits_for_batch);
    add_common_evidence(view, *f);
    if (times.mostly_in_loop()) {
      evidence(*f,
               fmt::format("the loop spends {} on it before the forward pass", ms(times.in_loop)),
               times.in_loop * 1e3, "ms", "timeline", view.steps().count);
    }
    if (cause.relief.uneven > 0) {
      const double taken = cause.relief.handling + cause.relief.uneven;
      evidence(*f, fmt::format("taking a batch from its worker holds the step up {}", ms(taken)),
               taken * 1e3, "ms", "stacks", view.readings(cause.cells));
    } else {
      const double share = std::min(1.0, cause.weight / times.total);
      evidence(*f, fmt::format("this takes {} of the time to make a batch", format_percent(share)),
               share, "ratio", "stacks", view.readings(cause.cells));
    }
    if (cause.id.starts_with("input.disk") || cause.id == "input.cold_cache" ||
        cause.id == "input.random_seek") {
      storage_evidence(view, *f);
    }
    add_remedies(*f, view, times);
  }
}

}  // namespace flatout::diagnose
