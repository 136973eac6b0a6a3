// Memory events in a torch.profiler trace (profile_memory=True): instants named [memory], whose
// args say address, bytes (negative: freed) and device. Steps are the ProfilerStep ranges.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "devmem/trace.h"

namespace flatout::devmem {
namespace {

using Json = nlohmann::json;

struct MemoryEvent {
  double time = 0;
  bool is_mark = false;
  uint64_t address = 0;
  int64_t bytes = 0;
  int64_t device_type = 0, device = 0;
};

// Keeps what the events hold that this needs; a trace has far more than fits in memory as a tree.
class EventReader : public nlohmann::json_sax<Json> {
 public:
  std::vector<MemoryEvent> events;
  std::string problem;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t v) override { return number(static_cast<double>(v), v); }
  bool number_unsigned(number_unsigned_t v) override {
    return number(static_cast<double>(v), static_cast<int64_t>(v));
  }
  bool number_float(number_float_t v, const string_t&) override { return number(v, 0); }
  bool string(string_t& v) override {
    if (depth_ == event_depth_ && key_ == "name") name_ = v;
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override {
    ++depth_;
    if (depth_ == event_depth_) {
      name_.clear();
      event_ = {};
      has_bytes_ = false;
    }
    if (depth_ == event_depth_ + 1) in_args_ = key_ == "args";
    return true;
  }
  bool key(string_t& v) override {
    key_ = v;
    if (depth_ == 1 && v == "traceEvents") event_depth_ = 2;
    return true;
  }
  bool end_object() override {
    if (depth_ == event_depth_) keep();
    if (depth_ == event_depth_ + 1) in_args_ = false;
    --depth_;
    return true;
  }
  // Arrays are no level of their own: events lie in the object's array, or in one without an
  // object.
  bool start_array(size_t) override {
    if (depth_ == 0) event_depth_ = 1;
    return true;
  }
  bool end_array() override { return true; }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    problem = fmt::format("no JSON from byte {} on, or cut off", at);
    return false;
  }

 private:
  bool number(double value, int64_t whole) {
    if (depth_ == event_depth_ && key_ == "ts") event_.time = value;
    if (!in_args_ || depth_ != event_depth_ + 1) return true;
    if (key_ == "Bytes") {
      event_.bytes = whole;
      has_bytes_ = true;
    } else if (key_ == "Addr") {
      event_.address = static_cast<uint64_t>(whole);
    } else if (key_ == "Device Type") {
      event_.device_type = whole;
    } else if (key_ == "Device Id") {
      event_.device = whole;
    }
    return true;
  }
  void keep() {
    event_.is_mark = name_.starts_with("ProfilerStep");
    if (event_.is_mark || (name_ == "[memory]" && has_bytes_)) events.push_back(event_);
  }

  int depth_ = 0;
  int event_depth_ = -1;
  bool in_args_ = false, has_bytes_ = false;
  std::string key_, name_;
  MemoryEvent event_;
};

}  // namespace

Result<std::vector<Trace>> read_profiler_trace(std::string_view bytes, std::string_view name) {
  EventReader reader;
  if (!Json::sax_parse(bytes, &reader)) return Error{Code::kBadInput, reader.problem, ""};
  std::stable_sort(reader.events.begin(), reader.events.end(),
                   [](const MemoryEvent& a, const MemoryEvent& b) { return a.time < b.time; });

  // Type 0 is the host; it is of interest only where there is no device.
  constexpr int64_t kHost = 0;
  const bool has_device =
      std::any_of(reader.events.begin(), reader.events.end(),
                  [](const MemoryEvent& e) { return !e.is_mark && e.device_type != kHost; });
  std::map<std::pair<int64_t, int64_t>, TraceBuilder> builders;
  for (const MemoryEvent& e : reader.events)
    if (!e.is_mark && (!has_device || e.device_type != kHost))
      builders.try_emplace({e.device_type, e.device}, name);
  if (builders.empty()) {
    return Error{Code::kBadInput, "it has no memory events",
                 "record it with torch.profiler.profile(profile_memory=True)"};
  }
  for (const MemoryEvent& e : reader.events) {
    if (e.is_mark) {
      for (auto& [device, builder] : builders) builder.mark();
      continue;
    }
    const auto it = builders.find({e.device_type, e.device});
    if (it == builders.end()) continue;
    if (e.bytes > 0 && static_cast<uint64_t>(e.bytes) <= kMostBytes) {
      it->second.allocate(e.address, static_cast<Bytes>(e.bytes), 0);
    } else if (e.bytes < 0) {
      it->second.free(e.address);
    } else {
      it->second.skip();
    }
  }
  std::vector<Trace> traces;
  for (auto& [device, builder] : builders) {
    if (builders.size() > 1) builder.rename(fmt::format("{}:{}", name, device.second));
    traces.push_back(builder.take());
  }
  return traces;
}

}  // namespace flatout::devmem
