// A log in its errors: what a rule looks for must stand in one of them, not anywhere in the log.
#pragma once

#include <string_view>
#include <vector>

namespace flatout::devmem {

/// The log's lines in order, cut into blocks: an error's line with the traceback before it and the
/// few lines that continue it, or a line that belongs to no other. Blank lines are in none.
std::vector<std::string_view> error_blocks(std::string_view log);

/// An assertion's text, in which what begins at `at` is what was to come, or compared with:
/// "AssertionError: expected CUDA out of memory, got ...".
bool is_expected(std::string_view line, size_t at);

/// Without what launchers put before each line: "[rank3]: ", "[default0]:", "(Worker pid=7) ",
/// "12: " (srun -l).
std::string_view without_source(std::string_view line);

}  // namespace flatout::devmem
