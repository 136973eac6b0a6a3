// Devices of programs whose events have no category, or others than PyTorch's; numbers as such
// programs write them.
#include "timeline/device_names.h"

#include <gtest/gtest.h>

#include <string>

#include "base/protobuf.h"
#include "timeline/import_trace.h"
#include "timeline/perfetto_fields.h"
#include "timeline/trace_analysis.h"

namespace flatout::timeline {
namespace {

using model::DeviceSummary;
using model::Trace;
using model::TraceSummary;

Trace read_trace(std::string_view text) {
  auto trace = import_trace_bytes(text);
  EXPECT_TRUE(trace.ok()) << (trace.ok() ? "" : trace.error().message);
  return trace.ok() ? std::move(*trace) : Trace{};
}

TraceSummary summary_of(std::string_view text) {
  const Trace trace = read_trace(text);
  return summarize(TraceIndex(trace));
}

TEST(DeviceNames, StreamsOfJaxHaveTheirLaunches) {
  const TraceSummary s = summary_of(R"json({"displayTimeUnit": "ns", "traceEvents": [
{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:2"}},
{"ph": "M", "pid": 1, "tid": 13, "name": "thread_name", "args": {"name": "Stream #13(Compute)"}},
{"ph": "M", "pid": 1, "tid": 14, "name": "thread_name", "args": {"name": "XLA Modules"}},
{"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
{"ph": "X", "pid": 701, "tid": 5, "ts": 0, "dur": 5, "name": "cuLaunchKernel", "args": {"correlation_id": "7"}},
{"ph": "X", "pid": 701, "tid": 5, "ts": 30, "dur": 5, "name": "cuLaunchKernel", "args": {"correlation_id": "8"}},
{"ph": "X", "pid": 1, "tid": 13, "ts": 10, "dur": 10, "name": "fusion_1", "args": {"correlation_id": "7"}},
{"ph": "X", "pid": 1, "tid": 13, "ts": 40, "dur": 10, "name": "MemcpyD2H", "args": {"correlation_id": "8"}},
{"ph": "X", "pid": 1, "tid": 14, "ts": 10, "dur": 40, "name": "jit_step"}, {}]})json");
  ASSERT_EQ(s.devices.size(), 1u);
  const DeviceSummary& d = s.devices[0];
  EXPECT_EQ(d.device, 2);
  EXPECT_EQ(s.device_events, 2u);
  EXPECT_EQ(d.times.busy, 20'000);
  EXPECT_EQ(d.times.memory, 10'000);
  EXPECT_EQ(d.idle.host_wait, 20'000);
  EXPECT_EQ(d.launch.count, 2u);
}

TEST(DeviceNames, StreamsOfTensorFlow1CountOnce) {
  for (const std::string name : {"/device:GPU:0", "/gpu:0"}) {
    std::string text =
        R"({"traceEvents": [
{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/job:localhost/replica:0/task:0@ Compute"}},
{"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "@/stream:all Compute"}},
{"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "@/stream:7 Compute"}},
{"ph": "X", "cat": "Op", "pid": 1, "tid": 0, "ts": 0, "dur": 50, "name": "MatMul", "args": {}},
{"ph": "X", "cat": "Op", "pid": 2, "tid": 0, "ts": 10, "dur": 10, "name": "MatMul", "args": {}},
{"ph": "X", "cat": "Op", "pid": 3, "tid": 0, "ts": 10, "dur": 10, "name": "MatMul", "args": {}},
{"ph": "X", "cat": "Op", "pid": 2, "tid": 0, "ts": 30, "dur": 10, "name": "MatMul", "args": {}}]})";
    for (size_t at; (at = text.find('@')) != std::string::npos;) text.replace(at, 1, name);
    const TraceSummary s = summary_of(text);
    ASSERT_EQ(s.devices.size(), 1u) << name;
    EXPECT_EQ(s.device_events, 2u);
    EXPECT_EQ(s.devices[0].times.span, 30'000);
    EXPECT_EQ(s.devices[0].times.busy, 20'000);
  }
}

TEST(DeviceNames, CardsOfOtherMakersAreKnown) {
  const TraceSummary s = summary_of(R"([
{"ph": "M", "pid": 6, "name": "process_name", "args": {"name": "GPU1"}},
{"ph": "M", "pid": 9, "name": "process_name", "args": {"name": "Ascend Hardware"}},
{"ph": "M", "pid": 9, "tid": 2, "name": "thread_name", "args": {"name": "Stream 44"}},
{"ph": "X", "pid": 6, "tid": 0, "ts": "10", "dur": "5", "name": "Cijk_Ailk", "args": {}},
{"ph": "X", "pid": 9, "tid": 2, "ts": "10.125", "dur": 5.5, "name": "MatMulV2", "args": {"Task Type": "AI_CORE"}}])");
  ASSERT_EQ(s.devices.size(), 2u);
  EXPECT_EQ(s.devices[0].streams[0].stream, 44);
  EXPECT_EQ(s.devices[0].times.busy, 5'500);
  EXPECT_EQ(s.devices[1].device, 1);
  EXPECT_FALSE(stream_by_names("GPU memory", ""));
  EXPECT_FALSE(stream_by_names("/host:CPU", "Stream #3"));
  EXPECT_FALSE(stream_by_names("/device:GPU:0", "XLA Ops"));
  EXPECT_TRUE(stream_by_names("/device:TPU:0", "XLA Ops"));
}

// As rocprofv3 writes .pftrace.
class RocprofTrace {
 public:
  void track(uint64_t uuid, std::string_view name) {
    ProtoWriter descriptor, packet;
    descriptor.number(perfetto::kUuid, uuid);
    descriptor.bytes(perfetto::kTrackName, name);
    packet.message(perfetto::kTrackDescriptor, descriptor);
    add(packet);
  }
  void slice(uint64_t uuid, std::string_view category, std::string_view name, uint64_t begin,
             uint64_t end, uint64_t correlation, std::string_view source = "") {
    ProtoWriter event;
    event.number(perfetto::kEventType, perfetto::kTypeBegin);
    event.number(perfetto::kTrackUuid, uuid);
    event.bytes(perfetto::kEventCategory, category);
    event.bytes(perfetto::kEventName, name);
    ProtoWriter id;
    id.bytes(10, "corr_id");
    id.number(3, correlation);
    event.message(perfetto::kDebugAnnotation, id);
    if (!source.empty()) {
      ProtoWriter from;
      from.bytes(10, "src_agent");
      from.bytes(6, source);
      event.message(perfetto::kDebugAnnotation, from);
    }
    at(begin, event);
    ProtoWriter stop;
    stop.number(perfetto::kEventType, perfetto::kTypeEnd);
    stop.number(perfetto::kTrackUuid, uuid);
    at(end, stop);
  }
  std::string bytes;

 private:
  void at(uint64_t time, const ProtoWriter& event) {
    ProtoWriter packet;
    packet.number(perfetto::kTimestamp, time);
    packet.number(perfetto::kSequenceId, 1);
    packet.message(perfetto::kTrackEvent, event);
    add(packet);
  }
  void add(const ProtoWriter& packet) {
    ProtoWriter out;
    out.message(perfetto::kTracePacket, packet);
    bytes += out.data();
  }
};

TEST(DeviceNames, RocprofsTracksSayWhatTheyAre) {
  RocprofTrace t;
  t.track(1, "THREAD 1 (100)");
  t.track(2, "COMPUTE AGENT [4] STREAM [2] (GPU)");
  t.track(3, "COPY to AGENT [0] STREAM [2] (CPU)");
  t.slice(1, "hip_api", "hipLaunchKernel", 1000, 2000, 11);
  t.slice(2, "kernel_dispatch", "Cijk_Ailk", 3000, 5000, 11);
  t.slice(1, "hip_api", "hipMemcpyAsync", 6000, 7000, 12);
  t.slice(3, "memory_copy", "MEMORY_COPY_DEVICE_TO_HOST", 8000, 9000, 12, "Agent-4");
  const TraceSummary s = summary_of(t.bytes);
  ASSERT_EQ(s.devices.size(), 1u);
  const DeviceSummary& d = s.devices[0];
  EXPECT_EQ(d.device, 4);
  ASSERT_EQ(d.streams.size(), 1u);
  EXPECT_EQ(d.streams[0].stream, 2);
  EXPECT_EQ(d.times.span, 6000);
  EXPECT_EQ(d.times.compute, 2000);
  EXPECT_EQ(d.times.memory, 1000);
  EXPECT_EQ(d.times.exposed_copies, 1000);
  EXPECT_EQ(d.idle.host_wait, 3000);
  EXPECT_EQ(d.launch.count, 2u);
  EXPECT_EQ(s.launches, 1u);
}

// A call of a runtime makes one of the driver, which has an id of its own.
TEST(DeviceNames, ACallWithinALaunchIsNotMissed) {
  const TraceSummary s = summary_of(R"([
{"ph": "X", "cat": "xpu_runtime", "name": "urEnqueueKernelLaunch", "pid": 1, "tid": 1, "ts": 0, "dur": 9, "args": {"correlation": 1}},
{"ph": "X", "cat": "xpu_driver", "name": "zeCommandListAppendLaunchKernel", "pid": 1, "tid": 1, "ts": 2, "dur": 5, "args": {"correlation": 2}},
{"ph": "X", "cat": "xpu_driver", "name": "zeCommandListAppendLaunchKernel", "pid": 1, "tid": 1, "ts": 20, "dur": 5, "args": {"correlation": 3}},
{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 10, "dur": 5, "args": {"device": 0, "stream": 0, "correlation": 1}},
{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 30, "dur": 5, "args": {"device": 0, "stream": 0, "correlation": 3}}])");
  EXPECT_EQ(s.launches, 2u);
  EXPECT_EQ(s.unrecorded_launches, 0u);
  EXPECT_EQ(s.devices[0].idle.host_wait, 15'000);
}

TEST(DeviceNames, NumbersThatWentThroughATableOfDoublesAreIntegers) {
  const Trace t = read_trace(R"([
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 0, "dur": 9, "args": {"correlation": 12.0}},
{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 10, "dur": 5, "args": {"device": 3.0, "stream": "20.0", "correlation": 12.00}},
{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 20, "dur": 5, "args": {"device": 3.0, "stream": "20.0", "correlation": 1.25}}])");
  ASSERT_EQ(t.size(), 3u);
  EXPECT_EQ(t.correlation[0], 12u);
  EXPECT_EQ(t.correlation[1], 12u);
  EXPECT_EQ(t.correlation[2], 0u);
  EXPECT_EQ(t.tracks[t.track[1]].device, 3);
  EXPECT_EQ(t.tracks[t.track[1]].stream, 20);
}

TEST(DeviceNames, TimesBeyondAllReasonAreLeftOutAndCounted) {
  for (const char* times : {R"("ts": 9e18, "dur": 5)", R"("ts": -9e18, "dur": 5)",
                            R"("ts": 5, "dur": 9e18)", R"("ts": 99999999999999999, "dur": 5)"}) {
    const TraceSummary s = summary_of(
        std::string(R"([{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, )") + times +
        R"(}, {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 10, "dur": 5}])");
    EXPECT_EQ(s.damage.bad_numbers, 1u) << times;
    ASSERT_EQ(s.devices.size(), 1u);
    EXPECT_EQ(s.devices[0].times.span, 5'000) << times;
  }
}

}  // namespace
}  // namespace flatout::timeline
