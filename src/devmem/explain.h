// Why device memory ran out: from the text of an error or log, or from a PyTorch memory snapshot.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "devmem/driver.h"

namespace flatout::devmem {

struct Holder {
  std::string what;
  Bytes bytes = 0;
};

struct Advice {
  std::string text;
  std::string remedy;   // "" or what to set: "env:PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
  std::string id = {};  // of what PyTorch's message calls for: "batch_size"
};

struct Explanation {
  std::string kind;     // one of docs/devmem.md, or "unknown"
  std::string finding;  // an id of docs/findings, or ""
  double sure = 0;      // 0 to 1
  std::string text;
  std::vector<Holder> holders;
  std::vector<Advice> advice;
};

/// The explanation of what is most telling in `text`; kind "unknown" if it knows none of it.
Explanation explain_text(std::string_view text);
/// The explanation of the error in `text` that the byte `at` belongs to. `is_expanding`: PyTorch's
/// expandable segments are on, as the whole log says.
Explanation explain_error(std::string_view text, size_t at, bool is_expanding);
/// Whether what begins so may be a pickle: of kSnapshotHead bytes at least, or of all.
inline constexpr size_t kSnapshotHead = 4;
bool may_be_snapshot(std::string_view head);
/// Whether the bytes are a pickle, and so no log.
bool is_snapshot(std::string_view bytes);
/// As PyTorch saw it when the snapshot was taken. Errors: kBadInput if it is no snapshot.
Result<Explanation> explain_snapshot(std::string_view pickle);
/// One of them, by the content.
Result<Explanation> explain(std::string_view bytes);

std::string explanation_json(const Explanation& explanation);
std::string explanation_text(const Explanation& explanation);

}  // namespace flatout::devmem
