#include "timeline/trace_processes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "timeline/import_trace.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {
namespace {

using namespace model;  // NOLINT

struct Merged {
  std::string text = "[";
  void call(int pid, int ts, int correlation) {
    text += fmt::format(
        R"({{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":{},"tid":{},"ts":{},"dur":2,)"
        R"("args":{{"correlation":{}}}}},)",
        pid, pid, ts, correlation);
  }
  void kernel(int device, int ts, int correlation, const std::string& name) {
    text += fmt::format(
        R"({{"ph":"X","cat":"kernel","name":"{}","pid":{},"tid":7,"ts":{},"dur":10,)"
        R"("args":{{"device":{},"stream":7,"correlation":{}}}}},)",
        name, device, ts, device, correlation);
  }
  Trace read() {
    text.back() = ']';
    auto trace = import_trace_bytes(text, "merged.json");
    EXPECT_TRUE(trace.ok());
    return std::move(*trace);
  }
};

// Of each kernel, named after the process that launched it, the process found.
void expect_own_launches(const Trace& trace) {
  const TraceIndex index(trace);
  size_t seen = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    const auto e = static_cast<EventId>(i);
    if (trace.kind[i] != EventKind::kKernel) continue;
    const EventId launch = index.launch_of(e);
    ASSERT_NE(launch, kNoEvent);
    EXPECT_EQ(trace.track_of(launch).pid, trace.name_of(e));
    ++seen;
  }
  EXPECT_GT(seen, 0u);
}

TEST(TraceProcesses, DevicesGoToTheProcessThatLaunchedInTime) {
  Merged merged;
  for (int i = 1; i <= 20; ++i) {
    // Process 900 is ahead of 1000: its launches would do for both devices, not the other way.
    merged.call(1000, i * 100 + 30, i);
    merged.call(900, i * 100, i);
    merged.kernel(0, i * 100 + 40, i, "1000");
    merged.kernel(1, i * 100 + 10, i, "900");
  }
  expect_own_launches(merged.read());
}

TEST(TraceProcesses, DevicesThatTheTimesCannotTellApartGoInOrder) {
  Merged merged;
  for (int i = 1; i <= 20; ++i) {
    for (const int rank : {0, 1, 2}) {
      merged.call(99 + rank, i * 100 + rank, i);
      merged.kernel(rank, i * 100 + 50, i, std::to_string(99 + rank));
    }
  }
  expect_own_launches(merged.read());
}

TEST(TraceProcesses, OneNumberForTwoDevicesIsToldApartByTime) {
  Merged merged;
  for (int i = 1; i <= 20; ++i) {
    for (const int rank : {0, 1}) {
      merged.call(7 + rank, i * 100 + 40 * rank, i);
      merged.kernel(0, i * 100 + 40 * rank + 5, i, std::to_string(7 + rank));
    }
  }
  expect_own_launches(merged.read());
}

TEST(TraceProcesses, IdsThatNoOtherProcessHasStayAsTheyAre) {
  Merged merged;
  for (int i = 1; i <= 20; ++i) {
    merged.call(7, i * 100, i);
    merged.kernel(0, i * 100 + 5, i, "7");
    merged.call(8, i * 100, 1000 + i);
    merged.kernel(1, i * 100 + 5, 1000 + i, "8");
  }
  const Trace trace = merged.read();
  expect_own_launches(trace);
  for (size_t i = 0; i < trace.size(); ++i)
    EXPECT_EQ(trace.correlation[i] > 1000, trace.track_of(static_cast<EventId>(i)).pid == "8" ||
                                               trace.name_of(static_cast<EventId>(i)) == "8");
}

}  // namespace
}  // namespace flatout::timeline
