// Line tables of Python code objects, for CPython 3.8 to 3.15.
//
// Sources: Objects/lnotab_notes.txt (3.8, 3.9: co_lnotab; 3.10: co_linetable, PEP 626) and
// Objects/locations.md or InternalDocs/code_objects.md (3.11 and later: co_linetable, PEP 657).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace flatout::symbols {

/// From bytecode offset (in bytes) to line.
class PythonLines {
 public:
  /// `table` is co_lnotab or co_linetable of CPython 3.`minor`. A table that is cut off or damaged
  /// gives the lines up to there.
  static PythonLines decode(std::string_view table, int first_line, int minor);

  /// The line of the instruction at `offset`; the first line where the table says nothing.
  int line(int64_t offset) const;
  size_t size() const { return entries_.size(); }
  /// Where the bytecode ends, as far as the table tells (3.10 and later); else 0.
  int64_t end() const { return end_; }

 private:
  struct Entry {
    uint32_t begin;  // bytecode offset; reaches to the next entry's
    int32_t line;    // -1: no line
  };
  void add(int64_t begin, int64_t line);
  int first_line_ = 0;
  int64_t end_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace flatout::symbols
