// Comparing what somebody says with what only friends know.
#pragma once

#include <string_view>

namespace flatout {

/// Whether two secrets are equal; takes as long for a near miss as for a far one.
inline bool same_secret(std::string_view a, std::string_view b) {
  unsigned differs = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    differs |= static_cast<unsigned char>(a[i]) ^
               static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  }
  return differs == 0;
}

}  // namespace flatout
