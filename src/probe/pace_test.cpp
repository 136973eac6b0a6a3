#include <gtest/gtest.h>
#include <time.h>

#include "probe/probes.h"
#include "probe/testing/record_sink.h"

namespace flatout::probe {
namespace {

// Burns some CPU time in each reading.
class Dear : public Probe {
 public:
  explicit Dear(int64_t cost_ns) : cost_ns_(cost_ns) {}
  const char* name() const override { return "dear"; }
  Nanos period() const override { return std::chrono::milliseconds(500); }
  void read(TimePoint, model::Sink&) override {
    const int64_t end = cpu_ns() + cost_ns_;
    while (cpu_ns() < end) {
    }
  }

 private:
  static int64_t cpu_ns() {
    timespec ts{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
  }
  int64_t cost_ns_;
};

TEST(Pace, LetsABurstPassAndThenKeepsToTheShare) {
  RecordSink sink;
  const auto probe = make_paced(std::make_unique<Dear>(9'000'000), 0.001);
  TimePoint now = time_point_ns(1'000'000'000'000);
  int reads = 0;
  const TimePoint end = now + std::chrono::seconds(50);
  Nanos first_wait{};
  for (; now < end; now += probe->period()) {
    probe->read(now, sink);
    if (++reads == 1) first_wait = probe->period();
  }
  EXPECT_EQ(first_wait, std::chrono::milliseconds(500)) << "the first come at full rate";
  // 50 s at a thousandth of a core pay for 50 ms, the burst for 20 ms: 7 readings of 9 ms, and
  // what the last one overdraws.
  EXPECT_LE(reads, 9);
  EXPECT_GE(reads, 3);
}

TEST(Pace, LeavesACheapProbeAloneAndSlowsDownAfterAMinute) {
  RecordSink sink;
  const auto probe = make_paced(std::make_unique<Dear>(0), 0.001);
  const TimePoint begin = time_point_ns(1'000'000'000'000);
  probe->read(begin, sink);
  EXPECT_EQ(probe->period(), std::chrono::milliseconds(500));
  probe->read(begin + std::chrono::minutes(2), sink);
  EXPECT_EQ(probe->period(), std::chrono::seconds(1));
}

TEST(MakeProbes, GivesEveryProbeAName) {
  std::set<std::string> names;
  for (const auto& probe : make_probes({})) names.insert(probe->name());
  EXPECT_EQ(names.size(), make_probes({}).size());
  EXPECT_TRUE(names.contains("nvml"));
}

}  // namespace
}  // namespace flatout::probe
