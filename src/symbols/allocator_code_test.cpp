#include "symbols/allocator_code.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace flatout::symbols {
namespace {

std::vector<Mapping> own_maps() {
  std::ifstream file("/proc/self/maps");
  std::stringstream text;
  text << file.rdbuf();
  return parse_maps(text.str());
}

uint64_t address_of(void* function) { return reinterpret_cast<uint64_t>(function); }

TEST(AllocatorCode, HoldsTheCLibrarysAndNothingElseOfIt) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has an allocator of its own";
#endif
  const AllocatorCode code = AllocatorCode::of(own_maps());
  EXPECT_TRUE(code.holds(address_of(reinterpret_cast<void*>(&malloc))));
  EXPECT_TRUE(code.holds(address_of(reinterpret_cast<void*>(&free)) + 8));
  EXPECT_TRUE(code.holds(address_of(reinterpret_cast<void*>(&malloc_trim))));
  EXPECT_FALSE(code.holds(address_of(reinterpret_cast<void*>(&qsort))));
  EXPECT_FALSE(code.holds(address_of(reinterpret_cast<void*>(&getenv))));
  EXPECT_FALSE(code.holds(0));
}

TEST(AllocatorCode, AnAllocatorsLibraryIsAllOfIt) {
  const AllocatorCode code = AllocatorCode::of(
      parse_maps("1000-2000 r-xp 0 8:1 7 /usr/lib/libjemalloc.so.2\n3000-4000 r--p 0 8:1 7 "
                 "/usr/lib/libjemalloc.so.2\n5000-6000 r-xp 0 8:1 8 /usr/lib/libm.so.6\n"));
  EXPECT_TRUE(code.holds(0x1800));
  EXPECT_FALSE(code.holds(0x3800));
  EXPECT_FALSE(code.holds(0x5800));
  const uint64_t inside[] = {7, 0x1234};
  std::string stack(sizeof inside, '\0');
  std::memcpy(stack.data(), inside, sizeof inside);
  EXPECT_TRUE(code.is_called_from(stack));
  EXPECT_FALSE(code.is_called_from(std::string_view(stack).substr(0, 12)));
}

TEST(AllocatorCode, NoneWhereNothingIsMapped) { EXPECT_FALSE(AllocatorCode::of({}).holds(0x1000)); }

}  // namespace
}  // namespace flatout::symbols
