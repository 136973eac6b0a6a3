// A process of flatout's own beside a recording: nothing that happens in it makes a reading late.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace flatout::cli {

/// This program with other arguments, in a process group of its own: Ctrl-C is for the job. It ends
/// with this object, and with this process however that ends.
class HelperProcess {
 public:
  /// `input`: its standard input, closed here; -1: nothing. nullptr where it cannot be started.
  static std::unique_ptr<HelperProcess> start(std::vector<std::string> words, int input = -1);
  ~HelperProcess();
  HelperProcess(const HelperProcess&) = delete;
  HelperProcess& operator=(const HelperProcess&) = delete;

 private:
  HelperProcess(int pid, int pidfd) : pid_(pid), pidfd_(pidfd) {}
  int pid_, pidfd_;
};

}  // namespace flatout::cli
