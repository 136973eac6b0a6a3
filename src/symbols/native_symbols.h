// Functions, files and lines of native code by a process's memory map alone: the process may be
// gone, as long as its files are there. Uses libdw (elfutils).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "symbols/native_process.h"

struct Dwfl;

namespace flatout::symbols {

/// A symbol's name as C++ writes it; as it is where it is not mangled.
std::string demangle(const char* name);
/// File and line of the code at `at`, without its function; empty where nothing is loaded, the
/// binary and 0 where there is no DWARF.
NativeFrame source_at(Dwfl* dwfl, uint64_t at);
/// The frames at `at`, innermost first: `frame` has the file and line there and the function that
/// the code lies in, which is the last one's; before it those that were inlined.
std::vector<NativeFrame> with_inlined(Dwfl* dwfl, uint64_t at, NativeFrame frame);

class NativeSymbols {
 public:
  /// `maps`: what /proc/PID/maps said. Errors: kBadInput, kIo.
  static Result<std::unique_ptr<NativeSymbols>> open(std::string_view maps);
  ~NativeSymbols();

  /// The function that holds the call before the return address `pc`, and those it was inlined
  /// into, innermost first. Never empty.
  std::vector<NativeFrame> call_at(uint64_t pc);

 private:
  struct State;
  explicit NativeSymbols(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace flatout::symbols
