// Times Flatout's policies as passes.h says. usage: flatout_speed POLICY PASSES < ops   (POLICY:
// one of policy_names(), or pool: the arena as a live job has it, with its lock and recording)
#include <cstdlib>
#include <cstring>
#include <memory>

#include "devmem/device_pool.h"
#include "devmem/sim_driver.h"
#include "passes.h"

using namespace flatout::devmem;

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int count = atoi(argv[2]);
  auto driver = std::make_unique<SimDriver>(Bytes{1} << 40);
  const SimDriver& counts = *driver;
  const auto calls = [&] { return counts.calls(); };
  const auto pointer = [](auto got) {
    if (!got.ok()) abort();
    return reinterpret_cast<void*>(*got);
  };
  const auto address = [](void* at) { return reinterpret_cast<Address>(at); };
  if (strcmp(argv[1], "pool") == 0) {
    auto pool = std::move(*DevicePool::open(std::make_shared<Card>(std::move(driver)), {}));
    return passes::run(
        count, [&](Bytes size, Stream s) { return pointer(pool->allocate(size, s, nullptr)); },
        [&](void* at) {
          if (!pool->free(address(at), {}, {}, nullptr).ok()) abort();
        },
        calls);
  }
  auto policy = std::move(*make_policy(argv[1], *driver, driver->total_bytes()));
  return passes::run(
      count, [&](Bytes size, Stream s) { return pointer(policy->allocate(size, s)); },
      [&](void* at) {
        if (!policy->free(address(at)).ok()) abort();
      },
      calls);
}
