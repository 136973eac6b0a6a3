// Reads PyTorch's own out-of-memory message, of all its ages and devices. Nothing is judged here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "devmem/driver.h"

namespace flatout::devmem {

/// A figure that the message lacks is not known, which is not 0.
struct TorchMessage {
  Bytes request = 0;
  std::optional<Bytes> total, free;
  std::optional<Bytes> allocated;      // in live tensors and idle in private pools
  std::optional<Bytes> cached;         // reserved but not allocated
  std::optional<Bytes> process;        // of this process, context and libraries included
  std::optional<Bytes> private_pools;  // idle in those of CUDA graphs, a part of `allocated`
  std::optional<Bytes> allowed;        // that this process may take at most
  struct Process {
    int64_t pid = 0;
    Bytes bytes = 0;
  };
  std::vector<Process> others;  // processes that it names
  std::string setting;          // the variable that this PyTorch reads: "PYTORCH_CUDA_ALLOC_CONF"
  bool expandable = false;      // this PyTorch has expandable segments (2.1 and later)
  bool max_split = false;       // it advises max_split_size_mb
  bool mps = false;             // of Apple's Metal, where `allowed` is what PyTorch takes at most
};

/// The first message in `text` that says how much was asked for; nullopt if there is none. It may
/// be wrapped over several lines, anywhere within a word, too, and stand in a box.
std::optional<TorchMessage> parse_torch_message(std::string_view text);

/// Whether a line of `text` sets expandable_segments:True, as an echoed command or a print of the
/// environment does. PyTorch's own advice to set it does not count.
bool sets_expandable_segments(std::string_view text);

}  // namespace flatout::devmem
