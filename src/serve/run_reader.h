// What the server needs to know of run folders; the program joins it to the rooms that read them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "model/comparison.h"
#include "model/finding.h"
#include "model/run.h"

namespace flatout::serve {

/// A run folder that is being read.
class RunSource {
 public:
  virtual ~RunSource() = default;
  /// Takes in what has been written since. `ended`: nothing will follow. True if there was
  /// anything.
  virtual bool read(bool ended) = 0;
  virtual model::Run& run() = 0;
};

/// None of these follows a link within a folder, or reads a file that flatout does not write.
class RunReader {
 public:
  virtual ~RunReader() = default;
  virtual bool is_run(const std::string& folder) const = 0;
  /// Whether it is still being recorded.
  virtual bool is_live(const std::string& folder) const = 0;
  /// `max_bytes`: about what the Run may take.
  virtual Result<std::unique_ptr<RunSource>> open(const std::string& folder, size_t max_bytes) = 0;
  /// Finds the steps and the findings.
  virtual model::Diagnosis judge(model::Run& run) = 0;
  virtual model::Comparison compare(model::Run& older, model::Run& newer) = 0;
};

}  // namespace flatout::serve
