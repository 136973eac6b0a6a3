// Why PyTorch ran out of memory, by the figures of its message or of a memory snapshot.
#pragma once

#include <string>

#include "devmem/explain.h"
#include "devmem/torch_message.h"

namespace flatout::devmem {

/// What is known when memory ran out.
struct TorchFigures : TorchMessage {
  // From a snapshot only:
  Bytes largest_hole = 0;  // of what the request could have been served from
  Bytes elsewhere = 0;     // of `cached`, of other streams or among small blocks
  // Expandable segments are in use already, as the log or the snapshot says.
  bool is_expanding = false;
};

/// The cause by the figures.
Explanation explain_torch(const TorchFigures& figures);

/// How much of a batch to try: 1 of so many parts, a power of two. Half the batch halves the
/// activations; where more than twice of what there was is needed at once, less.
uint64_t batch_parts(const TorchMessage& message);

/// What was needed at once, at the least, and what there was for it; nullopt where the figures do
/// not tell, or where it would have fitted but for its pieces.
struct Need {
  Bytes needed = 0, there = 0;
};
std::optional<Need> need_of(const TorchMessage& message);

}  // namespace flatout::devmem
