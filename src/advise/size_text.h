// A number of bytes for people.
#pragma once

#include <cstdint>
#include <string>

#include "base/text.h"

namespace flatout::advise {

inline std::string size_text(uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace flatout::advise
