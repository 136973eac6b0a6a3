// Where the code of another process lies, as far as stacks need it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/fs.h"
#include "symbols/native_process.h"
#include "symbols/process_maps.h"

namespace flatout::probe {

/// The memory map is read at the first stack, and again where a stack makes it doubtful: libraries
/// are loaded later, and others may come to lie where one was that is no more.
class CodeMap {
 public:
  CodeMap(fs::Root root, int32_t pid) : root_(std::move(root)), pid_(pid) {}

  /// False where it cannot be read. What was found by the map before does not hold where this is
  /// another one: see version().
  bool ready(TimePoint now = MonotonicClock::now());
  enum class Doubt : uint8_t {
    kNone,
    kOfStack,  // it has no known beginning. Some never have, for there is code without unwind
               // tables: the longer the map stays as it was, the seldomer it is looked at.
    kOfPlace,  // a thread is where no code is: a library was loaded since
  };
  void doubt(Doubt doubt) { doubt_ = std::max(doubt_, doubt); }
  /// Counts the maps that there were.
  uint64_t version() const { return version_; }

  const std::vector<symbols::Mapping>& maps() const { return maps_; }
  const symbols::Mapping* find(uint64_t address) const {
    return symbols::find_mapping(maps_, address);
  }
  symbols::NativeProcess& process() { return *process_; }

 private:
  fs::Root root_;
  int32_t pid_;
  std::vector<symbols::Mapping> maps_;
  std::unique_ptr<symbols::NativeProcess> process_;
  uint64_t version_ = 0;
  Doubt doubt_ = Doubt::kOfPlace;
  TimePoint looked_{};
  Nanos wait_{};  // since then, where a stack is doubtful
};

}  // namespace flatout::probe
