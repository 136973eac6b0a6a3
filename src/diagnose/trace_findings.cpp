#include "diagnose/trace_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/contains.h"
#include "base/text.h"
#include "diagnose/findings.h"

namespace flatout::diagnose {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

// Without steps a share of the time must be larger: nobody knows what belongs to training.
constexpr double kBlind = 0.1;
constexpr uint64_t kFewEvents = 50;  // of a device; operators

std::string percent_of(int64_t part, int64_t whole) {
  return format_percent(whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0);
}

std::string time_text(int64_t ns) { return format_duration(Nanos(ns)); }

// "train.py(47): fit" taken apart.
std::optional<Where> where_of(const std::vector<HostBlame>& lines, int64_t time, double least) {
  if (lines.empty() || time <= 0 ||
      static_cast<double>(lines[0].time) < least * static_cast<double>(time)) {
    return std::nullopt;
  }
  const std::string_view text = lines[0].name;
  const size_t open = text.find('('), close = text.find("): ");
  if (open == std::string_view::npos || close == std::string_view::npos || close < open)
    return std::nullopt;
  Where where;
  where.file = text.substr(0, open);
  where.line = parse_number<int64_t>(text.substr(open + 1, close - open - 1)).value_or(0);
  where.function = text.substr(close + 3);
  return where;
}
std::optional<Where> where_of(const HostUse& use, double least) {
  return where_of(use.lines, use.time, least);
}
std::optional<Where> where_of(const HostPart& part, double least) {
  return where_of(part.lines, part.time, least);
}

class TraceDetector {
 public:
  explicit TraceDetector(const TraceSummary& trace) : trace_(trace) {
    // Several threads or processes may each have drawn the same steps: what lies mostly beside
    // others is no step more.
    int64_t end = INT64_MIN;
    for (const TraceStepSummary& step : trace.steps) {  // in order of their begin
      const int64_t step_end = step.begin + step.wall;
      if (step_end <= end) continue;
      const int64_t more = step_end - std::max(step.begin, end);
      total_ += more;
      if (more * 2 > step.wall) ++steps_;
      end = step_end;
    }
    for (const DeviceSummary& d : trace.devices) {
      if (main_ == nullptr || d.times.span > main_->times.span) main_ = &d;
    }
    // A device may still work through its queue after the last step.
    if (main_ != nullptr) total_ = std::max(total_, main_->times.span + main_->first_input_wait);
    if (total_ == 0) total_ = trace.host.span;
  }

  bool enough() const {
    if (by_device() || trace_.host.fed || trace_.host.input_wait > 0) return true;
    // A profile of a Python program that computes without a framework.
    if (trace_.host.operator_count == 0 && trace_.host.python_count >= kFewEvents) return true;
    return trace_.host.operator_count >= kFewEvents ||
           (!trace_.steps.empty() && trace_.events >= kFewEvents);
  }

  /// Most of the time, or idle time that would be worth saying, went where a trace does not say:
  /// then that nothing was found proves nothing.
  bool unexplained() const {
    if (!by_device()) return (unnamed_host() - trace_.host.collective_wait) * 2 > trace_.host.span;
    const int64_t unknown = main_->unknown - main_->unknown_input - main_->unknown_sync;
    if (static_cast<double>(unknown) > kWorthSaying * static_cast<double>(main_->times.span))
      return true;
    return (main_->idle.host_wait - main_->short_wait - main_->sync_wait + main_->idle.other -
            main_->unknown_input - main_->unknown_sync) *
               2 >
           main_->times.span;
  }

  /// Where the time goes that unexplained() is about, as far as the trace has a word for it.
  std::string unexplained_text() const {
    const std::string_view advice =
        trace_.format == "flatout" ? "; `flatout report` of the run says more: it has its stacks"
        : trace_.format == "chrome" && trace_.host.python_count == 0
            ? "; with_stack=True records what Python does then"
            : "";
    const std::string longest = longest_step();
    if (!by_device()) {
      const HostUse& use = trace_.host.training;
      for (const HostBlame& slice : use.slices) {
        if (slice.time * 2 <= use.time) break;
        if (is_step(slice.name)) continue;
        const int64_t rest = unnamed_host() - trace_.host.collective_wait;
        const auto time =
            static_cast<int64_t>(static_cast<double>(slice.time) / static_cast<double>(use.time) *
                                 static_cast<double>(rest));
        return fmt::format("{} of the time passes in {}, outside of operators{}{}",
                           percent_of(time, trace_.host.span), slice.name, longest, advice);
      }
    }
    return fmt::format(
        "Most of the time passes where the trace records nothing: start-up, or work of the host "
        "that was not traced{}{}",
        longest, advice);
  }

  std::vector<Finding> take() {
    input();
    checkpoints();
    sleep();
    if (main_ != nullptr) {
      communication();
      sync();
      copies();
      launches();
      norms();
      wrong_device();
    } else {
      host_collectives();
    }
    python();
    std::stable_sort(found_.begin(), found_.end(), [](const Finding& a, const Finding& b) {
      return a.gain.value_or(0) > b.gain.value_or(0);
    });
    return std::move(found_);
  }

 private:
  Finding* add(std::string_view id, std::string title, double confidence, int64_t saved) {
    const double least = trace_.steps.empty() ? kBlind : kWorthSaying;
    if (total_ <= 0 || static_cast<double>(saved) < least * static_cast<double>(total_))
      return nullptr;
    Finding f;
    f.id = id;
    f.title = std::move(title);
    f.confidence = confidence;
    const double share = std::min(0.999, static_cast<double>(saved) / static_cast<double>(total_));
    if (!trace_.steps.empty()) {
      f.cost_ms_per_step = static_cast<double>(saved) * 1e-6 / static_cast<double>(steps_);
    }
    f.gain = 1 / (1 - share);
    found_.push_back(std::move(f));
    return &found_.back();
  }
  void show(Finding& f, std::string text, double value, std::string unit) {
    evidence(f, std::move(text), value, std::move(unit), "trace",
             static_cast<int64_t>(std::max(trace_.device_events, trace_.events)));
  }
  void show_share(Finding& f, std::string_view what, int64_t part, int64_t whole) {
    show(f,
         fmt::format("{} {} ({} of {})", percent_of(part, whole), what, time_text(part),
                     time_text(whole)),
         whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0, "ratio");
  }

  bool is_step(std::string_view name) const {
    return name.starts_with("ProfilerStep") ||
           std::any_of(trace_.steps.begin(), trace_.steps.end(),
                       [&](const TraceStepSummary& s) { return s.name == name; });
  }
  // Where one step takes longer than all others.
  std::string longest_step() const {
    if (trace_.steps.size() < 3) return "";
    int64_t sum = 0;
    for (const TraceStepSummary& s : trace_.steps) sum += s.wall;
    const auto longest = std::max_element(
        trace_.steps.begin(), trace_.steps.end(),
        [](const TraceStepSummary& a, const TraceStepSummary& b) { return a.wall < b.wall; });
    if (longest->wall * 2 < sum) return "";
    return fmt::format("; {} alone takes {} of the {} of all steps", longest->name,
                       time_text(longest->wall), time_text(sum));
  }

  // Whether the devices' idle time tells what the host costs; else the host's own time does.
  bool by_device() const { return main_ != nullptr && trace_.device_events >= kFewEvents; }
  // Of the host's time: neither operators nor batches.
  int64_t unnamed_host() const {
    return trace_.host.span - trace_.host.operators - trace_.host.input_wait;
  }
  const HostUse& host_use() const { return by_device() ? main_->host : trace_.host.training; }
  // A part of what was looked at closely, of the whole trace.
  int64_t in_all(const HostPart& part) const {
    const int64_t all =
        by_device() ? main_->idle.host_wait : unnamed_host() - trace_.host.collective_wait;
    const int64_t looked_at = host_use().time;
    if (looked_at <= 0) return 0;
    return static_cast<int64_t>(static_cast<double>(part.time) / static_cast<double>(looked_at) *
                                static_cast<double>(std::max<int64_t>(all, 0)));
  }
  // What is named by what the host did is not to be named again by how the wait began.
  int64_t rest_of_sync() const {
    const int64_t beside = main_->idle.host_wait - main_->short_wait - main_->sync_wait;
    const int64_t named = in_all(host_use().saving) + in_all(host_use().asleep);
    return std::max<int64_t>(0, main_->sync_wait - std::max<int64_t>(0, named - beside));
  }
  void show_most(Finding& f, const HostPart& part) {
    if (!part.slices.empty())
      show_share(f, fmt::format("of that in {}", part.slices[0].name.substr(0, 80)),
                 part.slices[0].time, part.time);
  }

  // `saved` of the time goes with this part of the host's.
  Finding* add_part(std::string_view id, std::string title, double confidence, const HostPart& part,
                    int64_t saved, std::string_view share_of_what) {
    Finding* const f = add(id, std::move(title), confidence, saved);
    if (f == nullptr) return nullptr;
    f->where = where_of(part, 0.2);
    show_share(*f, share_of_what, saved, total_);
    show_most(*f, part);
    return f;
  }

  void checkpoints() {
    const HostPart& part = host_use().saving;
    Finding* const f = add_part("stall.checkpoint", "Saving a checkpoint blocks the step", 0.85,
                                part, in_all(part), "of the time saves a checkpoint");
    if (f == nullptr) return;
    remedy(*f, "async", "Save less often, or in the background: copy the state, then write it.");
  }

  void sleep() {
    const HostPart& part = host_use().asleep;
    Finding* const f = add_part("stall.idle_wait", "The step sleeps", 0.9, part, in_all(part),
                                "of the time the training thread sleeps");
    if (f == nullptr) return;
    remedy(*f, "event", "Wait for an event instead of sleeping.");
  }

  // What one rank's trace cannot tell: how much of it waits for another rank.
  void host_collectives() {
    Finding* const f =
        add("dist.exposed_communication", "Collectives are not hidden behind compute", 0.7,
            trace_.host.collective_wait);
    if (f == nullptr) return;
    show_share(*f, "of the time passes in collectives of the host alone, sending or waiting",
               trace_.host.collective_wait, trace_.host.span);
    remedy(*f, "ranks", "Give the traces of all ranks: they tell who waits for whom.");
    remedy(*f, "buckets", "Start collectives earlier: smaller buckets, gradients as bucket views.");
  }

  void input() {
    const HostSummary& host = trace_.host;
    const int64_t saved =
        main_ != nullptr ? main_->idle.input_wait + main_->unknown_input + main_->first_input_wait
                         : host.input_wait;
    std::string_view id = "input.too_few_workers";
    std::string title = "Batches are made in the training thread";
    double confidence = 0.8;
    std::optional<Where> where = where_of(host.input, 0.2);
    std::string_view inner;
    if (!host.input.slices.empty()) inner = host.input.slices[0].name;
    const bool stacks = host.input.python * 2 > host.input.time;
    const bool tf_data = host.loader.starts_with("IteratorGetNext");
    if (host.fed && host.input_wait == 0) {
      // One run of a session: there is nothing to compare it with, so no cost is known.
      Finding f;
      f.id = "input.feed_dict";
      f.title = "Batches enter TensorFlow through feed_dict";
      f.confidence = 0.5;
      show(f, fmt::format("{} operators are batches that Python fed", host.feeds),
           static_cast<double>(host.feeds), "operators");
      remedy(f, "dataset", "Build the input with the Dataset API and native operations.");
      found_.push_back(std::move(f));
      return;
    }
    if (host.feeds > 0) {
      id = "input.feed_dict";
      title = "Batches enter TensorFlow through Python";
    } else if (trace_.format == "flatout") {
      title = "The steps wait for their batches";
      confidence = 0.6;
    } else if (tf_data) {
      title = "tf.data does not keep up with the steps";
      confidence = 0.6;
    } else if (host.worker_processes) {
      title = "The loader's workers do not keep up";
      confidence = 0.6;
    } else if (host.input.asleep.time * 2 > host.input.time) {
      id = "stall.idle_wait";
      title = "The loader sleeps";
    } else if (stacks && contains(inner, "collate")) {
      id = "input.collate";
      title = "Collating batches bounds the loader";
    } else if (stacks) {
      id = "input.decode_cpu";
      title = "Decoding and augmenting samples bounds the loader";
    }
    Finding* const f = add(id, std::move(title), confidence, saved);
    if (f == nullptr) return;
    f->where = std::move(where);
    if (main_ != nullptr) {
      show_share(*f, "of the time the device is idle while the next batch is made", saved, total_);
    }
    show_share(*f,
               trace_.steps.empty() ? "of the time waits for a batch"
                                    : "of the steps' time waits for a batch",
               host.input_wait, host.span);
    if (!inner.empty() && host.input.time > 0)
      show_share(*f, fmt::format("of that in {}", std::string(inner.substr(0, 80))),
                 host.input.slices[0].time, host.input.time);
    if (f->id == "input.feed_dict") {
      remedy(*f, "dataset", "Build the input with the Dataset API and native operations.");
    } else if (f->id == "stall.idle_wait") {
      remedy(*f, "event", "Wait for an event instead of sleeping.");
    } else if (f->id == "input.collate") {
      remedy(*f, "collate", "Collate into a buffer that is used again; pass tensors, not objects.");
    } else if (trace_.format == "flatout") {
      remedy(*f, "report", "flatout report of the run says why: it has its stacks and workers.");
    } else if (tf_data) {
      remedy(*f, "prefetch", "End the data set with .prefetch(tf.data.AUTOTUNE).");
      remedy(
          *f, "parallel_map",
          "Give its map a num_parallel_calls=tf.data.AUTOTUNE, and .cache() what stays the same.");
    } else {
      remedy(*f, "num_workers",
             host.worker_processes
                 ? "Raise num_workers, if cores idle."
                 : "Give the DataLoader workers of its own (num_workers above 0).");
      remedy(*f, "feed", "Decode faster: at the size that is needed, or with a native decoder.");
    }
  }

  void communication() {
    const DeviceTimes& t = main_->times;
    Finding* const f =
        add("dist.exposed_communication", "Collectives are not hidden behind compute", 0.9,
            t.exposed_communication());
    if (f == nullptr) return;
    show_share(*f, "of the time only communication runs on the device", t.exposed_communication(),
               t.span);
    show_share(*f, "of the communication overlaps compute", t.overlap, t.communication);
    remedy(*f, "buckets", "Start collectives earlier: smaller buckets, gradients as bucket views.");
    remedy(*f, "links", "Send less (lower precision, sharding), or over faster links.");
  }

  void sync() {
    Finding* const f =
        add("gpu.sync", "The host waits for the device, then the device for the host", 0.8,
            rest_of_sync() + main_->unknown_sync);
    if (f == nullptr) return;
    f->where = where_of(main_->host, 0.3);
    show_share(*f, "of the time the device is idle after the host waited for it",
               rest_of_sync() + main_->unknown_sync, main_->times.span);
    remedy(*f, "async",
           "Move .item(), .cpu() and prints out of the step; copy with non_blocking=True.");
  }

  void copies() {
    const DeviceTimes& t = main_->times;
    int64_t pageable = 0, all = 0;
    for (const CopySummary& copy : main_->copies) {
      if (contains(copy.name, "Pageable")) pageable += copy.all_time;
      if (contains(copy.name, "Host") || contains(copy.name, "Pageable") ||
          contains(copy.name, "Pinned")) {
        all += copy.all_time;
      }
    }
    const bool mostly_pageable = pageable * 2 > all;
    Finding* const f = add(mostly_pageable ? "input.h2d_sync" : "gpu.no_overlap",
                           mostly_pageable ? "Copies from memory that is not pinned block the step"
                                           : "Copies from the host do not overlap compute",
                           0.8, t.exposed_copies);
    if (f == nullptr) return;
    show_share(*f, "of the time only copies between host and device run", t.exposed_copies, t.span);
    if (mostly_pageable) {
      remedy(*f, "pin_memory", "Use pin_memory=True and copy with non_blocking=True.");
    } else {
      remedy(*f, "prefetch", "Copy the next batch on a stream of its own while this one computes.");
    }
  }

  // Gaps of microseconds between kernels, each waiting for the host to launch it.
  void launches() {
    Finding* const f = add("gpu.launch_bound", "The host cannot launch kernels fast enough", 0.85,
                           main_->short_wait);
    if (f == nullptr) return;
    f->where = where_of(main_->host, 0.3);
    show_share(*f, "of the time the device waits for the next launch, less than 1 ms each time",
               main_->short_wait, main_->times.span);
    const LaunchSummary& l = main_->launch;
    if (l.count > 0) {
      const double kernel_us = static_cast<double>(main_->times.busy) * 1e-3 /
                               static_cast<double>(std::max<uint64_t>(1, trace_.device_events));
      show(*f, fmt::format("a kernel takes {:.1f} us on average", kernel_us), kernel_us, "us");
      const double shorter =
          static_cast<double>(l.shorter_than_launch) / static_cast<double>(l.count);
      show(*f,
           fmt::format("{} of the launches take longer than what they launch",
                       format_percent(shorter)),
           shorter, "ratio");
    }
    remedy(*f, "compile", "torch.compile or a CUDA graph: fewer launches for the same work.");
    remedy(*f, "batch", "A larger batch: more work for each launch.");
  }

  // Batch norm (and what follows it) as kernels of their own, though one pass would do.
  void norms() {
    int64_t norm = 0, following = 0;
    uint64_t count = 0;
    for (const KernelStat& k : main_->kernels) {
      if (contains(k.name, "batch_norm") || contains(k.name, "bn_fw") ||
          contains(k.name, "bn_bw") || contains(k.name, "BatchNorm")) {
        norm += k.sum;
        count += k.count;
      } else if (contains(k.name, "threshold") || contains(k.name, "clamp_scalar") ||
                 contains(k.name, "clamp_min") || contains(k.name, "CUDAFunctor_add") ||
                 contains(k.name, "AddFunctor")) {
        following += k.sum;
      }
    }
    if (count == 0 || norm * 5 < main_->times.busy) return;
    // What follows disappears into the norm's own pass; a fused norm itself reads what it
    // normalises once less of three times.
    Finding* const f = add("gpu.unfused_norm", "Batch norm, add and ReLU run as many kernels", 0.6,
                           following + norm / 3);
    if (f == nullptr) return;
    show_share(*f, "of the device's work is batch norm", norm, main_->times.busy);
    show_share(*f, "is adding and ReLU in kernels of their own", following, main_->times.busy);
    remedy(*f, "fused_norm",
           "Fused batch norm with add and ReLU, channels-last memory format, or torch.compile.");
  }

  void wrong_device() {
    int64_t on_host = 0;
    std::string name;
    for (const HostBlame& slice : main_->host.slices) {
      if (!contains(slice.name, "mkldnn") && !contains(slice.name, "slow_conv")) continue;
      if (name.empty()) name = slice.name;
      on_host += slice.time;
    }
    if (on_host == 0 || main_->host.time == 0) return;
    const double share = static_cast<double>(on_host) / static_cast<double>(main_->host.time);
    Finding* const f =
        add("gpu.wrong_device", fmt::format("{} runs on the CPU while the device waits", name), 0.7,
            static_cast<int64_t>(share * static_cast<double>(main_->idle.host_wait)));
    if (f == nullptr) return;
    f->where = where_of(main_->host, 0.3);
    show_share(*f, "of the device's wait for the host is operators on the CPU", on_host,
               main_->host.time);
    remedy(*f, "device", "Move the module and its inputs to the device.");
  }

  // Only where Python's own slices were recorded: else nobody knows what a host thread did between
  // operators.
  void python() {
    const HostPart& part = host_use().interpreter;
    if (trace_.host.python_count == 0 || host_use().time <= 0) return;
    int64_t saved = in_all(part);
    if (by_device() && main_->idle.host_wait > 0) {
      // Long gaps alone: in short ones it is the launches that cannot keep up.
      const int64_t base = main_->idle.host_wait - main_->short_wait - main_->sync_wait;
      saved = static_cast<int64_t>(static_cast<double>(saved) *
                                   static_cast<double>(std::max<int64_t>(base, 0)) /
                                   static_cast<double>(main_->idle.host_wait));
    }
    // One C function for most of it is no matter of the interpreter's.
    const bool native = !part.slices.empty() && part.slices[0].name.starts_with("<") &&
                        part.slices[0].time * 2 > part.time;
    Finding* const f =
        add_part("cpu.python_bound",
                 native                            ? "A function that Python calls bounds the step"
                 : trace_.host.operator_count == 0 ? "Python itself takes the time"
                                                   : "Python between the operators bounds the step",
                 0.8, part, saved, "of the time runs Python alone");
    if (f == nullptr) return;
    if (native) {
      remedy(*f, "elsewhere", "Call it less often, or ahead of the step in a thread or process.");
    } else {
      remedy(*f, "batching", "Do the same in few big operations: vectorise, fuse, torch.compile.");
    }
  }

  const TraceSummary& trace_;
  const DeviceSummary* main_ = nullptr;
  int64_t total_ = 0;
  size_t steps_ = 0;  // that do not lie within another
  std::vector<Finding> found_;
};

void add_straggler(const std::vector<Straggler>& stragglers, std::span<const TraceSummary> ranks,
                   std::vector<Finding>& findings) {
  if (stragglers.empty()) return;
  const Straggler& worst = stragglers[0];
  int64_t step = 0, whole = 0;
  for (const TraceSummary& t : ranks) {
    int64_t sum = 0;
    for (const TraceStepSummary& s : t.steps) sum += s.wall;
    if (!t.steps.empty()) step = std::max(step, sum / static_cast<int64_t>(t.steps.size()));
    whole = std::max(whole, t.length());
  }
  const bool steps = step > 0;
  if (!steps) step = whole;
  Finding f;
  f.id = "dist.straggler";
  f.title = fmt::format("Rank {} holds up the others", worst.rank);
  f.confidence = 0.85;
  if (steps) f.cost_ms_per_step = static_cast<double>(worst.delay) * 1e-6;
  if (step > worst.delay)
    f.gain = static_cast<double>(step) / static_cast<double>(step - worst.delay);
  evidence(
      f,
      fmt::format("from one collective to the next rank {} takes {}{} longer than the median rank",
                  worst.rank, time_text(worst.delay), steps ? " a step" : ""),
      static_cast<double>(worst.delay) * 1e-6, "ms", "trace", static_cast<int64_t>(ranks.size()));
  evidence(f,
           worst.waiting.size() == 1 ? "1 rank waits for it"
                                     : fmt::format("{} ranks wait for it", worst.waiting.size()),
           static_cast<double>(worst.waiting.size()), "ranks", "trace",
           static_cast<int64_t>(ranks.size()));
  // What it has that the rank that waits longest has not.
  const auto trace_of = [&](int rank) {
    return std::find_if(ranks.begin(), ranks.end(),
                        [&](const TraceSummary& t) { return t.rank == rank; });
  };
  const auto own = trace_of(worst.rank);
  const auto other = worst.waiting.empty() ? ranks.end() : trace_of(worst.waiting.front());
  if (own != ranks.end() && other != ranks.end()) {
    const std::vector<Finding> others = TraceDetector(*other).take();
    for (Finding& mine : TraceDetector(*own).take()) {
      if (std::any_of(others.begin(), others.end(),
                      [&](const Finding& o) { return o.id == mine.id; }))
        continue;
      f.where = mine.where;
      evidence(f, fmt::format("rank {} alone has {}: {}", worst.rank, mine.id, mine.title),
               mine.cost_ms_per_step.value_or(0), "ms", "trace",
               static_cast<int64_t>(ranks.size()));
      for (Suggestion& r : mine.remedies) f.remedies.push_back(std::move(r));
      break;
    }
  }
  remedy(f, "rank", "Look at that rank alone: its input, its host, its device's clocks.");
  findings.push_back(std::move(f));
}

bool all_ranks_given(std::span<const TraceSummary> traces) {
  std::set<int> ranks;
  int world = 2;
  for (const TraceSummary& t : traces) {
    ranks.insert(t.rank);
    world = std::max(world, t.world_size);
  }
  return static_cast<int>(ranks.size()) >= world;
}

}  // namespace

TraceDiagnosis diagnose_traces(std::span<const TraceSummary> ranks) {
  TraceDiagnosis out;
  if (ranks.empty()) return out;
  RankWaits compared = compare_ranks(ranks);
  out.stragglers = std::move(compared.stragglers);
  out.waits = std::move(compared.waits);
  bool enough = false, incomplete = false, stepless = true;
  std::string unexplained;
  add_straggler(out.stragglers, ranks, out.findings);
  // Of several ranks' findings the median gain counts: what only a few have is the business of the
  // straggler's finding.
  // A step's sleep and the loader's are two causes of one id, told apart by their title.
  std::map<std::pair<std::string, std::string>, std::vector<Finding>> by_cause;
  for (const TraceSummary& trace : ranks) {
    TraceDetector detector(trace);
    // Idle time that may be unrecorded work is no evidence.
    incomplete = incomplete || trace.incomplete();
    if (!detector.enough() || trace.incomplete()) continue;
    enough = true;
    if (unexplained.empty() && detector.unexplained()) unexplained = detector.unexplained_text();
    stepless = stepless && trace.steps.empty();
    for (Finding& f : detector.take()) {
      std::string title = f.id == "stall.idle_wait" ? f.title : "";
      by_cause[{f.id, std::move(title)}].push_back(std::move(f));
    }
  }
  for (auto& [cause, found] : by_cause) {
    if (found.size() * 2 <= ranks.size() && ranks.size() > 1) continue;
    std::sort(found.begin(), found.end(), [](const Finding& a, const Finding& b) {
      return a.gain.value_or(0) < b.gain.value_or(0);
    });
    // Who comes last into the collectives waits for nobody in them: what remains to that rank is
    // what they cost, the others' waiting is the straggler's.
    const bool waiting = !out.stragglers.empty() && cause.first == "dist.exposed_communication";
    if (waiting && found.size() < ranks.size()) continue;
    out.findings.push_back(std::move(found[waiting ? 0 : found.size() / 2]));
  }
  std::stable_sort(
      out.findings.begin(), out.findings.end(),
      [](const Finding& a, const Finding& b) { return a.gain.value_or(0) > b.gain.value_or(0); });
  if (all_ranks_given(ranks)) {
    for (Finding& f : out.findings)
      std::erase_if(f.remedies, [](const Suggestion& r) { return r.id == "ranks"; });
  }
  if (!out.findings.empty()) {
    const Finding& first = out.findings[0];
    out.verdict = first.id;
    out.headline = first.gain
                       ? fmt::format("{}: {:.2g}x faster without it", first.title, *first.gain)
                       : first.title;
  } else if (incomplete) {
    out.verdict = "none";
    out.headline =
        "Too much of the devices' work is missing from the recording to judge: launches that left "
        "nothing on a device";
  } else if (enough && !unexplained.empty()) {
    out.verdict = "none";
    out.headline = unexplained;
  } else if (enough) {
    out.headline = stepless ? "Nothing costs more than a tenth of the time"
                            : "Nothing costs more than 5 % of the step";
  } else {
    out.verdict = "none";
    out.headline = "Too little was recorded to judge: hardly any operators, or work on a device";
  }
  return out;
}

}  // namespace flatout::diagnose
