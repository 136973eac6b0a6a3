// Explains a PyTorch memory snapshot: what its cache holds, for which lines, and the out-of-memory
// event in it.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "devmem/explain_torch.h"
#include "devmem/pickle.h"

namespace flatout::devmem {
namespace {

constexpr size_t kTopLines = 5;

// The innermost Python line: the frames begin with those of PyTorch's own C++.
std::string line_of(const Pickle& pickle, const Pickle::Value& block) {
  const auto* frames = pickle.list(block, "frames");
  if (!frames) return "";
  std::string library;
  for (size_t i = 0; i < std::min<size_t>(frames->size(), 200); ++i) {
    const Pickle::Value& frame = pickle.at((*frames)[i]);
    const std::string_view file = pickle.text(frame, "filename");
    if (!file.ends_with(".py")) continue;
    const auto number = pickle.integer(frame, "line");
    std::string line =
        fmt::format("{}:{} {}", file, number.value_or(0), pickle.text(frame, "name"));
    const bool is_library =
        file.find("site-packages/") != file.npos || file.find("/torch/") != file.npos;
    if (!is_library) return line;
    if (library.empty()) library = std::move(line);
  }
  return library;
}

Bytes bytes_of(std::optional<int64_t> value) {
  return value && *value > 0 ? static_cast<Bytes>(*value) : 0;
}

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
  TorchFigures figures;
  std::map<std::string, Bytes> by_line;
  size_t left = bytes.size();  // an honest block takes more than a byte of the file
  for (const Pickle::Index s : *segments) {
    const Pickle::Value& segment = pickle.at(s);
    const auto* blocks = pickle.list(segment, "blocks");
    if (!blocks)
      return Error{Code::kBadInput, "the memory snapshot is damaged: a segment lacks its blocks",
                   ""};
    for (const Pickle::Index b : *blocks) {
      if (left-- == 0)
        return Error{Code::kBadInput,
                     "the memory snapshot is damaged: its lists refer to themselves", ""};
      const Pickle::Value& block = pickle.at(b);
      const Bytes size = bytes_of(pickle.integer(block, "size"));
      if (pickle.text(block, "state").starts_with("active")) {
        figures.allocated += size;
        const std::string line = line_of(pickle, block);
        by_line[line.empty() ? "older than the recording, or without a line" : line] += size;
      } else {
        figures.cached += size;
        figures.largest_hole = std::max(figures.largest_hole, size);
      }
    }
  }
  bool failed = false;
  if (const auto* traces = pickle.list(root, "device_traces")) {
    for (const Pickle::Index t : *traces) {
      for (const Pickle::Index i : pickle.at(t).items) {
        if (left-- == 0)
          return Error{Code::kBadInput,
                       "the memory snapshot is damaged: its lists refer to themselves", ""};
        const Pickle::Value& event = pickle.at(i);
        if (pickle.text(event, "action") != "oom") continue;
        failed = true;
        figures.request = bytes_of(pickle.integer(event, "size"));
        const auto free = pickle.integer(event, "device_free");
        figures.free = bytes_of(free ? free : pickle.integer(event, "addr"));
      }
    }
  }
  figures.total = figures.free + figures.allocated + figures.cached;
  Explanation e;
  if (failed) {
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
  for (auto& [line, size] : by_line) lines.emplace_back(size, line);
  std::sort(lines.rbegin(), lines.rend());
  for (size_t i = 0; i < std::min(lines.size(), kTopLines); ++i)
    e.holders.push_back({lines[i].second, lines[i].first});
  return e;
}

}  // namespace flatout::devmem
