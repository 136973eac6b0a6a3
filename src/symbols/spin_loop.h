// Spin-wait loops, known by their machine code.
#pragma once

#include <cstddef>
#include <string_view>

namespace flatout::symbols {

/// Bytes of code before and after an instruction that is_spin_loop() can make use of.
constexpr size_t kSpinLoopReach = 24;

/// Whether the instruction at `code[at]` belongs to a loop that waits for memory to change: one
/// that holds the processor's hint for it (PAUSE; YIELD or ISB), or, on x86-64, one that only loads
/// from the same places and compares, so that nothing but another thread's store can end it.
bool is_spin_loop(std::string_view code, size_t at);

}  // namespace flatout::symbols
