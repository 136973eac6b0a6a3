#include "remedy/fix_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "remedy/fix_text.h"
#include "remedy/trial_json.h"

namespace flatout::remedy {
namespace {

Outcome outcome_with(const Remedy& remedy, const Situation& situation) {
  Outcome out;
  out.baseline.seconds = {0.02, 0.02};
  out.baseline.verdict = "cpu.gc";
  Attempt attempt;
  attempt.candidate = {&remedy, "cpu.gc", 1.5, model::Where{"train.py", 7, "main"}};
  attempt.what = filled(remedy.what, situation);
  attempt.setting = setting_of(remedy, situation);
  attempt.decision = {Verdict::kBetter, 1.4, 1.3, 1.5, 2, 0, 0};
  attempt.kept = true;
  out.setting = attempt.setting;
  out.kept.emplace_back(remedy.id);
  out.together = attempt.decision;
  out.attempts.push_back(attempt);
  return out;
}

TEST(FixFile, EverySettingOfTheCatalogueComesBackAsItWas) {
  const Situation situation{.cores = 3, .online_cores = 4, .workers = 1};
  for (const Remedy& remedy : catalogue()) {
    const Outcome outcome = outcome_with(remedy, situation);
    const auto back = setting_from_json(fix_json({"python", "a b.py"}, outcome, true));
    ASSERT_TRUE(back.ok()) << remedy.id;
    EXPECT_EQ(*back, outcome.setting) << remedy.id;
  }
}

TEST(FixFile, WhatIsNoFixJsonIsRefusedByName) {
  for (const char* text :
       {"", "[]", "{}", "{\"schema\": 9}", "{\"schema\": 1, \"apply\": 3}",
        "{\"schema\": 1, \"apply\": {\"environment\": {\"A=B\": \"x\"}, \"agent\": {}, "
        "\"allocator\": false, \"prefix\": []}}",
        "{\"schema\": 1, \"apply\": {\"environment\": {}, \"agent\": {\"gc\": \"1,x=2\"}, "
        "\"allocator\": false, \"prefix\": []}}"}) {
    const auto setting = setting_from_json(text);
    ASSERT_FALSE(setting.ok()) << text;
    EXPECT_EQ(setting.error().code, Code::kBadInput);
    EXPECT_NE(setting.error().message.find("fix.json"), std::string::npos);
  }
}

TEST(FixFile, EveryRowIsCompleteAndTheTextNamesIt) {
  std::set<std::string_view> ids;
  for (const Remedy& remedy : catalogue()) {
    EXPECT_TRUE(ids.insert(remedy.id).second) << remedy.id << " stands there twice";
    ASSERT_NE(remedy.fits, nullptr) << remedy.id;
    const Situation situation{.cores = 3, .online_cores = 4, .workers = 1};
    EXPECT_NE(setting_of(remedy, situation), Setting{}) << remedy.id << " changes nothing";
    EXPECT_EQ(filled(remedy.what, situation).find('{'), std::string::npos) << remedy.id;
    const std::string text =
        render_fix({"python", "train.py"}, outcome_with(remedy, situation), "fix.json");
    EXPECT_NE(text.find("flatout run --with fix.json -- python train.py"), std::string::npos);
    EXPECT_NE(text.find("1.40x (1.30 to 1.50)"), std::string::npos);
    EXPECT_NE(text.find(remedy.id), std::string::npos);
  }
}

TEST(FixFile, ValuesAreQuotedForAShellAndForADockerfile) {
  Setting setting;
  setting.environment["A"] = "it's \"$HOME\"";
  EXPECT_EQ(shell_lines(setting).front(), "export A='it'\\''s \"$HOME\"'");
  EXPECT_EQ(dockerfile_lines(setting).front(), R"(ENV A="it's \"\$HOME\"")");
}

TEST(FixFile, ARunOfATrialComesBackAsItWas) {
  TrialRun run;
  run.seconds = {0.1, 0.2};
  run.losses = {1.0 / 3, std::nan("")};
  run.applied = {"gc"};
  run.verdict = "cpu.gc";
  run.output_tail = "\xff bad bytes";
  run.situation = {.cores = 2, .online_cores = 4, .workers = 3, .loader = true, .torch = true};
  const auto back = trial_from_json(to_json(run));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->seconds, run.seconds);
  EXPECT_EQ(back->losses[0], run.losses[0]);  // to the last bit
  EXPECT_TRUE(std::isnan(back->losses[1]));
  EXPECT_EQ(back->situation.workers, 3);
  EXPECT_FALSE(trial_from_json("{}").ok());
}

TEST(Catalogue, OffersWhatAnswersTheFindingsBestPromiseFirst) {
  const Situation situation{
      .cores = 2, .online_cores = 2, .workers = 0, .loader = true, .torch = true};
  model::Finding small, large;
  small.id = "cpu.gc";
  small.gain = 1.1;
  large.id = "input.too_few_workers";
  large.gain = 1.9;
  const auto offered = candidates({small, large}, situation, false);
  ASSERT_GE(offered.size(), 3u);
  EXPECT_EQ(offered.front().remedy->id, "num_workers");
  EXPECT_EQ(offered.back().remedy->id, "gc");
  for (const Candidate& candidate : offered) {
    EXPECT_NE(candidate.remedy->id, "persistent_workers");  // there are none to keep
  }
}

}  // namespace
}  // namespace flatout::remedy
