// The text of F1.
#pragma once

#include <string_view>

namespace flatout::screen {

std::string_view help_text();

}  // namespace flatout::screen
