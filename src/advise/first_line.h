// The first line of a small file of the kernel's.
#pragma once

#include <string>
#include <string_view>

#include "base/fs.h"
#include "base/text.h"

namespace flatout::advise {

/// Without blanks around it; "" where there is no such file.
inline std::string first_line(const fs::Root& root, std::string_view path) {
  const auto text = root.read(path, 4096);
  if (!text.ok()) return "";
  return std::string(trim(std::string_view(*text).substr(0, text->find('\n'))));
}

}  // namespace flatout::advise
