#include "timeline/trace_host.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/contains.h"
#include "base/text.h"
#include "model/source_files.h"
#include "timeline/trace_libraries.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr size_t kClosely = 60'000;  // slices
constexpr size_t kMostNames = 12;

// A host slice as the sweep needs it.
struct Frame {
  int64_t start, end;
  EventId event;
  // The user's own line that is nearest, and whether a checkpoint is saved: of this slice or of one
  // that it lies in. Kept here, since slices may be nested thousands deep.
  StringId line = kNoEvent;
  bool saves = false;
};

// What all of its kind are called: "ProfilerStep" of "ProfilerStep#3", "<built-in method acquire of
// _thread.lock>" of one lock's at its address.
std::string_view common_name(std::string_view name, std::string& buffer) {
  if (name.ends_with('>')) {
    const size_t at = name.rfind(" object at 0x");
    if (at == std::string_view::npos) return name;
    buffer = name.substr(0, at);
    buffer += '>';
    return buffer;
  }
  const size_t hash = name.rfind('#');
  if (hash == std::string_view::npos || hash == 0 || hash + 1 == name.size()) return name;
  const std::string_view number = name.substr(hash + 1);
  const bool digits =
      std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  return digits ? name.substr(0, hash) : name;
}

using Times = std::unordered_map<StringId, int64_t>;

std::vector<HostBlame> longest(const Times& times, const StringTable& strings) {
  std::unordered_map<std::string, int64_t> by_name;
  std::string buffer;
  for (const auto& [name, time] : times)
    by_name[std::string(common_name(strings[name], buffer))] += time;
  std::vector<HostBlame> out;
  for (const auto& [name, time] : by_name) out.push_back({name, time});
  std::sort(out.begin(), out.end(), [](const HostBlame& a, const HostBlame& b) {
    return a.time != b.time ? a.time > b.time : a.name < b.name;
  });
  if (out.size() > kMostNames) out.resize(kMostNames);
  return out;
}

// The function that a slice of Python is: "sleep" of "<built-in function sleep>", of
// "<built-in method sleep of ...>" and of "$time sleep", as JAX and TensorFlow have it.
std::string_view called(std::string_view name) {
  if (name.starts_with('$')) return name.substr(name.rfind(' ') + 1);
  for (const std::string_view begin : {"<built-in function ", "<built-in method "}) {
    if (!name.starts_with(begin)) continue;
    name.remove_prefix(begin.size());
    return name.substr(0, name.find_first_of(" >"));
  }
  return {};
}

bool sleeps(std::string_view name) { return called(name) == "sleep"; }

// Waits for another thread, process or machine.
bool waits(std::string_view name) {
  const std::string_view function = called(name);
  for (const std::string_view wait :
       {"acquire", "wait", "poll", "select", "waitpid", "recv", "recv_into", "recvfrom", "accept"})
    if (function == wait) return true;
  return false;
}

// Of libraries, and what programs call their own.
bool saves_checkpoint(std::string_view name) {
  const size_t close = name.find("): ");
  if (close == std::string_view::npos) return false;
  const std::string_view file = name.substr(0, name.find('(')), function = name.substr(close + 3);
  if (!contains(function, "save")) return false;
  return file.ends_with("torch/serialization.py") ||
         contains(file, "torch/distributed/checkpoint/") || contains(file, "safetensors/") ||
         contains(file, "orbax/") || contains(function, "save_checkpoint") ||
         contains(function, "save_pretrained") || contains(function, "save_weights");
}

bool is_sync(std::string_view name) {
  return contains(name, "Synchronize") || name == "cudaMemcpy" || name == "hipMemcpy" ||
         name == "hipMemcpyWithStream";
}

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

void add_part(HostPart& to, const HostPart& from) {
  to.time += from.time;
  add_names(to.slices, from.slices);
  add_names(to.lines, from.lines);
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
  add_part(to.interpreter, from.interpreter);
  add_part(to.asleep, from.asleep);
  add_part(to.saving, from.saving);
}

bool user_line(std::string_view slice, Where& where) {
  const size_t open = slice.find('(');
  const size_t close = slice.find("): ", open == std::string_view::npos ? 0 : open);
  if (open == std::string_view::npos || close == std::string_view::npos || open == 0) return false;
  const std::string_view file = slice.substr(0, open);
  const auto line = parse_number<int64_t>(slice.substr(open + 1, close - open - 1));
  if (!line || !file.ends_with(".py") || model::is_agent(file) || is_library_file(file))
    return false;
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
    return {steps[first].begin, steps[std::min(first + wanted, steps.size()) - 1].end};
  }
  const auto half = static_cast<int64_t>(share / 2 * static_cast<double>(end - begin));
  const int64_t middle = begin + (end - begin) / 2;
  return {middle - half, middle + half};
}

TrackId training_thread(const TraceIndex& index) {
  const Trace& trace = index.trace();
  std::vector<int64_t> weight(trace.tracks.size());
  for (const TraceStep& step : index.steps()) weight[step.track] += step.wall();
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

namespace {

/// Gives each moment of the wanted times to the slices of one thread that it lies in.
class HostSweep {
 public:
  HostSweep(const Trace& trace, const Window& window, const Intervals& times)
      : trace_(trace), window_(window), times_(times), traits_(trace.strings.size()) {}

  HostUse over(TrackId track);

 private:
  struct Part {
    int64_t time = 0;
    Times slices, lines;
    void add(const Frame& frame, StringId name, int64_t more) {
      time += more;
      slices[name] += more;
      if (frame.line != kNoEvent) lines[frame.line] += more;
    }
    HostPart take(const StringTable& strings) const {
      return {time, longest(slices, strings), longest(lines, strings)};
    }
  };
  enum Trait : uint8_t { kKnown = 1, kLine = 2, kSaves = 4, kSleeps = 8, kWaits = 16 };

  std::vector<Frame> frames_of(TrackId track) const;
  uint8_t traits(StringId name);
  void enter(Frame frame);
  void advance(int64_t to);
  void attribute(int64_t from, int64_t to);
  void attribute_python(const Frame& frame, int64_t time);

  const Trace& trace_;
  const Window& window_;
  const Intervals& times_;
  std::vector<uint8_t> traits_;  // of names; 0: not looked at yet
  std::vector<Frame> stack_;
  int64_t now_ = 0;
  HostUse use_;
  Part all_, interpreter_, asleep_, saving_;
};

std::vector<Frame> HostSweep::frames_of(TrackId track) const {
  std::vector<Frame> frames;
  for (size_t i = 0; i < trace_.size(); ++i) {
    const int64_t start = trace_.start[i], end = start + trace_.duration[i];
    if (trace_.track[i] != track || !on_host(trace_.kind[i])) continue;
    if (start >= window_.end || end <= window_.begin || end == start) continue;
    frames.push_back({start, end, static_cast<EventId>(i)});
  }
  // Of slices that are alike to the nanosecond the outer one comes first in the trace.
  std::sort(frames.begin(), frames.end(), [](const Frame& a, const Frame& b) {
    if (a.start != b.start) return a.start < b.start;
    return a.end != b.end ? a.end > b.end : a.event < b.event;
  });
  return frames;
}

uint8_t HostSweep::traits(StringId name) {
  uint8_t& t = traits_[name];
  if (t != 0) return t;
  const std::string_view text = trace_.strings[name];
  Where where;
  t = kKnown;
  if (user_line(text, where)) t |= kLine;
  if (saves_checkpoint(text)) t |= kSaves;
  if (sleeps(text)) t |= kSleeps;
  if (waits(text)) t |= kWaits;
  return t;
}

void HostSweep::attribute_python(const Frame& frame, int64_t time) {
  use_.python += time;
  if (frame.saves) return;
  const StringId name = trace_.name[frame.event];
  const uint8_t t = traits(name);
  if ((t & kSleeps) != 0) {
    asleep_.add(frame, name, time);
  } else if ((t & kWaits) == 0) {
    interpreter_.add(frame, name, time);
  }
}

void HostSweep::attribute(int64_t from, int64_t to) {
  const int64_t time = overlap(times_, std::max(from, window_.begin), std::min(to, window_.end));
  if (time <= 0) return;
  use_.time += time;
  if (stack_.empty()) {
    use_.nothing += time;
    return;
  }
  const Frame& inner = stack_.back();
  const StringId name = trace_.name[inner.event];
  all_.add(inner, name, time);
  if (inner.saves) saving_.add(inner, name, time);
  switch (trace_.kind[inner.event]) {
    case EventKind::kRuntime:
      (is_sync(trace_.name_of(inner.event)) ? use_.sync : use_.launch) += time;
      break;
    case EventKind::kOp:
      use_.operators += time;
      break;
    case EventKind::kPython:
      attribute_python(inner, time);
      break;
    default:
      use_.nothing += time;
  }
}

void HostSweep::advance(int64_t to) {
  while (!stack_.empty() && stack_.back().end <= to) {
    const int64_t end = stack_.back().end;
    if (end > now_) {
      attribute(now_, end);
      now_ = end;
    }
    stack_.pop_back();
  }
  if (to > now_) {
    attribute(now_, to);
    now_ = to;
  }
}

void HostSweep::enter(Frame frame) {
  if (!stack_.empty()) {
    frame.line = stack_.back().line;
    frame.saves = stack_.back().saves;
  }
  const StringId name = trace_.name[frame.event];
  const uint8_t t = traits(name);
  if ((t & kLine) != 0) frame.line = name;
  if ((t & kSaves) != 0) frame.saves = true;
  stack_.push_back(frame);
}

HostUse HostSweep::over(TrackId track) {
  now_ = window_.begin;
  for (const Frame& frame : frames_of(track)) {
    advance(std::min(frame.start, window_.end));
    enter(frame);
  }
  advance(window_.end);
  const StringTable& strings = trace_.strings;
  use_.slices = longest(all_.slices, strings);
  use_.lines = longest(all_.lines, strings);
  use_.interpreter = interpreter_.take(strings);
  use_.asleep = asleep_.take(strings);
  use_.saving = saving_.take(strings);
  return use_;
}

}  // namespace

HostUse host_use(const TraceIndex& index, TrackId track, const Window& window,
                 const Intervals& times) {
  if (track == kNoEvent || times.empty()) return {};
  return HostSweep(index.trace(), window, times).over(track);
}

}  // namespace flatout::timeline
