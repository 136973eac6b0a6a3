// The job's code: which script or module it runs, a hash of each of the user's own Python files,
// and the versions of what is installed beside PyTorch. Nothing is imported or executed.
#pragma once

#include <set>
#include <string>

#include "base/fs.h"
#include "model/run.h"
#include "model/sink.h"
#include "recorder/facts.h"

namespace flatout::recorder {

class CodeFacts {
 public:
  explicit CodeFacts(fs::Root root) : root_(std::move(root)) {}

  /// code.file, and code.hash.* of the Python files in the program's folder and below. Takes 0.1 s
  /// at the most, and stops at 256 files.
  void tell_program(const JobFacts& job, model::Sink& sink);
  /// From the stacks seen so far: code.hash.* of own files elsewhere, and package.*.
  void tell_seen(const model::Run& run, model::Sink& sink);

 private:
  void tell_folder(const std::string& folder, model::Sink& sink);
  void tell_file(const std::string& path, const std::string& name, model::Sink& sink);
  void tell_packages(const std::string& folder, model::Sink& sink);

  fs::Root root_;
  std::set<std::string> told_;  // paths of files, folders of packages
  size_t files_ = 0, bytes_ = 0, packages_ = 0;
};

}  // namespace flatout::recorder
