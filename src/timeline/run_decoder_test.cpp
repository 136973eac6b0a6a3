#include "timeline/run_decoder.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "timeline/steps.h"
#include "timeline/test_packets.h"

namespace flatout::timeline {
namespace {

using model::EntityKind;
using model::SignalId;
using model::ThreadState;
using testing::Packets;

TEST(RunDecoder, JoinsWhatAgentsAndRecorderTell) {
  Packets p;
  p.process(100, 7, FLATOUT_PROCESS_MAIN | FLATOUT_PROCESS_PYTHON, "python");
  p.thread(1, 100, 100, "main").frame(1, "train", "a.py", 3).frame(2, "load", "b.py", 9);
  p.stack(1, 0, 1).stack(2, 1, 2).stack_reading(1, 2, static_cast<uint8_t>(ThreadState::kDisk));
  p.string(1, "my phase").slice(FLATOUT_SLICE_PHASE, 1'000'000'000, 1'002'000'000, 5, 6, 1);
  RunDecoder decoder;
  decoder.feed(p.bytes);
  const model::Run& run = decoder.run();
  ASSERT_EQ(run.processes.size(), 1u);
  EXPECT_EQ(run.processes[0].name, "python");
  EXPECT_EQ(run.processes[0].command, "cmd");
  EXPECT_TRUE(run.processes[0].main && run.processes[0].python);
  ASSERT_EQ(run.threads.size(), 1u);  // of the agent and of the recorder
  EXPECT_TRUE(run.threads[0].is_main);
  ASSERT_EQ(run.slices.size(), 1u);
  EXPECT_EQ(run.string(run.slices[0].name), "my phase");
  EXPECT_EQ(run.slices[0].value2, 6);
  ASSERT_EQ(run.readings.size(), 1u);
  EXPECT_EQ(run.readings[0].state, ThreadState::kDisk);
  const model::StackNode leaf = run.stacks[run.readings[0].stack];
  EXPECT_EQ(run.string(run.frames[leaf.frame].file), "b.py");
  EXPECT_EQ(run.string(run.frames[run.stacks[leaf.parent].frame].function), "train");
  EXPECT_EQ(decoder.counts().malformed, 0u);
}

TEST(RunDecoder, OrdersSlicesOfSeveralRingsByTheirEnd) {
  RunDecoder decoder;
  Packets a, b;
  a.slice(FLATOUT_SLICE_FORWARD, 10, 50).slice(FLATOUT_SLICE_FORWARD, 60, 90);
  b.from(200, 200).slice(FLATOUT_SLICE_FETCH, 5, 20).slice(FLATOUT_SLICE_FETCH, 20, 70);
  decoder.feed(a.bytes);
  decoder.feed(b.bytes);
  std::vector<int64_t> ends;
  for (const auto& slice : decoder.run().slices) ends.push_back(to_ns(slice.end));
  EXPECT_EQ(ends, (std::vector<int64_t>{20, 50, 70, 90}));
}

TEST(RunDecoder, TheFirstStringMayHaveTheAgentsHighestNumber) {
  Packets p;
  p.string(2048, "last").slice(FLATOUT_SLICE_PHASE, 10, 20, 0, 0, 2048);
  RunDecoder decoder;
  decoder.feed(p.bytes);
  EXPECT_EQ(decoder.run().string(decoder.run().slices.at(0).name), "last");
}

TEST(RunDecoder, StringsBelongToTheirProcess) {
  Packets p;
  p.string(1, "one").slice(FLATOUT_SLICE_PHASE, 10, 20, 0, 0, 1);
  p.from(200, 200).slice(FLATOUT_SLICE_PHASE, 10, 21, 0, 0, 1);
  RunDecoder decoder;
  decoder.feed(p.bytes);
  EXPECT_EQ(decoder.run().string(decoder.run().slices[0].name), "one");
  EXPECT_EQ(decoder.run().string(decoder.run().slices[1].name), "");
}

TEST(RunDecoder, FactsOfTheTrainingProcessGoUnderTheirOwnKey) {
  Packets p;
  p.process(100, 1, FLATOUT_PROCESS_MAIN, "bash").process(200, 2, 0, "python");
  p.process(300, 3, 0, "python");
  p.from(300, 300).info("torch.version", "worker's").info("exception.type", "ValueError");
  p.from(200, 200).info("torch.version", "2.13").run_info("host.name", "h");
  RunDecoder decoder;
  decoder.feed(p.bytes);
  Packets later;
  later.from(200, 200).slice(FLATOUT_SLICE_OPTIMIZER, 1'000'000'000, 1'000'001'000);
  decoder.feed(later.bytes);
  const model::Run& run = decoder.run();
  EXPECT_EQ(run.fact("torch.version"), "2.13");
  EXPECT_EQ(run.fact("pid.300.torch.version"), "worker's");
  EXPECT_EQ(run.fact("pid.300.exception.type"), "ValueError");
  EXPECT_EQ(run.fact("host.name"), "h");
}

TEST(RunDecoder, AJobCannotOverwriteWhatTheRecorderSays) {
  Packets p;
  p.run_info("command", "python a.py").info("command", "rm");
  RunDecoder decoder;
  decoder.feed(p.bytes);
  EXPECT_EQ(decoder.run().fact("command"), "python a.py");
}

TEST(RunDecoder, AReusedPidIsAnotherProcess) {
  Packets p;
  p.process(100, 1, FLATOUT_PROCESS_MAIN, "a").process(50, 10, 0, "old");
  p.from(50, 50).slice(FLATOUT_SLICE_FETCH, 1'000'000'000, 1'000'000'100);
  p.at(2'000'000'000).process_end(50, 9);
  p.from(50, 50).at(3'000'000'000).info("torch.version", "new");  // its agent is faster than /proc
  p.process(50, 20, 0, "new").thread(3, 50, 50, "");
  RunDecoder decoder;
  decoder.feed(p.bytes);
  const model::Run& run = decoder.run();
  ASSERT_EQ(run.processes.size(), 3u);
  EXPECT_EQ(run.processes[1].name, "old");
  EXPECT_TRUE(run.processes[1].ended);
  EXPECT_EQ(run.processes[1].wait_status, 9);
  EXPECT_EQ(run.processes[2].name, "new");
  EXPECT_FALSE(run.processes[2].ended);
  ASSERT_EQ(run.threads.size(), 2u);
  EXPECT_EQ(run.threads[0].process, 1u);
  EXPECT_EQ(run.threads[1].process, 2u);
}

TEST(RunDecoder, TheEndOfTheCommandEndsTheRun) {
  Packets p;
  p.process(100, 1, FLATOUT_PROCESS_MAIN, "a").at(5'000'000'000).process_end(100, -1);
  p.process_end(100, 256);
  RunDecoder decoder;
  decoder.feed(p.bytes);
  EXPECT_TRUE(decoder.run().finished);
  EXPECT_EQ(decoder.run().wait_status, 256);
}

TEST(RunDecoder, TheAgentsCostBecomesSeries) {
  Packets p;
  p.add(FLATOUT_PACKET_COST, flatout_cost{10, 5000, 900, 5, 1, 4000000});
  p.at(2'000'000'000).add(FLATOUT_PACKET_COST, flatout_cost{10, 4000, 700, 5, 2, 1000});
  p.add(FLATOUT_PACKET_DROPPED, flatout_counter{0, 0, 3});
  p.process(100, 1, FLATOUT_PROCESS_MAIN, "a");
  p.entity(0, static_cast<uint16_t>(EntityKind::kProcess), 100, "a");
  p.reading(0, static_cast<uint16_t>(SignalId::kProcRss), 1e6);
  RunDecoder decoder;
  decoder.feed(p.bytes);
  const model::Run& run = decoder.run();
  const model::EntityId entity = run.entity(EntityKind::kProcess, 100);
  EXPECT_EQ(run.find(SignalId::kAgentTime, entity)->last(), 9000);
  EXPECT_EQ(run.find(SignalId::kAgentMax, entity)->last(), 700);
  EXPECT_EQ(run.find(SignalId::kAgentInterrupted, entity)->last(), 3);
  EXPECT_EQ(run.find(SignalId::kAgentInterruptedTime, entity)->last(), 4001000);
  EXPECT_EQ(run.find(SignalId::kAgentDropped, entity)->last(), 3);
  EXPECT_EQ(run.find(SignalId::kProcRss, entity)->last(),
            1e6);  // the recorder's entity is the same
  EXPECT_EQ(decoder.counts().dropped, 3u);
}

flatout_device device_window(uint64_t begin_ms, uint64_t end_ms) {
  flatout_device d{};
  d.begin_ns = begin_ms * 1'000'000;
  d.end_ns = end_ms * 1'000'000;
  d.busy = d.compute = 60'000'000;
  d.idle[FLATOUT_IDLE_SYNC] = 40'000'000;
  d.kernels = 7;
  return d;
}

TEST(RunDecoder, WindowsOfADeviceAddUpAndItsWaitForInputIsTold) {
  Packets p;
  p.process(100, 1, FLATOUT_PROCESS_MAIN, "a");
  for (int64_t i = 0; i < 10; ++i) {
    const uint64_t t = 1'000'000'000 + static_cast<uint64_t>(i) * 100'000'000;
    p.slice(FLATOUT_SLICE_INPUT_WAIT, t, t + 30'000'000);
    p.slice(FLATOUT_SLICE_STEP, 0, t + 100'000'000, i);
  }
  p.at(2'000'000'000).add(FLATOUT_PACKET_DEVICE, device_window(1000, 1100));
  p.add(FLATOUT_PACKET_DEVICE, device_window(1500, 1600));
  // It was idle for longer than the job waited for input.
  p.slice(FLATOUT_SLICE_DEVICE_IDLE, 1'500'000'000, 1'540'000'000, 0, FLATOUT_IDLE_SYNC);
  RunDecoder decoder;
  decoder.feed(p.bytes);
  find_steps(decoder.run());
  ASSERT_EQ(decoder.run().devices.size(), 1u);
  const model::DeviceUse& use = decoder.run().devices[0];
  EXPECT_EQ(use.windows, 2);
  EXPECT_EQ(use.sum.kernels, 14u);
  EXPECT_DOUBLE_EQ(use.share(use.sum.busy), 0.6);
  EXPECT_NEAR(use.idle(model::IdleCause::kInput), 0.15, 1e-9);
  EXPECT_NEAR(use.idle(model::IdleCause::kSync), 0.25, 1e-9);
}

TEST(RunDecoder, ResultsToTheHostAndThenTheNextBatchAreNoRoundTrip) {
  for (const bool takes_batch : {true, false}) {
    Packets p;
    p.process(100, 1, FLATOUT_PROCESS_MAIN, "a");
    for (int64_t i = 0; i < 10; ++i) {
      const uint64_t t = 1'000'000'000 + static_cast<uint64_t>(i) * 100'000'000;
      if (takes_batch) p.slice(FLATOUT_SLICE_INPUT_WAIT, t, t + 1'000'000);
      p.slice(FLATOUT_SLICE_STEP, 0, t + 100'000'000, i);
    }
    flatout_device d = device_window(1000, 1100);
    d.idle[FLATOUT_IDLE_SYNC] = 0;
    d.idle[FLATOUT_IDLE_ROUND_TRIP] = 40'000'000;
    p.at(2'000'000'000).add(FLATOUT_PACKET_DEVICE, d);
    p.slice(FLATOUT_SLICE_DEVICE_IDLE, 1'080'000'000, 1'120'000'000, 0, FLATOUT_IDLE_ROUND_TRIP);
    RunDecoder decoder;
    decoder.feed(p.bytes);
    find_steps(decoder.run());
    ASSERT_EQ(decoder.run().devices.size(), 1u);
    const model::DeviceUse& use = decoder.run().devices[0];
    EXPECT_NEAR(use.idle(model::IdleCause::kRoundTrip), takes_batch ? 0 : 0.4, 1e-9);
    EXPECT_NEAR(use.idle(model::IdleCause::kSync), takes_batch ? 0.39 : 0, 1e-9);
  }
}

TEST(RunDecoder, AWindowOfADeviceThatMakesNoSenseIsRefusedOrCut) {
  Packets p;
  p.add(FLATOUT_PACKET_DEVICE, device_window(900, 900));
  p.add(FLATOUT_PACKET_DEVICE, device_window(900, 90'000));  // of the future
  flatout_device d = device_window(900, 950);
  d.busy = d.kernel_sum = UINT64_MAX;
  p.add(FLATOUT_PACKET_DEVICE, d).add(FLATOUT_PACKET_DEVICE, uint64_t{1});
  RunDecoder decoder;
  decoder.feed(p.bytes);
  EXPECT_EQ(decoder.counts().malformed, 3u);
  ASSERT_EQ(decoder.run().device_windows.size(), 1u);
  EXPECT_EQ(decoder.run().device_windows[0].busy, decoder.run().device_windows[0].length());
}

TEST(RunDecoder, CountersOfTheJobHaveTheirName) {
  Packets p;
  p.string(4, "loss").add(FLATOUT_PACKET_COUNTER, flatout_counter{4, 0, 0.5});
  p.at(2'000'000'000).add(FLATOUT_PACKET_COUNTER, flatout_counter{4, 0, 0.25});
  RunDecoder decoder;
  decoder.feed(p.bytes);
  const model::Series* loss = decoder.run().find(SignalId::kJobCounter);
  ASSERT_NE(loss, nullptr);
  EXPECT_EQ(loss->readings.size(), 2u);
  EXPECT_EQ(decoder.run().entities[loss->entity].name, "loss");
}

TEST(RunDecoder, CountsWhatItDoesNotUnderstandAndGoesOn) {
  Packets p;
  p.raw(77, "future").raw(FLATOUT_PACKET_SLICE, "short").raw(FLATOUT_PACKET_PAD, "");
  p.slice(FLATOUT_SLICE_FORWARD, 50, 40);  // ends before it begins
  p.slice(999, 10, 20);                    // of no kind
  p.reading(5, 1, 1.0);                    // of no entity
  p.stack(1, 9, 9);                        // of no frame
  p.entity(0xFFFFFF00, 0, 0, "far");       // an id that is no index
  p.slice(FLATOUT_SLICE_FORWARD, 10, 20);
  std::string bytes = p.bytes + std::string(16, '\xff');
  RunDecoder decoder;
  decoder.feed(bytes);
  EXPECT_EQ(decoder.counts().unknown, 2u);
  EXPECT_EQ(decoder.counts().malformed, 4u);
  EXPECT_EQ(decoder.run().slices.size(), 1u);
}

TEST(RunDecoder, TimesOfAgentsThatCannotBeAreRefused) {
  Packets p;
  p.process(100, 1, FLATOUT_PROCESS_MAIN, "a");
  p.slice(FLATOUT_SLICE_FORWARD, uint64_t{1} << 60, (uint64_t{1} << 60) + 5);
  RunDecoder decoder;
  decoder.feed(p.bytes);
  EXPECT_TRUE(decoder.run().slices.empty());
  EXPECT_EQ(to_ns(decoder.run().end), 1'000'000'000);
}

TEST(RunDecoder, AFloodOfNamesStaysBounded) {
  RunDecoder decoder;
  for (uint32_t pid = 1; pid < 100; ++pid) {
    Packets p;
    p.from(pid, pid);
    for (uint32_t i = 1; i < 60; ++i) {
      p.string(i, std::string(3000, 'x') + std::to_string(pid * 1000 + i));
    }
    p.info("k", std::string(60'000, 'y'));
    decoder.feed(p.bytes);
  }
  EXPECT_GT(decoder.counts().refused, 0u);
  EXPECT_LT(decoder.memory(), size_t{64} << 20);
}

// A loop of fast steps with workers' fetches and readings, as the recorder would feed it.
class FastJob {
 public:
  explicit FastJob(uint64_t step_ns) : step_ns_(step_ns) {
    p_.process(100, 1, FLATOUT_PROCESS_MAIN, "a").thread(1, 100, 100, "main");
    p_.entity(0, static_cast<uint16_t>(EntityKind::kProcess), 100, "a");
  }
  void run_for(RunDecoder& decoder, uint64_t ns) {
    for (const uint64_t end = now_ + ns; now_ < end;) {
      const uint64_t length = step_ns_ + (steps_ % 7) * step_ns_ / 100;
      p_.slice(FLATOUT_SLICE_INPUT_WAIT, now_, now_ + length / 4);
      p_.slice(FLATOUT_SLICE_BACKWARD, now_ + length / 2, now_ + length * 3 / 4);
      p_.slice(FLATOUT_SLICE_OPTIMIZER, now_ + length * 3 / 4, now_ + length, 0, ++steps_);
      now_ += length;
      if (now_ >= next_reading_) {
        next_reading_ = now_ + 100'000'000;
        p_.at(now_).reading(0, static_cast<uint16_t>(SignalId::kProcRss), 1e6);
        p_.stack_reading(1, 0, 1);
      }
    }
    decoder.feed(p_.bytes);
    p_.bytes.clear();
  }
  int64_t steps() const { return steps_; }

 private:
  Packets p_;
  uint64_t step_ns_;
  uint64_t now_ = 1'000'000'000, next_reading_ = 0;
  int64_t steps_ = 0;
};

void expect_bounded_and_right(uint64_t step_ns, uint64_t length_ns, size_t limit) {
  FastJob job(step_ns);
  RunDecoder decoder;
  constexpr uint64_t kTurn = 2'000'000'000;
  for (uint64_t t = 0; t < length_ns; t += kTurn) {
    job.run_for(decoder, kTurn);
    decoder.thin(limit);
    ASSERT_LE(decoder.memory(), limit);
  }
  model::Run& run = decoder.run();
  find_steps(run);
  const double expected_ms = static_cast<double>(step_ns) * 1.03e-6;
  EXPECT_FALSE(run.gaps.empty());
  EXPECT_NEAR(to_ms(run.steps.summary.median), expected_ms, 0.01 * expected_ms);
  EXPECT_NEAR(to_ms(run.steps.summary.mean), expected_ms, 0.01 * expected_ms);
  EXPECT_NEAR(run.steps.summary.breakdown[0], 0.25, 0.001);
  EXPECT_EQ(run.steps.summary.count, job.steps());
  EXPECT_TRUE(run.steps.changes.empty());
  // Beginning, middle and end are all there.
  size_t thirds[3] = {};
  for (const auto& slice : run.slices) {
    ++thirds[std::min<int64_t>(2, 3 * (slice.end - run.begin) / (run.end - run.begin))];
  }
  for (const size_t count : thirds) EXPECT_GT(count, 100u);
  const model::Series* rss = run.find(SignalId::kProcRss);
  EXPECT_GT(rss->readings.size(), 100u);
  EXPECT_EQ(rss->readings.back().at >= run.end - std::chrono::seconds(1), true);
}

TEST(RunDecoder, AThinnedRunStaysBoundedAndItsStepsRight) {
  expect_bounded_and_right(20'000'000, 600'000'000'000, 512 << 10);
}

TEST(RunDecoder, ADayOfHalfMillisecondStepsStaysBounded) {
  if (std::getenv("FLATOUT_SLOW_TESTS") == nullptr) {
    GTEST_SKIP() << "needs FLATOUT_SLOW_TESTS=1: it decodes half a billion packets";
  }
  expect_bounded_and_right(500'000, 86'400'000'000'000, 20 << 20);
}

TEST(RunDecoder, ADayOfProcessesThatComeAndGoStaysBounded) {
  RunDecoder decoder;
  Packets p;
  p.process(1, 1, FLATOUT_PROCESS_MAIN, "main");
  constexpr size_t kLimit = 4 << 20;
  for (uint32_t i = 0; i < 12'000; ++i) {
    p.at(1'000'000'000 + uint64_t{i} * 100'000'000);
    const auto pid = static_cast<int32_t>(10 + i);
    p.process(pid, i, 0, "child").thread(1 + i, pid, pid, "child");
    p.entity(i, static_cast<uint16_t>(EntityKind::kProcess), pid, "child");
    p.reading(i, static_cast<uint16_t>(SignalId::kProcRss), 1);
    p.process_end(pid, 0);
    if (i % 500 == 0) {
      decoder.feed(p.bytes);
      p.bytes.clear();
      decoder.thin(kLimit);
      ASSERT_LE(decoder.memory(), kLimit);
    }
  }
  EXPECT_EQ(decoder.counts().refused, 0u);
  EXPECT_TRUE(decoder.run().processes[0].main);
}

}  // namespace
}  // namespace flatout::timeline
