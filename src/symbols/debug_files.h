// For libdwfl: separate debug files are not looked for. That may ask the network (debuginfod).
#pragma once

#include <elfutils/libdwfl.h>

namespace flatout::symbols {

inline int no_debug_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*,
                         GElf_Word, char**) {
  return -1;
}

}  // namespace flatout::symbols
