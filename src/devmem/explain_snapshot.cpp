// Explains a PyTorch memory snapshot: what its cache holds, for which lines, and the out-of-memory
// event in it.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/text.h"
#include "devmem/explain_torch.h"
#include "devmem/pickle.h"
#include "devmem/python_line.h"

namespace flatout::devmem {
namespace {

constexpr size_t kTopLines = 5;

Bytes bytes_of(std::optional<int64_t> value) {
  return value && *value > 0 ? static_cast<Bytes>(*value) : 0;
}

Error hostile(std::string_view what) {
  return {Code::kBadInput, fmt::format("the memory snapshot is damaged: {}", what), ""};
}

// The last out-of-memory event, and the number of its device.
struct Failure {
  int64_t device = 0;
  Bytes request = 0, free = 0;
};

class Reader {
 public:
  /// `most`: records that are read. An honest one takes more than a byte of its file.
  Reader(const Pickle& pickle, size_t most) : pickle_(pickle), left_(most) {}

  Result<std::optional<Failure>> find_failure() {
    std::optional<Failure> found;
    const auto* traces = pickle_.list(pickle_.root(), "device_traces");
    for (size_t device = 0; traces && device < traces->size(); ++device) {
      for (const Pickle::Index i : pickle_.at((*traces)[device]).items) {
        if (!spend()) return hostile("its lists refer to themselves");
        const Pickle::Value& event = pickle_.at(i);
        if (pickle_.text(event, "action") != "oom") continue;
        const auto free = pickle_.integer(event, "device_free");
        found = Failure{static_cast<int64_t>(device), bytes_of(pickle_.integer(event, "size")),
                        bytes_of(free ? free : pickle_.integer(event, "addr"))};
      }
    }
    return found;
  }

  /// What the caches hold: of one device, or of all.
  Status add_segments(const std::vector<Pickle::Index>& segments, std::optional<int64_t> device) {
    for (const Pickle::Index s : segments) {
      const Pickle::Value& segment = pickle_.at(s);
      const auto* blocks = pickle_.list(segment, "blocks");
      if (!blocks) return hostile("a segment lacks its blocks");
      if (device && pickle_.integer(segment, "device").value_or(0) != *device) continue;
      for (const Pickle::Index b : *blocks) {
        if (!spend()) return hostile("its lists refer to themselves");
        add_block(pickle_.at(b));
      }
    }
    return {};
  }

  TorchFigures figures;
  std::map<std::string, Bytes> by_line;

 private:
  bool spend() { return left_ > 0 && left_-- > 0; }
  void add_block(const Pickle::Value& block) {
    const Bytes size = bytes_of(pickle_.integer(block, "size"));
    if (pickle_.text(block, "state").starts_with("active")) {
      figures.allocated += size;
      *bytes_of_line(block) += size;
    } else {
      figures.cached += size;
      figures.largest_hole = std::max(figures.largest_hole, size);
    }
  }

  // Blocks share their lists of frames, so that each list is looked at once.
  Bytes* bytes_of_line(const Pickle::Value& block) {
    const auto [it, is_new] = line_of_frames_.try_emplace(pickle_.list(block, "frames"), nullptr);
    if (is_new) {
      const std::string line = python_line(pickle_, block);
      it->second = &by_line[line.empty() ? "older than the recording, or without a line" : line];
    }
    return it->second;
  }

  const Pickle& pickle_;
  size_t left_;
  std::unordered_map<const void*, Bytes*> line_of_frames_;  // into by_line
};

}  // namespace

Result<Explanation> explain_snapshot(std::string_view bytes) {
  FLATOUT_TRY(const Pickle pickle, Pickle::read(bytes));
  const Pickle::Value& root = pickle.root();
  const auto* segments =
      root.kind == Pickle::Value::kList ? &root.items : pickle.list(root, "segments");
  if (!segments) {
    return Error{Code::kBadInput, "the pickle is no memory snapshot: it has no segments",
                 "torch.cuda.memory._dump_snapshot() writes one"};
  }
  Reader reader(pickle, bytes.size());
  FLATOUT_TRY(const std::optional<Failure> failure, reader.find_failure());
  // What another device's cache holds is of no use to the one that ran out.
  FLATOUT_TRY_STATUS(reader.add_segments(
      *segments, failure ? std::optional<int64_t>(failure->device) : std::nullopt));
  TorchFigures& figures = reader.figures;
  if (failure) {
    figures.request = failure->request;
    figures.free = failure->free;
  }
  // The card's size is unknown: other processes may hold a part of it.
  Explanation e;
  if (failure) {
    e = explain_torch(figures);
  } else {
    e.kind = "snapshot_without_failure";
    e.text = fmt::format(
        "Nothing ran out of memory in this recording. Live blocks hold {}, the cache {} more, its "
        "largest hole {}.",
        format_bytes(static_cast<double>(figures.allocated)),
        format_bytes(static_cast<double>(figures.cached)),
        format_bytes(static_cast<double>(figures.largest_hole)));
    e.sure = 1;
    e.holders = {{"tensors of this process", figures.allocated},
                 {"PyTorch's cache (reserved but unallocated)", figures.cached}};
  }
  std::vector<std::pair<Bytes, std::string>> lines;
  for (auto& [line, size] : reader.by_line) lines.emplace_back(size, line);
  std::sort(lines.rbegin(), lines.rend());
  for (size_t i = 0; i < std::min(lines.size(), kTopLines); ++i)
    e.holders.push_back({lines[i].second, lines[i].first});
  return e;
}

}  // namespace flatout::devmem
