#include "report/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/golden.h"
#include "report/test_run.h"

namespace flatout::report {
namespace {

using namespace testing;  // NOLINT
using Json = nlohmann::ordered_json;

TEST(Json, FindingsAreAsTheGoldenFile) {
  expect_golden("findings.json", findings_json(decode_bound_run(), decode_diagnosis()));
}

TEST(Json, FindingsHaveTheKeysOfTheContractInTheirOrder) {
  const Json j = Json::parse(findings_json(decode_bound_run(), decode_diagnosis()));
  std::vector<std::string> keys;
  for (const auto& [key, value] : j.items()) keys.push_back(key);
  keys.resize(6);
  EXPECT_EQ(keys, (std::vector<std::string>{"schema", "verdict", "steps", "breakdown", "findings",
                                            "missing"}));
  EXPECT_TRUE(j["findings"][1]["cost_bytes"].is_null());
}

TEST(Json, TheBreakdownAddsUpToOne) {
  model::Run run = decode_bound_run();
  for (const double a : {0.1, 1.0 / 3, 0.123456, 0.99995}) {
    run.steps.summary.breakdown = {a, (1 - a) / 3, (1 - a) / 3, (1 - a) / 3};
    const Json j = Json::parse(findings_json(run, {}));
    double sum = 0;
    for (const auto& [key, value] : j["breakdown"].items()) sum += value.get<double>();
    EXPECT_NEAR(sum, 1, 1e-12);
    EXPECT_EQ(j["breakdown"].size(), 9u);
  }
}

TEST(Json, WhatIsNotKnownIsNull) {
  const Json j = Json::parse(findings_json(model::Run{}, Diagnosis{}));
  EXPECT_EQ(j["verdict"], "healthy");
  EXPECT_EQ(j["steps"]["count"], 0);
  EXPECT_TRUE(j["steps"]["median_ms"].is_null());
  Diagnosis d = decode_diagnosis();
  d.findings[0].where.reset();
  d.findings[0].gain.reset();
  d.findings[0].evidence[0].value = std::nan("");
  const Json k = Json::parse(findings_json(decode_bound_run(), d));
  EXPECT_TRUE(k["findings"][0]["where"].is_null());
  EXPECT_TRUE(k["findings"][0]["gain"].is_null());
  EXPECT_TRUE(k["findings"][0]["evidence"][0]["value"].is_null());
}

TEST(Json, HostileNamesStayText) {
  const Json j = Json::parse(findings_json(hostile_run(), hostile_diagnosis()));
  EXPECT_NE(j["findings"][0]["title"].get<std::string>().find("</script>"), std::string::npos);
  EXPECT_TRUE(Json::accept(run_json(hostile_run())));
}

TEST(Json, RunSaysWhatWasRecorded) {
  const Json j = Json::parse(run_json(decode_bound_run()));
  EXPECT_EQ(j["facts"]["torch.version"], "2.13.0+cpu");
  EXPECT_EQ(j["processes"].size(), 3u);
  EXPECT_EQ(j["exit"]["code"], 0);
  EXPECT_EQ(j["neighbours"][0]["name"], "backupd");
  EXPECT_TRUE(Json::accept(run_json(model::Run{})));
}

TEST(Json, AComparisonIsAsTheGoldenFile) {
  expect_golden("comparison.json", comparison_json(slower_comparison()));
}

}  // namespace
}  // namespace flatout::report
