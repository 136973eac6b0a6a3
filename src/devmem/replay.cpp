#include "devmem/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "devmem/policy.h"

namespace flatout::devmem {
namespace {

constexpr std::string_view kBound = "bound";

// The trace on one card. False: some request failed; what came before it counts.
bool run(const Trace& trace, std::string_view name, SimDriver& driver, Replay* out = nullptr) {
  auto policy = make_policy(name, driver, driver.total_bytes());
  FLATOUT_CHECK(policy.ok());
  std::vector<Address> where(trace.blocks, 0);
  std::vector<Bytes> sizes(out ? trace.blocks : 0, 0);
  Bytes live = 0, peak = 0;
  bool ok = true;
  for (const Op& op : trace.ops) {
    if (op.kind == Op::kFree) {
      FLATOUT_CHECK((*policy)->free(where[op.block]).ok());
      if (out) live -= sizes[op.block];
      continue;
    }
    if (op.kind != Op::kAllocate) continue;
    const auto got = (*policy)->allocate(op.size, op.stream);
    if (!got.ok()) {
      ok = false;
      break;
    }
    where[op.block] = *got;
    if (!out) continue;
    sizes[op.block] = op.size;
    live += op.size;
    if (driver.used() > peak) {
      peak = driver.used();
      out->waste_at_peak = peak - live;
    }
  }
  if (out) {
    out->peak_reserved = driver.peak();
    out->driver_calls = driver.calls();
    out->driver_ns = driver.cost_ns();
  }
  return ok;
}

bool fits(const Trace& trace, std::string_view policy, Bytes card) {
  SimDriver driver(card);
  return run(trace, policy, driver);
}

// `enough` pages or more hold it. The caching policies are not quite monotonous in the card's size;
// what is found is a size that fits beside one that does not.
Bytes smallest_card(const Trace& trace, std::string_view policy, Bytes enough) {
  Bytes low = (std::max(trace.peak_live, Bytes{1}) - 1) / kPageBytes;  // pages that are too few
  Bytes high = std::max(round_up(enough, kPageBytes) / kPageBytes, low + 1);
  while (!fits(trace, policy, high * kPageBytes)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const Bytes middle = low + (high - low) / 2;
    (fits(trace, policy, middle * kPageBytes) ? high : low) = middle;
  }
  return high * kPageBytes;
}

}  // namespace

Replay replay(const Trace& trace, std::string_view policy, const ReplayOptions& options) {
  Replay out;
  out.trace = trace.name;
  out.policy = policy;
  out.peak_live = trace.peak_live;
  out.before = trace.before;
  out.requests = trace.blocks;
  out.steps = trace.steps;
  if (policy == kBound) {
    out.peak_reserved = trace.peak_live;
    out.smallest_card = round_up(trace.peak_live, kPageBytes);
    out.failed = options.card > 0 && trace.peak_live > options.card;
    return out;
  }
  const bool takes_all = policy == "tf_all";
  if (takes_all) {
    out.smallest_card = smallest_card(trace, policy, trace.peak_live);
  } else {
    SimDriver unlimited(SimDriver::kUnlimited, options.costs);
    const bool ok = run(trace, policy, unlimited, &out);
    if (ok) out.smallest_card = smallest_card(trace, policy, out.peak_reserved);
    out.failed = !ok;
  }
  if (options.card > 0 || takes_all) {
    SimDriver driver(options.card > 0 ? options.card : out.smallest_card, options.costs);
    out.failed = !run(trace, policy, driver, &out);
  }
  return out;
}

std::vector<Replay> replay_all(const Trace& trace, const ReplayOptions& options) {
  std::vector<Replay> all;
  for (const std::string_view name : policy_names()) all.push_back(replay(trace, name, options));
  all.push_back(replay(trace, kBound, options));
  return all;
}

std::string replay_json(const std::vector<Replay>& replays) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Replay& r : replays) {
    list.push_back({{"trace", to_utf8(r.trace)},
                    {"policy", r.policy},
                    {"peak_reserved_bytes", r.peak_reserved},
                    {"peak_live_bytes", r.peak_live},
                    {"before_bytes", r.before},
                    {"smallest_card_bytes", r.smallest_card},
                    {"driver_calls", r.driver_calls},
                    {"failed", r.failed},
                    {"driver_ns", r.driver_ns},
                    {"waste_at_peak_bytes", r.waste_at_peak},
                    {"requests", r.requests},
                    {"steps", r.steps}});
  }
  return list.dump(1) + "\n";
}

std::string replay_table(const std::vector<Replay>& replays) {
  std::string out;
  std::string_view last;
  for (const Replay& r : replays) {
    if (r.trace != last || out.empty()) {
      out += fmt::format("{}{}: {} requests{}, at most {} live at a time{}\n",
                         out.empty() ? "" : "\n", escape_terminal(r.trace), r.requests,
                         r.steps > 0 ? fmt::format(" in {} steps", r.steps) : "",
                         format_bytes(static_cast<double>(r.peak_live)),
                         r.before > 0 ? fmt::format(" ({} before the recording began)",
                                                    format_bytes(static_cast<double>(r.before)))
                                      : "");
      out += fmt::format("  {:<17} {:>13} {:>8} {:>13} {:>13} {:>12}\n", "policy", "peak reserved",
                         "of live", "smallest card", "driver calls", "driver time");
      last = r.trace;
    }
    const double ratio =
        r.peak_live > 0 ? static_cast<double>(r.peak_reserved) / static_cast<double>(r.peak_live)
                        : 1;
    out +=
        fmt::format("  {:<17} {:>13} {:>8.3f} {:>13} {:>13} {:>12}{}\n", r.policy,
                    format_bytes(static_cast<double>(r.peak_reserved)), ratio,
                    r.smallest_card > 0 ? format_bytes(static_cast<double>(r.smallest_card)) : "-",
                    r.driver_calls, format_duration(Nanos(static_cast<int64_t>(r.driver_ns))),
                    r.failed ? "  ran out of memory" : "");
  }
  return out;
}

}  // namespace flatout::devmem
