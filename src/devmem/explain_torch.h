// PyTorch's own out-of-memory message, whose figures tell the cause.
#pragma once

#include <optional>
#include <string_view>

#include "devmem/explain.h"

namespace flatout::devmem {

/// With what every such message begins.
inline constexpr std::string_view kTorchMessage = "CUDA out of memory. Tried to allocate ";

/// What the message says; 0 where it does not.
struct TorchFigures {
  Bytes request = 0, total = 0, free = 0;
  Bytes allocated = 0;      // in live tensors and idle in private pools
  Bytes cached = 0;         // reserved but not allocated
  Bytes others = 0;         // by other processes
  Bytes process = 0;        // by this one, context and libraries included
  Bytes private_pools = 0;  // idle in those of CUDA graphs: no others are served from there
  Bytes allowed = 0;        // by set_per_process_memory_fraction
  Bytes largest_hole = 0;   // of the cache; known from a snapshot only
};

/// The last message in `text`, of PyTorch 1.4 to 2.13; nullopt if there is none.
std::optional<TorchFigures> parse_torch_message(std::string_view text);
/// The cause by the figures.
Explanation explain_torch(const TorchFigures& figures);

}  // namespace flatout::devmem
