// Explains a PyTorch memory snapshot: what its cache holds, for which lines, and the out-of-memory
// event in it. A snapshot shows the end; a handler may have freed much since the event, so what
// came behind it in the trace is taken back.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/size_text.h"
#include "devmem/explain_torch.h"
#include "devmem/pickle.h"
#include "devmem/python_line.h"
#include "devmem/trace.h"

namespace flatout::devmem {
namespace {

constexpr size_t kTopLines = 5;
constexpr int64_t kMostDevices = 1024;
constexpr Bytes kSmallRequest = Bytes{1} << 20;  // up to here PyTorch serves from small segments
constexpr Bytes kSmallSegment = Bytes{2} << 20;
constexpr Bytes kRounding = 512;

Error hostile(std::string_view what) {
  return {Code::kBadInput, fmt::format("the memory snapshot is damaged: {}", what), ""};
}

bool believable(std::optional<int64_t> size) {
  return size && *size >= 0 && static_cast<Bytes>(*size) <= kMostBytes;
}

struct Range {  // of addresses that PyTorch has from the driver
  Address end = 0;
  int64_t stream = 0;
  bool small = false, in_private_pool = false;
};
struct Live {
  Bytes size = 0;
  Bytes* of_line = nullptr;  // where its line's sum is kept; nullptr: freed after the event
};

// One device's memory at some point of its trace.
struct Memory {
  std::map<Address, Range> ranges;
  std::map<Address, Live> live;
  bool expandable = false, is_expanding = false;

  void add(Address begin, Bytes size, const Range& like) {
    Range range = like;
    range.end = begin + size;
    ranges.insert_or_assign(begin, range);
  }

  // Of the ranges what lies outside [begin, begin + size) stays.
  void remove(Address begin, Bytes size) {
    const Address end = begin + size;
    auto it = ranges.upper_bound(begin);
    if (it != ranges.begin()) --it;
    while (it != ranges.end() && it->first < end) {
      const auto [from, range] = *it;
      if (range.end <= begin) {
        ++it;
        continue;
      }
      it = ranges.erase(it);
      if (from < begin) add(from, begin - from, range);
      if (range.end > end) it = ranges.insert_or_assign(it, end, range);
    }
  }
};

// The last out-of-memory event in time.
struct Failure {
  size_t device = 0, event = 0;  // its place in the device's trace
  int64_t time = 0, stream = 0;
  Bytes request = 0;
  std::optional<Bytes> free;
  std::string line;
};

class Reader {
 public:
  /// `most`: records that are read. An honest one takes more than a byte of its file.
  Reader(const Pickle& pickle, size_t most) : pickle_(pickle), left_(most) {}

  Status read() {
    const Pickle::Value& root = pickle_.root();
    const auto* segments =
        root.kind == Pickle::Value::kList ? &root.items : pickle_.list(root, "segments");
    if (!segments) {
      return Error{Code::kBadInput, "the pickle is no memory snapshot: it has no segments",
                   "torch.cuda.memory._dump_snapshot() writes one"};
    }
    for (const Pickle::Index s : *segments) FLATOUT_TRY_STATUS(add_segment(pickle_.at(s)));
    FLATOUT_TRY_STATUS(find_failure());
    if (failure) FLATOUT_TRY_STATUS(go_back_to(*failure));
    return {};
  }

  // Expandable segments are on by the settings, too, before there is any segment.
  bool is_set_to_expand() const {
    const Pickle::Value* settings = pickle_.find(pickle_.root(), "allocator_settings");
    return settings && is_true(*settings, "expandable_segments");
  }

  std::map<size_t, Memory> devices;
  std::optional<Failure> failure;
  std::map<std::string, Bytes> by_line;

 private:
  bool is_true(const Pickle::Value& dict, std::string_view key) const {
    const Pickle::Value* value = pickle_.find(dict, key);
    return value && value->kind == Pickle::Value::kBool && value->integer != 0;
  }
  bool spend() { return left_ > 0 && left_-- > 0; }

  Status add_segment(const Pickle::Value& segment) {
    const auto* blocks = pickle_.list(segment, "blocks");
    if (!blocks) return hostile("a segment lacks its blocks");
    const int64_t device = pickle_.integer(segment, "device").value_or(0);
    if (device < 0 || device >= kMostDevices) return hostile("a segment is of no device");
    Memory& memory = devices[static_cast<size_t>(device)];
    Range range;
    range.stream = pickle_.integer(segment, "stream").value_or(0);
    range.small = pickle_.text(segment, "segment_type") == "small";
    if (const auto* pool = pickle_.list(segment, "segment_pool_id")) {
      range.in_private_pool = std::any_of(
          pool->begin(), pool->end(), [&](Pickle::Index i) { return pickle_.at(i).integer != 0; });
    }
    memory.expandable |= pickle_.find(segment, "is_expandable") != nullptr;
    memory.is_expanding |= is_true(segment, "is_expandable");
    const auto base = static_cast<Address>(pickle_.integer(segment, "address").value_or(0));
    Address next = base;  // older schemas give no address for a block
    for (const Pickle::Index i : *blocks) {
      if (!spend()) return hostile("its lists refer to themselves");
      const Pickle::Value& block = pickle_.at(i);
      const auto size = pickle_.integer(block, "size");
      if (!believable(size)) return hostile("a block has no size");
      const auto address = pickle_.integer(block, "address");
      const Address at = address ? static_cast<Address>(*address) : next;
      next = at + static_cast<Bytes>(*size);
      if (!pickle_.text(block, "state").starts_with("active")) continue;
      memory.live[at] = {static_cast<Bytes>(*size), sum_of_line(block)};
    }
    if (next > base) memory.add(base, next - base, range);
    return {};
  }

  Status find_failure() {
    const auto* traces = pickle_.list(pickle_.root(), "device_traces");
    if (traces && traces->size() > kMostDevices) return hostile("more devices than a machine has");
    for (size_t device = 0; traces && device < traces->size(); ++device) {
      const auto& events = pickle_.at((*traces)[device]).items;
      for (size_t i = 0; i < events.size(); ++i) {
        if (!spend()) return hostile("its lists refer to themselves");
        const Pickle::Value& event = pickle_.at(events[i]);
        if (pickle_.text(event, "action") != "oom") continue;
        const int64_t time = pickle_.integer(event, "time_us").value_or(0);
        if (!failure || time >= failure->time) set_failure(device, i, time, event);
      }
    }
    return {};
  }

  void set_failure(size_t device, size_t index, int64_t time, const Pickle::Value& event) {
    const auto size = pickle_.integer(event, "size");
    const auto free = pickle_.integer(event, "device_free");
    const auto older = pickle_.integer(event, "addr");  // as PyTorch 2.1 has it
    failure = Failure{device,
                      index,
                      time,
                      pickle_.integer(event, "stream").value_or(0),
                      size && *size > 0 ? static_cast<Bytes>(*size) : 0,
                      {},
                      python_line(pickle_, event)};
    const auto known = free ? free : older;
    if (known && *known >= 0) failure->free = static_cast<Bytes>(*known);
  }

  Status go_back_to(const Failure& at) {
    const auto& events =
        pickle_.at((*pickle_.list(pickle_.root(), "device_traces"))[at.device]).items;
    Memory& memory = devices[at.device];
    size_t i = events.size();
    while (i-- > at.event + 1) FLATOUT_TRY_STATUS(take_back(pickle_.at(events[i]), memory));
    name_lines(events, at.event, memory);
    return {};
  }

  Status take_back(const Pickle::Value& event, Memory& memory) {
    const std::string_view action = pickle_.text(event, "action");
    const bool allocated = action == "alloc", freed = action == "free_completed";
    const bool grew = action == "segment_alloc" || action == "segment_map";
    const bool shrank = action == "segment_free" || action == "segment_unmap";
    if (!allocated && !freed && !grew && !shrank) return {};
    const auto address = pickle_.integer(event, "addr");
    const auto size = pickle_.integer(event, "size");
    if (!address || !believable(size)) return hostile("an event has no address or size");
    const auto begin = static_cast<Address>(*address);
    const auto bytes = static_cast<Bytes>(*size);
    if (allocated) memory.live.erase(begin);
    if (freed) memory.live[begin] = {(bytes + kRounding - 1) / kRounding * kRounding, nullptr};
    if (grew) memory.remove(begin, bytes);
    if (shrank) {
      memory.add(begin, bytes,
                 {0, pickle_.integer(event, "stream").value_or(0), bytes <= kSmallSegment, false});
    }
    return {};
  }

  // What was freed after the event: its line is where it was allocated, before the event.
  void name_lines(const std::vector<Pickle::Index>& events, size_t until, Memory& memory) {
    for (size_t i = until; i-- > 0;) {
      const Pickle::Value& event = pickle_.at(events[i]);
      if (pickle_.text(event, "action") != "alloc") continue;
      const auto it =
          memory.live.find(static_cast<Address>(pickle_.integer(event, "addr").value_or(0)));
      if (it != memory.live.end() && it->second.of_line == nullptr)
        it->second.of_line = sum_of_line(event);
    }
    for (auto& [address, block] : memory.live)
      if (block.of_line == nullptr) block.of_line = sum_of("");
  }

  Bytes* sum_of(const std::string& line) {
    return &by_line[line.empty() ? "older than the recording, or without a line" : line];
  }

  // Blocks share their lists of frames, so that each list is looked at once.
  Bytes* sum_of_line(const Pickle::Value& record) {
    const auto [it, is_new] = line_of_frames_.try_emplace(frames_of(pickle_, record), nullptr);
    if (is_new) it->second = sum_of(python_line(pickle_, record));
    return it->second;
  }

  const Pickle& pickle_;
  size_t left_;
  std::unordered_map<const void*, Bytes*> line_of_frames_;  // into by_line
};

// Adds what `memory` holds to `f`, and to the sums of its lines. `failure`: whose request it is
// that idle memory is to serve; nullptr if there is none.
void add_memory(const Memory& memory, const Failure* failure, TorchFigures& f) {
  Bytes live = 0, cached = 0, pools = 0;
  for (const auto& [begin, block] : memory.live) {
    live += block.size;
    *block.of_line += block.size;
  }
  const auto add_hole = [&](Bytes size, const Range& range) {
    if (failure && range.in_private_pool) {
      pools += size;
      return;
    }
    cached += size;
    const bool serves = !failure || (range.stream == failure->stream &&
                                     range.small == (failure->request <= kSmallRequest));
    if (serves) {
      f.largest_hole = std::max(f.largest_hole, size);
    } else {
      f.elsewhere += size;
    }
  };
  for (const auto& [begin, range] : memory.ranges) {
    Address at = begin;
    for (auto it = memory.live.lower_bound(begin); it != memory.live.end() && it->first < range.end;
         ++it) {
      if (it->first > at) add_hole(it->first - at, range);
      at = std::max(at, it->first + it->second.size);
    }
    if (at < range.end) add_hole(range.end - at, range);
  }
  f.allocated = f.allocated.value_or(0) + live + pools;
  f.private_pools = f.private_pools.value_or(0) + pools;
  f.cached = f.cached.value_or(0) + cached;
}

// The card's size is unknown: other processes may hold a part of it.
Explanation explain_failure(const Reader& reader, TorchFigures& f) {
  const Failure& failure = *reader.failure;
  const Memory& memory = reader.devices.at(failure.device);
  // What another device's cache holds is of no use to the one that ran out.
  add_memory(memory, &failure, f);
  f.request = failure.request;
  f.free = failure.free;
  f.setting = "PYTORCH_CUDA_ALLOC_CONF";
  f.expandable = memory.expandable;
  f.is_expanding = memory.is_expanding || reader.is_set_to_expand();
  Explanation e = explain_torch(f);
  if (!failure.line.empty()) e.text += fmt::format(" It was asked for by {}.", failure.line);
  return e;
}

Explanation explain_no_failure(const Reader& reader, TorchFigures& f) {
  for (const auto& [device, memory] : reader.devices) add_memory(memory, nullptr, f);
  Explanation e;
  e.kind = "snapshot_without_failure";
  e.text = fmt::format(
      "Nothing ran out of memory in this recording. Live blocks hold {}, the cache {} more, its "
      "largest hole {}.",
      size_text(f.allocated.value_or(0)), size_text(f.cached.value_or(0)),
      size_text(f.largest_hole));
  e.sure = 1;
  e.holders = {{"tensors of this process", f.allocated.value_or(0)},
               {"PyTorch's cache (reserved but unallocated)", f.cached.value_or(0)}};
  return e;
}

}  // namespace

Result<Explanation> explain_snapshot(std::string_view bytes) {
  FLATOUT_TRY(const Pickle pickle, Pickle::read(bytes));
  Reader reader(pickle, bytes.size());
  FLATOUT_TRY_STATUS(reader.read());
  TorchFigures figures;
  Explanation e =
      reader.failure ? explain_failure(reader, figures) : explain_no_failure(reader, figures);
  std::vector<std::pair<Bytes, std::string>> lines;
  for (auto& [line, size] : reader.by_line)
    if (size > 0) lines.emplace_back(size, line);
  std::sort(lines.rbegin(), lines.rend());
  for (size_t i = 0; i < std::min(lines.size(), kTopLines); ++i)
    e.holders.push_back({lines[i].second, lines[i].first});
  return e;
}

}  // namespace flatout::devmem
