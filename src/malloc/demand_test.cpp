#include "malloc/demand.h"

#include <gtest/gtest.h>

namespace flatout::malloc {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint32_t kMib = (1u << 20) >> kPageShift;  // pages

// A process as the window sees it: what it uses now, what is free and dirty, what was given back.
class Process {
 public:
  void use(uint32_t pages) {
    used_ = pages;
    counts_.peak = std::max(counts_.peak, pages);
    if (pages > resident_) {
      const uint64_t missed =
          std::min<uint64_t>(pages - resident_, counts_.released - counts_.refaulted);
      counts_.refaulted += missed;
      if (missed != 0 && counts_.missed_ns == 0) counts_.missed_ns = now_;
      resident_ = pages;
    }
  }
  void pass(uint64_t ns) {
    for (const uint64_t end = now_ + ns; now_ < end;) {
      now_ += window_.interval_ns();
      counts_.used = used_;
      counts_.dirty_free = resident_ - used_;
      const uint32_t back = window_.tick(now_, counts_);
      counts_.peak = used_;
      counts_.missed_ns = 0;
      if (back != 0) {
        resident_ -= back;
        counts_.released += back;
        window_.released(now_);
      }
    }
  }
  uint32_t resident() const { return resident_; }
  DemandWindow& window() { return window_; }
  uint64_t now() const { return now_; }

 private:
  DemandWindow window_;
  PageCounts counts_;
  uint64_t now_ = 1000 * kMs;
  uint32_t used_ = 0, resident_ = 0;
};

TEST(DemandWindow, KeepsWhatTheLastSecondsNeeded) {
  Process p;
  p.use(300 * kMib);
  p.use(100 * kMib);
  p.pass(1000 * kMs);
  EXPECT_EQ(p.resident(), 300 * kMib);
}

TEST(DemandWindow, GivesTheRestBackAfterTwoSeconds) {
  Process p;
  p.use(300 * kMib);
  p.use(kMib);
  p.pass(2000 * kMs);
  EXPECT_LE(p.resident(), kMib + DemandWindow::kSlack);
}

TEST(DemandWindow, NeverTakesFromStepsShorterThanTheWindow) {
  Process p;
  for (int step = 0; step < 50; ++step) {
    p.use(300 * kMib);
    p.pass(500 * kMs);
    p.use(kMib);
    p.pass(500 * kMs);
    ASSERT_EQ(p.resident(), 300 * kMib) << step;
  }
}

TEST(DemandWindow, LearnsFiveSecondStepsFromTheFirstLoss) {
  Process p;
  int losses = 0;
  for (int step = 0; step < 20; ++step) {
    if (step > 0 && p.resident() < 300 * kMib) ++losses;
    p.use(300 * kMib);
    p.pass(250 * kMs);
    p.use(kMib);
    p.pass(4750 * kMs);
  }
  EXPECT_LE(losses, 1);
  EXPECT_GE(p.window().window_ns(), 5 * DemandWindow::kSecond);
}

TEST(DemandWindow, NeverKeepsLongerThanAMinute) {
  Process p;
  for (int step = 0; step < 10; ++step) {
    p.use(300 * kMib);
    p.use(kMib);
    p.pass(50 * DemandWindow::kSecond);
  }
  EXPECT_LE(p.window().window_ns(), DemandWindow::kLongest);
  p.pass(61 * DemandWindow::kSecond);
  EXPECT_LE(p.resident(), kMib + DemandWindow::kSlack);
}

TEST(DemandWindow, IsTwiceAMarkedStep) {
  DemandWindow window;
  window.mark_step(1'000 * kMs);
  window.mark_step(8'000 * kMs);
  EXPECT_EQ(window.window_ns(), 14 * DemandWindow::kSecond);
}

}  // namespace
}  // namespace flatout::malloc
