// --json=FILE of commands that print one document: their standard output goes to that file.
#pragma once

#include <string>

namespace flatout::cli {

/// From now on what is printed is kept for `path`.
void begin_json_file(std::string path);

/// Writes what was printed until now, if anything was, and gives standard output back. Returns
/// `exit_code`, or 1 where it cannot be written. Without begin_json_file() it does nothing.
int end_json_file(int exit_code);

}  // namespace flatout::cli
