#include "base/protobuf.h"

#include <gtest/gtest.h>

namespace flatout {
namespace {

TEST(Protobuf, ReadsWhatWasWritten) {
  const uint64_t numbers[] = {1, 127, 128, 300, uint64_t{1} << 35, ~uint64_t{0}};
  ProtoWriter inner;
  inner.number(1, 150);
  inner.number(2, 0);  // left out
  ProtoWriter writer;
  for (uint32_t i = 0; i < std::size(numbers); ++i) writer.number(i + 1, numbers[i]);
  writer.bytes(100, std::string_view("a\0b", 3));
  writer.message(5000, inner);
  writer.numbers(7, {0, 1, 300});

  ProtoReader reader(writer.data());
  for (uint32_t i = 0; i < std::size(numbers); ++i) {
    ASSERT_TRUE(reader.next());
    EXPECT_EQ(reader.number(), i + 1);
    EXPECT_EQ(reader.value(), numbers[i]);
  }
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.number(), 100u);
  EXPECT_EQ(reader.bytes(), std::string_view("a\0b", 3));
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.number(), 5000u);
  EXPECT_EQ(reader.bytes(), "\x08\x96\x01");  // the example of protobuf's own documentation
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.bytes(), std::string_view("\x00\x01\xac\x02", 4));
  EXPECT_FALSE(reader.next());
  EXPECT_TRUE(reader.ok());
}

}  // namespace
}  // namespace flatout
