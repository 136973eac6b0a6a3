// std::string_view::contains, until C++23.
#pragma once

#include <string_view>

namespace flatout {

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace flatout
