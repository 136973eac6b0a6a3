// `flatout run --serve`: the server beside a recording.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/helper_process.h"
#include "cli/options.h"
#include "serve/http.h"

namespace flatout::cli {

/// What the options of a server say, checked.
struct Serving {
  std::string address;
  std::string token;  // "": none
  std::optional<serve::Tls> tls;
};
/// Errors: kBadInput, or kNotFound for a file that cannot be read.
Result<Serving> read_serving(const Settings& settings);

/// `flatout serve` on one run folder, as a process of its own: nothing that comes over the network
/// reaches the recorder. Warns where it cannot be started, and gives nullptr: the job goes on.
std::unique_ptr<HelperProcess> serve_beside(const std::string& folder, const Settings& settings);

}  // namespace flatout::cli
