// PyTorch memory snapshots (torch.cuda.memory._dump_snapshot and memory_snapshot). The trace in
// them is a ring: a block that was born before it shows up by its free, or as active at the end
// only. Such blocks are put in front, by address. Schemas: PyTorch 1.11 (a list of segments, no
// trace, no requested_size) to 2.13.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "devmem/pickle.h"
#include "devmem/python_line.h"
#include "devmem/trace.h"

namespace flatout::devmem {
namespace {

struct Event {
  enum Kind { kAllocate, kFree, kRefuse } kind;
  Address address;
  Bytes size;
  Stream stream;
  uint32_t site = 0;  // of kAllocate and kRefuse
};

struct Device {
  std::vector<Event> events;
  std::vector<Event> active_at_end;  // kAllocate each
};

// The same list may be referred to any number of times; an honest event takes more than a byte of
// its file.
class Reader {
 public:
  Reader(const Pickle& pickle, size_t most) : pickle_(pickle), left_(most) {}

  Status read(std::vector<Device>& devices) {
    const Pickle::Value& root = pickle_.root();
    const std::vector<Pickle::Index>* segments =
        root.kind == Pickle::Value::kList ? &root.items : pickle_.list(root, "segments");
    if (!segments) {
      return Error{Code::kBadInput, "the pickle is no memory snapshot: it has no segments",
                   "torch.cuda.memory._dump_snapshot() writes one"};
    }
    for (const Pickle::Index i : *segments)
      FLATOUT_TRY_STATUS(read_segment(pickle_.at(i), devices));
    if (const auto* traces = pickle_.list(root, "device_traces")) {
      if (traces->size() > kMostDevices) return hostile("more devices than a machine has");
      if (devices.size() < traces->size()) devices.resize(traces->size());
      for (size_t d = 0; d < traces->size(); ++d) {
        const Pickle::Value& events = pickle_.at((*traces)[d]);
        if (events.kind != Pickle::Value::kList) return hostile("a device's trace is no list");
        for (const Pickle::Index i : events.items)
          FLATOUT_TRY_STATUS(read_event(pickle_.at(i), devices[d]));
      }
    }
    return {};
  }

  const std::vector<std::string>& sites() const { return sites_; }

 private:
  static constexpr size_t kMostDevices = 1024;

  static Error hostile(std::string_view what) {
    return {Code::kBadInput, fmt::format("the memory snapshot is damaged: {}", what), ""};
  }
  bool spend() { return left_ > 0 && left_-- > 0; }

  static bool believable(std::optional<int64_t> size) {
    return size && *size >= 0 && static_cast<Bytes>(*size) <= kMostBytes;
  }

  Status read_segment(const Pickle::Value& segment, std::vector<Device>& devices) {
    const auto device = pickle_.integer(segment, "device");
    const auto base = pickle_.integer(segment, "address");
    const auto* blocks = pickle_.list(segment, "blocks");
    if (!base || !blocks || (device && (*device < 0 || *device >= int64_t{kMostDevices})))
      return hostile("a segment lacks its address, blocks or device");
    const size_t d = static_cast<size_t>(device.value_or(0));
    if (devices.size() <= d) devices.resize(d + 1);
    const auto stream = static_cast<Stream>(pickle_.integer(segment, "stream").value_or(0));
    auto next = static_cast<Address>(*base);  // older schemas give no address for a block
    for (const Pickle::Index i : *blocks) {
      if (!spend()) return hostile("its lists refer to themselves");
      const Pickle::Value& block = pickle_.at(i);
      const auto size = pickle_.integer(block, "size");
      if (!believable(size)) return hostile("a block has no size");
      const auto requested = pickle_.integer(block, "requested_size");
      const auto address = pickle_.integer(block, "address");
      const Address at = address ? static_cast<Address>(*address) : next;
      next = at + static_cast<Bytes>(*size);
      if (!pickle_.text(block, "state").starts_with("active")) continue;
      if (requested && !believable(requested)) return hostile("a block has no size");
      devices[d].active_at_end.push_back({Event::kAllocate, at,
                                          static_cast<Bytes>(requested.value_or(*size)), stream,
                                          site_of(block)});
    }
    return {};
  }

  Status read_event(const Pickle::Value& event, Device& device) {
    if (!spend()) return hostile("its lists refer to themselves");
    const std::string_view action = pickle_.text(event, "action");
    if (action.empty()) return hostile("an event has no action");
    if (action == "oom" && believable(pickle_.integer(event, "size"))) {
      device.events.push_back({Event::kRefuse, 0,
                               static_cast<Bytes>(*pickle_.integer(event, "size")), 0,
                               site_of(event)});
    }
    if (action != "alloc" && action != "free_completed") return {};
    const auto address = pickle_.integer(event, "addr");
    const auto size = pickle_.integer(event, "size");
    if (!address || !believable(size)) return hostile("an event has no address or size");
    device.events.push_back({action == "alloc" ? Event::kAllocate : Event::kFree,
                             static_cast<Address>(*address), static_cast<Bytes>(*size),
                             static_cast<Stream>(pickle_.integer(event, "stream").value_or(0)),
                             action == "alloc" ? site_of(event) : 0});
    return {};
  }

  // Events share their lists of frames, so that each list is looked at once.
  uint32_t site_of(const Pickle::Value& record) {
    const auto* frames = frames_of(pickle_, record);
    if (frames == nullptr) return 0;
    const auto [it, is_new] = site_of_frames_.try_emplace(frames, sites_.size());
    if (is_new) sites_.push_back(python_line(pickle_, record));
    return it->second;
  }

  const Pickle& pickle_;
  size_t left_;
  std::vector<std::string> sites_ = {""};
  std::unordered_map<const void*, uint32_t> site_of_frames_;
};

Trace to_trace(const Device& device, const std::vector<std::string>& sites,
               const std::string& name) {
  // What is freed without having been allocated, or is live at the end without that, was there
  // before.
  std::vector<Event> before;
  std::unordered_map<Address, bool> seen;  // live or not, since the trace began
  for (const Event& e : device.events) {
    if (e.kind == Event::kRefuse) continue;
    const bool known = seen.contains(e.address);
    if (e.kind == Event::kFree && !known) before.push_back(e);
    seen[e.address] = e.kind == Event::kAllocate;
  }
  for (const Event& e : device.active_at_end)
    if (!seen.contains(e.address)) before.push_back(e);
  std::stable_sort(before.begin(), before.end(),
                   [](const Event& a, const Event& b) { return a.address < b.address; });

  TraceBuilder builder(name);
  for (const Event& e : before) builder.allocate_before(e.address, e.size, e.stream, sites[e.site]);
  for (const Event& e : device.events) {
    if (e.kind == Event::kAllocate) {
      builder.allocate(e.address, e.size, e.stream, sites[e.site]);
    } else if (e.kind == Event::kRefuse) {
      builder.refuse(e.size, sites[e.site]);
    } else {
      builder.free(e.address);
    }
  }
  return builder.take();
}

}  // namespace

Result<std::vector<Trace>> read_snapshot(std::string_view bytes, std::string_view name) {
  FLATOUT_TRY(const Pickle pickle, Pickle::read(bytes));
  std::vector<Device> devices;
  Reader reader(pickle, bytes.size());
  FLATOUT_TRY_STATUS(reader.read(devices));
  std::vector<Trace> traces;
  std::vector<size_t> used;
  for (size_t d = 0; d < devices.size(); ++d)
    if (!devices[d].events.empty() || !devices[d].active_at_end.empty()) used.push_back(d);
  traces.reserve(used.size());
  for (const size_t d : used) {
    traces.push_back(
        to_trace(devices[d], reader.sites(),
                 used.size() == 1 ? std::string(name) : fmt::format("{}:{}", name, d)));
  }
  if (traces.empty()) return Error{Code::kBadInput, "the memory snapshot holds no blocks", ""};
  return traces;
}

}  // namespace flatout::devmem
