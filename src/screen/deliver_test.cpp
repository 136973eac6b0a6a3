#include "screen/deliver.h"

#include <gtest/gtest.h>

#include "probe/testing/record_sink.h"

namespace flatout::screen {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::shared_ptr<const Snapshot> half_busy(int second) {
  auto s = std::make_shared<Snapshot>();
  s->at = time_point_ns((second + 1) * kSecond);
  s->interval_s = second == 0 ? 0 : 1;
  s->cores.resize(1);
  s->cores[0].cpu = 0;
  s->cores[0].user = second == 0 ? 0 : 0.5;
  s->all = s->cores[0];
  Task task;
  task.pid = task.tid = 7;
  task.cores = second == 0 ? 0 : 0.5F;
  task.rss_bytes = uint64_t{1} << 30;
  s->task_list.push_back(task);
  return s;
}

double last_of(const model::Run& run, model::SignalId signal) {
  for (const model::Series& series : run.series) {
    if (series.signal == signal) return series.readings.back().value;
  }
  return -1;
}

TEST(Deliver, CountersGoOnAtTheSameRateWhereTheHistoryWasThinned) {
  History history(std::chrono::minutes(10), 20 * sizeof(Snapshot));
  for (int second = 0; second <= 60; ++second) history.add(half_busy(second));
  ASSERT_LT(history.size(), 60u);
  const double seen_s = to_s(history.all().back()->at - history.all().front()->at);
  ASSERT_GT(seen_s, 50);
  probe::RecordSink sink;
  deliver(history, 7, sink);
  // Of the first one its own second, where it had any.
  EXPECT_NEAR(last_of(sink.run, model::SignalId::kCpuBusy) * 1e-9, seen_s / 2, 0.6);
  EXPECT_NEAR(last_of(sink.run, model::SignalId::kHostCpuBusy) * 1e-9, seen_s / 2, 0.6);
  EXPECT_NEAR(last_of(sink.run, model::SignalId::kProcCpuUser) * 1e-9, seen_s / 2, 0.6);
}

}  // namespace
}  // namespace flatout::screen
