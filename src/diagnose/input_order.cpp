// The order of the samples: loaders with workers ask their sampler in the training thread.
#include <fmt/format.h>

#include <unordered_set>

#include "base/contains.h"
#include "diagnose/input.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;

namespace {

/// The user's lines that a data loader's own code calls, as far as they are innermost.
std::unordered_set<model::FrameId> called_by_loader(const RunView& view) {
  const model::Run& run = view.run();
  std::vector<bool> of_loader(run.frames.size());
  for (size_t i = 0; i < of_loader.size(); ++i) {
    of_loader[i] = contains(run.string(run.frames[i].file), "/torch/utils/data/");
  }
  std::unordered_set<model::FrameId> out;
  for (model::StackId stack = 1; stack < run.stacks.size(); ++stack) {
    const model::FrameId user = view.stacks().user_frame(stack);
    if (user == 0) continue;
    bool above = false;
    for (model::StackId at = stack; at != 0; at = run.stacks[at].parent) {
      const model::FrameId frame = run.stacks[at].frame;
      above = above || frame == user;
      if (above && of_loader[frame]) out.insert(user);
    }
  }
  return out;
}

}  // namespace

void detect_order(const RunView& view, const WhatIf& whatif, Findings& findings) {
  const LoaderView& loader = view.loader();
  if (!loader.measured || loader.kind == LoaderKind::kSerial) return;
  const auto orders = [called = called_by_loader(view)](const Cell& c) {
    return c.role == Role::kTrainer && c.part == Part::kInputWait && on_cpu(c.act) &&
           called.contains(c.user);
  };
  const int64_t readings = view.readings(orders);
  if (readings < kFewReadings) return;
  const auto unread = [](const Cell& c) { return on_cpu(c.act) && is_unread(c); };
  const double without = view.trainer_in(Part::kInputWait, unread);
  const double read =
      view.trainer_in(Part::kInputWait, [&](const Cell& c) { return on_cpu(c.act) && !unread(c); });
  const double cost =
      view.per_step(Role::kTrainer, orders) * (without < read ? 1 + without / read : 1);
  // A pool that is on a core meanwhile spins: it works for the training thread alone.
  const double spun = view.per_step(
      Role::kPool, [](const Cell& c) { return c.part == Part::kInputWait && on_cpu(c.act); });
  Finding* f = findings.add("input.decode_cpu",
                            "Working out which samples come next holds up the training thread", 0.9,
                            whatif.saved_by({.trainer_cpu = cost + spun, .handling = cost}));
  if (f == nullptr) return;
  f->where = view.where(orders);
  evidence(*f, fmt::format("it takes {} a step, whatever the workers do", ms(cost)), cost * 1e3,
           "ms", "stacks", readings);
  remedy(*f, "order_at_once",
         "Draw the order of a whole epoch at once (torch.multinomial, WeightedRandomSampler, a "
         "permutation), not sample by sample.");
}

}  // namespace flatout::diagnose
