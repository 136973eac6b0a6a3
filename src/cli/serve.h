// `flatout run --serve`: the server beside a recording.
#pragma once

#include <memory>
#include <string>

#include "cli/options.h"

namespace flatout::cli {

/// `flatout serve` on one run folder, as a process of its own: nothing that comes over the network
/// reaches the recorder, and nothing that it costs makes a reading late. It ends with this object,
/// and with this process however that ends.
class ServeProcess {
 public:
  /// Warns where it cannot be started, and gives nullptr: the job goes on.
  static std::unique_ptr<ServeProcess> start(const std::string& folder, const Settings& settings);
  ~ServeProcess();
  ServeProcess(const ServeProcess&) = delete;
  ServeProcess& operator=(const ServeProcess&) = delete;

 private:
  ServeProcess(int pid, int pidfd) : pid_(pid), pidfd_(pidfd) {}
  int pid_, pidfd_;
};

}  // namespace flatout::cli
