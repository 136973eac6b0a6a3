#include "probe/code_map.h"

#include <algorithm>
#include <utility>

namespace flatout::probe {
namespace {

constexpr Nanos kFirstWait = std::chrono::seconds(2), kLongestWait = std::chrono::seconds(64);

bool same_code(const std::vector<symbols::Mapping>& a, const std::vector<symbols::Mapping>& b) {
  const auto next = [](auto it, auto end) {
    return std::find_if(it, end, [](const symbols::Mapping& m) { return m.executable; });
  };
  auto x = next(a.begin(), a.end()), y = next(b.begin(), b.end());
  for (; x != a.end() && y != b.end(); x = next(x + 1, a.end()), y = next(y + 1, b.end())) {
    if (x->begin != y->begin || x->end != y->end || x->offset != y->offset ||
        x->device != y->device || x->inode != y->inode)
      return false;
  }
  return x == a.end() && y == b.end();
}

}  // namespace

bool CodeMap::ready(TimePoint now) {
  const Nanos wait = doubt_ == Doubt::kOfPlace ? std::min(kFirstWait, wait_) : wait_;
  if (doubt_ == Doubt::kNone || now < looked_ + wait) return process_ != nullptr;
  auto maps = symbols::read_maps(root_, pid_);
  const bool same = process_ != nullptr && maps.ok() && same_code(*maps, maps_);
  wait_ = same ? std::min(2 * wait_, kLongestWait) : kFirstWait;
  looked_ = now;
  doubt_ = Doubt::kNone;
  if (same) return true;
  maps_ = maps.ok() ? std::move(*maps) : std::vector<symbols::Mapping>();
  ++version_;
  process_.reset();
  auto opened = symbols::NativeProcess::open(pid_);
  if (maps.ok() && opened.ok()) process_ = std::move(*opened);
  if (process_ == nullptr) doubt_ = Doubt::kOfPlace;
  return process_ != nullptr;
}

}  // namespace flatout::probe
