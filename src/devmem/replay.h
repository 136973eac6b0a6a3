// Runs a trace through a policy on a simulated card and says what it took.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "devmem/sim_driver.h"
#include "devmem/trace.h"

namespace flatout::devmem {

struct Replay {
  std::string trace, policy;
  Bytes peak_reserved = 0;
  Bytes peak_live = 0;      // as requested
  Bytes before = 0;         // live before the recording began
  Bytes smallest_card = 0;  // in pages of 2 MiB, without the context and what libraries take
  uint64_t requests = 0, steps = 0;
  uint64_t driver_calls = 0;
  uint64_t driver_ns = 0;   // by the driver's table of costs
  Bytes waste_at_peak = 0;  // reserved but not live when most was reserved
  bool failed = false;      // on the card that was named
};

struct ReplayOptions {
  Bytes card =
      0;  // 0: as large as it takes (tf_all: the smallest card that fits, of which it takes all)
  CostTable costs;
};

/// All policies in the order of policy_names(), then `bound`: what no policy can go below.
std::vector<Replay> replay_all(const Trace& trace, const ReplayOptions& options = {});
/// One of policy_names(), or "bound".
Replay replay(const Trace& trace, std::string_view policy, const ReplayOptions& options = {});

/// For scripts: a list, as in docs/devmem.md. For people: a table for each trace.
std::string replay_json(const std::vector<Replay>& replays);
std::string replay_table(const std::vector<Replay>& replays);

}  // namespace flatout::devmem
