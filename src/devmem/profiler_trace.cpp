// Memory events in a torch.profiler trace (profile_memory=True): instants named [memory], whose
// args say address, bytes (negative: freed), device, and what the allocator had handed out with
// this event. A profiler often starts after the model was built: what was live by then is known by
// its free, or only as the total's excess over what the events themselves add up to. Steps are the
// ProfilerStep ranges.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "devmem/trace.h"

namespace flatout::devmem {
namespace {

using Json = nlohmann::json;

struct MemoryEvent {
  double time = 0;
  bool is_mark = false;
  std::optional<uint64_t> address;
  int64_t bytes = 0;
  int64_t total = -1;  // handed out on the device, this included; negative: not told
  int64_t device_type = 0, device = 0;
};
using Device = std::pair<int64_t, int64_t>;  // its type and number

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
    } else if (key_ == "Total Allocated") {
      event_.total = whole;
    } else if (key_ == "Device Type") {
      event_.device_type = whole;
    } else if (key_ == "Device Id") {
      event_.device = whole;
    }
    return true;
  }
  void keep() {
    event_.is_mark = name_.starts_with("ProfilerStep");
    if (event_.is_mark) return keep_mark();
    if (name_ == "[memory]" && has_bytes_) events.push_back(event_);
  }
  // A step's range is on the host, and again on each of the devices' streams that worked for it:
  // the first of its name begins it.
  void keep_mark() {
    const auto [it, is_new] = marks_.try_emplace(name_, events.size());
    if (is_new) return events.push_back(event_);
    double& time = events[it->second].time;
    time = std::min(time, event_.time);
  }

  int depth_ = 0;
  int event_depth_ = -1;
  bool in_args_ = false, has_bytes_ = false;
  std::string key_, name_;
  MemoryEvent event_;
  std::map<std::string, size_t> marks_;  // by name: which event
};

bool believable(const MemoryEvent& e) {
  const int64_t most = static_cast<int64_t>(kMostBytes);
  return e.bytes != 0 && e.bytes <= most && e.bytes >= -most;
}

// Puts in front what one device had handed out before the first of its events: blocks that are
// freed without having been allocated, and the rest as one.
void put_before(const std::vector<const MemoryEvent*>& events, TraceBuilder& builder) {
  std::unordered_set<uint64_t> seen;
  std::optional<int64_t> total;
  uint64_t sum = 0;  // of a damaged file's it wraps around
  for (const MemoryEvent* e : events) {
    if (!believable(*e)) continue;
    sum += static_cast<uint64_t>(e->bytes);
    if (!total && e->total >= 0)
      total = static_cast<int64_t>(static_cast<uint64_t>(e->total) - sum);
    if (!e->address || !seen.insert(*e->address).second || e->bytes > 0) continue;
    builder.allocate_before(*e->address, static_cast<Bytes>(-e->bytes), 0);
  }
  constexpr uint64_t kNoAddress = ~uint64_t{0};
  const auto known = static_cast<int64_t>(builder.bytes_before());
  if (total && *total > known)
    builder.allocate_before(kNoAddress, static_cast<Bytes>(*total - known), 0,
                            "(before the profiler started)");
}

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
  std::map<Device, std::vector<const MemoryEvent*>> of_device;
  bool has_address = false;
  for (const MemoryEvent& e : reader.events) {
    if (e.is_mark || (has_device && e.device_type == kHost)) continue;
    of_device[{e.device_type, e.device}].push_back(&e);
    has_address |= e.address.has_value();
  }
  if (of_device.empty()) {
    return Error{Code::kBadInput, "it has no memory events",
                 "record it with torch.profiler.profile(profile_memory=True)"};
  }
  if (!has_address) {
    return Error{Code::kBadInput,
                 "its memory events have no \"Addr\": they do not say which block is freed",
                 "later versions of PyTorch write it; or record a snapshot: "
                 "torch.cuda.memory._dump_snapshot()"};
  }
  std::map<Device, TraceBuilder> builders;
  for (const auto& [device, events] : of_device)
    put_before(events, builders.try_emplace(device, name).first->second);
  for (const MemoryEvent& e : reader.events) {
    if (e.is_mark) {
      for (auto& [device, builder] : builders) builder.mark();
      continue;
    }
    const auto it = builders.find({e.device_type, e.device});
    if (it == builders.end()) continue;
    if (!e.address || !believable(e)) {
      it->second.skip();
    } else if (e.bytes > 0) {
      it->second.allocate(*e.address, static_cast<Bytes>(e.bytes), 0);
    } else {
      it->second.free(*e.address);
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
