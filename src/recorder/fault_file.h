// Where Python processes of the job write their stack when a fatal signal ends them (CPython's
// faulthandler): memory that only flatout holds, so that it outlives the process and not flatout.
#pragma once

#include <string>

namespace flatout::recorder {

class FaultFile {
 public:
  FaultFile();
  ~FaultFile();
  FaultFile(const FaultFile&) = delete;
  FaultFile& operator=(const FaultFile&) = delete;

  /// What the job opens to append to it: FLATOUT_FAULTS. Empty where the kernel has no memory
  /// files.
  std::string path() const;
  /// What was written, 16 KiB of it at most.
  std::string text() const;

 private:
  int fd_ = -1;
};

}  // namespace flatout::recorder
