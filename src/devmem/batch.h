// The largest batch that fits: a job's requests at one or two batch sizes tell those at any other,
// and these are replayed under the allocator's own policy, so that its rounding and its
// fragmentation count.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "devmem/trace.h"

namespace flatout::devmem {

struct BatchRun {
  uint64_t batch = 0;  // samples in a step, more than 0
  Trace trace;
};

/// How well the requests at other batch sizes are known.
enum class BatchBasis {
  kEachRequest,  // two runs that asked for the same things: each request by its own line
  kPeaks,        // two runs that did not: by the smallest cards of both
  kOneRun,       // what lives on from step to step is taken for fixed, all else grows
};

class BatchModel {
 public:
  /// Of two runs, with different batch sizes. Errors: kBadInput (the same batch size twice,
  /// or the larger holds less at its peak).
  static Result<BatchModel> make(BatchRun one, BatchRun other);
  explicit BatchModel(BatchRun only);

  BatchBasis basis() const { return basis_; }
  /// The most that is live at a time with such a batch, as requested; of kPeaks by a straight line.
  Bytes peak_live(uint64_t batch) const;
  /// The largest that fits on `card` under `policy`, one of policy_names(); 0 if none does;
  /// nullopt: kMostSamples do, too.
  std::optional<uint64_t> largest(std::string_view policy, Bytes card) const;
  /// What fits even where the larger run's memory grows with the batch, but for what lives on from
  /// step to step. Of kPeaks less than largest(), which a line through small batches may flatter.
  std::optional<uint64_t> surely(std::string_view policy, Bytes card) const;

  static constexpr uint64_t kMostSamples = uint64_t{1} << 24;

 private:
  BatchModel() = default;
  Trace at(uint64_t batch) const;

  BatchBasis basis_ = BatchBasis::kOneRun;
  BatchRun small_, large_;
  std::vector<bool> fixed_;  // by block; of kOneRun
};

struct BatchAnswer {
  struct Row {
    std::string policy;
    std::optional<uint64_t> largest;
    std::optional<uint64_t> surely;
  };
  std::vector<uint64_t> from;  // the batch sizes that were recorded
  BatchBasis basis = BatchBasis::kOneRun;
  Bytes card = 0, beside = 0;  // the whole card, and what others than the allocator take of it
  Bytes fixed = 0, per_sample = 0;
  std::vector<Row> rows;  // the policies that grow
};

/// For a card of `card` bytes of which the context, modules and libraries take `beside`.
BatchAnswer largest_batches(const BatchModel& model, Bytes card, Bytes beside,
                            std::vector<uint64_t> from);

/// For scripts and for people, as in docs/devmem.md.
nlohmann::ordered_json batch_json(const BatchAnswer& answer);
std::string batch_text(const BatchAnswer& answer);

}  // namespace flatout::devmem
