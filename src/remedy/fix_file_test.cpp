#include "remedy/fix_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "remedy/fix_html.h"
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

TEST(FixFile, TheFoldersThatWereReadAheadAreNamed) {
  Attempt attempt;
  attempt.candidate.remedy = find_remedy("warm_cache");
  EXPECT_TRUE(shell_lines(attempt).back().starts_with("flatout cache warm FOLDER"));
  attempt.warmed = {"/data/a b", "/data/c"};
  EXPECT_TRUE(shell_lines(attempt).back().starts_with("flatout cache warm '/data/a b' '/data/c' "));
}

TEST(FixFile, ARunOfATrialComesBackAsItWas) {
  TrialRun run;
  run.seconds = {0.1, 0.2};
  run.losses = {1.0 / 3, std::nan("")};
  run.applied = {"gc"};
  run.verdict = "cpu.gc";
  run.warmed = {"/data/a b"};
  run.output_tail = "\xff bad bytes";
  run.situation = {.cores = 2,
                   .online_cores = 4,
                   .workers = 3,
                   .loader = true,
                   .torch = true,
                   .convolutions = 5,
                   .norms = 4,
                   .optimizer_share = 0.25,
                   .fuses = true,
                   .devmem = true};
  const auto back = trial_from_json(to_json(run));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->seconds, run.seconds);
  EXPECT_EQ(back->losses[0], run.losses[0]);  // to the last bit
  EXPECT_TRUE(std::isnan(back->losses[1]));
  EXPECT_EQ(back->situation.workers, 3);
  EXPECT_EQ(back->situation.convolutions, 5);
  EXPECT_EQ(back->situation.norms, 4);
  EXPECT_EQ(back->situation.optimizer_share, 0.25);
  EXPECT_TRUE(back->situation.fuses && back->situation.devmem);
  EXPECT_EQ(back->warmed, run.warmed);
  EXPECT_FALSE(trial_from_json("{}").ok());
}

TEST(FixHtml, ShowsEachRunAndLetsNoNameBeMarkup) {
  const Situation situation{.cores = 3, .online_cores = 4, .workers = 1};
  Outcome outcome = outcome_with(*find_remedy("gc"), situation);
  Attempt& attempt = outcome.attempts.front();
  attempt.a_seconds = {{0.02, 0.021, 0.03}, {0.02, 0.02}};
  attempt.b_seconds = {{0.01, 0.011}, {}};
  attempt.note = "</td><script>alert(1)</script>";
  const std::string page = fix_page({"python", "<b>.py"}, outcome, "fix.json");
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("<b>.py"), std::string::npos);
  EXPECT_NE(page.find("&lt;b&gt;.py"), std::string::npos);
  size_t medians = 0;
  for (size_t at = 0; (at = page.find("class=\"median\"", at)) != std::string::npos; ++at)
    ++medians;
  EXPECT_EQ(medians, 3u);  // a run without steps has no row
  EXPECT_NE(page.find("median 21"), std::string::npos);
  EXPECT_NE(page.find(kFixPageMark), std::string::npos);
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

TEST(Catalogue, APinnedJobIsFreedBeforeItGetsFewerThreads) {
  model::Finding crowd;
  crowd.id = "cpu.oversubscribed";  // two threads on one core; the other may have been taken then
  const Situation pinned{.cores = 1, .online_cores = 2, .torch = true};
  const Situation free{.cores = 2, .online_cores = 2, .torch = true};
  EXPECT_EQ(candidates({crowd}, pinned, false).front().remedy->id, "affinity");
  EXPECT_EQ(candidates({crowd}, free, false).front().remedy->id, "threads");
}

TEST(Catalogue, AJobThatIsFedIsOfferedTheThreadsThatLeaveRoomForThat) {
  Situation situation{.cores = 16, .online_cores = 16, .torch = true};
  EXPECT_EQ(candidates({}, situation, false).size(), 0u);
  situation.feeding = 3;
  const auto offered = candidates({}, situation, false);
  ASSERT_EQ(offered.size(), 1u);
  EXPECT_EQ(setting_of(*offered[0].remedy, situation).agent.at("threads"), "13");
  situation.cores = 1;
  EXPECT_EQ(candidates({}, situation, false).size(), 0u);
}

bool offers(const Situation& situation, std::string_view id, std::string_view finding = "",
            bool allow_changing = false) {
  std::vector<model::Finding> findings(finding.empty() ? 0 : 1);
  if (!finding.empty()) findings[0].id = finding;
  const auto offered = candidates(findings, situation, allow_changing);
  return std::any_of(offered.begin(), offered.end(),
                     [&](const Candidate& candidate) { return candidate.remedy->id == id; });
}

TEST(Catalogue, TheLockOfAPythonThatNeedsNoneIsLeftOffWhereTheUserAllowsIt) {
  const Situation with_lock{.torch = true};
  const Situation without{.torch = true, .free_threaded = true};
  EXPECT_TRUE(offers(without, "gil_off", "input.gil", true));
  EXPECT_FALSE(offers(without, "gil_off", "input.gil", false));
  EXPECT_FALSE(offers(without, "gil_off", "cpu.gc", true));
  EXPECT_FALSE(offers(with_lock, "gil_off", "input.gil", true));
}

TEST(Catalogue, WhatTheModelIsMadeOfSaysWhatFitsIt) {
  const Situation plain{.torch = true, .fuses = true};
  Situation convolutions = plain, heavy = plain, gpu = plain;
  convolutions.convolutions = convolutions.norms = 20;
  heavy.optimizer_share = 0.3;
  gpu = convolutions;
  gpu.gpu = gpu.loader = true;
  gpu.workers = 2;
  for (const std::string_view id :
       {"fused_norm", "channels_last", "fused_optimizer", "cudnn_benchmark", "tf32"})
    EXPECT_FALSE(offers(plain, id, "", true)) << id;
  EXPECT_TRUE(offers(convolutions, "fused_norm") && offers(convolutions, "channels_last"));
  EXPECT_TRUE(offers(heavy, "fused_optimizer"));
  EXPECT_TRUE(offers(gpu, "cudnn_benchmark") && offers(gpu, "channels_last"));
  EXPECT_FALSE(offers(gpu, "fused_norm"));  // its operators are the CPU's
  EXPECT_FALSE(offers(gpu, "tf32"));
  EXPECT_TRUE(offers(gpu, "tf32", "", true));
  EXPECT_TRUE(offers(gpu, "non_blocking", "input.h2d_sync"));
  EXPECT_FALSE(offers(gpu, "batch_size", "gpu.small_batch"));
  EXPECT_TRUE(offers(gpu, "batch_size", "gpu.small_batch", true));
  EXPECT_TRUE(offers(gpu, "expandable_segments", "gpu.oom_fragmented"));
  EXPECT_FALSE(offers(gpu, "device_arena", "gpu.oom_fragmented"));  // its library is not here
  gpu.devmem = true;
  EXPECT_TRUE(offers(gpu, "device_arena", "gpu.oom_fragmented"));
  EXPECT_FALSE(offers(plain, "device_arena", "gpu.oom_fragmented"));
  // A process that holds a GPU must not be forked.
  EXPECT_FALSE(offers(gpu, "start_method", "input.worker_restart"));
  Situation workers = plain;
  workers.workers = 2;
  EXPECT_TRUE(offers(workers, "start_method", "input.worker_restart"));
}

}  // namespace
}  // namespace flatout::remedy
