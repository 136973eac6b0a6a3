// Built without frame pointers: only .eh_frame leads through this code. The oracle is glibc's
// backtrace(), which is libgcc's unwinder.
#include "malloc/unwind.h"

#include <execinfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "malloc/eh_frame.h"
#include "malloc/span.h"

namespace flatout::malloc {
namespace {

// A sanitizer's own backtrace() comes before what it found.
#if FLATOUT_HAS_TSAN || defined(__SANITIZE_ADDRESS__)
constexpr int kSanitizersFrames = 1;
#else
constexpr int kSanitizersFrames = 0;
#endif

struct Both {
  std::vector<uintptr_t> ours, theirs;
};

// Both from the same frame: the innermost differ, by where in this function each call stands.
__attribute__((noinline)) Both read_both() {
  uintptr_t pc[100] = {};
  const unsigned n = unwind(pc, 100, find_stack_end());
  void* other[100] = {};
  const int m = backtrace(other, 100);
  Both out;
  out.ours.assign(pc, pc + n);
  for (int i = 0; i < m; ++i) out.theirs.push_back(reinterpret_cast<uintptr_t>(other[i]));
  return out;
}

// Frames of different sizes, with arrays and tail work, so that none is left out.
__attribute__((noinline)) Both deep(int depth, volatile char* above) {
  volatile char room[64] = {};
  room[depth % 64] = above == nullptr ? '1' : above[0];
  if (depth == 0) {
    Both out = read_both();
    room[0] = 1;
    return out;
  }
  Both out = deep(depth - 1, room);
  room[1] = static_cast<char>(out.ours.size());
  return out;
}

void expect_same(const Both& both) {
  ASSERT_GT(both.ours.size(), 2u);
  ASSERT_GT(both.theirs.size(), 2u);
  EXPECT_TRUE(std::equal(both.ours.begin() + 1, both.ours.end(),
                         both.theirs.begin() + 1 + kSanitizersFrames, both.theirs.end()));
}

TEST(Unwind, FindsTheFramesThatLibgccFinds) {
  for (const int depth : {0, 1, 5, 40}) expect_same(deep(depth, nullptr));
}

TEST(Unwind, FindsThemInAnotherThread) {
  Both both;
  std::thread([&] { both = deep(7, nullptr); }).join();
  expect_same(both);
}

TEST(Unwind, ThroughCodeOfTheCLibrary) {
  // qsort calls back: its frames have no frame pointers.
  static Both both;
  int numbers[4] = {3, 1, 2, 0};
  qsort(numbers, 4, sizeof(int), [](const void* a, const void* b) {
    both = deep(2, nullptr);
    return *static_cast<const int*>(a) - *static_cast<const int*>(b);
  });
  expect_same(both);
}

TEST(Unwind, StopsAtTheEndThatItIsGiven) {
  uintptr_t pc[100] = {};
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  EXPECT_LE(unwind(pc, 100, here + 64), 100u);
  EXPECT_EQ(unwind(pc, 100, 0), 1u);  // not this stack
  EXPECT_EQ(unwind(pc, 3, find_stack_end()), 3u);
}

TEST(Unwind, CodeWithoutATableHasNoRule) {
  FrameRule rule{};
  int data = 0;
  EXPECT_FALSE(find_frame_rule(reinterpret_cast<uintptr_t>(&data), rule));
  EXPECT_FALSE(find_frame_rule(16, rule));
}

}  // namespace
}  // namespace flatout::malloc
