#include "symbols/spin_loop.h"

#include <gtest/gtest.h>

#include <string>

namespace flatout::symbols {
namespace {

using namespace std::string_literals;

#if defined(__x86_64__)

/// Whether each instruction of `loop`, at these offsets, is taken for one that waits, whatever
/// stands around it.
void expect_waits(const std::string& loop, std::initializer_list<size_t> starts, bool waits) {
  for (const char around : {'\x00', '\x48', '\x90', '\xFF'}) {
    const std::string code = std::string(24, around) + loop + std::string(24, around);
    for (const size_t start : starts) {
      EXPECT_EQ(is_spin_loop(code, 24 + start), waits) << "at " << start << " of a loop";
    }
  }
}

// As an assembler writes them.
TEST(SpinLoop, WaitsForMemory) {
  // mov (%rcx,%rdx,4),%eax; cmp $1,%eax; jne: a BLAS's threads wait so for each other
  expect_waits("\x8B\x04\x91\x83\xF8\x01\x75\xF8"s, {0, 3, 6}, true);
  // cmpl $0,0x1234(%rip); je
  expect_waits("\x83\x3D\x34\x12\x00\x00\x00\x74\xF7"s, {0, 7}, true);
  // mov 8(%rdi),%rax; test %rax,%rax; jne out; jmp
  expect_waits("\x48\x8B\x47\x08\x48\x85\xC0\x75\x02\xEB\xF5"s, {0, 4, 7, 9}, true);
  // movzbl 0x100(%r13),%eax; test %al,%al; je
  expect_waits("\x41\x0F\xB6\x85\x00\x01\x00\x00\x84\xC0\x74\xF4"s, {0, 8, 10}, true);
}

TEST(SpinLoop, AListIsWalked) {
  // mov (%rax),%rax; test %rax,%rax; jne
  expect_waits("\x48\x8B\x00\x48\x85\xC0\x75\xF8"s, {0, 3, 6}, false);
}

TEST(SpinLoop, AJumpLeadsElsewhere) {
  // mov 16(%rbx),%rsi; cmp $1,%rsi; je out; jmp out; test %rsi,%rsi; je: the last is never reached
  // from the first
  expect_waits("\x48\x8B\x73\x10\x48\x83\xFE\x01\x74\x2F\xEB\x15\x48\x85\xF6\x74\xEF"s,
               {0, 4, 8, 10}, false);
}

TEST(SpinLoop, WorkAdvances) {
  // inc %rdx; cmpb $0,(%rdx); jne: a string's length
  expect_waits("\x48\xFF\xC2\x80\x3A\x00\x75\xF8"s, {0, 3, 6}, false);
  // mov (%rcx,%rdx,4),%eax; add %eax,%esi; inc %rdx; cmp %rdi,%rdx; jne: a sum
  expect_waits("\x8B\x04\x91\x01\xC6\x48\xFF\xC2\x48\x39\xFA\x75\xF3"s, {0, 3, 5, 8, 11}, false);
  // vfmadd231ps (%rax),%zmm1,%zmm2; add $64,%rax; cmp %rcx,%rax; jne
  expect_waits("\x62\xF2\x75\x48\xB8\x10\x48\x83\xC0\x40\x48\x39\xC8\x75\xF1"s, {0, 6, 10, 13},
               false);
  // dec %ecx; jne
  expect_waits("\xFF\xC9\x75\xFC"s, {0, 2}, false);
}

TEST(SpinLoop, TheProcessorsHint) {
  // pause; mov (%rdi),%eax; dec %ecx; jne
  const std::string loop = "\xF3\x90\x8B\x07\xFF\xC9\x75\xF8"s;
  const std::string code = std::string(24, '\xCC') + loop + std::string(24, '\xCC');
  for (const size_t start : {0, 2, 4, 6}) EXPECT_TRUE(is_spin_loop(code, 24 + start));
  EXPECT_FALSE(is_spin_loop(code, 0)) << "too far away";
}

TEST(SpinLoop, CodeThatEnds) {
  const std::string loop = "\x8B\x04\x91\x83\xF8\x01\x75\xF8"s;
  for (size_t length = 0; length < loop.size(); length++) {
    for (size_t at = 0; at <= length; at++) {
      EXPECT_FALSE(is_spin_loop(std::string_view(loop).substr(0, length), at));
    }
  }
  EXPECT_FALSE(is_spin_loop({}, 7));
}

#endif

}  // namespace
}  // namespace flatout::symbols
