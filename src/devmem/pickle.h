// Reads Python pickles that hold plain data only: None, booleans, numbers, strings, lists, tuples
// and dictionaries. Anything that would import, build or call is refused, and nothing is ever run.
// Source: CPython Lib/pickletools.py (protocols 0 to 5).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flatout::devmem {

class Pickle {
 public:
  using Index = uint32_t;
  /// Of a dictionary. find() looks at each, and any number of records may refer to the same.
  static constexpr size_t kMostKeys = 128;

  /// `bytes` must outlive it: strings point into them. Errors: kBadInput.
  static Result<Pickle> read(std::string_view bytes);

  struct Value {
    enum Kind : uint8_t { kNone, kBool, kInt, kFloat, kString, kList, kDict, kMark };
    Kind kind = kNone;
    int64_t integer = 0;  // of kBool, kInt; beyond 64 bits it saturates
    std::string_view text;
    std::vector<Index> items;  // of kList (tuples too); of kDict key, value, key, value
  };

  const Value& root() const { return values_[root_]; }
  const Value& at(Index i) const { return values_[i]; }
  /// The value of a dictionary's key; nullptr if it is no dictionary or has no such key.
  const Value* find(const Value& dict, std::string_view key) const;
  std::optional<int64_t> integer(const Value& dict, std::string_view key) const;
  std::string_view text(const Value& dict, std::string_view key) const;  // "" if there is none
  /// The items of a list under that key; nullptr if there is none.
  const std::vector<Index>* list(const Value& dict, std::string_view key) const;

 private:
  friend class PickleReader;
  std::vector<Value> values_;
  Index root_ = 0;
};

}  // namespace flatout::devmem
