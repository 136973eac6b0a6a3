#include "train/device.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/size_text.h"

namespace flatout::train {
namespace {

std::optional<uint64_t> limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

/// The device's limit had room, the machine had not. Pieces of memory are mapped files in memory.
Error refused_by_the_system(const std::string& name, uint64_t bytes) {
  std::string hint = "a smaller --device-memory or --batch";
  const auto file = limit_of(RLIMIT_FSIZE), addresses = limit_of(RLIMIT_AS);
  if (addresses.has_value()) {
    hint = fmt::format(
        "this process may have addresses for {} (ulimit -v): allow it more, or give "
        "--device-memory, far less than that",
        size_text(*addresses));
  } else if (file.has_value() && *file < devmem::round_up(bytes, devmem::kPageBytes)) {
    hint = fmt::format(
        "this process may have files of {} (ulimit -f), which device memory is to "
        "the system: allow it more",
        size_text(*file));
  }
  return Error{Code::kFull,
               fmt::format("the system refuses {} memory for {}", name, size_text(bytes)), hint};
}

}  // namespace

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
    if (driver_.free_bytes() >= devmem::round_up(bytes, devmem::kPageBytes)) {
      return refused_by_the_system(name_, bytes);
    }
    return Error{Code::kFull,
                 fmt::format("{} has no room for {}: it holds {} of {}", name_, size_text(bytes),
                             size_text(allocated()), size_text(driver_.total_bytes())),
                 "a smaller --batch, or more --device-memory"};
  }
  blocks_.push_back(*block);
  void* memory = reinterpret_cast<void*>(*block);
  std::memset(memory, 0, bytes);
  return memory;
}

}  // namespace flatout::train
