// `flatout run --serve`: the server beside a recording.
#pragma once

#include <memory>
#include <string>

#include "cli/helper_process.h"
#include "cli/options.h"

namespace flatout::cli {

/// `flatout serve` on one run folder, as a process of its own: nothing that comes over the network
/// reaches the recorder. Warns where it cannot be started, and gives nullptr: the job goes on.
std::unique_ptr<HelperProcess> serve_beside(const std::string& folder, const Settings& settings);

}  // namespace flatout::cli
