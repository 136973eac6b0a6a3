// What a shell may offer as the value of an option, or as a command's words: from the program's own
// tables where it knows the list.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"

namespace flatout::cli {

struct Values {
  enum class Kind : uint8_t {
    kFile,
    kFolder,
    kRunFolder,  // a folder of flatout-runs, or any folder
    kPid,
    kCommand,  // a program and its arguments
    kWords,    // these and no others
    kNothing   // a number, a time, a text
  };
  Kind kind = Kind::kFile;
  std::vector<std::string> words;
};

/// Of an option that takes a value.
Values values_of(const Usage& usage, const Flag& option);
/// Of what is no option.
Values words_of(const Usage& usage);

}  // namespace flatout::cli
