#include "remedy/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/contains.h"
#include "base/fs.h"
#include "base/stats.h"
#include "base/text.h"

namespace flatout::remedy {
namespace {

// Steps that a run has if they are short enough: with fewer, 5 % are hard to tell.
constexpr double kWantedSteps = 160;
constexpr double kLongestRun = 6.0;  // seconds of steady time, for jobs with long steps
constexpr double kMostSteps = 600;
constexpr double kBaselineSteps = 30;
constexpr double kFirstRunLimit = 120;  // seconds, start included
// Of the budget. A job that needs longer for its first steps leaves no time for four more starts.
constexpr double kFirstRunShare = 1.0 / 3;
constexpr double kUsualStart = 2;  // seconds; of jobs whose steps nobody marks
constexpr std::string_view kChangedNothing = "it changed nothing in this job";
constexpr double kFurther = 16;  // steps beyond the one that failed

Nanos in_seconds(double seconds) { return nanos(seconds * 1e9); }

// As far as both go.
bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::memcmp(a.data(), b.data(), std::min(a.size(), b.size()) * sizeof(double)) == 0;
}

// "" where it cannot be read.
std::string source_line(const model::Where& where) {
  const auto text = fs::Root(where.file.starts_with('/') ? "/" : ".").read(where.file, 4 << 20);
  if (!text.ok()) return "";
  std::string_view rest = *text, line;
  for (int64_t number = 1; next_line(rest, line); ++number) {
    if (number == where.line) return std::string(line);
  }
  return "";
}

double mean_step(const TrialRun& run) { return mean(run.seconds); }

class Search {
 public:
  Search(Runner& runner, const SearchOptions& options) : runner_(runner), options_(options) {}

  Result<Outcome> run() {
    const double share = kFirstRunShare * runner_.seconds_left();
    const Length first{static_cast<uint64_t>(kBaselineSteps), in_seconds(options_.baseline_seconds),
                       in_seconds(std::max(options_.baseline_seconds + 2 * kUsualStart,
                                           std::min(kFirstRunLimit, share))),
                       in_seconds(options_.baseline_seconds + kUsualStart)};
    FLATOUT_TRY(out_.baseline, runner_.run({}, first, false));
    latest_ = out_.baseline;
    if (ran_out_of_memory(latest_)) try_to_go_on();
    if (latest_.seconds.size() < kFewestSteps) {
      if (!out_.attempts.empty()) return std::move(out_);
      std::string tail(trim(out_.baseline.output_tail));
      return Error{
          Code::kBadInput,
          fmt::format("the job did {} steps that can be judged{}", out_.baseline.seconds.size(),
                      out_.baseline.exit_code > 0
                          ? fmt::format(", and ended with code {}:\n{}", out_.baseline.exit_code,
                                        escape_terminal(tail.substr(tail.rfind('\n') + 1)))
                          : std::string()),
          out_.baseline.exit_code < 0
              ? fmt::format("it was given {:.0f} s; a larger --budget gives it more",
                            1e-3 * to_ms(first.limit))
              : std::string("flatout fix needs a job that trains for at least some ten seconds; "
                            "flatout run says more")};
    }
    if (has_finding("stall.logging")) {
      // Who reads the job's output is part of the matter.
      show_output_ = true;
      FLATOUT_TRY(out_.baseline, runner_.run({}, first, true));
    }
    if (out_.kept.empty() && waited_for_disk(out_.baseline)) {
      // Storage that reads a file for the first time may be far slower than it ever is again, also
      // where the files are cold again.
      runner_.tell(fmt::format("read from the disk for the first time: {:.2f} ms a step",
                               1e3 * mean_step(out_.baseline)));
      FLATOUT_TRY(out_.baseline, runner_.run({}, first, show_output_));
    }
    if (out_.kept.empty()) latest_ = out_.baseline;
    if (is_left_alone()) return std::move(out_);
    plan_length();
    runner_.tell(
        fmt::format("as it is: {:.2f} ms a step, {}", 1e3 * mean_step(latest_), latest_.verdict));
    try_all();
    out_.left = latest_.findings;
    confirm();
    return std::move(out_);
  }

 private:
  bool has_finding(std::string_view id) const {
    return std::any_of(out_.baseline.findings.begin(), out_.baseline.findings.end(),
                       [&](const model::Finding& finding) { return finding.id == id; });
  }

  // Whether nothing is wrong with the job, and no more is asked for.
  bool is_left_alone() {
    if (!out_.baseline.findings.empty() || options_.tune || !options_.instead.empty()) return false;
    for (const Candidate& candidate : candidates({}, latest_.situation, options_.allow_changing)) {
      if (!is_skipped(candidate.remedy->id)) out_.tunings.emplace_back(candidate.remedy->id);
    }
    return true;
  }

  static bool ran_out_of_memory(const TrialRun& run) {
    return run.exit_code > 0 &&
           std::any_of(run.findings.begin(), run.findings.end(), [](const model::Finding& finding) {
             return finding.id == "gpu.oom_fragmented";
           });
  }

  // The job failed for want of memory in one piece: what helps is what it gets further with, by a
  // quarter of its steps and at least kFurther. How long its steps take does not matter.
  void try_to_go_on() {
    const double failed_at =
        static_cast<double>(out_.baseline.seconds.size()) + out_.baseline.warmup_steps;
    Length further{static_cast<uint64_t>(1.25 * failed_at + kFurther), Nanos(0),
                   in_seconds(kFirstRunLimit)};
    for (const Candidate& candidate :
         candidates(latest_.findings, latest_.situation, options_.allow_changing)) {
      if (candidate.finding != "gpu.oom_fragmented" || is_skipped(candidate.remedy->id)) continue;
      if (over() || runner_.seconds_left() <= 0) {
        out_.out_of_time |= !over();
        out_.not_tried.emplace_back(candidate.remedy->id);
        continue;
      }
      further.limit = in_seconds(std::min(kFirstRunLimit, runner_.seconds_left()));
      Attempt tried = attempt_of(candidate, setting_of(*candidate.remedy, latest_.situation));
      auto run = runner_.run(merged(out_.setting, tried.setting), further, false);
      if (!run.ok()) {
        ended_by(run.error());
        return;
      }
      const double steps = static_cast<double>(run->seconds.size()) + run->warmup_steps;
      runner_.tell(
          fmt::format("{}: {} steps, {:.0f} without", candidate.remedy->id, steps, failed_at));
      tried.b_seconds.push_back(run->seconds);
      const bool in_force = took_effect(*candidate.remedy, *run);
      tried.kept = in_force && run->exit_code <= 0 && steps > failed_at;
      if (tried.kept) tried.decision.verdict = Verdict::kGoesOn;
      tried.note =
          !in_force ? std::string(kChangedNothing)
          : tried.kept
              ? fmt::format("goes on beyond step {:.0f}, where it ran out of memory", failed_at)
              : fmt::format("ran out of memory all the same, after {:.0f} steps", steps);
      const bool kept = tried.kept;
      if (kept) {
        out_.setting = merged(out_.setting, tried.setting);
        out_.kept.emplace_back(candidate.remedy->id);
        latest_ = std::move(run).value();
      }
      seen_.insert(candidate.remedy);
      out_.attempts.push_back(std::move(tried));
      if (kept) return;  // one allocator is enough
    }
  }

  // The same number of steps for all runs: the same work.
  void plan_length() {
    const TrialRun& first = latest_;
    const double step = mean_step(first);
    const double steady = std::clamp(kWantedSteps * step, options_.run_seconds, kLongestRun);
    const double steps =
        std::clamp(steady / step, static_cast<double>(kFewestSteps) + 4, kMostSteps);
    const double expected = first.start_seconds + (steps + first.warmup_steps) * step;
    length_.steps = static_cast<uint64_t>(steps + first.warmup_steps);
    length_.limit = in_seconds(3 * expected + 10);
    if (first.outside) length_.look_from = in_seconds(expected);
    start_seconds_ = first.start_seconds + 1;
    steady_seconds_ = expected - first.start_seconds;
    // The first run is an A as well, cut to the length of the others.
    last_a_ = first;
    last_a_setting_ = out_.setting;
    const auto judged = static_cast<size_t>(steps);
    if (last_a_->seconds.size() > judged) last_a_->seconds.resize(judged);
  }

  // What A B B A takes, if B is as fast as is promised.
  double look_seconds(double gain) const {
    // Steps that nobody marks are looked at no earlier, however fast they are.
    const double with_it = latest_.outside ? 1 : 1 / std::max(1.0, gain);
    return 4 * start_seconds_ + 2 * steady_seconds_ * (1 + with_it);
  }

  // Each that fits gets a first look; what looks poor then waits until all others had theirs. So
  // one that does nothing cannot use up the time of one that helps.
  void try_all() {
    for (;;) {
      if (const auto next = next_candidate()) {
        seen_.insert(next->remedy);
        const double lacking = look_seconds(next->predicted.value_or(1)) - runner_.seconds_left();
        if (over() || lacking > 0) {
          out_.out_of_time |= !over();
          if (!next->finding.empty()) {
            out_.short_by = out_.not_tried.empty() ? lacking : std::min(out_.short_by, lacking);
            out_.not_tried.emplace_back(next->remedy->id);
          }
          continue;
        }
        Series series;
        series.a_setting = out_.setting;
        series.earlier_looks = looks_[next->remedy];
        attempt(
            {attempt_of(*next, setting_of(*next->remedy, latest_.situation)), std::move(series)});
      } else if (!waiting_.empty()) {
        const auto best = std::max_element(waiting_.begin(), waiting_.end(),
                                           [](const Pending& x, const Pending& y) {
                                             return x.series.decision.gain < y.series.decision.gain;
                                           });
        Pending pending = std::move(*best);
        waiting_.erase(best);
        if (over() || runner_.seconds_left() < look_seconds(pending.series.decision.gain)) {
          out_.out_of_time |= !over();
          conclude(std::move(pending));
        } else {
          attempt(std::move(pending));
        }
      } else {
        return;
      }
    }
  }

  // The first that fits what is found now, was not tried, and would change anything.
  std::optional<Candidate> next_candidate() {
    std::vector<Candidate> fitting;
    for (const Remedy* remedy : options_.instead)
      fitting.push_back({remedy, "", std::nullopt, std::nullopt});
    if (fitting.empty()) {
      fitting = candidates(latest_.findings, latest_.situation, options_.allow_changing);
    }
    for (Candidate& candidate : fitting) {
      if (seen_.contains(candidate.remedy) || is_skipped(candidate.remedy->id)) continue;
      const Setting setting = setting_of(*candidate.remedy, latest_.situation);
      if (merged(out_.setting, setting) != out_.setting) return std::move(candidate);
    }
    return std::nullopt;
  }

  bool is_skipped(std::string_view id) const {
    return std::find(options_.skip.begin(), options_.skip.end(), id) != options_.skip.end();
  }

  bool over() const { return out_.stopped || !out_.stopped_by.empty(); }

  // One run; nothing when the search is over.
  std::optional<TrialRun> one(const Setting& setting) {
    auto run = runner_.run(setting, length_, show_output_);
    if (run.ok()) {
      count_by_sample(*run, setting);
      return std::move(run).value();
    }
    ended_by(run.error());
    return std::nullopt;
  }

  void ended_by(const Error& error) {
    if (runner_.stopped()) {
      out_.stopped = true;
    } else {
      out_.stopped_by = error.message;
    }
  }

  // What works within the job says so; of the rest it is taken for granted.
  static bool took_effect(const Remedy& remedy, const TrialRun& run) {
    if (remedy.agent.empty() || !remedy.environment.empty()) return true;
    return std::find(run.applied.begin(), run.applied.end(), remedy.agent.front().first) !=
           run.applied.end();
  }

  // Steps over more samples take longer: what counts is the time for as many as the job itself has.
  static void count_by_sample(TrialRun& run, const Setting& setting) {
    const auto factor = setting.agent.find("batch_size");
    if (factor == setting.agent.end() ||
        std::find(run.applied.begin(), run.applied.end(), "batch_size") == run.applied.end()) {
      return;
    }
    const double times = parse_number<double>(factor->second).value_or(1);
    for (double& seconds : run.seconds) seconds /= times;
  }

  // A B B A ... until there is a decision, or no time. The first A may be a run that was made
  // before.
  struct Series {
    std::vector<TrialRun> a, b;
    std::vector<TrialSteps> runs;
    std::vector<bool> is_b;
    Setting a_setting;
    size_t earlier_looks = 0;  // of the same remedy, on top of something else
    Decision decision;
    std::string broken;  // what B did instead of training
  };

  // A remedy that is being tried.
  struct Pending {
    Attempt tried;
    Series series;
  };

  // Goes on with `out` until there is a decision, no time, or `enough` of it.
  void alternate(const std::string& label, const Setting& b, const Remedy* remedy, Series& out,
                 const std::function<bool(const Decision&)>& enough) {
    const Setting& a = out.a_setting;
    for (;;) {
      for (const bool is_b : {false, true, true, false}) {
        std::optional<TrialRun> run;
        if (out.runs.empty() && last_a_ && last_a_setting_ == a) {
          run = last_a_;
        } else {
          run = one(is_b ? b : a);
        }
        if (!run) return;
        if (run->seconds.size() < kFewestSteps) {
          const std::string tail(trim(run->output_tail));
          out.broken = fmt::format("{} steps{}", run->seconds.size(),
                                   tail.empty() ? "" : ": " + tail.substr(tail.rfind('\n') + 1));
          return;
        }
        if (run->outside != out_.baseline.outside) {
          out.broken = "its steps were told in another way than those of the first run";
          return;
        }
        runner_.tell(fmt::format("{}: {} {:.2f} ms a step", label, is_b ? "with it" : "without",
                                 1e3 * mean_step(*run)));
        if (is_b && remedy != nullptr && !took_effect(*remedy, *run)) {
          out.broken = kChangedNothing;
          return;
        }
        out.runs.push_back({run->seconds, run->others});
        out.is_b.push_back(is_b);
        if (!is_b) {
          last_a_ = *run;
          last_a_setting_ = a;
        }
        (is_b ? out.b : out.a).push_back(std::move(*run));
      }
      out.decision =
          decide(out.runs, out.is_b, out.a.front().situation.online_cores, out.earlier_looks);
      if (out.decision.verdict != Verdict::kUndecided) return;
      if (enough(out.decision)) return;
      if (runner_.seconds_left() < look_seconds(out.decision.gain)) {
        out_.out_of_time = true;
        return;
      }
    }
  }

  Attempt attempt_of(const Candidate& candidate, const Setting& setting) const {
    Attempt out;
    out.candidate = candidate;
    out.what = filled(candidate.remedy->what, latest_.situation);
    out.code = filled(candidate.remedy->code, latest_.situation);
    // What the job does itself is better left out than softened.
    if (candidate.finding == "cpu.gc" && candidate.where &&
        contains(source_line(*candidate.where), "gc.collect(")) {
      out.code = "no gc.collect() in the loop";
    }
    out.setting = setting;
    return out;
  }

  void attempt(Pending pending) {
    const Attempt& tried = pending.tried;
    const Remedy& remedy = *tried.candidate.remedy;
    // Half of what is promised, or nothing that could be kept.
    const double poor = std::max(kLeastGain, (1 + tried.candidate.predicted.value_or(1)) / 2);
    alternate(std::string(remedy.id), merged(pending.series.a_setting, tried.setting), &remedy,
              pending.series, [&](const Decision& decision) {
                return decision.gain < poor && next_candidate().has_value();
              });
    const Decision& decision = pending.series.decision;
    if (decision.verdict == Verdict::kUndecided && decision.pairs > 0 && !over()) {
      waiting_.push_back(std::move(pending));
    } else {
      conclude(std::move(pending));
    }
  }

  // What came of it, and whether it is kept.
  void conclude(Pending pending) {
    Attempt& tried = pending.tried;
    Series& series = pending.series;
    tried.decision = series.decision;
    tried.note = series.broken;
    if (over() && tried.note.empty() && tried.decision.verdict == Verdict::kUndecided &&
        !series.a.empty() && !series.b.empty()) {
      tried.note =
          fmt::format("{:.2f} ms a step with it, {:.2f} without: interrupted before that was sure",
                      1e3 * mean_step(series.b.back()), 1e3 * mean_step(series.a.front()));
    }
    if (!series.b.empty()) tried.warmed = series.b.back().warmed;
    for (const TrialRun& run : series.a) tried.a_seconds.push_back(run.seconds);
    for (const TrialRun& run : series.b) tried.b_seconds.push_back(run.seconds);
    if (series.a.size() >= 2 && !series.b.empty()) {
      tried.losses = check_losses(series.a[0].losses, series.a[1].losses, series.b[0].losses);
    }
    if (tried.decision.verdict == Verdict::kBetter) {
      const Effect effect = tried.candidate.remedy->effect;
      if (tried.losses == LossCheck::kDiffers && !options_.allow_changing) {
        tried.note = "not kept: it changes the losses";
      } else if (effect == Effect::kExact && tried.losses == LossCheck::kSpread &&
                 same_bits(series.a[0].losses, series.a[1].losses)) {
        tried.note = "kept, but not exact: the last bits of the losses differ";
        tried.kept = true;
      } else {
        tried.kept = true;
      }
    }
    const bool kept = tried.kept;
    out_.attempts.push_back(std::move(tried));
    if (!kept) return;
    const Attempt& last = out_.attempts.back();
    out_.setting = merged(out_.setting, last.setting);
    out_.kept.emplace_back(last.candidate.remedy->id);
    latest_ = std::move(series.b.back());
    last_a_.reset();
    // Those that wait were measured on top of something else. What looked like a gain begins anew,
    // with the looks that it has left.
    for (Pending& other : std::exchange(waiting_, {})) {
      if (other.series.decision.gain > kLeastGain) {
        const Remedy* remedy = other.tried.candidate.remedy;
        looks_[remedy] += other.series.decision.pairs / kPairsPerLook;
        seen_.erase(remedy);
      } else {
        conclude(std::move(other));
      }
    }
  }

  // One that was kept alone has just been measured against nothing.
  void confirm() {
    if (out_.kept.empty()) return;
    if (out_.kept.size() == 1) {
      for (const Attempt& attempt : out_.attempts) {
        if (attempt.kept && attempt.decision.pairs > 0) out_.together = attempt.decision;
      }
      return;
    }
    if (over()) return;
    runner_.tell("all together against nothing");
    last_a_.reset();
    Series series;
    alternate("all together", out_.setting, nullptr, series, [](const Decision&) { return false; });
    if (series.decision.pairs > 0) out_.together = series.decision;
  }

  Runner& runner_;
  SearchOptions options_;
  Outcome out_;
  std::set<const Remedy*> seen_;
  std::map<const Remedy*, size_t> looks_;  // of those that begin anew
  std::vector<Pending> waiting_;           // undecided, in favour of others
  TrialRun latest_;                        // the latest run of what is kept: what is found now
  Length length_;
  double start_seconds_ = 0, steady_seconds_ = 0;  // that a run takes
  bool show_output_ = false;
  std::optional<TrialRun> last_a_;
  Setting last_a_setting_;
};

}  // namespace

std::string_view name(LossCheck check) {
  switch (check) {
    case LossCheck::kBitEqual:
      return "bit-equal";
    case LossCheck::kSpread:
      return "within the spread";
    case LossCheck::kDiffers:
      return "differ";
    case LossCheck::kUnknown:
      break;
  }
  return "not seen";
}

LossCheck check_losses(const std::vector<double>& a1, const std::vector<double>& a2,
                       const std::vector<double>& b) {
  const size_t count = std::min({a1.size(), a2.size(), b.size()});
  if (count == 0) return LossCheck::kUnknown;
  if (same_bits(a1, b)) return LossCheck::kBitEqual;
  const std::span<const double> first(a1.data(), count), second(a2.data(), count),
      other(b.data(), count);
  // How much losses differ from step to step, and between two runs of one setting.
  double jitter = 0;
  for (size_t i = 1; i < count; ++i) jitter += std::abs(first[i] - first[i - 1]);
  jitter /= static_cast<double>(std::max<size_t>(1, count - 1));
  const double between = std::abs(mean(first) - mean(second));
  const double off = std::abs(mean(first) - mean(other));
  const double allowed = std::max({2 * between, jitter, 1e-6 * std::abs(mean(first))});
  return off <= allowed ? LossCheck::kSpread : LossCheck::kDiffers;  // NaN: differs
}

Result<Outcome> search(Runner& runner, const SearchOptions& options) {
  return Search(runner, options).run();
}

}  // namespace flatout::remedy
