// Events of the kernel's that happen to one thread (perf_event_open(2)).
#pragma once

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/result.h"

namespace flatout::probe {

/// A descriptor, closed on exec. `what` it is for, as in "cannot ...". Errors: kGone, kDenied,
/// kUnsupported (the machine or the kernel has no such event, or none is left).
inline Result<int> open_perf_event(perf_event_attr& attr, int32_t tid, const std::string& what) {
  const auto fd =
      static_cast<int>(syscall(SYS_perf_event_open, &attr, tid, -1, -1, PERF_FLAG_FD_CLOEXEC));
  if (fd >= 0) return fd;
  const int err = errno;
  if (err == ESRCH) return Error{Code::kGone, "the thread has ended", ""};
  if (err == EACCES || err == EPERM) {
    return Error{Code::kDenied, "cannot " + what + ": no permission",
                 "set kernel.perf_event_paranoid=2, or give flatout CAP_PERFMON"};
  }
  return Error{Code::kUnsupported, "cannot " + what + ": " + std::strerror(err), ""};
}

}  // namespace flatout::probe
