// Why the step waits for input. One main cause is chosen: what takes most of the time that bounds
// the making of batches; others are told beside it only where they are large in their own right.
#include "diagnose/input.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::SignalId;

namespace {

// A second cause must explain this much of a batch's time.
constexpr double kSecondCause = 0.25;
// CPU time that a page fault, a byte and a call of read cost in the kernel, roughly: to tell known
// kernel work from look-ups of files.
constexpr double kFaultSeconds = 0.7e-6, kReadByteSeconds = 0.15e-9, kReadCallSeconds = 0.7e-6;

std::string ms(double seconds) { return format_duration(nanos(seconds * 1e9)); }

/// Kernel time per batch in look-ups of files that the readings could not name.
double unnamed_lookups(const RunView& view, const BatchTimes& times) {
  const LoaderView& loader = view.loader();
  if (loader.batches == 0 || loader.kind == LoaderKind::kThreads) return 0;
  const auto ours = [&](model::ProcessId p) {
    return loader.kind == LoaderKind::kSerial ? p == view.trainer_process()
                                              : view.is_producer_process(p);
  };
  const double n = static_cast<double>(loader.batches);
  const double faults = view.process_increase(SignalId::kProcMinorFaults, ours) / n;
  const double bytes = view.process_increase(SignalId::kProcReadChars, ours) / n;
  const double calls = view.process_increase(SignalId::kProcReadCalls, ours) / n;
  const double known = faults * kFaultSeconds + bytes * kReadByteSeconds + calls * kReadCallSeconds;
  const double kernel = times.kernel_share * times.cpu();
  // Without small reads there is no sign that files are what the kernel is busy with.
  const double samples = std::max(loader.batch_samples, 1.0);
  const bool small = calls > samples && bytes / std::max(calls, 1.0) < 64e3;
  return small ? std::max(0.0, kernel - known) : 0;
}

void add_common_evidence(const RunView& view, const BatchTimes& times, Finding& f) {
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
  (void)times;
}

InputCause cpu_cause(const RunView& view, const BatchTimes& times, const WhatIf& whatif) {
  const LoaderView& loader = view.loader();
  const double cpu = times.cpu();
  // A producer that waits for a core because the others of its kind have them would not wait if
  // they had less to do.
  const double rivals = view.cpu().job + view.cpu().others;
  const double own = rivals > 0 ? view.cpu().job / rivals : 1;
  const double queued = times[Act::kRunQueue] * own;
  InputCause decode{"input.decode_cpu",
                    "Decoding and augmenting samples bounds the loader",
                    {.fetch = cpu + queued, .fetch_cpu = cpu},
                    cpu + queued,
                    [&view](const Cell& c) {
                      return makes_samples(view, c) && (on_cpu(c.act) || c.act == Act::kRunQueue);
                    }};
  const int enough = std::max(2, static_cast<int>(std::lround(view.cpu().usable)));
  const bool more_fit = loader.kind == LoaderKind::kSerial ||
                        (loader.kind == LoaderKind::kProcesses && loader.workers < enough);
  if (!more_fit || view.cpu().throttled > 0.05 || !view.cpu().idle_known) return decode;
  const Relief more{.workers = std::max(enough, loader.workers + 1)};
  const double by_workers = whatif.saved_by(more), by_decode = whatif.saved_by(decode.relief);
  // Idle cores could do it: then what lacks is workers, not speed.
  if (by_workers < 0.35 * by_decode || view.cpu().idle < 0.15 * view.cpu().usable) return decode;
  decode.id = "input.too_few_workers";
  decode.title = loader.kind == LoaderKind::kSerial
                     ? "Batches are made in the training thread while cores idle"
                     : "Too few loader workers: all are busy while cores idle";
  decode.relief = more;
  return decode;
}

std::vector<InputCause> causes(const RunView& view, const BatchTimes& times, const WhatIf& whatif) {
  std::vector<InputCause> out;
  const LoaderView& loader = view.loader();
  const auto act_is = [&view](Act act) {
    return [&view, act](const Cell& c) { return makes_samples(view, c) && c.act == act; };
  };
  out.push_back(cpu_cause(view, times, whatif));
  const double lookups = times[Act::kMetadata] + unnamed_lookups(view, times);
  if (lookups > 0) {
    out.front().weight = std::max(0.0, out.front().weight - (lookups - times[Act::kMetadata]));
    const bool named = times[Act::kMetadata] >= 0.5 * lookups;
    out.push_back({"input.small_files",
                   "Opening and looking up many small files bounds the loader",
                   {.fetch = lookups, .fetch_cpu = lookups},
                   lookups,
                   [&view, named](const Cell& c) {
                     return makes_samples(view, c) &&
                            (named ? c.act == Act::kMetadata
                                   : c.act == Act::kKernel || on_cpu(c.act));
                   }});
  }
  if (times[Act::kSeek] > 0) {
    out.push_back({"input.random_seek",
                   "Each sample is searched for in an archive or stream",
                   {.fetch = times[Act::kSeek], .fetch_cpu = times[Act::kSeek]},
                   times[Act::kSeek],
                   act_is(Act::kSeek)});
  }
  if (times[Act::kRead] > 0) {
    const std::string id = storage_cause(view);
    const std::string title =
        id == "input.disk_throttled" ? "A limit on the job's reads holds up the loader"
        : id == "input.cold_cache"   ? "The data set is read from the disk again every epoch"
        : id == "input.random_seek"  ? "Reads jump about the data, so that read-ahead cannot help"
                                     : "Reads that wait for storage bound the loader";
    out.push_back({id, title, {.fetch = times[Act::kRead]}, times[Act::kRead], act_is(Act::kRead)});
  }
  const double remote = times[Act::kNetwork] + times[Act::kPoll];
  if (remote > 0) {
    // Waiting for a peer takes no core: more requests at a time hide it.
    const bool few = loader.kind == LoaderKind::kSerial || loader.kind == LoaderKind::kProcesses;
    const int enough = std::max({4, 4 * loader.workers, static_cast<int>(view.cpu().usable)});
    InputCause cause{few ? "input.too_few_workers" : "input.disk",
                     few ? "Too few requests at a time: the workers wait for remote data one after "
                           "the other"
                         : "Reads that wait for remote storage bound the loader",
                     {},
                     remote,
                     [&view](const Cell& c) {
                       return makes_samples(view, c) &&
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
                   "The loader sleeps while nothing works",
                   {.fetch = times[Act::kSleep]},
                   times[Act::kSleep],
                   act_is(Act::kSleep)});
  }
  if (times[Act::kChild] > 0) {
    out.push_back({"cpu.process_churn",
                   "A process is started for each sample",
                   {.fetch = times[Act::kChild], .fetch_cpu = times[Act::kChild]},
                   times[Act::kChild],
                   act_is(Act::kChild)});
  }
  if (times[Act::kGc] > 0) {
    out.push_back({"cpu.gc",
                   "Garbage collection holds up the loader",
                   {.fetch = times[Act::kGc], .fetch_cpu = times[Act::kGc]},
                   times[Act::kGc],
                   act_is(Act::kGc)});
  }
  if (loader.kind == LoaderKind::kThreads && times[Act::kGil] > 0) {
    const double trainer_gil =
        view.per_step(Role::kTrainer, [](const Cell& c) { return c.act == Act::kGil; });
    out.push_back({"input.gil",
                   "Loader threads and the training thread fight for the GIL",
                   {.fetch = times[Act::kGil], .trainer = trainer_gil},
                   times[Act::kGil] + trainer_gil,
                   [&view](const Cell& c) {
                     return makes_samples(view, c) && (c.act == Act::kPython || c.act == Act::kGil);
                   }});
  }
  const double passing = times.collate + times.handover;
  if (passing > 0) {
    const double share = times.total > 0 ? passing / times.total : 0;
    out.push_back(
        {"input.collate",
         "Putting batches together and passing them on bounds the loader",
         {.fetch = passing,
          .fetch_cpu = std::min(passing, share * view.cpu().producers * view.steps().mean)},
         passing,
         [&view](const Cell& c) { return makes_batches(view, c) && !makes_samples(view, c); }});
  }
  return out;
}

void add_remedies(Finding& f, const RunView& view) {
  if (f.id == "input.decode_cpu") {
    remedy(f, "feed", "Decode faster: at the size that is needed, or with a native decoder.");
    remedy(f, "preprocess", "Store the samples decoded and resized.");
  } else if (f.id == "input.too_few_workers") {
    remedy(f, "num_workers",
           view.loader().kind == LoaderKind::kSerial
               ? "Give the DataLoader workers of its own (num_workers above 0)."
               : "Raise num_workers, the cores and the data source can serve more.");
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

bool makes_batches(const RunView& view, const Cell& c) {
  const LoaderView& loader = view.loader();
  if (loader.kind == LoaderKind::kSerial) {
    return c.role == Role::kTrainer && c.part == Part::kInputWait;
  }
  if (c.role != Role::kProducer) return false;
  if (loader.measured) return c.stage != Stage::kNone;
  return c.act != Act::kIdle && c.act != Act::kPoll && c.act != Act::kLock &&
         c.act != Act::kUnknown;
}

bool makes_samples(const RunView& view, const Cell& c) {
  return makes_batches(view, c) && c.stage != Stage::kCollate && c.stage != Stage::kHandover &&
         (c.traits & (kInCollate | kInQueue)) == 0;
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
  if (all <= 0) return out;
  if (loader.measured) {
    out.collate = loader.collate;
    out.handover = loader.handover;
  } else {
    out.collate = loader.fetch * collate / all;
  }
  const double for_samples = std::max(0.0, out.total - out.collate - out.handover);
  for (double& t : out.act) t *= samples > 0 ? for_samples / samples : 0;
  double user = 0, kernel = 0;
  const auto ours = [&](model::ProcessId p) {
    return loader.kind == LoaderKind::kProcesses ? view.is_producer_process(p)
                                                 : p == view.trainer_process();
  };
  user = view.process_increase(SignalId::kProcCpuUser, ours);
  kernel = view.process_increase(SignalId::kProcCpuSystem, ours);
  if (user + kernel > 0) out.kernel_share = kernel / (user + kernel);
  return out;
}

void detect_input(const RunView& view, Findings& findings) {
  if (!view.has_steps()) return;
  detect_boundary(view, findings);
  const double step = view.steps().mean, wait = view.steps().part(Part::kInputWait);
  if (wait < kWorthSaying * step) return;
  detect_restart(view, findings);
  const WhatIf whatif(view);
  detect_skew(view, whatif, findings);
  if (findings.has("input.worker_skew")) return;
  const LoaderView& loader = view.loader();
  if (loader.kind == LoaderKind::kNone) return;
  const BatchTimes times = batch_times(view);
  if (times.readings < kFewReadings || times.total <= 0) return;
  std::vector<InputCause> all = causes(view, times, whatif);
  std::sort(all.begin(), all.end(),
            [](const InputCause& a, const InputCause& b) { return a.weight > b.weight; });
  bool first = true;
  for (const InputCause& cause : all) {
    if (!first && cause.weight < kSecondCause * times.total) break;
    if (findings.has(cause.id)) continue;
    const double saved = whatif.saved_by(cause.relief);
    const double sure = std::min(0.97, 0.5 + 0.5 * cause.weight / times.total);
    Finding* f = findings.add(cause.id, cause.title, sure, saved);
    if (f == nullptr) continue;
    first = false;
    f->where = view.where(cause.cells);
    add_common_evidence(view, times, *f);
    const double share = std::min(1.0, cause.weight / times.total);
    evidence(*f, fmt::format("this takes {} of the time to make a batch", format_percent(share)),
             share, "ratio", "stacks", view.readings(cause.cells));
    if (cause.id.starts_with("input.disk") || cause.id == "input.cold_cache" ||
        cause.id == "input.random_seek") {
      storage_evidence(view, *f);
    }
    add_remedies(*f, view);
  }
}

}  // namespace flatout::diagnose
