#include "timeline/trace_host.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/contains.h"
#include "base/text.h"
#include "model/source_files.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr size_t kClosely = 60'000;  // slices
constexpr size_t kMostNames = 12;

// A host slice as the sweep needs it.
struct Frame {
  int64_t start, end;
  EventId event;
};

std::vector<HostBlame> longest(const std::unordered_map<StringId, int64_t>& times,
                               const StringTable& strings) {
  std::vector<HostBlame> out;
  for (const auto& [name, time] : times) out.push_back({std::string(strings[name]), time});
  std::sort(out.begin(), out.end(), [](const HostBlame& a, const HostBlame& b) {
    return a.time != b.time ? a.time > b.time : a.name < b.name;
  });
  if (out.size() > kMostNames) out.resize(kMostNames);
  return out;
}

bool is_sync(std::string_view name) {
  return contains(name, "Synchronize") || name == "cudaMemcpy" || name == "hipMemcpy" ||
         name == "hipMemcpyWithStream";
}

}  // namespace

namespace {

void add_names(std::vector<HostBlame>& to, const std::vector<HostBlame>& from) {
  for (const HostBlame& one : from) {
    const auto at =
        std::find_if(to.begin(), to.end(), [&](const HostBlame& b) { return b.name == one.name; });
    if (at == to.end()) {
      to.push_back(one);
    } else {
      at->time += one.time;
    }
  }
  std::stable_sort(to.begin(), to.end(),
                   [](const HostBlame& a, const HostBlame& b) { return a.time > b.time; });
  if (to.size() > kMostNames) to.resize(kMostNames);
}

}  // namespace

void add_use(HostUse& to, const HostUse& from) {
  to.time += from.time;
  to.launch += from.launch;
  to.sync += from.sync;
  to.operators += from.operators;
  to.python += from.python;
  to.nothing += from.nothing;
  add_names(to.slices, from.slices);
  add_names(to.lines, from.lines);
}

bool user_line(std::string_view slice, Where& where) {
  const size_t open = slice.find('(');
  const size_t close = slice.find("): ", open == std::string_view::npos ? 0 : open);
  if (open == std::string_view::npos || close == std::string_view::npos || open == 0) return false;
  const std::string_view file = slice.substr(0, open);
  const auto line = parse_number<int64_t>(slice.substr(open + 1, close - open - 1));
  if (!line || !file.ends_with(".py") || model::is_agent(file)) return false;
  for (const std::string_view library :
       {"site-packages/", "dist-packages/", "lib/python3",     "torch/",
        "numpy/",         "threading.py",   "contextlib.py",   "multiprocessing/",
        "runpy.py",       "PIL/",           "transformers/",   "torchvision/",
        "scipy/",         "pandas/",        "triton/",         "torchinductor",
        "vllm/",          "flashinfer/",    "triton_kernels/", "accelerate/",
        "lightning/",     "tensorflow/",    "keras/",          "jax/",
        "cv2/",           "dataclasses.py", "functools.py",    "concurrent/",
        "asyncio/"}) {
    if (contains(file, library)) return false;
  }
  where.file = file;
  where.line = *line;
  where.function = slice.substr(close + 3);
  return true;
}

Window closer_look(const TraceIndex& index) {
  const Trace& trace = index.trace();
  const auto& steps = index.steps();
  int64_t begin = std::numeric_limits<int64_t>::max(), end = std::numeric_limits<int64_t>::min();
  for (size_t i = 0; i < trace.size(); ++i) {
    if (trace.kind[i] == EventKind::kSpan) continue;
    begin = std::min(begin, trace.start[i]);
    end = std::max(end, trace.start[i] + trace.duration[i]);
  }
  if (begin >= end) return {};
  if (trace.size() <= kClosely) return {begin, end};
  const double share = static_cast<double>(kClosely) / static_cast<double>(trace.size());
  if (steps.size() > 2) {
    const auto wanted =
        std::max<size_t>(1, static_cast<size_t>(share * static_cast<double>(steps.size())));
    const size_t first = (steps.size() - std::min(wanted, steps.size())) / 2;
    return {trace.start[steps[first]],
            trace.end(steps[std::min(first + wanted, steps.size()) - 1])};
  }
  const auto half = static_cast<int64_t>(share / 2 * static_cast<double>(end - begin));
  const int64_t middle = begin + (end - begin) / 2;
  return {middle - half, middle + half};
}

TrackId training_thread(const TraceIndex& index) {
  const Trace& trace = index.trace();
  std::vector<int64_t> weight(trace.tracks.size());
  for (const EventId step : index.steps()) weight[trace.track[step]] += trace.duration[step];
  const auto best = [&]() -> TrackId {
    if (weight.empty()) return kNoEvent;
    const auto at = std::max_element(weight.begin(), weight.end());
    return *at > 0 ? static_cast<TrackId>(at - weight.begin()) : kNoEvent;
  };
  if (const TrackId found = best(); found != kNoEvent) return found;
  for (const auto& [device, events] : index.devices()) {
    for (const auto& e : events) {
      if (e.launch != kNoEvent) ++weight[trace.track[e.launch]];
    }
  }
  if (const TrackId found = best(); found != kNoEvent) return found;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (trace.kind[i] == EventKind::kOp || trace.kind[i] == EventKind::kPython)
      ++weight[trace.track[i]];
  }
  return best();
}

HostUse host_use(const TraceIndex& index, TrackId track, const Window& window,
                 const Intervals& times) {
  const Trace& trace = index.trace();
  HostUse use;
  if (track == kNoEvent || times.empty()) return use;
  std::vector<Frame> frames;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (trace.track[i] != track || !on_host(trace.kind[i])) continue;
    const int64_t end = trace.start[i] + trace.duration[i];
    if (trace.start[i] >= window.end || end <= window.begin || end == trace.start[i]) continue;
    frames.push_back({trace.start[i], end, static_cast<EventId>(i)});
  }
  std::sort(frames.begin(), frames.end(), [](const Frame& a, const Frame& b) {
    return a.start != b.start ? a.start < b.start : a.end > b.end;
  });
  std::unordered_map<StringId, int64_t> names, lines;
  std::vector<signed char> is_line(trace.strings.size(), -1);
  std::vector<Frame> stack;
  const auto attribute = [&](int64_t from, int64_t to) {
    const int64_t time = overlap(times, std::max(from, window.begin), std::min(to, window.end));
    if (time <= 0) return;
    use.time += time;
    for (size_t i = stack.size(); i-- > 0;) {
      const StringId name = trace.name[stack[i].event];
      if (is_line[name] < 0) {
        Where where;
        is_line[name] = user_line(trace.strings[name], where) ? 1 : 0;
      }
      if (is_line[name] == 1) {
        lines[name] += time;
        break;
      }
    }
    if (stack.empty()) {
      use.nothing += time;
      return;
    }
    const EventId inner = stack.back().event;
    names[trace.name[inner]] += time;
    switch (trace.kind[inner]) {
      case EventKind::kRuntime:
        (is_sync(trace.name_of(inner)) ? use.sync : use.launch) += time;
        break;
      case EventKind::kOp:
        use.operators += time;
        break;
      case EventKind::kPython:
        use.python += time;
        break;
      default:
        use.nothing += time;
    }
  };
  int64_t now = window.begin;
  const auto advance = [&](int64_t to) {
    while (!stack.empty() && stack.back().end <= to) {
      if (stack.back().end > now) {
        attribute(now, stack.back().end);
        now = stack.back().end;
      }
      stack.pop_back();
    }
    if (to > now) {
      attribute(now, to);
      now = to;
    }
  };
  for (const Frame& frame : frames) {
    advance(std::min(frame.start, window.end));
    stack.push_back(frame);
  }
  advance(window.end);
  use.slices = longest(names, trace.strings);
  use.lines = longest(lines, trace.strings);
  return use;
}

}  // namespace flatout::timeline
