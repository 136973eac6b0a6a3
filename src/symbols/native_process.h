// Native stacks of another process: unwinding by its unwind tables (.eh_frame), and files and lines
// by its DWARF. Uses libdw (elfutils). Nothing is stopped: the caller gives registers that belong
// together with the stack (a thread that is blocked, or a sample that the kernel took of one that
// runs).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flatout::symbols {

struct NativeFrame {
  std::string function;  // demangled; "[libx.so]" where there is no symbol
  std::string file;      // source file, or the binary where there is no DWARF
  uint32_t line = 0;
};

/// Registers by their DWARF numbers (x86-64: 0-16, 7 is the stack pointer; aarch64: 0-31, 31 is).
struct NativeRegisters {
  static constexpr size_t kCount = 32;
  uint64_t pc = 0;
  std::array<uint64_t, kCount> values{};
  uint32_t known = 0;  // bit n: values[n] is known

  void set(unsigned number, uint64_t value) {
    values[number] = value;
    known |= 1u << number;
  }
  uint64_t sp() const;
  static NativeRegisters blocked(uint64_t pc, uint64_t sp);  // only these two are known
};

class NativeProcess {
 public:
  /// Reads the memory map; symbols come later, as they are needed.
  /// Errors: kDenied, kGone, kUnsupported (a machine that this does not know).
  static Result<std::unique_ptr<NativeProcess>> open(int32_t pid);
  ~NativeProcess();

  /// Return addresses, innermost first, at most `limit`. `stack`: memory from the stack pointer
  /// upwards, as it was with these registers; what lies beyond is read from the process.
  std::vector<uint64_t> unwind(const NativeRegisters& registers, std::string_view stack,
                               size_t limit);
  /// The frames at an address, innermost first, where `named` says the binary and the function
  /// there: those that were inlined into it are before it. `named` alone where there is no DWARF.
  std::vector<NativeFrame> frames(uint64_t address, NativeFrame named);

 private:
  struct State;
  explicit NativeProcess(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace flatout::symbols
