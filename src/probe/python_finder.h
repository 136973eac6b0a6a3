// Finds the CPython runtime inside another process: which mapped file holds it, and where.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/fs.h"
#include "base/result.h"

namespace flatout::probe {

/// Addresses in the other process; 0 where the file does not tell.
struct PythonPlace {
  uint64_t runtime = 0;       // _PyRuntime
  uint64_t code_type = 0;     // PyCode_Type
  uint64_t version_word = 0;  // Py_Version (3.11 and later): PY_VERSION_HEX
  int minor = 0;              // as the file's name says
};

/// Remembers what it learned about a file, so that the workers of a job cost little.
class PythonFinder {
 public:
  /// Errors: kNotFound (no Python in this process, or not yet), kDenied, kGone.
  Result<PythonPlace> find(const fs::Root& root, int32_t pid);

 private:
  std::map<std::pair<uint64_t, uint64_t>, PythonPlace> files_;  // virtual addresses in the file
};

/// 11 for ".../python3.11" and ".../libpython3.11.so.1.0"; 0 where a name does not say.
int python_minor_from_path(std::string_view path);

}  // namespace flatout::probe
