#include "devmem/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/size_text.h"
#include "devmem/policy.h"
#include "devmem/replay.h"

namespace flatout::devmem {
namespace {

// Whether both asked for the same things in the same order, whatever their sizes.
bool alike(const Trace& a, const Trace& b) {
  return a.blocks == b.blocks && std::equal(a.ops.begin(), a.ops.end(), b.ops.begin(), b.ops.end(),
                                            [](const Op& x, const Op& y) {
                                              return x.kind == y.kind && x.block == y.block &&
                                                     x.stream == y.stream;
                                            });
}

// On the straight line through (x1, y1) and (x2, y2), rounded up and no less than 0.
Bytes on_line(uint64_t x, uint64_t x1, Bytes y1, uint64_t x2, Bytes y2) {
  const double slope = (static_cast<double>(y2) - static_cast<double>(y1)) /
                       (static_cast<double>(x2) - static_cast<double>(x1));
  const double y =
      static_cast<double>(y1) + slope * (static_cast<double>(x) - static_cast<double>(x1));
  return static_cast<Bytes>(std::ceil(std::clamp(y, 0.0, static_cast<double>(kMostBytes))));
}

Bytes live_peak_of(const Trace& trace) {
  std::vector<Bytes> sizes(trace.blocks, 0);
  Bytes live = 0, peak = 0;
  for (const Op& op : trace.ops) {
    if (op.kind == Op::kAllocate) {
      sizes[op.block] = op.size;
      live = std::min(live + op.size, kMostBytes);
      peak = std::max(peak, live);
    } else if (op.kind == Op::kFree) {
      live -= std::min(live, sizes[op.block]);
    }
  }
  return peak;
}

// Weights and the optimizer's state: what lives for longer than from one step into the next, or
// where steps are not marked for more than half of what was recorded. In doubt a block is none of
// them, so that too much is taken to grow with the batch rather than too little.
std::vector<bool> lasting(const Trace& trace) {
  std::vector<bool> out(trace.blocks, false);
  std::vector<uint64_t> born(trace.blocks, 0);
  const bool marked = trace.steps > 0;
  const uint64_t least = marked ? 2 : trace.ops.size() / 2 + 1;
  uint64_t step = 0;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    if (op.kind == Op::kMark) {
      ++step;
      continue;
    }
    const uint64_t now = marked ? step : i;
    if (op.kind == Op::kAllocate) {
      born[op.block] = now;
    } else {
      out[op.block] = now - born[op.block] >= least;
      born[op.block] = UINT64_MAX;  // freed
    }
  }
  const uint64_t end = marked ? step : trace.ops.size();
  for (uint32_t block = 0; block < trace.blocks; ++block) {
    if (born[block] != UINT64_MAX) out[block] = end - born[block] >= least;
  }
  return out;
}

std::string_view name_of(BatchBasis basis) {
  switch (basis) {
    case BatchBasis::kEachRequest:
      return "each_request";
    case BatchBasis::kPeaks:
      return "peaks";
    case BatchBasis::kOneRun:
      break;
  }
  return "one_run";
}

}  // namespace

Result<BatchModel> BatchModel::make(BatchRun one, BatchRun other) {
  if (one.batch == other.batch)
    return Error{Code::kBadInput, fmt::format("both files are of batch {}", one.batch),
                 "record the job with two batch sizes"};
  if (one.batch > other.batch) std::swap(one, other);
  if (one.trace.peak_live > other.trace.peak_live)
    return Error{
        Code::kBadInput,
        fmt::format("the run of batch {} holds more at its peak ({}) than that of batch {} "
                    "({})",
                    one.batch, size_text(one.trace.peak_live), other.batch,
                    size_text(other.trace.peak_live)),
        "were the two exchanged, or is one from another job or cut off?"};
  BatchModel out;
  out.small_ = std::move(one);
  out.large_ = std::move(other);
  out.basis_ =
      alike(out.small_.trace, out.large_.trace) ? BatchBasis::kEachRequest : BatchBasis::kPeaks;
  return out;
}

BatchModel::BatchModel(BatchRun only) : small_(std::move(only)), fixed_(lasting(small_.trace)) {}

Trace BatchModel::at(uint64_t batch) const {
  Trace out = small_.trace;
  for (size_t i = 0; i < out.ops.size(); ++i) {
    Op& op = out.ops[i];
    if (op.kind != Op::kAllocate) continue;
    const Bytes size = op.size;
    if (basis_ == BatchBasis::kEachRequest) {
      op.size = on_line(batch, small_.batch, size, large_.batch, large_.trace.ops[i].size);
    } else if (!fixed_[op.block]) {
      op.size = on_line(batch, 0, 0, small_.batch, size);
    }
    op.size = std::max(op.size, Bytes{1});
  }
  out.peak_live = live_peak_of(out);
  return out;
}

Bytes BatchModel::peak_live(uint64_t batch) const {
  if (basis_ != BatchBasis::kPeaks) return at(batch).peak_live;
  return on_line(batch, small_.batch, small_.trace.peak_live, large_.batch, large_.trace.peak_live);
}

std::optional<uint64_t> BatchModel::largest(std::string_view policy, Bytes card) const {
  Bytes small = 0, large = 0;
  if (basis_ == BatchBasis::kPeaks) {
    small = replay(small_.trace, policy).smallest_card;
    large = replay(large_.trace, policy).smallest_card;
  }
  const auto fits = [&](uint64_t batch) {
    if (basis_ == BatchBasis::kPeaks) {
      // Both may have fitted into as many segments, though what is live grows.
      const Bytes live = peak_live(batch);
      const Bytes grown = live - std::min(live, large_.trace.peak_live);
      return std::max(on_line(batch, small_.batch, small, large_.batch, large),
                      batch > large_.batch ? large + grown : 0) <= card;
    }
    const Trace trace = at(batch);
    return trace.peak_live <= card && !replay(trace, policy, {.card = card}).failed;
  };
  if (!fits(1)) return 0;
  if (fits(kMostSamples)) return std::nullopt;
  uint64_t low = 1, high = kMostSamples;  // fits, does not
  while (high - low > 1) {
    const uint64_t middle = high > 4 * low ? 2 * low : low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

std::optional<uint64_t> BatchModel::surely(std::string_view policy, Bytes card) const {
  const auto largest = this->largest(policy, card);
  if (basis_ != BatchBasis::kPeaks) return largest;
  const auto least = BatchModel(large_).largest(policy, card);
  return least && largest ? std::min(*least, *largest) : least ? least : largest;
}

BatchAnswer largest_batches(const BatchModel& model, Bytes card, Bytes beside,
                            std::vector<uint64_t> from) {
  BatchAnswer out;
  out.basis = model.basis();
  out.card = card;
  out.beside = beside;
  const uint64_t unit = *std::max_element(from.begin(), from.end());
  const Bytes once = model.peak_live(unit), twice = model.peak_live(2 * unit);
  out.per_sample = twice > once ? (twice - once) / unit : 0;
  out.fixed = once > out.per_sample * unit ? once - out.per_sample * unit : 0;
  out.from = std::move(from);
  for (const std::string_view policy : policy_names()) {
    if (policy == "tf_all") continue;  // as tf_growth, but for what it takes
    const Bytes room = card - std::min(card, beside);
    out.rows.push_back(
        {std::string(policy), model.largest(policy, room), model.surely(policy, room)});
  }
  return out;
}

nlohmann::ordered_json batch_json(const BatchAnswer& answer) {
  nlohmann::ordered_json policies = nlohmann::ordered_json::array();
  for (const BatchAnswer::Row& row : answer.rows) {
    const auto number = [](const std::optional<uint64_t>& batch) {
      return batch ? nlohmann::ordered_json(*batch) : nlohmann::ordered_json(nullptr);
    };
    policies.push_back({{"policy", row.policy},
                        {"largest_batch", number(row.largest)},
                        {"at_least", number(row.surely)}});
  }
  return {{"from", answer.from},         {"basis", name_of(answer.basis)},
          {"card_bytes", answer.card},   {"beside_bytes", answer.beside},
          {"fixed_bytes", answer.fixed}, {"per_sample_bytes", answer.per_sample},
          {"policies", policies}};
}

std::string batch_text(const BatchAnswer& answer) {
  std::string out = fmt::format("{} fixed and {} for each sample, at the peak of a step\n",
                                size_text(answer.fixed), size_text(answer.per_sample));
  out += fmt::format("A card of {}, of which the context and libraries take {}:\n\n",
                     size_text(answer.card), size_text(answer.beside));
  const auto number = [](const std::optional<uint64_t>& batch) {
    return !batch ? "no bound" : *batch == 0 ? "none fits" : std::to_string(*batch);
  };
  const bool by_peaks = answer.basis == BatchBasis::kPeaks;
  out += fmt::format("  {:<17} {:>13}{}\n", "policy", "largest batch",
                     by_peaks ? fmt::format(" {:>9}", "at least") : "");
  for (const BatchAnswer::Row& row : answer.rows) {
    out += fmt::format("  {:<17} {:>13}{}\n", row.policy, number(row.largest),
                       by_peaks ? fmt::format(" {:>9}", number(row.surely)) : "");
  }
  switch (answer.basis) {
    case BatchBasis::kEachRequest:
      break;
    case BatchBasis::kPeaks:
      out +=
          "\nThe two runs did not ask for the same things in the same order, so the largest batch "
          "rests on their peaks alone:\na line through small batches is too flat where something "
          "else than activations makes the peak. Record one near\nto what you want. At least: "
          "where all that the larger run does not keep from step to step grows with the batch.\n";
      break;
    case BatchBasis::kOneRun:
      out +=
          "\nFrom one run: what lives on from step to step is taken for fixed and all else for "
          "growing with the batch.\nGradients that each step frees do not, so more may fit; a "
          "second file with another batch says it exactly.\n";
      break;
  }
  return out;
}

}  // namespace flatout::devmem
