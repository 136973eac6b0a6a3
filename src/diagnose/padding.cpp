// Batches of token ids that are padded beyond what their longest sample needs.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/device.h"
#include "diagnose/findings.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;

namespace {

constexpr double kFewBatches = 3;
// Fewer columns are what lengths differ by anyway, or ids that happen to be alike.
constexpr double kLeastShare = 0.25, kLeastColumns = 8;
constexpr double kDispatch = 10e-6;  // of an operation, however long its tensors

/// "869 of 1024 columns in 4 batches".
struct Padding {
  double unneeded = 0, columns = 0, batches = 0;
  double share() const { return columns > 0 ? std::clamp(unneeded / columns, 0.0, 1.0) : 0; }
  bool much() const {
    return batches >= kFewBatches && share() >= kLeastShare && unneeded >= kLeastColumns * batches;
  }
};

Padding padding_of(const model::Run& run) {
  const auto words = split(run.fact("batch.padding"), ' ');
  if (words.size() != 7) return {};
  return {parse_number<double>(words[0]).value_or(0), parse_number<double>(words[2]).value_or(0),
          parse_number<double>(words[5]).value_or(0)};
}

}  // namespace

void detect_padding(const RunView& view, Findings& findings) {
  const Padding padding = padding_of(view.run());
  if (!padding.much() || !view.has_steps()) return;
  const double dispatch = kDispatch * 2 * graph_operations(view.run());  // there and back
  const StepsView& steps = view.steps();
  const double device = device_computes(view.run()) * steps.mean;
  const double computes =
      steps.part(Part::kForward) + steps.part(Part::kBackward) + steps.part(Part::kCompute);
  const double spared =
      padding.share() * (device > 0 ? device : std::max(computes - dispatch, 0.0));
  Finding* f = findings.add(
      "input.padding", "Batches are padded far beyond their longest sample", 0.8,
      device > 0 ? spared : WhatIf(view).saved_by({.trainer = spared, .trainer_cpu = spared}));
  if (f == nullptr) return;
  f->where = setting_line(view.run(), "batch.padding.at");
  const auto seen = static_cast<int64_t>(padding.batches);
  evidence(*f,
           fmt::format("{} of a batch's columns hold padding in all of its rows",
                       format_percent(padding.share())),
           padding.share(), "ratio", "agent.padding", seen);
  evidence(*f, fmt::format("batches are {:.0f} columns wide", padding.columns / padding.batches),
           padding.columns / padding.batches, "columns", "agent.padding", seen);
  evidence(*f, fmt::format("computing takes {} a step", ms(device > 0 ? device : computes)),
           (device > 0 ? device : computes) * 1e3, "ms", "timeline", steps.count);
  remedy(*f, "pad_to_longest",
         "Pad each batch to its own longest sample in the collate function (padding=\"longest\", "
         "DataCollatorWithPadding), not all samples to one length.");
  remedy(*f, "by_length", "Draw samples of like lengths together, or pack several into a row.");
}

}  // namespace flatout::diagnose
