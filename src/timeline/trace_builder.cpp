#include "timeline/trace_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <map>

#include <cxxabi.h>

#include "base/text.h"
#include "timeline/device_names.h"
#include "timeline/json_scan.h"
#include "timeline/trace_processes.h"
#include "timeline/trace_steps.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr int64_t kLongSlice = 50'000;  // ns
constexpr uint64_t kWordKey = uint64_t{1} << 63;
// Times beyond this are microseconds since 1970 (2001 on), not since the machine started.
constexpr int64_t kEpoch = 1'000'000'000'000'000'000;
constexpr int64_t kLatest = 4'000'000'000'000'000'000;

bool kernel_says_more(std::string_view name) {
  return name.starts_with("nccl") || name.starts_with("rccl");
}

// "7.0": what has been through a table of doubles is an integer still.
std::string_view without_zeros(std::string_view number) {
  while (number.size() > 2 && number.ends_with('0') && number.find('.') != std::string_view::npos)
    number.remove_suffix(1);
  if (number.ends_with('.')) number.remove_suffix(1);
  return number;
}

template <class T>
std::optional<T> whole_number(std::string_view value) {
  const std::string_view number = scan::unquoted(value);
  const auto out = parse_number<T>(number);
  return out ? out : parse_number<T>(without_zeros(number));
}

std::optional<int64_t> integer(std::string_view value) { return whole_number<int64_t>(value); }

// " [[2, 3], []]", however the list is laid out in the file; at most 400 bytes of it.
void append_dims(std::string& name, std::string_view dims) {
  const size_t end = name.size() + 400;
  name += ' ';
  for (const char c : dims) {
    if (name.size() >= end) return;
    if (!scan::is_space(c)) name += c;
    if (c == ',') name += ' ';
  }
}

// "$train.py:14 step", "$time sleep": Python functions, as TensorFlow's tracer and JAX's name them.
bool is_python_call(std::string_view name) {
  return name.starts_with('$') && name.find(' ') != std::string_view::npos;
}

// As PyTorch's profiler names what VizTracer calls "load (/home/u/train.py:12)", "time.sleep".
std::string python_name(std::string_view name) {
  const size_t open = name.rfind(" ("), colon = name.rfind(':');
  if (name.ends_with(')') && open != std::string_view::npos && colon != std::string_view::npos &&
      colon > open) {
    return fmt::format("{}({}): {}", name.substr(open + 2, colon - open - 2),
                       name.substr(colon + 1, name.size() - colon - 2), name.substr(0, open));
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return fmt::format("<built-in function {}>", name);
  return fmt::format("<built-in method {} of {}>", name.substr(dot + 1), name.substr(0, dot));
}

}  // namespace

EventKind kind_of_category(std::string_view category) {
  struct Row {
    std::string_view category;
    EventKind kind;
  };
  static constexpr Row kRows[] = {
      {"cpu_op", EventKind::kOp},
      {"Operator", EventKind::kOp},
      {"Op", EventKind::kOp},
      {"python_function", EventKind::kPython},
      {"fee", EventKind::kPython},  // VizTracer: function entry and exit
      {"FEE", EventKind::kPython},
      {"user_annotation", EventKind::kAnnotation},
      {"nvtx", EventKind::kAnnotation},
      {"cuda_runtime", EventKind::kRuntime},
      {"cuda_driver", EventKind::kRuntime},
      {"Runtime", EventKind::kRuntime},
      {"hip_runtime", EventKind::kRuntime},
      {"mtia_runtime", EventKind::kRuntime},
      {"xpu_runtime", EventKind::kRuntime},
      {"xpu_driver", EventKind::kRuntime},
      {"privateuse1_runtime", EventKind::kRuntime},
      {"privateuse1_driver", EventKind::kRuntime},
      {"kernel", EventKind::kKernel},
      {"Kernel", EventKind::kKernel},
      {"mtia_ccp_events", EventKind::kKernel},
      {"kernel_dispatch", EventKind::kKernel},  // this and the next three: rocprofv3
      {"memory_copy", EventKind::kMemcpy},
      {"hip_api", EventKind::kRuntime},
      {"hip_runtime_api", EventKind::kRuntime},
      {"gpu_memcpy", EventKind::kMemcpy},
      {"Memcpy", EventKind::kMemcpy},
      {"gpu_memset", EventKind::kMemset},
      {"Memset", EventKind::kMemset},
      {"gpu_user_annotation", EventKind::kDeviceAnnotation},
      {"cuda_sync", EventKind::kSync},
      {"overhead", EventKind::kOverhead},
      {"Trace", EventKind::kSpan},
  };
  for (const Row& row : kRows) {
    if (row.category == category) return row.kind;
  }
  return EventKind::kOther;
}

EventKind kind_of_device_name(std::string_view name) {
  std::string lower(name.substr(0, 64));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower.find("memcpy") != std::string::npos) return EventKind::kMemcpy;
  if (lower.find("memset") != std::string::npos) return EventKind::kMemset;
  return EventKind::kKernel;
}

uint16_t TraceBuilder::category(std::string_view name) {
  // Categories take turns: each has a place where it is looked for first.
  const size_t place = name.empty()
                           ? 0
                           : (name.size() * 5 + static_cast<unsigned char>(name[name.size() / 2])) %
                                 recent_categories_.size();
  if (const uint16_t recent = recent_categories_[place];
      recent < trace_.categories.size() && trace_.categories[recent] == name) {
    return recent;
  }
  size_t id = 0;
  while (id < trace_.categories.size() && trace_.categories[id] != name) ++id;
  if (id == trace_.categories.size()) {
    // A file with thousands of categories is hostile: what comes later is one.
    if (id >= 4096) return 0;
    trace_.categories.emplace_back(name);
    category_kinds_.push_back(kind_of_category(name));
    category_counts_.push_back(0);
  }
  return recent_categories_[place] = static_cast<uint16_t>(id);
}

uint64_t TraceBuilder::key_of(std::string_view word) {
  if (const auto value = parse_number<int64_t>(word))
    return static_cast<uint64_t>(*value) & ~kWordKey;
  return kWordKey | trace_.strings.intern(word);
}

TrackId TraceBuilder::track(std::string_view pid, std::string_view tid) {
  if (last_track_ != kNoEvent && pid == last_pid_ && tid == last_tid_) return last_track_;
  const auto [at, is_new] =
      tracks_.try_emplace({key_of(pid), key_of(tid)}, static_cast<TrackId>(trace_.tracks.size()));
  if (is_new) {
    TraceTrack track;
    track.pid = pid;
    track.tid = tid;
    trace_.tracks.push_back(std::move(track));
  }
  last_pid_ = pid;
  last_tid_ = tid;
  return last_track_ = at->second;
}

TrackId TraceBuilder::stream(int64_t device, int64_t stream) {
  if (last_stream_ != kNoEvent && trace_.tracks[last_stream_].device == device &&
      trace_.tracks[last_stream_].stream == stream) {
    return last_stream_;
  }
  const auto [at, is_new] =
      streams_.try_emplace({static_cast<uint64_t>(device), static_cast<uint64_t>(stream)},
                           static_cast<TrackId>(trace_.tracks.size()));
  if (is_new) {
    TraceTrack track;
    track.is_stream = true;
    track.device = device;
    track.stream = stream;
    trace_.tracks.push_back(std::move(track));
  }
  return last_stream_ = at->second;
}

uint32_t TraceBuilder::correlation_of(std::string_view value) {
  const auto number = whole_number<uint64_t>(value);
  return number ? narrow(*number) : 0;
}

uint32_t TraceBuilder::narrow(uint64_t correlation) {
  if (correlation < kLargeCorrelations) return static_cast<uint32_t>(correlation);
  // Wider than a column's cell, and rare: numbered from the other end.
  const auto [at, is_new] = large_correlations_.try_emplace(
      correlation, static_cast<uint32_t>(0xFFFF'FFFE - large_correlations_.size()));
  return at->second;
}

// CUPTI names kernels as the linker does.
StringId TraceBuilder::kernel_name(const ChromeEvent& e) {
  if (!e.name.starts_with("_Z")) return name_of(e);
  const auto [at, is_new] = demangled_.try_emplace(std::string(e.name), 0);
  if (is_new) {
    int status = 0;
    char* const plain = abi::__cxa_demangle(at->first.c_str(), nullptr, nullptr, &status);
    at->second = trace_.strings.intern(plain != nullptr ? std::string_view(plain) : e.name);
    std::free(plain);
  }
  return at->second;
}

StringId TraceBuilder::name_of(const ChromeEvent& e) {
  return e.name_escaped ? trace_.strings.intern(scan::unescape(e.name))
                        : trace_.strings.intern(e.name);
}

bool TraceBuilder::has_usable_time(const ChromeEvent& e) {
  if (!e.has_time) return false;
  // Readers of numbers stop at kLatest: nobody knows what stood there.
  const bool usable = e.time_ns < kLatest && e.time_ns > -kLatest && e.duration_ns < kLatest;
  if (!usable && !e.bad_number) ++trace_.damage.bad_numbers;
  return usable;
}

void TraceBuilder::event(const ChromeEvent& e) {
  ++phase_counts_[static_cast<unsigned char>(e.phase)];
  if (e.bad_number) ++trace_.damage.bad_numbers;
  switch (e.phase) {
    case 'X': {
      const uint16_t id = category(e.category);
      ++category_counts_[id];
      if (!has_usable_time(e)) return;
      const EventKind kind = category_kinds_[id];
      if (options_.steps_only && e.time_ns >= earliest_ &&
          (on_device(kind) ||
           (e.name.find('#') == std::string_view::npos && !names_step(e.name)))) {
        return;
      }
      earliest_ = std::min(earliest_, e.time_ns);
      if (on_device(kind)) {
        device_slice(e, id, kind);
      } else {
        slice(e, id, kind);
      }
      return;
    }
    case 'M':
      metadata(e);
      return;
    case 'B':
      begin_slice(e);
      return;
    case 'E':
      end_slice(e);
      return;
    default:
      return;
  }
}

void TraceBuilder::slice(const ChromeEvent& e, uint16_t category_id, EventKind kind) {
  const int64_t duration = std::max<int64_t>(e.duration_ns, 0);
  if (kind == EventKind::kOp || kind == EventKind::kPython) {
    if (++host_slices_ > options_.host_slices && duration < kLongSlice) {
      ++trace_.damage.dropped;
      return;
    }
    // The 2021 profiler had ranges of the program among the operators.
    if (kind == EventKind::kOp &&
        (e.name.starts_with("ProfilerStep") || e.name.starts_with("enumerate(DataLoader)") ||
         e.name.starts_with("Optimizer."))) {
      kind = EventKind::kAnnotation;
    }
  }
  uint32_t correlation = 0;
  const bool correlated = kind == EventKind::kRuntime || kind == EventKind::kSync;
  // TensorFlow and JAX, who name no category.
  const bool nameless = kind == EventKind::kOther && e.category.empty();
  if (nameless && is_python_call(e.name)) kind = EventKind::kPython;
  if (correlated && e.arguments_known) {
    correlation = correlation_of(e.correlation);
  } else if (correlated || nameless) {
    scan::members(e.args, [&](std::string_view key, std::string_view value) {
      if (key != (nameless ? "correlation_id" : "correlation")) return true;
      correlation = correlation_of(value);
      return false;
    });
  }
  StringId name;
  if (options_.shapes && kind == EventKind::kOp && !e.args.empty()) {
    std::string_view dims;
    scan::members(e.args, [&](std::string_view key, std::string_view value) {
      if (key != "Input Dims" && key != "Input dims") return true;
      dims = value;
      return false;
    });
    buffer_ = e.name_escaped ? scan::unescape(e.name) : std::string(e.name);
    if (dims.size() > 2) append_dims(buffer_, dims);
    name = trace_.strings.intern(buffer_);
  } else if (kind == EventKind::kPython && (e.category == "fee" || e.category == "FEE")) {
    // The same few names all over: each is put in other words once.
    const auto [at, is_new] = python_names_.try_emplace(name_of(e), 0);
    if (is_new) at->second = trace_.strings.intern(python_name(trace_.strings[at->first]));
    name = at->second;
  } else {
    name = name_of(e);
  }
  trace_.push_back(e.time_ns, duration, name, track(e.pid, e.tid), kind, category_id, correlation,
                   e.args.empty() ? 0 : e.args_offset());
}

void TraceBuilder::device_slice(const ChromeEvent& e, uint16_t category_id, EventKind kind) {
  std::optional<int64_t> device, on_stream;
  uint32_t correlation = 0;
  std::optional<uint64_t> bytes;
  std::optional<double> bandwidth;
  const bool copy = kind != EventKind::kKernel;
  Trace::Collective collective{};
  bool is_collective = false;
  const auto id = static_cast<EventId>(trace_.size());
  // Collectives say more about themselves, and say it last.
  const bool all = kernel_says_more(e.name);
  const auto argument = [&](std::string_view key, std::string_view value) {
    switch (key.size()) {
      case 5:
        if (key == "bytes") bytes = parse_number<uint64_t>(scan::unquoted(value));
        break;
      case 6:
        if (key == "device") device = integer(value);
        if (key == "stream") on_stream = integer(value);
        break;
      case 11:
        if (key == "correlation") correlation = correlation_of(value);
        break;
      case 23:
        if (key == "memory bandwidth (GB/s)")
          bandwidth = parse_number<double>(scan::unquoted(value));
        break;
      default:
        if (!all) break;
        if (key == "Collective name") {
          is_collective = true;
          collective.name = trace_.strings.intern(scan::unquoted(value));
        } else if (key == "Process Group Name") {
          collective.group = trace_.strings.intern(scan::unquoted(value));
        } else if (key == "In msg nelems") {
          collective.bytes =
              static_cast<uint64_t>(std::max<int64_t>(0, integer(value).value_or(0)));
        }
    }
    return all || !device || !on_stream || correlation == 0 || (copy && (!bytes || !bandwidth));
  };
  if (e.arguments_known && !all) {
    correlation = correlation_of(e.correlation);
    device = integer(e.device);
    on_stream = integer(e.stream);
    bytes = parse_number<uint64_t>(e.bytes);
    if (copy) bandwidth = parse_number<double>(e.bandwidth);
  } else {
    scan::members(e.args, argument);
  }
  if (!device) device = parse_number<int64_t>(e.pid);
  if (!on_stream) {
    std::string_view tid = e.tid;
    if (tid.starts_with("stream ")) tid.remove_prefix(7);
    on_stream = parse_number<int64_t>(tid);
  }
  const int64_t duration = std::max<int64_t>(e.duration_ns, 0);
  trace_.push_back(e.time_ns, duration, kernel_name(e),
                   stream(device.value_or(0), on_stream.value_or(0)), kind, category_id,
                   correlation, e.args.empty() ? 0 : e.args_offset());
  if (bytes && copy) trace_.copies.push_back({id, *bytes, bandwidth.value_or(0)});
  if (is_collective) {
    collective.event = id;
    trace_.collectives.push_back(collective);
  }
}

void TraceBuilder::add(const ImportedSlice& slice) {
  ImportedSlice s = slice;
  if (s.kind == EventKind::kOther && is_python_call(s.name)) s.kind = EventKind::kPython;
  ++phase_counts_[static_cast<unsigned char>('X')];
  ++slices_added_;
  const uint16_t category_id = category(s.category);
  ++category_counts_[category_id];
  if (s.time_ns >= kLatest || s.time_ns <= -kLatest || s.duration_ns >= kLatest) {
    ++trace_.damage.bad_numbers;
    return;
  }
  const int64_t duration = std::max<int64_t>(s.duration_ns, 0);
  if ((s.kind == EventKind::kOp || s.kind == EventKind::kPython || s.kind == EventKind::kOther) &&
      ++host_slices_ > options_.host_slices && duration < kLongSlice) {
    ++trace_.damage.dropped;
    return;
  }
  const bool device = on_device(s.kind) && s.device;
  const auto id = static_cast<EventId>(trace_.size());
  trace_.push_back(s.time_ns, duration, trace_.strings.intern(s.name),
                   device ? stream(*s.device, s.stream.value_or(0)) : track(s.pid, s.tid),
                   device || !on_device(s.kind) ? s.kind : EventKind::kOther, category_id,
                   narrow(s.correlation), s.args_offset);
  if (device && s.bytes && s.kind != EventKind::kKernel) trace_.copies.push_back({id, *s.bytes});
}

void TraceBuilder::begin(TrackId on, int64_t time_ns, std::string_view name,
                         std::string_view category_name) {
  const uint16_t category_id = category(category_name);
  ++category_counts_[category_id];
  EventKind kind = category_kinds_[category_id];
  if (on_device(kind) && !trace_.tracks[on].is_stream) kind = EventKind::kOther;
  trace_.push_back(time_ns, -1, trace_.strings.intern(name), on, kind, category_id);
  open(on);
}

// The last slice: its end comes later, on the same track.
void TraceBuilder::open(TrackId on) {
  if (open_.size() <= on) open_.resize(on + 1);
  open_[on].push_back(static_cast<EventId>(trace_.size() - 1));
}

void TraceBuilder::end(TrackId on, int64_t time_ns) {
  if (open_.size() <= on || open_[on].empty()) {
    ++trace_.damage.unpaired;
    return;
  }
  const EventId id = open_[on].back();
  open_[on].pop_back();
  trace_.duration[id] = std::clamp<int64_t>(time_ns - trace_.start[id], 0, kLatest - 1);
}

void TraceBuilder::begin_slice(const ChromeEvent& e) {
  if (!has_usable_time(e)) return;
  // As a complete slice that is long, so that it is kept; its end names the same process and
  // thread.
  const TrackId on = track(e.pid, e.tid);
  const uint16_t id = category(e.category);
  ++category_counts_[id];
  ChromeEvent whole = e;
  whole.duration_ns = kLongSlice;
  const EventKind kind = category_kinds_[id];
  if (on_device(kind)) {
    device_slice(whole, id, kind);
  } else {
    slice(whole, id, kind);
  }
  open(on);
}

void TraceBuilder::end_slice(const ChromeEvent& e) {
  if (!has_usable_time(e)) return;
  end(track(e.pid, e.tid), e.time_ns);
}

void TraceBuilder::name_process(std::string_view pid, std::string_view name) {
  process_names_[std::string(pid)] = name;
}

void TraceBuilder::metadata(const ChromeEvent& e) {
  if (e.name == "flatout_missing") {
    // What our own recorder says of itself (agent/event_file.h).
    scan::members(e.args, [&](std::string_view key, std::string_view value) {
      if (key == "name" && trace_.damage.text.size() < 1000) {
        trace_.damage.text += trace_.damage.text.empty() ? "" : "; ";
        trace_.damage.text += scan::unescape(scan::unquoted(value));
      }
      return true;
    });
    return;
  }
  const bool process = e.name == "process_name";
  if (!process && e.name != "thread_name") return;
  std::string name;
  scan::members(e.args, [&](std::string_view key, std::string_view value) {
    if (key == "name") name = scan::unescape(scan::unquoted(value));
    return key != "name";
  });
  if (process) {
    name_process(e.pid, name);
  } else {
    trace_.tracks[track(e.pid, e.tid)].thread = name;
  }
}

void TraceBuilder::member(std::string_view key, std::string_view value) {
  if (key == "otherData") {
    scan::members(value, [&](std::string_view name, std::string_view tool) {
      if (name == "tool" && scan::unquoted(tool) == "flatout") trace_.format = "flatout";
      return true;
    });
  } else if (key == "baseTimeNanoseconds") {
    trace_.base_time_ns = integer(value).value_or(0);
  } else if (key == "distributedInfo") {
    scan::members(value, [&](std::string_view name, std::string_view number) {
      const int64_t n = std::clamp<int64_t>(integer(number).value_or(-1), -1, 1 << 30);
      if (name == "rank") trace_.rank = static_cast<int>(n);
      if (name == "world_size") trace_.world_size = static_cast<int>(n);
      return true;
    });
  } else if (key == "deviceProperties") {
    scan::elements(value, [&](std::string_view device) {
      int64_t id = -1;
      std::string name;
      scan::members(device, [&](std::string_view field, std::string_view text) {
        if (field == "id") id = integer(text).value_or(-1);
        if (field == "name") name = scan::unescape(scan::unquoted(text));
        return true;
      });
      if (trace_.device_names.size() < 4096) trace_.device_names[id] = name;
      return true;
    });
  }
}

void TraceBuilder::append(const TraceBuilder& next) {
  const Trace& from = next.trace_;
  std::vector<StringId> names(from.strings.size());
  for (StringId id = 0; id < names.size(); ++id)
    names[id] = trace_.strings.intern(from.strings[id]);
  std::vector<TrackId> tracks;
  for (const TraceTrack& t : from.tracks) {
    tracks.push_back(t.is_stream ? stream(t.device, t.stream) : track(t.pid, t.tid));
    if (!t.thread.empty()) trace_.tracks[tracks.back()].thread = t.thread;
  }
  std::vector<uint16_t> categories;
  for (size_t i = 0; i < from.categories.size(); ++i) {
    categories.push_back(category(from.categories[i]));
    category_counts_[categories.back()] += next.category_counts_[i];
  }
  std::unordered_map<uint32_t, uint32_t> correlations;
  // In the order in which the piece met them, so that they get the numbers that one reader gives.
  std::map<uint32_t, uint64_t, std::greater<>> large;
  for (const auto& [wide, cell] : next.large_correlations_) large[cell] = wide;
  for (const auto& [cell, wide] : large) correlations[cell] = narrow(wide);
  const auto correlation = [&](uint32_t cell) {
    if (correlations.empty()) return cell;
    const auto at = correlations.find(cell);
    return at != correlations.end() ? at->second : cell;
  };

  std::vector<EventId> moved;  // where each event came to; empty: all to the end, in order
  const bool bounded = host_slices_ + next.host_slices_ > options_.host_slices;
  const auto base = static_cast<EventId>(trace_.size());
  const size_t rows = from.size();
  if (!bounded) {
    // A column at a time.
    trace_.extend(rows);
    std::copy_n(from.start.begin(), rows, trace_.start.begin() + base);
    std::copy_n(from.duration.begin(), rows, trace_.duration.begin() + base);
    std::copy_n(from.args.begin(), rows, trace_.args.begin() + base);
    std::copy_n(from.kind.begin(), rows, trace_.kind.begin() + base);
    for (size_t i = 0; i < rows; ++i) trace_.name[base + i] = names[from.name[i]];
    for (size_t i = 0; i < rows; ++i) trace_.track[base + i] = tracks[from.track[i]];
    for (size_t i = 0; i < rows; ++i) trace_.category[base + i] = categories[from.category[i]];
    for (size_t i = 0; i < rows; ++i)
      trace_.correlation[base + i] = correlation(from.correlation[i]);
  }
  for (size_t i = 0; bounded && i < rows; ++i) {
    const EventKind counted = next.category_kinds_[from.category[i]];
    const bool host = counted == EventKind::kOp || counted == EventKind::kPython;
    const bool dropped =
        host && ++host_slices_ > options_.host_slices && from.duration[i] < kLongSlice;
    moved.push_back(dropped ? kNoEvent : static_cast<EventId>(trace_.size()));
    if (dropped) {
      ++trace_.damage.dropped;
      continue;
    }
    trace_.push_back(from.start[i], from.duration[i], names[from.name[i]], tracks[from.track[i]],
                     from.kind[i], categories[from.category[i]], correlation(from.correlation[i]),
                     from.args[i]);
  }
  if (!bounded) host_slices_ += next.host_slices_;
  const auto place = [&](EventId e) { return moved.empty() ? base + e : moved[e]; };
  // Copies and collectives are on devices, which are always kept.
  for (const Trace::Copy& copy : from.copies)
    trace_.copies.push_back({place(copy.event), copy.bytes, copy.gb_per_s});
  for (Trace::Collective c : from.collectives) {
    c.event = place(c.event);
    c.name = names[c.name];
    c.group = names[c.group];
    trace_.collectives.push_back(c);
  }

  for (const auto& [pid, name] : next.process_names_) process_names_[pid] = name;
  for (const auto& [device, name] : from.device_names) trace_.device_names[device] = name;
  if (from.base_time_ns != 0) trace_.base_time_ns = from.base_time_ns;
  if (!from.format.empty()) trace_.format = from.format;
  if (from.rank >= 0) trace_.rank = from.rank;
  if (from.world_size >= 0) trace_.world_size = from.world_size;
  if (!from.damage.text.empty()) trace_.damage.text = from.damage.text;
  trace_.damage.bad_numbers += from.damage.bad_numbers;
  trace_.damage.dropped += from.damage.dropped;
  for (size_t phase = 0; phase < 256; ++phase) phase_counts_[phase] += next.phase_counts_[phase];
}

// Formats whose tracks say by their name what they are: see device_names.h.
void TraceBuilder::classify_tracks() {
  std::vector<TrackId> stream_of(trace_.tracks.size(), kNoEvent);
  bool any = false;
  for (size_t t = 0; t < stream_of.size(); ++t) {
    TraceTrack& named = trace_.tracks[t];
    const auto name = process_names_.find(named.pid);
    if (name != process_names_.end()) named.process = name->second;
    if (named.is_stream) continue;
    const auto place = stream_by_names(named.process, named.thread);
    if (!place) continue;
    stream_of[t] = stream(place->device, place->stream);
    any = true;
  }
  for (TraceTrack& track : trace_.tracks)
    if (track.is_stream) track.pid = fmt::format("{}", track.device);
  if (!any) return;
  for (size_t i = 0; i < trace_.size(); ++i) {
    const std::string_view category = trace_.categories[trace_.category[i]];
    if (trace_.kind[i] != EventKind::kOther && category != "Op") continue;
    const std::string_view name = trace_.name_of(static_cast<EventId>(i));
    if (trace_.track[i] < stream_of.size() && stream_of[trace_.track[i]] != kNoEvent) {
      trace_.track[i] = stream_of[trace_.track[i]];
      trace_.kind[i] = kind_of_device_name(name);
    } else if (trace_.correlation[i] != 0 && is_runtime_call(name)) {
      trace_.kind[i] = EventKind::kRuntime;
    }
  }
}

Trace TraceBuilder::finish(const ScanReport& report) {
  int64_t last = 0;
  for (size_t i = 0; i < trace_.size(); ++i) last = std::max(last, trace_.start[i]);
  for (auto& stack : open_) {
    for (const EventId id : stack) {
      trace_.duration[id] = std::clamp<int64_t>(last - trace_.start[id], 0, kLatest - 1);
      ++trace_.damage.unpaired;
    }
  }
  classify_tracks();
  separate_processes(trace_);
  trace_.epoch_times = trace_.size() > 0 && trace_.start[0] > kEpoch;
  trace_.bytes_read = report.bytes;
  trace_.events_seen = report.events + slices_added_;
  trace_.damage.bad_events += report.bad_events;
  trace_.damage.cut_off = report.has_list && !report.complete;
  for (int phase = 1; phase < 256; ++phase) {
    if (phase_counts_[phase] > 0) trace_.phases[static_cast<char>(phase)] = phase_counts_[phase];
  }
  for (size_t i = 0; i < trace_.categories.size(); ++i)
    if (category_counts_[i] > 0)
      trace_.slices_by_category[trace_.categories[i]] = category_counts_[i];
  return std::move(trace_);
}

}  // namespace flatout::timeline
