// The figures in PyTorch's "CUDA out of memory" message, of all its ages, and what they mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "devmem/explain.h"

namespace flatout::advise {

struct OomMessage {
  std::optional<uint64_t> wanted, total, free;
  std::optional<uint64_t> own;          // of this process, with what PyTorch does not know of
  std::optional<uint64_t> allocated;    // live tensors
  std::optional<uint64_t> unallocated;  // reserved by PyTorch, but in no tensor
  std::optional<uint64_t> allowed;      // set_per_process_memory_fraction
  struct Other {
    int32_t pid = 0;
    uint64_t bytes = 0;
  };
  std::vector<Other> others;  // processes that the message names

  /// What is neither free nor this process's. Older messages do not count the CUDA context, so
  /// half a GiB of the rest is taken for it.
  std::optional<uint64_t> held_by_others() const;
};

/// nullopt if the line is no such message, or has no figures.
std::optional<OomMessage> parse_oom_message(std::string_view line);

enum class OomCause {
  kTooBig,
  kFragmented,
  kTaken,
  kOther,  // as `said` has it
};
struct OomJudgement {
  OomCause cause = OomCause::kTooBig;
  devmem::Explanation said;
};
/// As `flatout devmem explain` judges the same line, so that there is one answer.
OomJudgement judge_oom(std::string_view line, const OomMessage& message);

}  // namespace flatout::advise
