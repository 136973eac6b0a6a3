#include "devmem/history.h"

#include <gtest/gtest.h>

#include <numeric>

namespace flatout::devmem {
namespace {

uint64_t column_sum(const model::MemoryHistory& h, size_t column) {
  return std::accumulate(h.bands.begin(), h.bands.end(), uint64_t{0},
                         [&](uint64_t sum, const auto& band) { return sum + band.bytes[column]; });
}

TEST(MemoryHistory, BandsAddUpToWhatIsLiveAndTheLargestAtThePeakComesFirst) {
  TraceBuilder builder("net");
  builder.allocate(1, 100, 0, "weights");
  builder.mark();
  builder.allocate(2, 700, 0, "forward");
  builder.allocate(3, 50, 0);
  builder.refuse(900, "backward");
  builder.free(2);
  builder.allocate(4, 30, 0, "weights");
  const model::MemoryHistory h = memory_history(builder.take());
  ASSERT_EQ(h.bands.size(), 3u);
  EXPECT_EQ(h.bands[0].label, "forward");
  EXPECT_EQ(h.bands[0].at_peak, 700u);
  EXPECT_EQ(h.bands[1].label, "weights");
  EXPECT_EQ(h.bands[1].peak, 130u);
  EXPECT_EQ(h.bands[2].label, "(not recorded)");
  EXPECT_EQ(h.peak, 850u);
  EXPECT_EQ(column_sum(h, h.peak_column), 850u);
  EXPECT_EQ(column_sum(h, 5), 180u);
  ASSERT_EQ(h.steps, std::vector<size_t>{1});
  ASSERT_EQ(h.failures.size(), 1u);
  EXPECT_EQ(h.failures[0].live, 850u);
  EXPECT_EQ(h.failures[0].column, 4u);
  EXPECT_EQ(h.failures[0].label, "backward");
}

TEST(MemoryHistory, FewColumnsKeepThePeakAndManySitesShareABand) {
  TraceBuilder builder("net");
  for (uint64_t i = 0; i < 1000; ++i) {
    builder.allocate(i, 10 + i, 0, "line " + std::to_string(i % 40));
    if (i != 500) builder.free(i);
  }
  const model::MemoryHistory h = memory_history(builder.take(), 1200, 50, 5);
  EXPECT_EQ(h.bands.size(), 5u);
  EXPECT_EQ(h.bands.back().label, "all others");
  EXPECT_EQ(h.bands[0].bytes.size(), 50u);
  EXPECT_EQ(h.peak, 510u + 1009u);
  EXPECT_EQ(column_sum(h, h.peak_column), h.peak) << "however short it was";
  ASSERT_TRUE(h.beyond_the_card);
  EXPECT_GT(column_sum(h, *h.beyond_the_card), 1200u);
}

// If something were done for each site at each operation, this would take an hour.
TEST(MemoryHistory, AsManySitesAsOperationsAreNoMoreWork) {
  TraceBuilder builder("net");
  constexpr uint64_t kSites = 200'000;
  for (uint64_t i = 0; i < kSites; ++i) builder.allocate(i, 10, 0, "line " + std::to_string(i));
  const model::MemoryHistory h = memory_history(builder.take());
  EXPECT_EQ(h.peak, kSites * 10);
  EXPECT_EQ(column_sum(h, h.peak_column), h.peak);
}

TEST(MemoryHistory, ATraceOfNothingIsDrawn) {
  const model::MemoryHistory h = memory_history(Trace{});
  EXPECT_EQ(h.peak, 0u);
  EXPECT_TRUE(h.bands.empty());
}

}  // namespace
}  // namespace flatout::devmem
