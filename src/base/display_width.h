// Columns that text takes on a terminal.
#pragma once

#include <cstddef>
#include <string_view>

namespace flatout {

/// Decodes the character at the front of valid UTF-8 (as escape_terminal() gives) and removes it.
char32_t take_character(std::string_view& s);
/// 0 (combining), 1 or 2 (East Asian wide).
size_t character_width(char32_t c);
/// Of valid UTF-8.
size_t display_width(std::string_view text);

}  // namespace flatout
