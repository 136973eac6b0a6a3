// The golden files of this room.
#pragma once

#include <string>

#include "base/testing/golden.h"

namespace flatout::report::testing {

inline void expect_golden(const std::string& name, const std::string& text) {
  flatout::expect_golden("report", name, text);
}

}  // namespace flatout::report::testing
