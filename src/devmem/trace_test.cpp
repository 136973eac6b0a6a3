#include "devmem/trace.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "devmem/pickle.h"
#include "devmem/replay.h"

namespace flatout::devmem {
namespace {

std::string corpus(const std::string& name) {
  std::ifstream in(std::string(FLATOUT_TEST_DATA) + "/corpus/read_traces_fuzz/" + name);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(JsonLines, AJobWithItsStepsIsRead) {
  const auto traces = read_traces(
      "{\"op\":\"meta\",\"name\":\"net\"}\n{\"op\":\"a\",\"id\":7,\"size\":600,\"stream\":3,"
      "\"pre\":1}\n"
      "{\"op\":\"mark\"}\n{\"op\":\"later\"}\n{\"op\":\"a\",\"id\":8,\"size\":400}\n{\"op\":\"f\","
      "\"id\":7}\n{\"op\":\"f\",\"id\":99}\n",
      "file");
  ASSERT_TRUE(traces.ok()) << traces.error().message;
  const Trace& trace = traces->at(0);
  EXPECT_EQ(trace.name, "net");
  EXPECT_EQ(trace.blocks, 2u);
  EXPECT_EQ(trace.steps, 1u);
  EXPECT_EQ(trace.peak_live, 1000u);
  EXPECT_EQ(trace.skipped, 1u) << "the free of 99";
  EXPECT_EQ(trace.ops[0].stream, 3u);
}

TEST(JsonLines, AByteOrderMarkIsNoPartOfThem) {
  const auto traces = read_traces("\xEF\xBB\xBF{\"op\":\"a\",\"id\":7,\"size\":600}\r\n", "file");
  ASSERT_TRUE(traces.ok()) << traces.error().message;
  EXPECT_EQ(traces->at(0).peak_live, 600u);
}

TEST(JsonLines, MangledNamesBecomePlain) {
  const auto traces = read_traces(
      R"({"op":"a","id":1,"size":9,"site":"_ZN5Model7forwardEi+0x2a"}
{"op":"a","id":2,"size":9,"site":"_Zebra.py:3 load"})",
      "file");
  ASSERT_TRUE(traces.ok());
  EXPECT_EQ(traces->at(0).sites[1], "Model::forward(int)+0x2a");
  EXPECT_EQ(traces->at(0).sites[2], "_Zebra.py:3 load");
}

TEST(JsonLines, WhatIsWrongIsNamedByItsLine) {
  const auto message = [](std::string_view lines) {
    const auto traces = read_traces(lines, "x");
    return traces.ok() ? std::string("read") : traces.error().message;
  };
  const std::string good = "{\"op\":\"a\",\"id\":1,\"size\":5}\n";
  EXPECT_NE(message(good + "{\"op\":\"f\",\"i").find("line 2"), std::string::npos);
  EXPECT_NE(message(good + good).find("id 1 is live already"), std::string::npos);
  EXPECT_NE(message("{\"op\":\"a\",\"id\":1,\"size\":-5}\n").find("\"size\""), std::string::npos);
  EXPECT_NE(message("{\"op\":\"a\",\"id\":1.5,\"size\":5}\n").find("\"id\""), std::string::npos);
  EXPECT_NE(message("").find("empty"), std::string::npos);
}

TEST(RmmLog, ItsRequestsAreReadAndFailuresHoldNothing) {
  const auto traces = read_traces(
      "Thread,Time,Action,Pointer,Size,Stream\n"
      "1403,09:14:05.311042,allocate,0x7f8a40000000,1024,0x0\n"
      "1403,09:14:05.311050,allocate,0x7f8a40000400,2048,0x55d0\r\n"
      "1403,09:14:05.311060,allocate failure,(nil),99999999999,0x0\n"
      "1403,09:14:05.311070,free,0x7f8a40000000,1024,0x0\n"
      "1403,09:14:05.311080,allocate,0x7f8a40000000,512,0x0\n"
      "1403,09:14:05.311090,deallocate,0x7f8a40000000,512,0x0\n",
      "rmm");
  ASSERT_TRUE(traces.ok()) << traces.error().message;
  const Trace& trace = traces->at(0);
  EXPECT_EQ(trace.blocks, 3u);
  EXPECT_EQ(trace.peak_live, 3072u);
  EXPECT_EQ(trace.skipped, 0u);
  EXPECT_EQ(trace.ops[1].stream, 0x55d0u);
}

TEST(RmmLog, WhatIsWrongIsNamedByItsLine) {
  const auto message = [](std::string_view line) {
    const auto traces =
        read_traces("Thread,Time,Action,Pointer,Size,Stream\n" + std::string(line), "x");
    return traces.ok() ? std::string("read") : traces.error().message;
  };
  EXPECT_EQ(message(""), "read");
  EXPECT_NE(message("1,t,allocate,0x1").find("line 2: it has too few fields"), std::string::npos);
  EXPECT_NE(message("1,t,allocate,zz,5,0x0").find("pointer"), std::string::npos);
  EXPECT_NE(message("1,t,allocate,0x1,-5,0x0").find("size"), std::string::npos);
  EXPECT_NE(message("1,t,grow,0x1,5,0x0").find("'grow'"), std::string::npos);
  const auto columns = read_traces("Thread,Time,Action,Where\n", "x");
  ASSERT_FALSE(columns.ok());
  EXPECT_NE(columns.error().message.find("Pointer"), std::string::npos);
}

TEST(BfcDump, ChunksInUseAndTheRequestThatDidNotFit) {
  const std::string line =
      "2023-10-02 16:36:14.403559: I tensorflow/tsl/framework/bfc_allocator.cc:1095] ";
  const std::string log =
      "epoch 1\n" + line +
      "Allocator (GPU_0_bfc) ran out of memory trying to allocate 585.94MiB (rounded to "
      "614400000)requested by op _EagerConst\n" +
      line + "BFCAllocator dump for GPU_0_bfc\n" + line + "Bin (256): \tTotal Chunks: 2\n" + line +
      "Next region of size 3502964736\n" + line + "InUse at 7f1c8a000000 of size 1280 next 1\n" +
      line + "InUse at 7f1c8a000500 of size 655360 next 2\n" + line +
      "Free  at 7f1c8a0c8500 of size 291372032 next 40011\n" +
      // A second one, as TensorFlow 1 wrote it, with no request named.
      line + "Bin (256): \tTotal Chunks: 1\n" + line +
      "InUse at 00000007A1176200 next 484 of size 1024\n";
  const auto traces = read_traces(log, "train.log");
  ASSERT_TRUE(traces.ok()) << traces.error().message;
  ASSERT_EQ(traces->size(), 2u);
  EXPECT_EQ(traces->at(0).name, "train.log, GPU_0_bfc");
  EXPECT_EQ(traces->at(0).blocks, 3u);
  EXPECT_EQ(traces->at(0).peak_live, 1280u + 655360u + 614400000u);
  EXPECT_EQ(traces->at(1).peak_live, 1024u);
  const auto cut = read_traces(line + "InUse at 7f1c8a000500 of si", "x");
  ASSERT_FALSE(cut.ok());
  EXPECT_NE(cut.error().message.find("line 1"), std::string::npos);
}

TEST(Snapshot, EveryProtocolGivesTheSameJob) {
  for (const char* name : {"snapshot_protocol0", "snapshot_protocol2", "snapshot_protocol4"}) {
    const auto traces = read_traces(corpus(name), "s");
    ASSERT_TRUE(traces.ok()) << name << ": " << traces.error().message;
    ASSERT_EQ(traces->size(), 1u);
    EXPECT_EQ(traces->at(0).blocks, 2u)
        << "the one that was there before, and the one in the trace";
    EXPECT_EQ(traces->at(0).peak_live, 600u);
  }
}

TEST(Pickle, ClassesAndCallsAreRefusedAndNothingIsBuilt) {
  // os.system('true') as pickle.dumps writes it, and a global in the middle of a list
  for (const std::string_view evil :
       {std::string_view("\x80\x04\x95\x1d\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94"
                         "\x8c\x04true\x94\x85\x94R\x94.",
                         40),
        std::string_view("(lcos\nsystem\na.")}) {
    const auto pickle = Pickle::read(evil);
    ASSERT_FALSE(pickle.ok());
    EXPECT_NE(pickle.error().message.find("classes"), std::string::npos) << pickle.error().message;
  }
}

TEST(Pickle, ATruncatedOneIsOneClearErrorAtEveryLength) {
  const std::string whole = corpus("snapshot_protocol4");
  ASSERT_GT(whole.size(), 100u);
  for (size_t size = 1; size < whole.size(); ++size) {
    const auto pickle = Pickle::read(std::string_view(whole).substr(0, size));
    ASSERT_FALSE(pickle.ok());
    EXPECT_FALSE(pickle.error().message.empty());
  }
}

TEST(Pickle, NumbersOfAllWidths) {
  const auto read = [](std::string_view bytes) { return Pickle::read(bytes)->root().integer; };
  EXPECT_EQ(read(std::string_view("\x80\x04K\xff.", 5)), 255);
  EXPECT_EQ(read(std::string_view("\x80\x04J\xff\xff\xff\xff.", 8)), -1);
  EXPECT_EQ(read(std::string_view("\x80\x04\x8a\x08\0\0\0\0\0\0\0\x80.", 13)), INT64_MIN);
  EXPECT_EQ(read(std::string_view("\x80\x04\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\0.", 14)),
            INT64_MAX);
  EXPECT_EQ(read(std::string_view("\x80\x04\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0.", 14)),
            INT64_MAX)
      << "saturates";
  EXPECT_EQ(read("I-17\n."), -17);
  EXPECT_EQ(read("L123L\n."), 123);
}

TEST(Snapshot, ListsThatReferToThemselvesAreRefused) {
  // device_traces = [l, l, l, ...] with l = [e, e, e, ...]: small file, endless events
  std::string evil =
      "\x80\x04}(\x8c\x08segments]\x8c\x0d"
      "device_traces](](}\x8c\x06"
      "action\x8c\x03oomsq";
  evil += std::string(1, '\0');
  for (int i = 0; i < 400; ++i) evil += std::string("h\0", 2);
  evil += "eq\x01";
  for (int i = 0; i < 400; ++i) evil += "h\x01";
  evil += "eu.";
  const auto traces = read_traces(evil, "x");
  ASSERT_FALSE(traces.ok());
  EXPECT_NE(traces.error().message.find("refer to themselves"), std::string::npos)
      << traces.error().message;
}

TEST(ProfilerTrace, DevicesComeBeforeTheHost) {
  const auto traces = read_traces(
      R"({"traceEvents":[
        {"name":"[memory]","ts":3,"args":{"Bytes":-512,"Addr":99,"Device Type":1,"Device Id":0}},
        {"name":"[memory]","ts":1,"args":{"Addr":99,"nested":{"Bytes":1},"Bytes":512,"Device Type":1,"Device Id":0}},
        {"name":"[memory]","ts":2,"args":{"Bytes":64,"Addr":5,"Device Type":0,"Device Id":-1}},
        {"name":"ProfilerStep#0","ts":0,"args":{}}]})",
      "p");
  ASSERT_TRUE(traces.ok()) << traces.error().message;
  ASSERT_EQ(traces->size(), 1u);
  EXPECT_EQ(traces->at(0).ops.size(), 3u);
  EXPECT_EQ(traces->at(0).peak_live, 512u);
  EXPECT_EQ(traces->at(0).skipped, 0u);
  EXPECT_NE(read_traces(R"({"traceEvents":[]})", "p").error().message.find("no memory events"),
            std::string::npos);
}

std::string profile(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& event : events) text += (text.empty() ? "" : ",") + event;
  return R"({"traceEvents":[)" + text + "]}";
}
// An event of a device; `more`: further arguments.
std::string memory(int ts, int64_t bytes, uint64_t address, const std::string& more = "",
                   int device = 0) {
  return fmt::format(
      R"({{"name":"[memory]","ts":{},"args":{{"Bytes":{},"Addr":{},"Device Type":1,"Device Id":{}{}}}}})",
      ts, bytes, address, device, more);
}
std::string total(int64_t bytes) { return fmt::format(R"(,"Total Allocated":{})", bytes); }

TEST(ProfilerTrace, WhatWasLiveBeforeItBeganIsInFront) {
  // 7000 bytes were live on the first device: 1000 at 0x10, which are freed, and 6000 that stay.
  const auto traces =
      read_traces(profile({memory(1, 512, 0x90, total(7512)), memory(2, -1000, 0x10, total(6512)),
                           memory(3, 300, 0x10, total(6812)), memory(4, -512, 0x90, total(6300)),
                           memory(1, 256, 0x90, total(256), 1)}),
                  "p");
  ASSERT_TRUE(traces.ok()) << traces.error().message;
  ASSERT_EQ(traces->size(), 2u);
  const Trace& trace = traces->at(0);
  EXPECT_EQ(trace.before, 7000u);
  EXPECT_EQ(trace.peak_live, 7512u);
  EXPECT_EQ(trace.blocks, 4u) << "one that is freed, the rest as one, and two of its own";
  EXPECT_EQ(trace.skipped, 0u);
  EXPECT_EQ(traces->at(1).before, 0u);
  EXPECT_EQ(traces->at(1).peak_live, 256u);
  EXPECT_NE(replay_table({replay(trace, "bound")}).find("6.84 KiB before the recording began"),
            std::string::npos);
}

TEST(ProfilerTrace, TotalsThatAreNotKnownPutNothingInFront) {
  for (const int64_t unknown : {0, -1}) {  // as the host's of some versions
    const auto traces = read_traces(
        profile({memory(1, 512, 0x90, total(unknown)), memory(2, 512, 0x91, total(unknown))}), "p");
    ASSERT_TRUE(traces.ok());
    EXPECT_EQ(traces->at(0).before, 0u);
    EXPECT_EQ(traces->at(0).peak_live, 1024u);
  }
}

TEST(ProfilerTrace, EventsWithoutAddressesAreAnErrorThatSaysSo) {
  // As PyTorch 1.8 wrote them: no telling which of the two is freed.
  const auto traces = read_traces(
      R"([{"name":"[memory]","ts":1,"args":{"Device Type":1,"Device Id":0,"Bytes":64}},
          {"name":"[memory]","ts":2,"args":{"Device Type":1,"Device Id":0,"Bytes":64}},
          {"name":"[memory]","ts":3,"args":{"Device Type":1,"Device Id":0,"Bytes":-64}}])",
      "p");
  ASSERT_FALSE(traces.ok());
  EXPECT_NE(traces.error().message.find("no \"Addr\""), std::string::npos);
  EXPECT_NE(traces.error().hint.find("_dump_snapshot"), std::string::npos);
}

TEST(ProfilerTrace, AStepBeginsOnceHoweverManyStreamsShowIt) {
  const auto step = [](int number, int ts, const std::string& category) {
    return fmt::format(R"({{"name":"ProfilerStep#{}","cat":"{}","ts":{},"dur":5}})", number,
                       category, ts);
  };
  const auto traces =
      read_traces(profile({step(3, 12, "gpu_user_annotation"), step(3, 10, "user_annotation"),
                           step(3, 13, "gpu_user_annotation"), memory(11, 64, 1),
                           step(4, 20, "user_annotation"), step(4, 26, "gpu_user_annotation"),
                           memory(21, 64, 2)}),
                  "p");
  ASSERT_TRUE(traces.ok()) << traces.error().message;
  const Trace& trace = traces->at(0);
  EXPECT_EQ(trace.steps, 2u);
  ASSERT_EQ(trace.ops.size(), 4u);
  EXPECT_EQ(trace.ops[0].kind, Op::kMark) << "where the host began it";
  EXPECT_EQ(trace.ops[2].kind, Op::kMark);
}

TEST(Replay, TheBoundIsTheLivePeakAndEveryCardThatIsNamedFits) {
  TraceBuilder builder("t");
  for (uint64_t i = 0; i < 30; ++i) builder.allocate(i, (i + 1) << 20, i % 2);
  for (uint64_t i = 0; i < 30; i += 2) builder.free(i);
  for (uint64_t i = 100; i < 110; ++i) builder.allocate(i, Bytes{50} << 20, 0);
  const Trace trace = builder.take();
  const auto all = replay_all(trace);
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all.back().peak_reserved, trace.peak_live);
  for (const Replay& r : all) {
    EXPECT_FALSE(r.failed) << r.policy;
    EXPECT_GE(r.peak_reserved, trace.peak_live) << r.policy;
    EXPECT_GE(r.smallest_card, trace.peak_live) << r.policy;
    EXPECT_EQ(r.smallest_card % kPageBytes, 0u) << r.policy;
    if (r.policy == "bound") continue;
    ReplayOptions options;
    options.card = r.smallest_card;
    EXPECT_FALSE(replay(trace, r.policy, options).failed) << r.policy;
    options.card = r.smallest_card - kPageBytes;
    EXPECT_TRUE(replay(trace, r.policy, options).failed) << r.policy;
  }
}

}  // namespace
}  // namespace flatout::devmem
