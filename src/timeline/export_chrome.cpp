// Format: "Trace Event Format" (Google, 2016). Complete events (X) nest by time within a thread, so
// slices of a thread that overlap otherwise go to another lane of it.
#include "timeline/export_chrome.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "base/fs.h"
#include "base/text.h"
#include "timeline/json_text.h"
#include "timeline/steps.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

using Output = std::function<void(std::string_view)>;

// Tracks of no process get pids above pid_max, lanes and states tids above every real one.
constexpr int64_t kStepsPid = (1 << 22) + 1, kMachinePid = (1 << 22) + 2;
constexpr int64_t kStatesTid = 1 << 23, kLaneTid = 1 << 24;
constexpr int kMaxLanes = 4;

struct Lane {
  int64_t pid = 0, tid = 0;
};

// Keeps the longest `budget` of items, in their order.
template <class T>
void keep_longest(std::vector<T>& items, size_t budget) {
  if (items.size() <= budget) return;
  std::vector<int64_t> lengths;
  lengths.reserve(items.size());
  for (const T& item : items) lengths.push_back((item.end - item.begin).count());
  const auto nth = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() - budget);
  std::ranges::nth_element(lengths, nth);
  const int64_t least = *nth;
  size_t equal = budget - static_cast<size_t>(
                              std::ranges::count_if(lengths, [&](int64_t l) { return l > least; }));
  std::erase_if(items, [&](const T& item) {
    const int64_t length = (item.end - item.begin).count();
    if (length != least) return length < least;
    return equal == 0 || (--equal, false);
  });
}

void write_head(const Run& run, const Output& out) {
  out("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"tool\":\"flatout\"");
  for (const char* key : {"host.name", "command", "torch.version"}) {
    const std::string_view fact = run.fact(key);
    if (!fact.empty()) out(fmt::format(",{}:{}", json_string(key), json_string(fact)));
  }
  out("},\"traceEvents\":[");
}
constexpr std::string_view kTail = "\n]}\n";

// One rank of several: on different machines equal pids are different processes, so each gets a
// number of the trace's own.
struct Place {
  int32_t rank = 0;
  TimePoint begin;              // of the trace, by the run's clock
  int64_t* next_pid = nullptr;  // of the whole trace
};

class Exporter {
 public:
  Exporter(const Run& run, const ChromeOptions& options, const Output& out,
           const Place* place = nullptr)
      : run_(run),
        options_(options),
        out_(out),
        place_(place),
        begin_(place == nullptr ? run.begin : place->begin),
        first_(place == nullptr || *place->next_pid == 1) {}

  void write() {
    names();
    steps();
    slices();
    states();
    counters();
  }

 private:
  struct Event {
    TimePoint begin, end;
    std::string_view name;
    ThreadId thread = 0;
    const Slice* slice = nullptr;
    StackId stack = 0;
  };

  // What began before the trace does begins with it.
  double us(TimePoint t) const {
    return static_cast<double>(std::max<int64_t>(0, (t - begin_).count())) * 1e-3;
  }

  int64_t shown_pid(int64_t pid) {
    if (place_ == nullptr) return pid;
    const auto [it, is_new] = pids_.try_emplace(pid, *place_->next_pid);
    if (is_new) ++*place_->next_pid;
    return it->second;
  }

  void name_process(int64_t pid, std::string_view name) {
    std::string text(name);
    if (place_ != nullptr) {
      text = fmt::format("rank {}: {}", place_->rank, name);
      if (pid < kStepsPid) text += fmt::format(" [{}]", pid);
    }
    metadata("process_name", {pid, 0}, text);
  }

  void event(std::string_view json) {
    out_(first_ ? "\n" : ",\n");
    first_ = false;
    out_(json);
  }

  void metadata(const char* what, Lane lane, std::string_view name) {
    event(fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})", what,
                      shown_pid(lane.pid), lane.tid, json_string(name)));
  }

  // `args`: JSON object or empty.
  void complete(Lane lane, std::string_view quoted_name, TimePoint begin, TimePoint end,
                std::string_view args) {
    std::string json =
        fmt::format(R"({{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":{})",
                    shown_pid(lane.pid), lane.tid, us(begin), us(end) - us(begin), quoted_name);
    if (!args.empty()) json += fmt::format(",\"args\":{}", args);
    event(json + "}");
  }

  int32_t pid_of(ThreadId thread) const {
    const ProcessId process = run_.threads[thread].process;
    return process < run_.processes.size() ? run_.processes[process].pid : 0;
  }

  void names() {
    name_process(kStepsPid, "Steps");
    metadata("thread_name", {kStepsPid, 1}, "step");
    metadata("thread_name", {kStepsPid, 2}, "part");
    name_process(kMachinePid, "Machine");
    // Steps first; those of the ranks by number.
    event(fmt::format(
        R"({{"ph":"M","name":"process_sort_index","pid":{},"tid":0,"args":{{"sort_index":{}}}}})",
        shown_pid(kStepsPid), place_ == nullptr ? -2 : place_->rank - (1 << 30)));
    std::map<ProcessId, std::string> roles;
    for (const Slice& slice : run_.slices) {
      if (slice.kind == SliceKind::kWorker && slice.thread < run_.threads.size()) {
        roles[run_.threads[slice.thread].process] = fmt::format("loader worker {}", slice.value);
      }
    }
    if (run_.steps.source != StepSource::kNone && run_.steps.thread < run_.threads.size()) {
      roles[run_.threads[run_.steps.thread].process] = "training";
    }
    for (ProcessId id = 0; id < run_.processes.size(); ++id) {
      const Process& process = run_.processes[id];
      if (!process.in_job) continue;
      const auto role = roles.find(id);
      name_process(process.pid,
                   role == roles.end() ? process.name : role->second + " (" + process.name + ")");
    }
  }

  void steps() {
    std::vector<Step> steps = run_.steps.steps;
    keep_longest(steps, options_.max_events / 8);
    for (const Step& step : steps) {
      std::string args = fmt::format("{{\"index\":{}", step.index);
      for (size_t p = 0; p < kPartCount; ++p) {
        if (step.parts[p].count() == 0) continue;
        args += fmt::format(",\"{}_ms\":{:.3f}", name(static_cast<Part>(p)), to_ms(step.parts[p]));
      }
      for (const auto& [flag, label] :
           {std::pair{step.warmup, "warmup"}, std::pair{step.validation, "after_validation"},
            std::pair{step.after_gap, "after_gap"}, std::pair{step.epoch_start, "epoch_start"}}) {
        if (flag) args += fmt::format(",\"{}\":true", label);
      }
      complete({kStepsPid, 1}, fmt::format("\"step {}\"", step.index), step.begin, step.end,
               args + "}");
      event(fmt::format(
          R"({{"ph":"C","pid":{},"ts":{:.3f},"name":"step time","args":{{"ms":{:.3f}}}}})",
          shown_pid(kStepsPid), us(step.begin), to_ms(step.length())));
    }
    std::vector<PartPiece> parts;
    if (run_.steps.source != StepSource::kNone) parts = find_parts(run_);
    keep_longest(parts, options_.max_events / 4);
    for (const PartPiece& piece : parts) {
      complete({kStepsPid, 2}, fmt::format("\"{}\"", name(piece.part)), piece.begin, piece.end, "");
    }
  }

  void slices() {
    std::vector<Event> events;
    for (const Slice& slice : run_.slices) {
      if (slice.thread >= run_.threads.size()) continue;
      if (slice.begin == slice.end) {
        if (++instants_ > options_.max_events / 16) continue;
        event(fmt::format(
            R"({{"ph":"i","s":"t","pid":{},"tid":{},"ts":{:.3f},"name":"{}","args":{{"value":{}}}}})",
            shown_pid(pid_of(slice.thread)), run_.threads[slice.thread].tid, us(slice.begin),
            name(slice.kind), slice.value));
        continue;
      }
      events.push_back({slice.begin, slice.end, {}, slice.thread, &slice});
    }
    keep_longest(events, options_.max_events / 4);
    std::ranges::stable_sort(events, [](const Event& a, const Event& b) {
      if (a.thread != b.thread) return a.thread < b.thread;
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    // For each lane of a thread, the ends of the slices that are open.
    std::vector<std::vector<TimePoint>> lanes;
    ThreadId thread = kNone;
    for (const Event& e : events) {
      if (e.thread != thread) {
        thread = e.thread;
        lanes.assign(1, {});
        thread_name(thread, {pid_of(thread), run_.threads[thread].tid}, "");
      }
      size_t lane = 0;
      for (; lane < lanes.size(); ++lane) {
        while (!lanes[lane].empty() && lanes[lane].back() <= e.begin) lanes[lane].pop_back();
        if (lanes[lane].empty() || e.end <= lanes[lane].back()) break;
      }
      if (lane == kMaxLanes) continue;
      Lane where{pid_of(thread), run_.threads[thread].tid};
      if (lane > 0) where.tid = kLaneTid + int64_t{thread} * kMaxLanes + static_cast<int64_t>(lane);
      if (lane == lanes.size()) {
        lanes.emplace_back();
        thread_name(thread, where, fmt::format(" ({})", lane + 1));
      }
      lanes[lane].push_back(e.end);
      const Slice& slice = *e.slice;
      const std::string_view own = run_.string(slice.name);
      complete(where, own.empty() ? fmt::format("\"{}\"", name(slice.kind)) : json_string(own),
               e.begin, e.end,
               fmt::format("{{\"kind\":\"{}\",\"value\":{},\"value2\":{}}}", name(slice.kind),
                           slice.value, slice.value2));
    }
  }

  void thread_name(ThreadId thread, Lane lane, std::string_view suffix) {
    const Thread& t = run_.threads[thread];
    const std::string name = t.name.empty() ? fmt::format("thread {}", t.tid) : t.name;
    metadata("thread_name", lane, name + std::string(suffix));
  }

  // Runs of readings with the same state.
  void states() {
    std::map<ThreadId, Event> open;
    std::vector<Event> events;
    for (const StackReading& r : run_.readings) {
      if (r.thread >= run_.threads.size() || (r.flags & kIdleWorker) != 0) continue;
      const Nanos weight = std::chrono::microseconds(r.weight_us);
      const auto [it, is_new] = open.try_emplace(r.thread);
      Event& run = it->second;
      const std::string_view state = name(r.state);
      TimePoint begin = std::max(run_.begin, r.at - weight);
      if (!is_new) {
        begin = std::max(begin, run.end);
        if (run.name == state && begin - run.end <= weight / 2) {
          run.end = std::max(run.end, r.at);
          continue;
        }
        events.push_back(run);
      }
      run = {begin, std::max(begin, r.at), state, r.thread, nullptr, r.stack};
    }
    for (const auto& [thread, event] : open) events.push_back(event);
    std::erase_if(events, [](const Event& e) { return e.begin >= e.end; });
    keep_longest(events, options_.max_events / 4);
    std::map<ThreadId, bool> named;
    for (const Event& e : events) {
      const Lane lane{pid_of(e.thread), kStatesTid + int64_t{e.thread}};
      if (named.emplace(e.thread, true).second) thread_name(e.thread, lane, " state");
      complete(lane, fmt::format("\"{}\"", e.name), e.begin, e.end, frame_args(e.stack));
    }
  }

  std::string frame_args(StackId stack) const {
    if (stack >= run_.stacks.size()) return "";
    // The line in Python: what it called is known in some of the readings only.
    const auto at = [this](StackId s) { return run_.frames[run_.stacks[s].frame]; };
    while (stack != 0 && at(stack).kind == FrameKind::kUnderPython) {
      stack = run_.stacks[stack].parent;
    }
    if (stack == 0) return "";
    const Frame frame = at(stack);
    return fmt::format("{{\"at\":{}}}",
                       json_string(fmt::format("{} ({}:{})", run_.string(frame.function),
                                               run_.string(frame.file), frame.line)));
  }

  void counters() {
    struct Shown {
      SignalId signal;
      const char* label;
      double scale;  // of the value, or of its increase per second
    };
    static constexpr Shown kShown[] = {
        {SignalId::kHostCpuBusy, "CPU busy (cores)", 1e-9},
        {SignalId::kMemCached, "page cache (MiB)", 1.0 / (1 << 20)},
        {SignalId::kMemAvailable, "memory available (MiB)", 1.0 / (1 << 20)},
        {SignalId::kDiskReadBytes, "disk read (MiB/s)", 1.0 / (1 << 20)},
        {SignalId::kDiskWriteBytes, "disk write (MiB/s)", 1.0 / (1 << 20)},
        {SignalId::kProcCpuUser, "CPU user (cores)", 1e-9},
        {SignalId::kProcCpuSystem, "CPU system (cores)", 1e-9},
        {SignalId::kProcRss, "RSS (MiB)", 1.0 / (1 << 20)},
        {SignalId::kProcReadBytes, "read from disk (MiB/s)", 1.0 / (1 << 20)},
        {SignalId::kThreadRunDelay, "run delay (cores)", 1e-9},
        {SignalId::kGpuUtil, "GPU busy", 1},
        {SignalId::kGpuMemUsed, "GPU memory (MiB)", 1.0 / (1 << 20)},
        {SignalId::kJobCounter, "", 1},
    };
    size_t total = 0;
    for (const Shown& shown : kShown) {
      for (const Series* series : run_.all(shown.signal)) total += series->readings.size();
    }
    const size_t stride = total / std::max<size_t>(1, options_.max_events / 8) + 1;
    for (const Shown& shown : kShown) {
      for (const Series* series : run_.all(shown.signal)) {
        counter(*series, shown.label, shown.scale, stride);
      }
    }
  }

  void counter(const Series& series, std::string_view label, double scale, size_t stride) {
    if (series.entity >= run_.entities.size()) return;
    const Entity& entity = run_.entities[series.entity];
    int64_t pid = kMachinePid;
    std::string title(label);
    if (entity.kind == EntityKind::kProcess) {
      pid = entity.key;
    } else if (entity.kind == EntityKind::kThread) {
      const EntityId parent = entity.parent;
      if (parent < run_.entities.size()) pid = run_.entities[parent].key;
      title += fmt::format(" {} {}", entity.name, entity.key);
    } else if (!entity.name.empty()) {
      title += (title.empty() ? "" : " ") + entity.name;
    }
    const std::string quoted = json_string(title);
    const bool rate = info(series.signal).kind == SignalKind::kCounter;
    const std::vector<Reading>& readings = series.readings;
    for (size_t i = rate ? stride : 0; i < readings.size(); i += stride) {
      double value = readings[i].value * scale;
      if (rate) {
        const Reading& before = readings[i - stride];
        const double seconds = to_s(readings[i].at - before.at);
        if (seconds <= 0) continue;
        value = std::max(0.0, readings[i].value - before.value) * scale / seconds;
      }
      event(fmt::format(R"({{"ph":"C","pid":{},"ts":{:.3f},"name":{},"args":{{"value":{:.6g}}}}})",
                        shown_pid(pid), us(readings[i].at), quoted, value));
    }
  }

  const Run& run_;
  const ChromeOptions& options_;
  const Output& out_;
  const Place* place_;
  TimePoint begin_;
  bool first_;
  std::map<int64_t, int64_t> pids_;
  size_t instants_ = 0;
};

// gzip, so that the text never stands in memory as a whole.
class Gzip {
 public:
  Gzip() { ok_ = deflateInit2(&stream_, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK; }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  ~Gzip() {
    if (ok_) deflateEnd(&stream_);
  }
  void add(std::string_view text) {
    pending_.append(text);
    if (pending_.size() >= 64 << 10) run(Z_NO_FLUSH);
  }
  const std::string& finish() {
    run(Z_FINISH);
    return out_;
  }

 private:
  void run(int flush) {
    if (!ok_) return;
    stream_.next_in = reinterpret_cast<Bytef*>(pending_.data());
    stream_.avail_in = static_cast<uInt>(pending_.size());
    char buffer[16 << 10];
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(buffer);
      stream_.avail_out = sizeof buffer;
      deflate(&stream_, flush);
      out_.append(buffer, sizeof buffer - stream_.avail_out);
    } while (stream_.avail_out == 0);
    pending_.clear();
  }

  z_stream stream_{};
  bool ok_ = false;
  std::string pending_, out_;
};

}  // namespace

std::string chrome_json(const Run& run, const ChromeOptions& options) {
  std::string text;
  const Output append = [&](std::string_view part) { text.append(part); };
  write_head(run, append);
  Exporter(run, options, append).write();
  append(kTail);
  return text;
}

Status write_chrome_trace(const Run& run, const std::string& path, const ChromeOptions& options) {
  Gzip gzip;
  const Output add = [&](std::string_view part) { gzip.add(part); };
  write_head(run, add);
  Exporter(run, options, add).write();
  add(kTail);
  return fs::write_atomically(path, gzip.finish());
}

struct MergedTrace::State {
  TimePoint begin;
  ChromeOptions options;
  Gzip gzip;
  int64_t next_pid = 1;
};

MergedTrace::MergedTrace(TimePoint begin, size_t ranks, const ChromeOptions& options)
    : state_(std::make_unique<State>()) {
  state_->begin = begin;
  state_->options.max_events = options.max_events / std::max<size_t>(1, ranks);
}

MergedTrace::~MergedTrace() = default;

void MergedTrace::add(const Run& run, int32_t rank, Nanos clock) {
  const Output add = [&](std::string_view part) { state_->gzip.add(part); };
  if (state_->next_pid == 1) write_head(run, add);
  const Place place{rank, state_->begin - clock, &state_->next_pid};
  Exporter(run, state_->options, add, &place).write();
}

Status MergedTrace::write(const std::string& path) {
  state_->gzip.add(kTail);
  return fs::write_atomically(path, state_->gzip.finish());
}

}  // namespace flatout::timeline
