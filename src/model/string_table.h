// Interned strings: each different text is kept once and known by a number. 0 is "".
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "model/stack.h"

namespace flatout::model {

class StringTable {
 public:
  StringTable() { intern({}); }
  StringTable(StringTable&&) = default;
  StringTable& operator=(StringTable&&) = default;

  StringId intern(std::string_view text);
  /// The number of `text`, or kUnknown where it was never interned.
  StringId find(std::string_view text) const;
  std::string_view operator[](StringId id) const {
    return id < strings_.size() ? strings_[id] : std::string_view();
  }
  size_t size() const { return strings_.size(); }
  size_t bytes() const;

  static constexpr StringId kUnknown = 0xFFFFFFFF;

 private:
  struct Slot {
    uint32_t hash = 0;
    StringId id = kUnknown;
  };
  size_t slot_of(std::string_view text, uint32_t hash) const;
  void grow();
  std::string_view keep(std::string_view text);

  std::vector<std::string_view> strings_;  // into blocks_, which never move
  std::vector<Slot> slots_;                // a power of two, open addressing
  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t block_left_ = 0, block_bytes_ = 0;
  char* block_next_ = nullptr;
};

}  // namespace flatout::model
