#include "timeline/export_chrome.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <zlib.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "timeline/steps.h"
#include "timeline/test_run.h"

namespace flatout::timeline {
namespace {

using model::EntityKind;
using model::SignalId;
using model::SliceKind;
using model::ThreadState;
using nlohmann::json;
using testing::RunBuilder;

model::Run sample(int steps = 20) {
  RunBuilder b;
  b.run().processes[0].name = "py\"th\\on\x1b[31m\xff";
  const model::StackId stack = b.stack({{"main", "a.py", 3}});
  for (int i = 0; i < steps; ++i) {
    b.wait(4).forward(2).backward(6).optimizer(1, 0, i + 1);
    b.read_back(13, stack, i % 2 == 0 ? ThreadState::kOnCpuNative : ThreadState::kDisk);
  }
  b.thread(1, 200);
  b.add(SliceKind::kWorker, time_point_ns(1'000'000'000), time_point_ns(1'000'000'000), 3);
  // A fetch, its slowest sample inside, and one that overlaps it without nesting.
  b.add(SliceKind::kFetch, time_point_ns(1'000'000'000), time_point_ns(1'010'000'000), 32, 0);
  b.add(SliceKind::kSample, time_point_ns(1'002'000'000), time_point_ns(1'004'000'000));
  b.add(SliceKind::kHandover, time_point_ns(1'008'000'000), time_point_ns(1'015'000'000));
  model::Run run = b.build();
  run.entities.push_back({EntityKind::kProcess, 100, model::kNoEntity, "python"});
  run.series.push_back({SignalId::kProcRss, 0, {{run.begin, 1 << 20}, {run.end, 2 << 20}}});
  run.series.push_back({SignalId::kProcCpuUser, 0, {{run.begin, 0}, {run.end, 1e9}}});
  find_steps(run);
  return run;
}

std::map<std::string, int> count_phases(const json& document) {
  std::map<std::string, int> counts;
  for (const json& event : document["traceEvents"]) ++counts[event["ph"].get<std::string>()];
  return counts;
}

TEST(ChromeJson, HoldsStepsPartsSlicesStatesAndCounters) {
  const json document = json::parse(chrome_json(sample()));
  std::map<std::string, int> names;
  for (const json& event : document["traceEvents"]) {
    if (event["ph"] == "X") ++names[event["name"].get<std::string>()];
  }
  EXPECT_EQ(names["step 7"], 1);
  EXPECT_EQ(names["optimizer"], 40);  // the slice and the part
  EXPECT_EQ(names["fetch"], 1);
  EXPECT_GE(names["disk"], 9);
  const auto counts = count_phases(document);
  EXPECT_EQ(counts.at("C"), 20 + 2 + 1);  // step times, RSS, CPU
  EXPECT_EQ(counts.at("i"), 1);
}

TEST(ChromeJson, SlicesOfATrackNestAndNeverOverlapOtherwise) {
  const json document = json::parse(chrome_json(sample()));
  std::map<std::pair<int64_t, int64_t>, std::vector<std::pair<double, double>>> tracks;
  for (const json& event : document["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"], length = event["dur"];
    tracks[{event["pid"], event["tid"]}].emplace_back(begin, begin + length);
  }
  EXPECT_GE(tracks.size(), 6u);
  for (auto& [track, slices] : tracks) {
    std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<double> open;
    for (const auto& [begin, end] : slices) {
      while (!open.empty() && open.back() <= begin + 1e-6) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(end, open.back() + 1e-6) << track.first << "/" << track.second;
      }
      open.push_back(end);
    }
  }
}

TEST(ChromeJson, NamesAreEscaped) {
  const json document = json::parse(chrome_json(sample()));  // parse() refuses bad UTF-8
  bool found = false;
  for (const json& event : document["traceEvents"]) {
    if (event["ph"] != "M" || event["pid"] != 100 || event["name"] != "process_name") continue;
    found =
        event["args"]["name"].get<std::string>().find("py\"th\\on\x1b[31m") != std::string::npos;
  }
  EXPECT_TRUE(found);
}

TEST(ChromeJson, ALongRunIsBounded) {
  const model::Run run = sample(1000);
  ChromeOptions options;
  options.max_events = 1000;
  const json document = json::parse(chrome_json(run, options));
  EXPECT_LE(document["traceEvents"].size(), 1100u);
  EXPECT_GE(document["traceEvents"].size(), 500u);
}

TEST(ChromeJson, AnEmptyRunIsADocument) {
  EXPECT_TRUE(json::parse(chrome_json(model::Run{}))["traceEvents"].is_array());
}

TEST(WriteChromeTrace, IsTheSameTextGzipped) {
  char folder[] = "/tmp/flatout-chrome-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/trace.json.gz";
  const model::Run run = sample();
  ASSERT_TRUE(write_chrome_trace(run, path).ok());
  std::string text(10 << 20, '\0');
  gzFile file = gzopen(path.c_str(), "rb");
  ASSERT_NE(file, nullptr);
  text.resize(static_cast<size_t>(gzread(file, text.data(), static_cast<unsigned>(text.size()))));
  gzclose(file);
  EXPECT_EQ(text, chrome_json(run));
  std::filesystem::remove_all(folder);
}

// A gzipped file of JSON.
json unpack(const std::string& path) {
  gzFile file = ::gzopen(path.c_str(), "rb");
  std::string text;
  char buffer[1 << 16];
  for (int got = 0; (got = ::gzread(file, buffer, sizeof buffer)) > 0;) text.append(buffer, got);
  ::gzclose(file);
  return json::parse(text);
}

TEST(MergedTrace, HasEachRanksTracksOnTheFirstOnesClock) {
  const std::string path = ::testing::TempDir() + "/merged.json.gz";
  // The second machine was started an hour later: its clock says less, its pids are the same.
  constexpr Nanos kBehind = std::chrono::hours(1);
  model::Run first = sample();
  const auto shift = [&](TimePoint& t) { t += kBehind; };
  shift(first.begin);
  shift(first.end);
  for (auto& slice : first.slices) shift(slice.begin), shift(slice.end);
  for (auto& reading : first.readings) shift(reading.at);
  for (auto& series : first.series) {
    for (auto& reading : series.readings) shift(reading.at);
  }
  find_steps(first);
  const model::Run second = sample();
  MergedTrace trace(first.begin, 2);
  trace.add(first, 0, Nanos(0));
  trace.add(second, 7, kBehind);
  ASSERT_TRUE(trace.write(path).ok());
  const json document = unpack(path);
  std::map<int64_t, std::string> processes;
  std::map<std::string, std::vector<double>> steps;  // when "step 7" began, by process
  for (const json& event : document["traceEvents"]) {
    if (event["name"] == "process_name") {
      const auto [it, fresh] = processes.emplace(event["pid"], event["args"]["name"]);
      EXPECT_TRUE(fresh) << "two processes are one: " << it->second;
    }
    if (event.contains("ts")) {
      EXPECT_GE(event["ts"].get<double>(), 0);
    }
  }
  for (const json& event : document["traceEvents"]) {
    if (event["name"] == "step 7") steps[processes[event["pid"]]].push_back(event["ts"]);
  }
  ASSERT_EQ(steps.size(), 2u);
  ASSERT_EQ(steps["rank 0: Steps"].size(), 1u);
  EXPECT_EQ(steps["rank 0: Steps"], steps["rank 7: Steps"]) << "they ran at the same time";
  EXPECT_EQ(document["traceEvents"].size(),
            2 * json::parse(chrome_json(sample()))["traceEvents"].size());
}

}  // namespace
}  // namespace flatout::timeline
