// Names of functions by the tables of symbols of mapped files, which processes of a job share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fs.h"
#include "symbols/elf.h"
#include "symbols/native_process.h"
#include "symbols/process_maps.h"

namespace flatout::probe {

/// Without parameters, and cut: names of templates run to thousands of characters.
std::string short_name(std::string function);

class FunctionNames {
 public:
  /// `all_at_once`: or else a file at a time, each next one after another start_tick(), for it
  /// takes some 50 ms to read the half a million symbols of PyTorch.
  FunctionNames(fs::Root root, bool all_at_once) : root_(std::move(root)), all_(all_at_once) {}

  void start_tick() { loaded_now_ = false; }
  /// The binary and the demangled function, without its parameters, at `address` of process `pid`,
  /// which lies in `mapping`; "[libx.so]" where it has no name, the mapping's own where that is no
  /// file. False: not yet, its table is still to be read.
  bool name(int32_t pid, const symbols::Mapping& mapping, uint64_t address,
            symbols::NativeFrame& out);
  /// The function that the call before `return_address`, which lies in `mapping`, goes to where
  /// that is in another file; empty where that is not to be seen. For files that name() has read.
  std::string callee(const symbols::Mapping& mapping, uint64_t return_address);
  /// False where a call can be seen not to end there.
  bool is_behind_call(const symbols::Mapping& mapping, uint64_t address) const;
  /// CPU time spent on reading tables so far.
  Nanos spent() const { return spent_; }

 private:
  enum class Answer : uint8_t { kName, kNone, kLater };
  Answer look_up(int32_t pid, const symbols::Mapping& mapping, uint64_t address, std::string& out);

  struct File {
    symbols::ElfFile elf;
    std::vector<symbols::ElfFile::FunctionStart> starts;
  };
  fs::Root root_;
  bool all_, loaded_now_ = false;
  Nanos spent_{};
  std::map<std::pair<uint64_t, uint64_t>, std::unique_ptr<File>> files_;  // nullptr: unreadable
};

}  // namespace flatout::probe
