// `flatout run --meet`: ranks of machines without a common folder.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "cli/options.h"
#include "recorder/meeting.h"

namespace flatout::cli {

struct MeetingSettings {
  recorder::MeetingPlace place;
  std::string token;
};
/// Of --meet and $FLATOUT_MEET_TOKEN. Errors: kBadInput.
Result<MeetingSettings> read_meeting(const Settings& settings);

/// Rank 0's side, as a process of its own: nothing that comes over the network reaches the
/// recorder. It ends with this object, and with this process however that ends.
class MeetingProcess {
 public:
  /// Call before there are threads. nullptr, with a warning, where it cannot be started.
  static std::unique_ptr<MeetingProcess> start(const MeetingSettings& settings);
  ~MeetingProcess();
  MeetingProcess(const MeetingProcess&) = delete;
  MeetingProcess& operator=(const MeetingProcess&) = delete;

  /// From now on it listens, and puts what is brought into this folder.
  void open(const std::string& parent);

 private:
  MeetingProcess(int pid, int pipe) : pid_(pid), pipe_(pipe) {}
  int pid_, pipe_;
};

}  // namespace flatout::cli
