#include "malloc/size_class.h"

#include <gtest/gtest.h>

namespace flatout::malloc {
namespace {

TEST(SizeClass, IsTheSmallestThatHolds) {
  for (size_t bytes = 0; bytes <= kMaxSmall; ++bytes) {
    const unsigned c = class_of(bytes);
    ASSERT_LT(c, kClasses);
    ASSERT_GE(kClassTable.bytes[c], bytes);
    if (c > 0) {
      ASSERT_LT(kClassTable.bytes[c - 1], bytes == 0 ? 1 : bytes) << bytes;
    }
  }
}

TEST(SizeClass, WastesAtMostOneByteInEightAbove128) {
  for (size_t bytes = 129; bytes <= kMaxSmall; ++bytes) {
    const size_t waste = kClassTable.bytes[class_of(bytes)] - bytes;
    ASSERT_LE(waste * 8, kClassTable.bytes[class_of(bytes)]) << bytes;
  }
}

TEST(SizeClass, AlignsWhatMayNeedItTo16) {
  for (unsigned c = 1; c < kClasses; ++c) EXPECT_EQ(kClassTable.bytes[c] % 16, 0u);
}

TEST(SizeClass, SpansTileAHugePageAndWasteLittleAtTheirEnd) {
  for (const uint32_t bytes : kClassTable.bytes) {
    const uint32_t pages = span_pages_of(bytes);
    EXPECT_EQ(kHugePages % pages, 0u);
    const size_t span = size_t{pages} << kPageShift;
    EXPECT_LE(span % bytes, span / 16) << bytes;  // untouched address space
    EXPECT_GE(span / bytes, 16u) << bytes;
  }
}

}  // namespace
}  // namespace flatout::malloc
