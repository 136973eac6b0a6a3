// Messages to the user on stderr: "flatout: warning: ...". One line each, names escaped by the
// caller with escape_terminal().
#pragma once

#include <string_view>

namespace flatout {

void log_warning(std::string_view message);  // "flatout: warning: ..."
void log_error(std::string_view message, std::string_view hint = {});

}  // namespace flatout
