// Drives TensorFlow's own BFC allocator (tsl::BFCAllocator) without a card, on a sub-allocator that
// hands out addresses and counts bytes, as devmem's SimDriver does. usage: tf_oracle CAPACITY LIMIT
// GROWTH [PASSES] < ops > outcomes   (ops, outcomes and passes as in torch_oracle.cpp)
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <unordered_map>

#include "passes.h"
#include "xla/tsl/framework/bfc_allocator.h"

namespace {

constexpr uint64_t kPage = uint64_t{2} << 20, kBase = uint64_t{1} << 40;
uint64_t capacity, used, peak, calls, next_address = kBase;

class Numbers : public tsl::SubAllocator {
 public:
  Numbers() : SubAllocator({}, {}) {}
  void* Alloc(size_t, size_t size, size_t* received) override {
    ++calls;
    *received = size;
    if (size > capacity - used) return nullptr;
    used += size;
    if (used > peak) peak = used;
    const uint64_t at = next_address;
    next_address += (size + kPage - 1) / kPage * kPage;
    return reinterpret_cast<void*>(at);
  }
  void Free(void*, size_t size) override {
    ++calls;
    used -= size;
  }
  bool SupportsCoalescing() const override { return false; }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) return 2;
  capacity = strtoull(argv[1], nullptr, 10);
  tsl::BFCAllocator::Options options;
  options.allow_growth = atoi(argv[3]) != 0;
  options.allow_retry_on_failure = false;
  options.garbage_collection = true;
  tsl::BFCAllocator allocator(std::make_unique<Numbers>(), strtoull(argv[2], nullptr, 10), "oracle",
                              options);
  if (argc == 5) {
    const tsl::AllocationAttributes once;
    const int code = passes::run(
        atoi(argv[4]),
        [&](uint64_t bytes, uint64_t) { return allocator.AllocateRaw(256, bytes, once); },
        [&](void* at) { allocator.DeallocateRaw(at); }, [] { return calls; });
    fflush(stdout);
    _exit(code);
  }
  std::unordered_map<unsigned long long, void*> live;
  char kind;
  unsigned long long id, size, stream;
  while (scanf(" %c %llu", &kind, &id) == 2) {
    if (kind == 'f') {
      const auto it = live.find(id);
      if (it == live.end()) continue;
      allocator.DeallocateRaw(it->second);
      live.erase(it);
      continue;
    }
    if (scanf("%llu %llu", &size, &stream) != 2) return 1;
    tsl::AllocationAttributes attributes;
    attributes.retry_on_failure = false;
    void* at = allocator.AllocateRaw(256, size, attributes);
    if (!at) {
      puts("x");
      continue;
    }
    live[id] = at;
    printf("%llu\n",
           reinterpret_cast<unsigned long long>(at) - static_cast<unsigned long long>(kBase));
  }
  printf("peak %llu\ncalls %llu\n", static_cast<unsigned long long>(peak),
         static_cast<unsigned long long>(calls));
  fflush(stdout);
  _exit(0);
}
