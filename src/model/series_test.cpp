#include "model/series.h"

#include <gtest/gtest.h>

namespace flatout::model {
namespace {

Series counter(std::vector<Reading> readings) {
  return Series{SignalId::kProcMinorFaults, 0, std::move(readings)};
}

TEST(Series, TheMostThatACounterGrewWithinAWindowIsBetweenTheReadingsAroundIt) {
  const Series s = counter({{time_point_ns(0), 0},
                            {time_point_ns(100), 10},
                            {time_point_ns(200), 30},
                            {time_point_ns(300), 31}});
  EXPECT_DOUBLE_EQ(*s.most_increase(time_point_ns(120), time_point_ns(150)), 20);
  EXPECT_DOUBLE_EQ(*s.most_increase(time_point_ns(50), time_point_ns(150)), 30);
  EXPECT_FALSE(s.most_increase(time_point_ns(0), time_point_ns(150)));
  EXPECT_FALSE(s.most_increase(time_point_ns(250), time_point_ns(301)));
}

TEST(Series, IncreaseOfACounterIsInterpolatedAtBothEnds) {
  const Series s =
      counter({{time_point_ns(0), 0}, {time_point_ns(100), 10}, {time_point_ns(200), 30}});
  EXPECT_DOUBLE_EQ(*s.increase(time_point_ns(50), time_point_ns(150)), 15);
}

TEST(Series, IncreaseToleratesARestartOfTheCounter) {
  const Series s =
      counter({{time_point_ns(0), 100}, {time_point_ns(100), 110}, {time_point_ns(200), 4}});
  EXPECT_DOUBLE_EQ(*s.increase(time_point_ns(0), time_point_ns(200)), 10);
}

TEST(Series, IncreaseOutsideTheReadingsIsUnknownNotZero) {
  const Series s = counter({{time_point_ns(0), 0}, {time_point_ns(100), 10}});
  EXPECT_FALSE(s.increase(time_point_ns(100), time_point_ns(200)).has_value());
  EXPECT_FALSE(counter({}).increase(time_point_ns(0), time_point_ns(1)).has_value());
}

TEST(Series, AGaugeHoldsItsValueUntilTheNextReading) {
  const Series s{SignalId::kProcRss, 0, {{time_point_ns(0), 5}, {time_point_ns(100), 9}}};
  EXPECT_DOUBLE_EQ(*s.at(time_point_ns(99)), 5);
  EXPECT_DOUBLE_EQ(*s.at(time_point_ns(100)), 9);
}

}  // namespace
}  // namespace flatout::model
