// How ranks of machines without a common folder meet: rank 0's flatout listens, and the others
// bring it their run folders when their jobs have ended.
//
// The protocol is text lines, each ended by \n, and files. The one who comes says
//   flatout-meet 1 TOKEN NAME     NAME: of its run folder
//   FILE BYTES                    rank.json first, and so many bytes
// is answered "have" (a common file system: nothing more is wanted) or "go", sends its other files
// and "end", and is answered "ok". Whoever says anything else is hung up on without a word.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace flatout::recorder {

struct MeetingPlace {
  std::string host;
  uint16_t port = 0;
};
/// "node0:8611", "10.0.0.1:8611", "[::1]:8611".
std::optional<MeetingPlace> parse_meeting_place(std::string_view text);

class Meeting {
 public:
  /// Listens there (port 0: any that is free) and puts what is brought beside other run folders in
  /// `parent`, each folder only when it is whole. Errors: kNotFound (no such host), kDenied, kFull
  /// (the port is in use), kIo (the host is another machine).
  static Result<std::unique_ptr<Meeting>> open(const MeetingPlace& place, std::string token,
                                               std::string parent);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  uint16_t port() const;

 private:
  class Impl;
  explicit Meeting(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Brings a rank's run folder there. False: it can be seen there anyway. Errors: kNotFound,
/// kTimeout, kGone (hung up on: another token), kIo.
Result<bool> bring_to_meeting(const std::string& folder, const MeetingPlace& place,
                              const std::string& token);

}  // namespace flatout::recorder
