#include "diagnose/peer.h"

#include <fmt/format.h>

#include "base/text.h"
#include "diagnose/findings.h"

namespace flatout::diagnose {

// The least that Linux delays one (TCP_DELACK_MIN), and how much of a wait they must make up.
constexpr double kDelay = 0.04, kMostOfWait = 0.7;

void add_delayed_acks(const RunView& view, model::Finding& f) {
  const auto acks = view.increase(view.host(model::SignalId::kNetDelayedAcks));
  if (!acks || view.steps().count == 0 || !f.cost_ms_per_step) return;
  const double each_step = *acks / static_cast<double>(view.steps().count);
  const double waited = *f.cost_ms_per_step * 1e-3;
  if (each_step * kDelay < kMostOfWait * waited) return;
  evidence(f,
           fmt::format("TCP held back {} acknowledgements a step, 40 ms each at the least",
                       format_number(each_step)),
           each_step, "segments", "probe.host", view.steps().count);
  remedy(f, "nodelay",
         "Set TCP_NODELAY, or send a message by one call: its second piece waits for the "
         "acknowledgement of the first.");
}

}  // namespace flatout::diagnose
