#include "devmem/python_line.h"

#include <fmt/format.h>

#include <algorithm>

#include "devmem/call_site.h"

namespace flatout::devmem {

const std::vector<Pickle::Index>* frames_of(const Pickle& pickle, const Pickle::Value& record) {
  if (const auto* frames = pickle.list(record, "frames")) return frames;
  const auto* history = pickle.list(record, "history");
  if (history == nullptr || history->empty()) return nullptr;
  return pickle.list(pickle.at(history->front()), "frames");
}

// The frames begin with those of PyTorch's own C++.
std::string python_line(const Pickle& pickle, const Pickle::Value& record) {
  const auto* frames = frames_of(pickle, record);
  if (!frames) return "";
  std::string library;
  for (size_t i = 0; i < std::min<size_t>(frames->size(), 200); ++i) {
    const Pickle::Value& frame = pickle.at((*frames)[i]);
    // Names of a damaged file may be as long as it is.
    constexpr size_t kLongest = 400;
    std::string_view file = pickle.text(frame, "filename");
    file = file.substr(file.size() - std::min(file.size(), kLongest));
    if (!file.ends_with(".py")) continue;
    const auto number = pickle.integer(frame, "line");
    std::string line = fmt::format("{}:{} {}", file, number.value_or(0),
                                   pickle.text(frame, "name").substr(0, kLongest));
    if (!is_library_file(file)) return line;
    if (library.empty()) library = std::move(line);
  }
  return library;
}

}  // namespace flatout::devmem
