#include "train/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace flatout::train {

Device::Device(std::string name, uint64_t limit_bytes, int threads, bool spin)
    : name_(std::move(name)),
      driver_(limit_bytes),
      arena_(std::make_unique<devmem::Arena>(driver_, driver_.total_bytes())),
      pool_(threads, spin) {}

Device::~Device() {
  for (const devmem::Address block : blocks_) FLATOUT_CHECK(arena_->free(block).ok());
}

Result<void*> Device::allocate(uint64_t bytes) {
  const auto block = arena_->allocate(std::max<uint64_t>(bytes, 1), 0);
  if (!block.ok()) {
    return Error{Code::kFull,
                 fmt::format("{} has no room for {}: it holds {} of {}", name_,
                             format_bytes(static_cast<double>(bytes)),
                             format_bytes(static_cast<double>(allocated())),
                             format_bytes(static_cast<double>(driver_.total_bytes()))),
                 "a smaller --batch, or more --device-memory"};
  }
  blocks_.push_back(*block);
  void* memory = reinterpret_cast<void*>(*block);
  std::memset(memory, 0, bytes);
  return memory;
}

}  // namespace flatout::train
