#include "wire/python_offsets.h"

#include <gtest/gtest.h>

#include <string>

namespace flatout::wire {
namespace {

std::string encoded(uint32_t c) {
  char text[4];
  return {text, encode_utf8(c, text)};
}

TEST(PythonText, CharactersAreUtf8AndUndecodableBytesAreThemselves) {
  EXPECT_EQ(encoded('a'), "a");
  EXPECT_EQ(encoded(0xE9), "\xC3\xA9");
  EXPECT_EQ(encoded(0x20AC), "\xE2\x82\xAC");
  EXPECT_EQ(encoded(0x1F600), "\xF0\x9F\x98\x80");
  EXPECT_EQ(encoded(0xDCFF), "\xFF");  // surrogateescape
  EXPECT_EQ(encoded(0xDC80), "\x80");
}

}  // namespace
}  // namespace flatout::wire
