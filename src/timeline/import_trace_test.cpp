#include "timeline/import_trace.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "timeline/json_scan.h"
#include "timeline/trace_convert.h"

namespace flatout::timeline {
namespace {

using model::EventKind;
using model::Trace;

// As PyTorch 2.x writes it.
constexpr std::string_view kKineto = R"json({
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "NVIDIA A100", "numSms": 108}
  ],
  "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
  "baseTimeNanoseconds": 1711964646000000000,
  "traceEvents": [
  {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "pid": 7, "tid": 7,
    "ts": 100.000, "dur": 90.250, "args": {"External id": 1, "Ev Idx": 0}
  },
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7,
    "ts": 110.500, "dur": 5.125,
    "args": {
      "External id": 2, "cbid": 211, "correlation": 42
    }
  },
  {
    "ph": "s", "id": 42, "pid": 7, "tid": 7, "ts": 110.500, "cat": "ac2g", "name": "ac2g"
  },
  {
    "ph": "X", "cat": "kernel", "name": "k<\"a\", [b]>{c}", "pid": 0, "tid": 7,
    "ts": 120.001, "dur": 30.002,
    "args": {"External id": 2, "device": 0, "context": 1, "stream": 7, "correlation": 42, "grid": [1, 2, 3]}
  },
  {
    "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 20,
    "ts": 160, "dur": 2, "args": {"device": 0, "stream": 20, "correlation": 43, "bytes": 4096}
  },
  {
    "name": "process_name", "ph": "M", "ts": 0, "pid": 7, "tid": 0, "args": {"name": "python"}
  }
  ],
  "traceName": "x.json"
})json";

std::string gzip(std::string_view data) {
  z_stream s{};
  deflateInit2(&s, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY);
  std::string out(data.size() + 1000, '\0');
  s.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  s.avail_in = static_cast<uInt>(data.size());
  s.next_out = reinterpret_cast<Bytef*>(out.data());
  s.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&s, Z_FINISH), Z_STREAM_END);
  out.resize(s.total_out);
  deflateEnd(&s);
  return out;
}

Trace read_trace(std::string_view text) {
  auto trace = import_trace_bytes(text);
  EXPECT_TRUE(trace.ok()) << (trace.ok() ? "" : trace.error().message);
  return trace.ok() ? std::move(*trace) : Trace{};
}

std::string read(const std::string& name) {
  std::ifstream in(std::string(FLATOUT_TEST_DATA) + "/traces/" + name, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST(ImportTrace, ReadsWhatPyTorchWrites) {
  const Trace t = read_trace(kKineto);
  ASSERT_EQ(t.size(), 4u);
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.world_size, 8);
  EXPECT_EQ(t.base_time_ns, 1711964646000000000);
  EXPECT_EQ(t.device_names.at(0), "NVIDIA A100");
  EXPECT_EQ(t.name_of(0), "ProfilerStep#4");
  EXPECT_EQ(t.start[0], 100000);
  EXPECT_EQ(t.duration[0], 90250);
  EXPECT_EQ(t.kind[1], EventKind::kRuntime);
  EXPECT_EQ(t.correlation[1], 42u);
  EXPECT_EQ(t.name_of(2), "k<\"a\", [b]>{c}");
  EXPECT_EQ(t.start[2], 120001);
  EXPECT_EQ(t.correlation[2], 42u);
  EXPECT_EQ(t.track_of(2).stream, 7);
  ASSERT_EQ(t.copies.size(), 1u);
  EXPECT_EQ(t.copies[0].bytes, 4096u);
  EXPECT_EQ(t.events_seen, 6u);
  EXPECT_EQ(t.phases.at('s'), 1u);
  EXPECT_FALSE(t.damage.any());
  EXPECT_EQ(t.track_of(0).process, "python");
}

TEST(ImportTrace, AnEventTakesAtMost64Bytes) {
  const Trace t = read_trace(kKineto);
  EXPECT_LE((t.bytes() - t.strings.bytes()) / t.size(), 64u);
}

TEST(ImportTrace, GzipAndBareListsAreTheSame) {
  const Trace plain = read_trace(kKineto);
  const Trace packed = read_trace(gzip(kKineto));
  ASSERT_EQ(packed.size(), plain.size());
  const size_t open = kKineto.find('[', kKineto.find("traceEvents"));
  const size_t close = kKineto.find("\n  ],", open);
  const Trace bare = read_trace(std::string(kKineto.substr(open, close + 4 - open)));
  ASSERT_EQ(bare.size(), plain.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    for (const Trace* t : {&packed, &bare}) {
      EXPECT_EQ(t->start[i], plain.start[i]);
      EXPECT_EQ(t->duration[i], plain.duration[i]);
      EXPECT_EQ(t->name_of(static_cast<model::EventId>(i)),
                plain.name_of(static_cast<model::EventId>(i)));
    }
  }
  EXPECT_FALSE(bare.damage.cut_off);
  // Two members one after the other are one stream.
  const std::string two = gzip(kKineto.substr(0, 500)) + gzip(kKineto.substr(500));
  EXPECT_EQ(read_trace(two).size(), plain.size());
}

TEST(ImportTrace, CutAnywhereKeepsTheEventsBeforeTheCut) {
  const size_t list = kKineto.find('[', kKineto.find("traceEvents"));
  size_t before = 0;
  for (size_t cut = list + 1; cut <= kKineto.find("\n  ],", list); ++cut) {
    const Trace t = read_trace(kKineto.substr(0, cut));
    EXPECT_TRUE(t.damage.cut_off) << cut;
    EXPECT_GE(t.events_seen, before) << cut;
    before = t.events_seen;
  }
  EXPECT_EQ(before, 6u);
}

TEST(ImportTrace, CutGzipKeepsWhatCanBeUnpacked) {
  const std::string packed = read("torch_cpu/torch_cpu_input_bound.json.gz");
  ASSERT_FALSE(packed.empty());
  const Trace t = read_trace(packed.substr(0, packed.size() / 2));
  EXPECT_TRUE(t.damage.cut_off);
  EXPECT_FALSE(t.damage.text.empty());
  EXPECT_GT(t.size(), 100u);
}

TEST(ImportTrace, OneBadEventCostsItselfAlone) {
  std::string text(kKineto);
  text.insert(text.find("\"cbid\""), "\"oops\": }{, ");
  const Trace t = read_trace(text);
  EXPECT_EQ(t.damage.bad_events, 1u);
  EXPECT_EQ(t.events_seen, 5u);
}

TEST(ImportTrace, ControlCharactersNanAndBadUtf8AreNoReasonToFail) {
  const Trace t = read_trace(
      "{\"traceEvents\": [{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"a\x01\nb\xff\", "
      "\"pid\": 1, \"tid\": 1, "
      "\"ts\": 1, \"dur\": 2, \"args\": {\"x\": NaN, \"y\": -Infinity}}, {\"ph\": \"X\", \"name\": "
      "\"n\", \"pid\": 1, \"tid\": 1, "
      "\"ts\": NaN, \"dur\": 1}, {\"ph\": \"X\", \"name\": \"m\", \"pid\": \"p\", \"tid\": \"t\", "
      "\"ts\": 5, \"dur\": NaN},]}");
  ASSERT_EQ(t.size(), 2u);
  EXPECT_EQ(t.name_of(0), "a\x01\nb\xff");
  EXPECT_EQ(t.duration[1], 0);
  EXPECT_EQ(t.damage.bad_numbers, 2u);
}

TEST(ImportTrace, BeginsAndEndsArePaired) {
  const Trace t = read_trace(
      R"([{"ph":"B","name":"a","pid":1,"tid":1,"ts":10},{"ph":"B","name":"b","pid":1,"tid":1,"ts":12},
    {"ph":"E","pid":1,"tid":1,"ts":15},{"ph":"E","pid":1,"tid":1,"ts":20},{"ph":"E","pid":1,"tid":1,"ts":21})");
  ASSERT_EQ(t.size(), 2u);
  EXPECT_EQ(t.duration[0], 10000);
  EXPECT_EQ(t.duration[1], 3000);
  EXPECT_EQ(t.damage.unpaired, 1u);
}

TEST(ImportTrace, WideCorrelationIdsStayApart) {
  const Trace t = read_trace(
      R"([{"ph":"X","cat":"cuda_runtime","name":"l","pid":1,"tid":1,"ts":1,"dur":1,"args":{"correlation":8589934593}},
    {"ph":"X","cat":"cuda_runtime","name":"l","pid":1,"tid":1,"ts":2,"dur":1,"args":{"correlation":4294967297}},
    {"ph":"X","cat":"cuda_runtime","name":"l","pid":1,"tid":1,"ts":2,"dur":1,"args":{"correlation":1}},
    {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":3,"dur":1,"args":{"correlation":8589934593}}])");
  EXPECT_EQ(t.correlation[0], t.correlation[3]);
  EXPECT_NE(t.correlation[0], t.correlation[1]);
  EXPECT_NE(t.correlation[1], t.correlation[2]);
}

TEST(ImportTrace, WhatIsNoTraceGetsOneClearLine) {
  for (const std::string_view text :
       {std::string_view(""), std::string_view("hello"), std::string_view("{\"a\": 1}"),
        std::string_view("\x7f"
                         "ELF\x02"),
        std::string_view("[[-1, 1, 512, 7]]"), std::string_view("{")}) {
    const auto t = import_trace_bytes(text);
    ASSERT_FALSE(t.ok()) << text;
    EXPECT_EQ(t.error().message.find('\n'), std::string::npos);
    EXPECT_FALSE(t.error().hint.empty());
  }
}

// A file's name may be anything, and errors are printed to a terminal.
TEST(ImportTrace, AFilesNameMovesNoTerminal) {
  const std::string folder = testing::TempDir() + "\x1b[31mfolder";
  std::filesystem::create_directory(folder);
  for (const std::string& path : {folder, folder + "/not there"}) {
    const auto source = open_source(path);
    ASSERT_FALSE(source.ok());
    EXPECT_NE(source.error().message.find("\\x1b[31mfolder"), std::string::npos);
    EXPECT_EQ(source.error().message.find('\x1b'), std::string::npos);
  }
  std::filesystem::remove(folder);
}

TEST(ImportTrace, LongValuesCrossWindows) {
  // Values longer than the megabyte that is read at a time, before, in and after the list.
  const std::string large(3 << 20, 'x');
  const Trace t = read_trace(
      "{\"junk\": [\"" + large +
      "\", {\"traceEvents\": [1]}], \"traceEvents\": [{\"ph\":\"X\",\"name\":\"" + large +
      "\",\"pid\":1,\"tid\":1,\"ts\":1,\"dur\":2},{\"ph\":\"X\",\"name\":\"b\",\"pid\":1,"
      "\"tid\":1,\"ts\":1,\"dur\":2}], \"baseTimeNanoseconds\": 5}");
  ASSERT_EQ(t.size(), 2u);
  EXPECT_EQ(t.name_of(0).size(), large.size());
  EXPECT_EQ(t.base_time_ns, 5);
  EXPECT_FALSE(t.damage.any());
}

// Each complete event, read by a JSON parser.
TEST(ImportTrace, AgreesWithAJsonParser) {
  for (const char* name :
       {"torch_cpu/torch_cpu_input_bound.json.gz", "torch_cpu/torch_cpu_python_bound.json.gz",
        "tensorflow/tf1_timeline_feed.json.gz", "tensorflow/tf2_keras_slow_input.trace.json.gz"}) {
    const std::string packed = read(name);
    const auto source = memory_source(packed);
    auto text = read_all(*source, size_t{1} << 30);
    ASSERT_TRUE(text.ok());
    const auto json = nlohmann::json::parse(*text);
    const size_t size = text->size();
    text->append(scan::kScanPadding, '\0');
    const Trace t = read_trace(packed);
    size_t at = 0;
    for (const auto& e : json["traceEvents"]) {
      if (e.value("ph", "") != "X") continue;
      ASSERT_LT(at, t.size()) << name;
      const auto id = static_cast<model::EventId>(at++);
      EXPECT_EQ(t.name_of(id), e["name"].get<std::string>());
      EXPECT_NEAR(static_cast<double>(t.start[id]), e["ts"].get<double>() * 1000,
                  300);  // a double's own error
      EXPECT_EQ(t.duration[id], std::llround(e.value("dur", 0.0) * 1000));
      if (e.contains("args")) {
        const char* const args = text->data() + t.args[id];
        const char* const end = scan::skip_value(args, text->data() + size);
        EXPECT_EQ(nlohmann::json::parse(std::string(args, end)), e["args"]);
      }
    }
    EXPECT_EQ(at, t.size()) << name;
  }
}

TEST(ImportTrace, XPlaneHoldsWhatItsJsonHolds) {
  const Trace plane = read_trace(read("tensorflow/tf2_keras_slow_input.xplane.pb"));
  const Trace json = read_trace(read("tensorflow/tf2_keras_slow_input.trace.json.gz"));
  EXPECT_EQ(plane.format, "xplane");
  const auto total = [](const Trace& t, std::string_view name) {
    int64_t sum = 0, count = 0;
    for (size_t i = 0; i < t.size(); ++i) {
      if (t.name_of(static_cast<model::EventId>(i)) != name) continue;
      sum += t.duration[i];
      ++count;
    }
    return std::pair(count, sum);
  };
  for (const char* name :
       {"IteratorGetNextOp::DoCompute", "multi_step_on_iterator", "PyFunc:PyFunc"}) {
    const auto a = total(plane, name), b = total(json, name);
    EXPECT_GT(a.first, 0) << name;
    if (b.first == 0) continue;  // the converter shortens some names
    EXPECT_EQ(a.first, b.first) << name;
    EXPECT_NEAR(static_cast<double>(a.second), static_cast<double>(b.second),
                2.0 * static_cast<double>(a.first))
        << name;
  }
}

TEST(ImportTrace, RunMetadataHoldsWhatItsTimelineHolds) {
  const Trace binary = read_trace(read("tensorflow/tf1_timeline_feed.runmetadata.pb"));
  const Trace json = read_trace(read("tensorflow/tf1_timeline_feed.json.gz"));
  EXPECT_EQ(binary.format, "tf1");
  ASSERT_EQ(binary.size(), json.size());
  std::map<std::string, int> names;
  for (size_t i = 0; i < json.size(); ++i) {
    ++names[std::string(json.name_of(static_cast<model::EventId>(i)))];
    --names[std::string(binary.name_of(static_cast<model::EventId>(i)))];
  }
  for (const auto& [name, difference] : names) EXPECT_EQ(difference, 0) << name;
}

}  // namespace
}  // namespace flatout::timeline
