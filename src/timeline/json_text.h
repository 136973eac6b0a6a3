// What all writers of JSON here share.
#pragma once

#include <string>
#include <string_view>

namespace flatout::timeline {

/// `text` as a JSON string, quotes included; what is not UTF-8 is replaced.
std::string json_string(std::string_view text);

}  // namespace flatout::timeline
