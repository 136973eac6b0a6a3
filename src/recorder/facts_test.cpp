#include "recorder/facts.h"

#include <gtest/gtest.h>

#include "probe/testing/record_sink.h"

namespace flatout::recorder {
namespace {

using model::EntityKind;
using model::SignalId;

TEST(Facts, ClocksAreTheMediansOfTheRunPerGpu) {
  probe::RecordSink run;
  const auto cpu = run.entity(EntityKind::kCpu, 0, "", model::kNoEntity);
  const auto first = run.entity(EntityKind::kGpu, 0, "H100", model::kNoEntity);
  const auto second = run.entity(EntityKind::kGpu, 1, "H100", model::kNoEntity);
  for (int i = 0; i < 5; ++i) {
    const TimePoint at{Nanos(i)};
    run.reading(SignalId::kCpuFrequency, cpu, at, i == 0 ? 0.8e9 : 3.1e9);
    run.reading(SignalId::kGpuClockSm, first, at, 1.98e9);
    run.reading(SignalId::kGpuClockSm, second, at, i < 2 ? 1.98e9 : 1.2e9);
  }
  probe::RecordSink told;
  tell_clocks(run.run, told);
  EXPECT_EQ(told.facts.at("clock.cpu_hz"), "3100000000");
  EXPECT_EQ(told.facts.at("clock.gpu0_sm_hz"), "1980000000");
  EXPECT_EQ(told.facts.at("clock.gpu1_sm_hz"), "1200000000");
  EXPECT_EQ(told.facts.size(), 3u);  // what was not measured is not told
}

}  // namespace
}  // namespace flatout::recorder
