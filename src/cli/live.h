// `flatout run --live`: the view below the job.
#pragma once

#include <cstdint>
#include <memory>

#include "cli/helper_process.h"

namespace flatout::cli {

/// By which the recorder's status line reaches the view; -1 where there is no terminal that has
/// room for one, which is told.
struct LiveSocket {
  int view = -1, recorder = -1;
};
LiveSocket open_live();
/// Starts the view on the job. nullptr, with a warning, where it cannot be started.
std::unique_ptr<HelperProcess> start_live(const LiveSocket& socket, int32_t job);

}  // namespace flatout::cli
