#include "symbols/native_symbols.h"

#include <gtest/gtest.h>

#include "base/fs.h"

extern "C" void _start();  // NOLINT: the C run time's

namespace flatout::symbols {

// Outside of the unnamed namespace, so that the names are in the symbol table as they are here.
[[gnu::noinline]] uint64_t native_symbols_caller() {
  asm volatile("");  // not the same in all places where it is called
  return reinterpret_cast<uint64_t>(__builtin_return_address(0));
}

[[gnu::always_inline]] inline uint64_t native_symbols_inlined(uint32_t& line) {
  line = __LINE__ + 1;
  return native_symbols_caller();
}

[[gnu::noinline]] uint64_t native_symbols_outer(uint32_t& line, uint32_t& inlined_line) {
  line = __LINE__ + 1;
  const uint64_t pc = native_symbols_inlined(inlined_line);
  asm volatile("");
  return pc;
}

namespace {

std::unique_ptr<NativeSymbols> own_symbols() {
  auto opened = NativeSymbols::open(fs::Root("/").read("proc/self/maps").value_or(""));
  return opened.ok() ? std::move(*opened) : nullptr;
}

TEST(NativeSymbols, PutsInWhatWasInlined) {
  const auto symbols = own_symbols();
  ASSERT_NE(symbols, nullptr);
  uint32_t line = 0, inlined_line = 0;
  const uint64_t pc = native_symbols_outer(line, inlined_line);
  const auto frames = symbols->call_at(pc);
  EXPECT_NE(frames.back().function.find("native_symbols_outer"), std::string::npos);
  if (frames[0].line == 0) GTEST_SKIP() << "this program was built without debug information";
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_NE(frames[0].function.find("native_symbols_inlined"), std::string::npos);
  EXPECT_EQ(frames[0].line, inlined_line);
  EXPECT_EQ(frames[1].line, line);
  for (const NativeFrame& frame : frames) {
    EXPECT_NE(frame.file.find("native_symbols_test.cpp"), std::string::npos) << frame.file;
  }
}

TEST(NativeSymbols, KnowsFunctionsOfLibrariesWithoutDebugInformation) {
  const auto symbols = own_symbols();
  ASSERT_NE(symbols, nullptr);
  const auto frames = symbols->call_at(reinterpret_cast<uint64_t>(&getenv) + 1);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].function, "getenv");
}

TEST(NativeSymbols, CodeWithoutLinesHasNotThoseOfItsNeighbours) {
  const auto symbols = own_symbols();
  ASSERT_NE(symbols, nullptr);
  const auto frames = symbols->call_at(reinterpret_cast<uint64_t>(_start) + 8);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].function, "_start");
  EXPECT_EQ(frames[0].line, 0u);
}

TEST(NativeSymbols, AddressesOfNothingHaveNoNames) {
  const auto symbols = own_symbols();
  ASSERT_NE(symbols, nullptr);
  for (const uint64_t pc : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, ~uint64_t{0}}) {
    const auto frames = symbols->call_at(pc);
    ASSERT_EQ(frames.size(), 1u);
    EXPECT_EQ(frames[0].function, "");
  }
}

TEST(NativeSymbols, StandsMapsThatMakeNoSense) {
  for (const char* maps : {"", "\n", "hello\n", "7f00-7f01\n", "zz-7f r-xp 0 0 0 /nonexistent\n"}) {
    const auto opened = NativeSymbols::open(maps);
    if (!opened.ok()) continue;
    EXPECT_EQ((*opened)->call_at(0x7f00).front().function, "");
  }
}

}  // namespace
}  // namespace flatout::symbols
