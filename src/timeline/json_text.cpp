#include "timeline/json_text.h"

#include <fmt/format.h>

#include "base/text.h"

namespace flatout::timeline {

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : to_utf8(text)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out += '"';
}

}  // namespace flatout::timeline
