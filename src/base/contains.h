// std::string_view::contains, until C++23.
#pragma once

#include <initializer_list>
#include <string_view>

namespace flatout {

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Whether any of `parts`, a range of texts, is in it.
template <class Parts>
bool contains_any(std::string_view text, const Parts& parts) {
  for (const std::string_view part : parts) {
    if (contains(text, part)) return true;
  }
  return false;
}
inline bool contains_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return contains_any<std::initializer_list<std::string_view>>(text, parts);
}

}  // namespace flatout
