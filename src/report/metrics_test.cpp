#include "report/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "report/golden.h"
#include "report/json.h"
#include "report/run_summary.h"
#include "report/test_run.h"

namespace flatout::report {
namespace {

using namespace testing;  // NOLINT

std::vector<Sample> samples_of(const model::Run& run, const model::Diagnosis& diagnosis,
                               bool live = true) {
  StepTotals totals;
  add_steps(run, totals);
  return run_samples("20250101-120000-train-hopper-7", run, diagnosis, totals, live);
}

std::string render(const std::vector<const std::vector<Sample>*>& lists, Exposition exposition) {
  return render_metrics(lists, exposition);
}

model::Run two_gpus() {
  model::Run run = decode_bound_run();
  run.info["rank"] = "3";
  run.info["env.SLURM_JOB_ID"] = "4711";
  run.info["run.begin_unix_ns"] = "1735732800000000000";
  run.finished = false;
  for (Process& p : run.processes) p.ended = false;
  for (int gpu = 0; gpu < 2; ++gpu) {
    run.entities.push_back({EntityKind::kGpu, gpu, kNoEntity, "NVIDIA Test"});
    const auto entity = static_cast<EntityId>(run.entities.size() - 1);
    run.series.push_back({SignalId::kGpuUtil, entity, {{run.end, 0.5 + 0.25 * gpu}}});
    run.series.push_back({SignalId::kGpuTemperature, entity, {{run.end, 61}}});
  }
  run.devices.push_back(one_device());
  return run;
}

TEST(Metrics, AreWhatTheGoldenFilesSay) {
  const auto build = build_samples("0.1.0");
  const auto run = samples_of(two_gpus(), decode_diagnosis());
  expect_golden("metrics.txt", render({&build, &run}, Exposition::kPrometheus));
  expect_golden("metrics.openmetrics.txt", render({&build, &run}, Exposition::kOpenMetrics));
}

// The grammar of the text format 0.0.4, line by line, and what it says of whole documents.
void expect_valid(const std::string& text) {
  static const std::regex kSample(
      R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+))re");
  std::set<std::string> families, series;
  std::string family;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family << " comes twice";
      continue;
    }
    if (line.starts_with("# TYPE ")) {
      EXPECT_EQ(line.substr(7, line.find(' ', 7) - 7), family);
      continue;
    }
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, kSample)) << line;
    EXPECT_TRUE(match[1].str().starts_with(family)) << line;
    EXPECT_TRUE(series.insert(match[1].str() + match[3].str()).second) << line << " comes twice";
    char* end = nullptr;
    const std::string value = match[4];
    std::strtod(value.c_str(), &end);
    EXPECT_EQ(*end, 0) << line;
  }
}

TEST(Metrics, StandTogetherByNameHoweverManyRunsThereAre) {
  const auto a = samples_of(decode_bound_run(), decode_diagnosis());
  StepTotals totals;
  const auto b = run_samples("other", model::Run{}, model::Diagnosis{}, totals, true);
  const auto build = build_samples("1");
  expect_valid(render({&build, &a, &b}, Exposition::kPrometheus));
}

TEST(Metrics, NamesInTheDataCannotBreakTheFormat) {
  model::Diagnosis diagnosis = hostile_diagnosis();
  for (Finding& f : diagnosis.findings) f.id = hostile_name();  // twice the same
  diagnosis.verdict = hostile_name();
  const auto run = samples_of(hostile_run(), diagnosis);
  const std::string text = render({&run}, Exposition::kPrometheus);
  expect_valid(text);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(Metrics, AnEndedRunTellsNothingOfTheMachine) {
  const auto run = samples_of(two_gpus(), decode_diagnosis(), false);
  const std::string text = render({&run}, Exposition::kPrometheus);
  EXPECT_NE(text.find("flatout_run_live{"), std::string::npos);
  EXPECT_EQ(text.find("flatout_gpu_"), std::string::npos);
  EXPECT_EQ(text.find("flatout_job_resident"), std::string::npos);
}

TEST(Metrics, EachHasItsRowInTheDocumentation) {
  std::ifstream file(std::string(FLATOUT_TEST_DATA) + "/../docs/metrics.md");
  std::stringstream page;
  page << file.rdbuf();
  const auto build = build_samples("1");
  const auto run = samples_of(two_gpus(), decode_diagnosis());
  for (const auto* list : {&build, &run}) {
    const std::string text = render({list}, Exposition::kPrometheus);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("# TYPE ")) continue;
      const std::string name = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_NE(page.str().find("| `" + name + "` |"), std::string::npos) << name;
    }
  }
}

TEST(StepTotals, CountEachStepOnceAsTheRunGrows) {
  const model::Run whole = decode_bound_run(40);
  StepTotals grown;
  for (size_t upto = 0; upto <= 40; upto += 8) {
    model::Run part = whole;
    part.steps.steps.resize(upto);
    add_steps(part, grown);
  }
  StepTotals at_once;
  add_steps(whole, at_once);
  EXPECT_EQ(grown.steps, 40);
  EXPECT_EQ(grown.counts, at_once.counts);
  EXPECT_DOUBLE_EQ(grown.seconds, at_once.seconds);
  // Its parts add up to the step.
  double parts = 0;
  for (const double part : grown.part_seconds) parts += part;
  EXPECT_NEAR(parts, grown.seconds, 1e-9);
}

TEST(StepTotals, StayWhatTheyAreWhereTheRunIsThinned) {
  model::Run run = decode_bound_run(40);
  StepTotals totals;
  add_steps(run, totals);
  const auto counts = totals.counts;
  run.steps.steps.erase(run.steps.steps.begin() + 5, run.steps.steps.begin() + 30);
  add_steps(run, totals);
  EXPECT_EQ(totals.counts, counts);
  EXPECT_EQ(totals.steps, 40);
}

TEST(RunSummary, FromTheFilesIsThatOfTheRun) {
  const model::Run run = two_gpus();
  const RunSummary live = summarise(run, decode_diagnosis());
  EXPECT_EQ(live.rank, "3");
  EXPECT_EQ(live.group, "slurm-4711");
  EXPECT_EQ(live.begin_unix_s, 1735732800);
  model::Run ended = run;
  ended.finished = true;
  ended.wait_status = 3 << 8;
  const auto read = read_summary(run_json(ended), findings_json(ended, decode_diagnosis()));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->command, live.command);
  EXPECT_EQ(read->host, "hopper");
  EXPECT_EQ(read->group, live.group);
  EXPECT_EQ(read->steps, live.steps);
  EXPECT_NEAR(read->median_ms, live.median_ms, 1e-3);
  EXPECT_NEAR(read->length_s, live.length_s, 1e-2);
  EXPECT_EQ(read->verdict, "input.decode_cpu");
  EXPECT_EQ(read->headline, live.headline);
  EXPECT_TRUE(read->failed);
  EXPECT_EQ(read->exit, "exit code 3");
}

TEST(RunSummary, OtherJsonIsNoSummary) {
  for (const char* text : {"", "{", "[]", "7", "{}", "{\"schema\":2}", "{\"schema\":\"1\"}"}) {
    EXPECT_FALSE(read_summary(text, text)) << text;
  }
  // Of the right schema, and nothing of the right type in it.
  EXPECT_TRUE(read_summary(R"({"schema":1,"facts":[],"exit":7,"length_s":"x","command":{}})",
                           R"({"schema":1,"steps":[],"findings":[3],"verdict":null})"));
}

}  // namespace
}  // namespace flatout::report
