#include "recorder/recording.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "base/bytes.h"
#include "recorder/packet_sink.h"
#include "recorder/test_folder.h"
#include "timeline/import_folder.h"

namespace flatout::recorder {
namespace {

using namespace std::chrono_literals;
using model::SignalId;

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

constexpr TimePoint kStart = time_point_ns(1'000'000'000'000);

model::Process some_process(int32_t pid) {
  model::Process process;
  process.pid = pid;
  process.start_time_ticks = 7;
  process.start = kStart;
  process.in_job = process.main = true;
  process.name = "python";
  process.command = "python train.py --token abc";
  return process;
}

TEST(BlockFile, WritesBlocksWithChecksums) {
  const TestFolder root;
  auto file = BlockFile::create(root / "x.bin");
  ASSERT_TRUE(file.ok());
  file->append("12345678");
  EXPECT_EQ(contents(root / "x.bin"), "");
  EXPECT_TRUE(file->flush_due(kStart));
  ASSERT_TRUE(file->flush(kStart).ok());
  EXPECT_FALSE(file->flush_due(kStart + 5s));
  const std::string bytes = contents(root / "x.bin");
  ASSERT_EQ(bytes.size(), sizeof(flatout_block) + 8);
  flatout_block header;
  std::memcpy(&header, bytes.data(), sizeof header);
  EXPECT_EQ(header.magic, FLATOUT_BLOCK_MAGIC);
  EXPECT_EQ(header.size, 8u);
  EXPECT_EQ(header.crc32, crc32("12345678"));
}

TEST(BlockFile, EndsAtTheLastWholeBlockWhenTheDiskIsFull) {
  const TestFolder root;
  auto file = BlockFile::create(root / "x.bin");
  ASSERT_TRUE(file.ok());
  file->append("12345678");
  ASSERT_TRUE(file->flush(kStart).ok());
  // A limit on the size of files stands in for a full disk: part of the block can be written.
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{100, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  file->append(std::string(1000, 'x'));
  const Status full = file->flush(kStart);
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(full.ok());
  EXPECT_EQ(contents(root / "x.bin").size(), sizeof(flatout_block) + 8);
  file->append("more");
  EXPECT_TRUE(file->flush(kStart).ok()) << "said once";
}

TEST(Thinner, KeepsFewerWindowsTheLongerItLasts) {
  Thinner thinner(1000);
  uint64_t bytes = 0;
  int written_early = 0, written_late = 0;
  for (int window = 0; window < 10'000; ++window) {
    if (!thinner.keeps(kStart + window * 10s, bytes)) continue;
    bytes += 10;
    ++(window < 100 ? written_early : written_late);
  }
  EXPECT_EQ(written_early, 100) << "all of it up to the budget";
  EXPECT_GT(written_late, 20);
  EXPECT_LT(bytes, 3000u);
}

TEST(Recording, FolderGivesBackWhatTheSinkWasTold) {
  const TestFolder root;
  {
    Recording recording;
    ASSERT_TRUE(recording.open_files(root.path()).ok());
    PacketSink sink(recording);
    sink.process(some_process(42));
    const auto host = sink.entity(model::EntityKind::kHost, 0, "", model::kNoEntity);
    EXPECT_EQ(host, sink.entity(model::EntityKind::kHost, 0, "", model::kNoEntity));
    sink.reading(SignalId::kHostRunnable, host, kStart, 3);
    sink.reading(SignalId::kHostRunnable, host, kStart + 1s, 4);
    const auto thread = sink.thread(42, 42, "main");
    const auto outer = sink.frame("main", "train.py", 3, model::FrameKind::kPython);
    const auto inner = sink.frame("step", "train.py", 9, model::FrameKind::kPython);
    const auto stack = sink.stack(sink.stack(0, outer), inner);
    EXPECT_EQ(stack, sink.stack(sink.stack(0, outer), inner)) << "known stacks keep their id";
    model::StackReading reading;
    reading.at = kStart + 1s;
    reading.thread = thread;
    reading.stack = stack;
    reading.weight_us = 25'000;
    reading.state = model::ThreadState::kDisk;
    sink.stack_reading(reading);
    sink.missing({"psi", "no", "boot with psi=1"});
    sink.missing({"psi", "again", ""});
    sink.fact("host.name", "box");
    sink.process_end(42, 9, kStart + 2s);
    sink.process_end(42, -1, kStart + 3s);  // the job tree saw it vanish: knows less
    sink.flush();
    ASSERT_TRUE(recording.pump(kStart + 3s, true).ok());
  }
  const auto run = timeline::read_run_folder(root.path());
  ASSERT_TRUE(run.ok()) << run.error().message;
  ASSERT_EQ(run->processes.size(), 1u);
  EXPECT_EQ(run->processes[0].command, "python train.py --token [redacted]");
  EXPECT_TRUE(run->processes[0].ended);
  EXPECT_EQ(run->processes[0].wait_status, 9);
  const model::Series* series = run->find(SignalId::kHostRunnable);
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->readings.size(), 2u);
  EXPECT_EQ(series->readings[1].value, 4);
  ASSERT_EQ(run->readings.size(), 1u);
  EXPECT_EQ(run->readings[0].state, model::ThreadState::kDisk);
  const model::StackNode node = run->stacks[run->readings[0].stack];
  EXPECT_EQ(run->string(run->frames[node.frame].function), "step");
  EXPECT_EQ(run->frames[node.frame].line, 9u);
  ASSERT_EQ(run->missing.size(), 1u);
  EXPECT_EQ(run->fact("host.name"), "box");
}

TEST(Recording, LeftOutWindowsBecomeGaps) {
  const TestFolder root;
  {
    RecordingLimits limits;
    limits.events_bytes = 1000;
    Recording recording(limits);
    ASSERT_TRUE(recording.open_files(root.path()).ok());
    PacketSink sink(recording);
    sink.process(some_process(42));
    const auto thread = sink.thread(42, 42, "main");
    for (int second = 0; second < 100; ++second) {
      model::StackReading reading;
      reading.at = kStart + second * 1s;
      reading.thread = thread;
      sink.stack_reading(reading);
    }
    sink.flush();
    ASSERT_TRUE(recording.pump(kStart + 100s, true).ok());
    EXPECT_EQ(recording.run().readings.size(), 100u) << "the live run has its own bounds";
  }
  const auto run = timeline::read_run_folder(root.path());
  ASSERT_TRUE(run.ok());
  EXPECT_LT(run->readings.size(), 100u);
  EXPECT_GT(run->readings.size(), 0u);
  EXPECT_FALSE(run->gaps.empty());
}

TEST(PacketSink, WritesAFactAgainOnlyWhereItIsAnother) {
  const TestFolder root;
  Recording recording;
  ASSERT_TRUE(recording.open_files(root.path()).ok());
  PacketSink sink(recording);
  const auto file_size = [&] {
    EXPECT_TRUE(recording.pump(kStart, true).ok());
    return std::filesystem::file_size(root / "series.bin");
  };
  sink.fact("gpu.0.error", "GPU is lost");
  const auto once = file_size();
  for (int i = 0; i < 1000; ++i) sink.fact("gpu.0.error", "GPU is lost");
  EXPECT_EQ(file_size(), once);
  sink.fact("gpu.0.error", "GPU requires reset");
  sink.fact("gpu.0.error", "GPU is lost");
  EXPECT_GT(file_size(), once);
  EXPECT_EQ(recording.run().fact("gpu.0.error"), "GPU is lost");
}

TEST(PacketSink, AnotherProcessOfTheSamePidHasOtherThreads) {
  Recording recording;
  PacketSink sink(recording);
  sink.process(some_process(42));
  const auto first = sink.thread(42, 42, "a");
  EXPECT_EQ(first, sink.thread(42, 42, "renamed"));
  sink.process_end(42, 0, kStart);
  auto again = some_process(42);
  again.start_time_ticks = 8;
  sink.process(again);
  EXPECT_NE(first, sink.thread(42, 42, "a"));
}

}  // namespace
}  // namespace flatout::recorder
