// Text in small letters, A to Z alone, whatever the locale says.
#pragma once

#include <string>
#include <string_view>

namespace flatout {

inline std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

}  // namespace flatout
