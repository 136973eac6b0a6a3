#include "heap/tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace flatout::heap {
namespace {

std::string name_of(const Frame& f) {
  const std::string file = f.file.substr(f.file.rfind('/') + 1);
  std::string name = f.function.empty() ? "?" : f.function;
  if (file.empty()) return name;
  return f.line > 0 ? fmt::format("{} ({}:{})", name, file, f.line)
                    : fmt::format("{} ({})", name, file);
}

// Copies `root` and what is large enough below it into `out`, each node before its children.
void copy_large(const std::vector<TreeNode>& all, uint32_t root, uint64_t least,
                std::vector<TreeNode>& out) {
  std::vector<std::pair<uint32_t, uint32_t>> todo{{root, 0}};  // in `all`; its parent in `out`
  while (!todo.empty()) {
    const auto [from, parent] = todo.back();
    todo.pop_back();
    const auto id = static_cast<uint32_t>(out.size());
    out.push_back(all[from]);
    out.back().children.clear();
    if (id != 0) out[parent].children.push_back(id);
    std::vector<uint32_t> children = all[from].children;
    std::erase_if(children, [&](uint32_t c) { return all[c].peak_bytes < least; });
    // Smallest first, as the last one is taken first.
    std::stable_sort(children.begin(), children.end(),
                     [&](uint32_t a, uint32_t b) { return all[a].peak_bytes < all[b].peak_bytes; });
    for (const uint32_t c : children) todo.emplace_back(c, id);
  }
}

}  // namespace

std::vector<TreeNode> heap_tree(const Record& record, symbols::NativeSymbols* symbols,
                                double least) {
  FrameReader reader(record, symbols);
  std::vector<TreeNode> all(1);
  all[0].name = "all";
  std::map<std::pair<uint32_t, std::string>, uint32_t> known;  // parent and name
  const auto add = [](TreeNode& node, const RecordStack& s) {
    node.peak_bytes += s.peak_bytes;
    node.live_bytes += s.live_bytes;
  };
  for (const RecordStack& s : record.stacks) {
    const std::vector<Frame> frames = reader.frames(s);
    uint32_t at = 0;
    add(all[0], s);
    for (auto f = frames.rbegin(); f != frames.rend(); ++f) {
      const auto [it, fresh] =
          known.try_emplace({at, name_of(*f)}, static_cast<uint32_t>(all.size()));
      if (fresh) {
        all[at].children.push_back(it->second);
        all.push_back({it->first.second, f->file, 0, 0, {}});
      }
      at = it->second;
      add(all[at], s);
    }
  }
  std::vector<TreeNode> out;
  const double whole = static_cast<double>(all[0].peak_bytes);
  copy_large(all, 0, static_cast<uint64_t>(std::max(1.0, whole * least)), out);
  return out;
}

}  // namespace flatout::heap
