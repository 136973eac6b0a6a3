// The C library has no names for much of its own code (strtof(), memcpy(), expf() end in functions
// that it does not export), but whoever calls it from elsewhere names what he calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "symbols/elf.h"

namespace flatout::symbols {

/// The function of another file that the call before `return_vaddr` goes to; nullopt where that is
/// no call through the file's table of imported functions, and on other machines than x86-64.
std::optional<std::string> imported_callee(const ElfFile& file, uint64_t return_vaddr);

/// Whether an instruction that calls ends at `return_vaddr`; on other machines than x86-64 it is
/// taken to.
bool is_behind_call(const ElfFile& file, uint64_t return_vaddr);

}  // namespace flatout::symbols
