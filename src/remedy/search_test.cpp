#include "remedy/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "remedy/fix_file.h"
#include "remedy/fix_text.h"
#include "remedy/fix_words.h"

namespace flatout::remedy {
namespace {

model::Finding finding(const std::string& id, double gain) {
  model::Finding out;
  out.id = id;
  out.gain = gain;
  return out;
}

// A job that is made up: its step takes what its causes cost, less what the setting takes away.
class FakeJob : public Runner {
 public:
  double step = 0.02;
  double budget = 1000;                  // seconds
  std::map<std::string, double> causes;  // agent setting that takes it away -> seconds per step
  std::vector<model::Finding> found;
  std::map<std::string, double> moves_losses;  // agent setting -> what it adds to them
  double noise = 0;                            // between runs, as a share of the step
  size_t fails_at = 0;                         // steps; 0: never
  std::string goes_on_with;                    // agent setting with which it does not fail
  bool inert = false;                          // settings change nothing, and say so
  double first_reads = 0;                      // seconds per step of the first run, for the disk
  int stop_after = -1;                         // runs
  bool outside = false;                        // nobody marks its steps
  std::string outside_with;                    // agent setting with which nobody does
  double one_thread_saves = 0;
  std::vector<Length> lengths;
  int runs = 0;

  Result<TrialRun> run(const Setting& setting, const Length& length, bool) override {
    if (stopped()) return Error{Code::kGone, "interrupted", ""};
    ++runs;
    lengths.push_back(length);
    TrialRun out;
    out.outside = outside || setting.agent.contains(outside_with);
    double now = step, off = 0;
    now *= 1 + noise * normal_(random_);
    for (const auto& [name, cost] : causes) now += setting.agent.contains(name) ? 0 : cost;
    for (const auto& [name, move] : moves_losses) off += setting.agent.contains(name) ? move : 0;
    if (runs == 1) now += first_reads;
    const auto threads = setting.agent.find("threads");
    if (threads != setting.agent.end() && threads->second == "1") now -= one_thread_saves;
    const size_t steps = std::max<size_t>(40, length.steps);
    for (size_t i = 0; i < steps; ++i) {
      out.seconds.push_back(now * (1 + 0.05 * normal_(random_)));
      if (i < 40) out.losses.push_back(2.0 / (1 + 0.1 * static_cast<double>(i)) + off);
    }
    for (const auto& [name, value] : setting.agent) {
      if (!inert) out.applied.push_back(name);
    }
    out.findings = found;
    if (runs == 1 && first_reads > 0) out.findings = {finding("input.small_files", 10)};
    if (fails_at > 0 && !setting.agent.contains(goes_on_with)) {
      out.exit_code = 1;
      out.seconds.resize(std::min(out.seconds.size(), fails_at));
    }
    out.verdict = found.empty() ? "healthy" : found.front().id;
    out.situation = situation;
    out.start_seconds = 2;
    budget -= 2 + now * static_cast<double>(steps);
    return out;
  }
  double seconds_left() override { return budget; }
  bool stopped() override { return runs == stop_after; }
  void tell(const std::string&) override {}

  Situation situation{.cores = 2, .online_cores = 2, .workers = 2, .loader = true, .torch = true};

  explicit FakeJob(unsigned seed = 1) : random_(seed) {}

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

TEST(Search, KeepsWhatHelpsAndConfirmsIt) {
  FakeJob job;
  job.causes = {{"gc", 0.01}};
  job.found = {finding("cpu.gc", 1.5)};
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->kept, std::vector<std::string>{"gc"});
  ASSERT_TRUE(outcome->together.has_value());
  EXPECT_NEAR(outcome->together->gain, 1.5, 0.1);
  EXPECT_EQ(outcome->attempts.front().candidate.predicted, 1.5);
  EXPECT_EQ(outcome->attempts.front().losses, LossCheck::kBitEqual);
}

TEST(Search, AJobWhoseStepsNobodyMarksGetsAShareOfTheTimeForItsFirstRun) {
  FakeJob job;
  job.budget = 90;
  job.outside = true;
  job.causes = {{"gc", 0.01}};
  job.found = {finding("cpu.gc", 1.5)};
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  ASSERT_GE(job.lengths.size(), 4u);
  const Length& first = job.lengths.front();
  EXPECT_LE(first.limit, std::chrono::seconds(30));
  EXPECT_GT(first.look_from, first.time);
  EXPECT_LT(first.look_from, first.limit);
  for (size_t i = 1; i < job.lengths.size(); ++i) EXPECT_GT(job.lengths[i].look_from, Nanos(0));
  EXPECT_EQ(outcome->kept, std::vector<std::string>{"gc"});
}

TEST(Search, StepsThatAreToldInAnotherWayAreNotCompared) {
  FakeJob job;
  job.outside_with = "gc";
  job.causes = {{"gc", 0.01}};
  job.found = {finding("cpu.gc", 1.5)};
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(outcome->kept.empty());
  EXPECT_NE(outcome->attempts.front().note.find("told in another way"), std::string::npos);
}

TEST(Search, AnInterruptedTrialSaysWhatItSaw) {
  FakeJob job;
  job.causes = {{"gc", 0.01}};
  job.found = {finding("cpu.gc", 1.5)};
  job.stop_after = 2;  // the first, and one with the remedy
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  ASSERT_EQ(outcome->attempts.size(), 1u);
  EXPECT_NE(outcome->attempts[0].note.find("interrupted before that was sure"), std::string::npos);
  const std::string text = render_fix({"job"}, *outcome, "fix.json");
  EXPECT_NE(text.find("ms a step with it"), std::string::npos) << text;
  EXPECT_EQ(text.find("Nothing measurably helps"), std::string::npos) << text;
}

TEST(Search, WhatNoRemedyAnswersIsSaidWithWhatToDo) {
  FakeJob job;
  job.causes = {{"gc", 0.01}};
  job.found = {finding("cpu.sync_each_step", 1.9), finding("cpu.gc", 1.5),
               finding("stall.hook", 1.01)};
  job.found[0].where = model::Where{"train.py", 7, "step"};
  job.found[0].remedies = {{"seldom", "Ask for the loss every 50 steps."}};
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  ASSERT_EQ(unanswered(*outcome).size(), 1u) << "gc was tried, and 1 % is not worth a word";
  const std::string text = render_fix({"job"}, *outcome, "fix.json");
  EXPECT_NE(text.find("cpu.sync_each_step (1.90x), train.py:7: Ask for the loss every 50 steps."),
            std::string::npos)
      << text;
  EXPECT_NE(fix_json({"job"}, *outcome, true).find("\"unanswered\""), std::string::npos);
}

TEST(Search, AWaitInTheMakingOfBatchesIsForLoaderWorkers) {
  for (const double share : {0.9, 0.0}) {
    FakeJob job;
    job.situation.workers = 0;
    job.situation.input_share = share;
    job.causes = {{"num_workers", 0.03}};
    job.found = {finding("stall.idle_wait", 2.5)};
    const auto outcome = search(job, {});
    ASSERT_TRUE(outcome.ok());
    const std::vector<std::string> expected{"num_workers"};
    EXPECT_EQ(outcome->kept, share > 0 ? expected : std::vector<std::string>{});
  }
}

TEST(Search, OneThreadIsTriedWhereAsManyAsCoresDoNotHelp) {
  FakeJob job;
  job.situation.workers = 0;
  job.found = {finding("cpu.oversubscribed", 2)};
  job.one_thread_saves = 0.01;
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->kept, std::vector<std::string>{"one_thread"});
}

TEST(Search, ByHandIsOnlyWhatCountsInTheEnd) {
  Outcome outcome;
  for (const char* id : {"num_workers", "gc", "more_workers"}) {
    const Remedy* remedy = find_remedy(id);
    Attempt attempt;
    attempt.candidate.remedy = remedy;
    attempt.setting = setting_of(*remedy, {.cores = 2});
    attempt.code = filled(remedy->code, {.cores = 2});
    attempt.kept = true;
    outcome.attempts.push_back(attempt);
    outcome.kept.emplace_back(id);
  }
  const std::string text = render_fix({"python", "a b.py", "--x=1", "it's"}, outcome, "fix.json");
  EXPECT_EQ(text.find("num_workers=2"), std::string::npos) << text;
  EXPECT_NE(text.find("num_workers=4"), std::string::npos) << text;
  EXPECT_NE(text.find("gc.freeze()"), std::string::npos) << text;
  EXPECT_NE(text.find("-- python 'a b.py' --x=1 'it'\\''s'\n"), std::string::npos) << text;
}

TEST(Search, WhatOnlyTheFirstReadOfTheFilesTakesIsNoPartOfTheTrials) {
  FakeJob job;
  job.causes = {{"gc", 0.01}};
  job.found = {finding("cpu.gc", 1.5)};
  job.first_reads = 0.4;
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->kept, std::vector<std::string>{"gc"});
  EXPECT_EQ(outcome->attempts.size(), 1u);
  EXPECT_EQ(outcome->baseline.verdict, "cpu.gc");
  ASSERT_TRUE(outcome->together.has_value());
  EXPECT_NEAR(outcome->together->gain, 1.5, 0.1);
}

TEST(Search, AHealthyJobIsLeftAloneUnlessMoreIsAskedFor) {
  for (const bool tune : {false, true}) {
    FakeJob job;
    job.situation.optimizer_share = 0.5;
    job.causes = {{"fused_optimizer", 0.01}};
    const auto outcome = search(job, {.tune = tune});
    ASSERT_TRUE(outcome.ok());
    const std::vector<std::string> what{"fused_optimizer"};
    EXPECT_EQ(outcome->kept, tune ? what : std::vector<std::string>{});
    EXPECT_EQ(outcome->tunings, tune ? std::vector<std::string>{} : what);
    EXPECT_EQ(job.runs == 1, !tune);
  }
}

TEST(Search, OneThatDoesNothingLeavesTimeForTheOthers) {
  FakeJob job;
  job.found = {finding("input.decode_cpu", 1.6)};
  job.causes = {{"threads", 0.01}};  // what answers last
  job.noise = 0.2;                   // of a run: the others take many looks
  job.situation.pictures = job.situation.pillow = true;
  job.budget = 300;
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(outcome->not_tried.empty());
  EXPECT_EQ(outcome->kept, std::vector<std::string>{"threads_beside_workers"});
}

TEST(Search, WhatLetsAJobGoOnThatRanOutOfMemoryIsKept) {
  FakeJob job;
  job.situation.gpu = job.situation.devmem = true;
  job.found = {finding("gpu.oom_fragmented", 1)};
  job.goes_on_with = "devmem";
  for (const size_t steps : {5, 30}) {  // with fewer than can be judged, too
    job.fails_at = steps;
    const auto outcome = search(job, {});
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    EXPECT_EQ(outcome->kept, std::vector<std::string>{"device_arena"});
    ASSERT_GE(outcome->attempts.size(), 2u);
    EXPECT_EQ(outcome->attempts[0].candidate.remedy->id, "expandable_segments");
    EXPECT_EQ(outcome->attempts[0].decision.verdict, Verdict::kUndecided);
    EXPECT_NE(outcome->attempts[0].note.find("ran out of memory all the same"), std::string::npos);
    EXPECT_EQ(outcome->attempts[1].decision.verdict, Verdict::kGoesOn);
    EXPECT_FALSE(outcome->together.has_value());
  }
}

TEST(Search, OneThatDoesNothingIsSeldomKeptThoughItIsTriedAnew) {
  // Each of the others that is kept gives those that wait another beginning.
  unsigned kept = 0, anew = 0;
  for (unsigned seed = 1; seed <= 500; ++seed) {
    FakeJob job(seed);
    job.causes = {{"gc", 0.004}, {"background_save", 0.006}, {"persistent_workers", 0.005}};
    job.found = {finding("cpu.oversubscribed", 1.5), finding("stall.checkpoint", 1.03),
                 finding("input.worker_restart", 1.02), finding("cpu.gc", 1.01)};
    job.noise = 0.02;
    const auto outcome = search(job, {.skip = {"threads_beside_workers", "start_method"}});
    ASSERT_TRUE(outcome.ok());
    kept += std::count(outcome->kept.begin(), outcome->kept.end(), "threads");
    anew += std::count_if(outcome->attempts.begin(), outcome->attempts.end(), [](const Attempt& a) {
      return a.candidate.remedy->id == "threads" && a.decision.earlier_looks > 0;
    });
  }
  EXPECT_GT(anew, 20u);
  EXPECT_LE(kept, 10u);  // 2 %
}

TEST(Search, AJobThatRunsOutOfMemoryWithAllOfThemKeepsNone) {
  FakeJob job;
  job.situation.gpu = job.situation.devmem = true;
  job.found = {finding("gpu.oom_fragmented", 1)};
  job.fails_at = 5;
  job.goes_on_with = "nothing that there is";
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(outcome->kept.empty());
  EXPECT_EQ(outcome->attempts.size(), 2u);
}

TEST(Search, AHealthyJobKeepsNothingThatDoesNotHelp) {
  FakeJob job;
  job.situation.allocator = true;
  const auto outcome = search(job, {.tune = true});
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(outcome->kept.empty());
  ASSERT_EQ(outcome->attempts.size(), 1u);
  EXPECT_EQ(outcome->attempts.front().decision.verdict, Verdict::kNoDifference);
}

TEST(Search, TwoCausesAreBothTakenAwayAndMeasuredTogether) {
  FakeJob job;
  job.causes = {{"gc", 0.01}, {"background_save", 0.03}};
  job.found = {finding("cpu.gc", 1.2), finding("stall.checkpoint", 2.0)};
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->kept,
            (std::vector<std::string>{"background_save", "gc"}));  // best promise first
  ASSERT_TRUE(outcome->together.has_value());
  EXPECT_NEAR(outcome->together->gain, 3.0, 0.2);
}

TEST(Search, ARemedyThatDidNothingIsNotMeasuredToTheEnd) {
  FakeJob job;
  job.causes = {{"gc", 0.01}};
  job.found = {finding("cpu.gc", 1.5)};
  job.inert = true;
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(outcome->kept.empty());
  EXPECT_EQ(outcome->attempts.front().note, "it changed nothing in this job");
  EXPECT_EQ(job.runs, 2);  // the first, which is an A, and a B
}

TEST(Search, ARemedyThatChangesTheLossesIsRefusedUnlessAllowed) {
  FakeJob job;
  job.causes = {{"scaled_decode", 0.02}};
  job.moves_losses = {{"scaled_decode", 5.0}};
  job.found = {finding("input.decode_cpu", 2.0)};
  job.situation.workers = 4;  // no more workers to offer
  job.situation.pillow = true;
  FakeJob again = job;
  const auto refused = search(job, {});
  ASSERT_TRUE(refused.ok());
  EXPECT_TRUE(refused->kept.empty());
  SearchOptions allow;
  allow.allow_changing = true;
  const auto allowed = search(again, allow);
  ASSERT_TRUE(allowed.ok());
  EXPECT_EQ(allowed->kept, std::vector<std::string>{"scaled_decode"});
}

TEST(Search, ALargerBatchIsJudgedByTheTimeForASample) {
  // A step over twice the samples takes as long as one over as many: twice as fast, though no step
  // is shorter.
  FakeJob job;
  job.found = {finding("gpu.small_batch", 2.0)};
  SearchOptions allow;
  allow.allow_changing = true;
  const auto outcome = search(job, allow);
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->kept, std::vector<std::string>{"batch_size"});
  EXPECT_NEAR(outcome->together->gain, 2.0, 0.1);
  FakeJob twice;
  twice.found = job.found;
  twice.causes = {{"batch_size", -0.02}};  // without it 20 ms less: the larger step takes 40
  twice.step = 0.04;
  const auto same = search(twice, allow);
  ASSERT_TRUE(same.ok());
  EXPECT_TRUE(same->kept.empty());
}

TEST(Search, AnInterruptKeepsWhatIsKnown) {
  FakeJob job;
  job.causes = {{"gc", 0.01}, {"background_save", 0.03}};
  job.found = {finding("stall.checkpoint", 2.0), finding("cpu.gc", 1.2)};
  job.stop_after = 6;  // in the middle of the second remedy
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(outcome->stopped);
  EXPECT_EQ(outcome->kept, std::vector<std::string>{"background_save"});
}

TEST(Search, WhatTheBudgetDoesNotReachIsNamed) {
  FakeJob job;
  job.budget = 20;
  job.found = {finding("cpu.gc", 1.5)};
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(outcome->out_of_time);
  EXPECT_EQ(outcome->not_tried, std::vector<std::string>{"gc"});
}

TEST(Losses, AreComparedBitByBitThenByTheirSpread) {
  const std::vector<double> a = {2.0, 1.5, 1.2, 1.0}, near = {2.0, 1.5, 1.2, 1.0000001};
  const std::vector<double> far = {9.0, 9.0, 9.0, 9.0}, none, broken(4, std::nan(""));
  EXPECT_EQ(check_losses(a, a, a), LossCheck::kBitEqual);
  EXPECT_EQ(check_losses(a, a, near), LossCheck::kSpread);
  EXPECT_EQ(check_losses(a, a, far), LossCheck::kDiffers);
  EXPECT_EQ(check_losses(a, a, broken), LossCheck::kDiffers);
  EXPECT_EQ(check_losses(none, a, a), LossCheck::kUnknown);
}

TEST(Search, NoTimeForAnyTrialIsNoAnswer) {
  FakeJob job;
  job.found = {finding("cpu.gc", 1.5)};
  job.causes = {{"gc", 0.01}};
  job.budget = 12;
  const auto outcome = search(job, {});
  ASSERT_TRUE(outcome.ok());
  ASSERT_TRUE(outcome->nothing_tried());
  EXPECT_GT(outcome->short_by, 0);
  const std::string text = render_fix({"python", "train.py"}, *outcome, "fix.json");
  EXPECT_NE(text.find("Nothing was tried, for want of time: gc"), std::string::npos) << text;
  EXPECT_NE(text.find("s more than --budget gave"), std::string::npos) << text;
  EXPECT_EQ(text.find("measurably"), std::string::npos) << text;
  // With what was said to be lacking, it is tried.
  FakeJob longer;
  longer.found = job.found;
  longer.causes = job.causes;
  longer.budget = 12 + 1.1 * outcome->short_by + 1;
  const auto tried = search(longer, {});
  ASSERT_TRUE(tried.ok());
  EXPECT_FALSE(tried->nothing_tried());
}

}  // namespace
}  // namespace flatout::remedy
