// One rank's Run in a few numbers: its steps, what it waits in collectives, how it stands.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "base/text.h"
#include "diagnose/diagnose.h"
#include "diagnose/ranks.h"
#include "diagnose/view.h"

namespace flatout::diagnose {

using model::Part;
using model::Rank;
using model::RankState;
using model::Run;
using model::Slice;
using model::SliceKind;
using model::Step;

namespace {

constexpr size_t kMostSteps = 2048;  // a power of two: all ranks keep the same ones
constexpr size_t kMostLines = 24;
constexpr double kWorthALine = 1e-4;  // seconds a step
constexpr double kInVain = 5;         // median steps

bool blocked(Act act) {
  return !on_cpu(act) && act != Act::kRunQueue && act != Act::kRead && act != Act::kGil;
}

void keep_steps(const Run& run, Rank& rank) {
  std::vector<const Slice*> met;
  for (const Slice& s : run.slices) {
    if (s.kind == SliceKind::kCommunication && s.thread == run.steps.thread) met.push_back(&s);
  }
  int64_t stride = 1;
  const auto count = static_cast<int64_t>(run.steps.steps.size());
  while (count / stride > static_cast<int64_t>(kMostSteps)) stride *= 2;
  size_t m = 0;
  for (const Step& step : run.steps.steps) {
    if (!step.warmup) rank.longest_step = std::max(rank.longest_step, step.length());
    while (m < met.size() && met[m]->end <= step.end) ++m;
    const bool aside = !step.judged() && !step.warmup && rank.aside.size() < kMostSteps;
    if (!aside && (!step.judged() || step.index % stride != 0)) continue;
    const bool inside = m > 0 && met[m - 1]->end > step.begin;
    (aside ? rank.aside : rank.judged)
        .push_back({step.index, inside ? met[m - 1]->end : step.end, step.length(),
                    step.part(Part::kCommunication)});
  }
  if (run.steps.steps.empty()) return;
  rank.last_step = run.steps.steps.back().index;
  rank.last_step_end = run.steps.steps.back().end;
}

/// Where the training thread is before steps that are not judged, or within them, other than among
/// the others.
void find_aside(const RunView& view, Rank& rank) {
  const Run& run = view.run();
  std::map<model::FrameId, double> before, inside;  // a step's beginning
  size_t at = 0;
  const auto& steps = run.steps.steps;
  for (const model::StackReading& r : run.readings) {
    if (r.thread != view.trainer()) continue;
    while (at < steps.size() && steps[at].end <= r.at) ++at;
    if (at == steps.size()) break;
    if (steps[at].judged() || steps[at].warmup) continue;
    const Traits traits = view.stacks().traits(r.stack);
    if ((traits & kInCollective) != 0 && blocked(act_of(r, traits))) continue;
    const model::FrameId user = view.stacks().user_frame(r.stack);
    if (user != 0) (r.at < steps[at].begin ? before : inside)[user] += r.weight_us;
  }
  const auto& frames = before.empty() ? inside : before;
  const auto most =
      std::max_element(frames.begin(), frames.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != frames.end()) rank.aside_at = view.stacks().where(most->first);
}

void keep_collectives(const RunView& view, Rank& rank) {
  const Run& run = view.run();
  std::map<model::StringId, double> names;
  const auto& steady = view.steps().steady;
  size_t step = 0;
  for (const Slice& s : run.slices) {
    if (s.kind != SliceKind::kCommunication || s.thread != view.trainer()) continue;
    while (step < steady.size() && steady[step]->end < s.end) ++step;
    if (step >= steady.size()) break;
    if (s.begin >= steady[step]->begin) names[s.name] += to_s(s.length());
  }
  for (const auto& [name, seconds] : names) {
    rank.collectives.push_back(
        {std::string(run.string(name)), seconds / static_cast<double>(view.steps().count)});
  }
  std::sort(rank.collectives.begin(), rank.collectives.end(),
            [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  rank.meets_at = view.where(
      [](const Cell& c) { return c.role == Role::kTrainer && c.part == Part::kCommunication; });
}

void keep_lines(const RunView& view, Rank& rank) {
  std::map<model::FrameId, double> frames;
  for (const Cell& c : view.profile().cells()) {
    const bool meets =
        c.part == Part::kCommunication || (blocked(c.act) && (c.traits & kInCollective) != 0);
    if (c.role == Role::kTrainer && c.user != 0 && !meets) frames[c.user] += c.seconds;
  }
  const double trained =
      view.profile().seconds([](const Cell& c) { return c.role == Role::kTrainer; });
  const double all = view.per_step(Role::kTrainer, [](const Cell&) { return true; });
  if (trained <= 0) return;
  for (const auto& [frame, seconds] : frames) {
    const double a_step = seconds / trained * all;
    if (a_step >= kWorthALine) rank.lines.push_back({view.stacks().where(frame), a_step});
  }
  std::sort(rank.lines.begin(), rank.lines.end(), [](const auto& a, const auto& b) {
    if (a.seconds != b.seconds) return a.seconds > b.seconds;
    return std::tie(a.where.file, a.where.line) < std::tie(b.where.file, b.where.line);
  });
  if (rank.lines.size() > kMostLines) rank.lines.resize(kMostLines);
}

/// The user's lines from which the training thread calls MPI and waits there for the others, on a
/// core. The native code under Python is seen in some readings, which speak for all of a line.
std::set<model::FrameId> lines_in_mpi(const RunView& view, TimePoint since) {
  std::map<model::FrameId, double> seen;  // weight in MPI less that outside
  const Run& run = view.run();
  for (size_t i = run.readings.size(); i-- > 0 && run.readings[i].at >= since;) {
    const model::StackReading& r = run.readings[i];
    if (r.thread != view.trainer()) continue;
    const bool native = view.stacks().native_call(r.stack) != NativeCall::kUnseen ||
                        (view.stacks().traits(r.stack) & kHasPython) == 0;
    if (!native) continue;
    seen[view.stacks().user_frame(r.stack)] += view.stacks().in_mpi(r.stack) ? 1.0 : -1.0;
  }
  std::set<model::FrameId> out;
  for (const auto& [frame, balance] : seen) {
    if (balance > 0) out.insert(frame);
  }
  return out;
}

/// What the training thread has done since it was time for the next step.
void find_state(const RunView& view, Rank& rank) {
  const Run& run = view.run();
  if (run.steps.steps.empty()) return;
  const TimePoint since = rank.last_step_end + run.steps.summary.median;
  const std::set<model::FrameId> in_mpi = lines_in_mpi(view, since);
  std::map<RankState, double> states;
  std::map<RankState, std::map<model::FrameId, double>> lines;
  for (size_t i = run.readings.size(); i-- > 0 && run.readings[i].at >= since;) {
    const model::StackReading& r = run.readings[i];
    if (r.thread != view.trainer()) continue;
    const Traits traits = view.stacks().traits(r.stack);
    const Act act = act_of(r, traits);
    RankState state = RankState::kWorking;
    if (r.state == model::ThreadState::kStopped) {
      state = RankState::kStopped;
    } else if (blocked(act)) {
      state = (traits & kInCollective) != 0 ? RankState::kInCollective : RankState::kBlocked;
    } else if (in_mpi.contains(view.stacks().user_frame(r.stack))) {
      state = RankState::kInCollective;
    }
    states[state] += r.weight_us;
    lines[state][view.stacks().user_frame(r.stack)] += r.weight_us;
  }
  double most = 0;
  for (const auto& [state, weight] : states) {
    if (weight <= most) continue;
    most = weight;
    rank.state = state;
  }
  // Who waited in vain fails in the end and is busy with that: not what it stood in.
  const double usual = to_s(run.steps.summary.median);
  if (run.finished && states[RankState::kInCollective] * 1e-6 > kInVain * usual) {
    rank.state = RankState::kInCollective;
  }
  model::FrameId line = 0;
  most = 0;
  for (const auto& [frame, weight] : lines[rank.state]) {
    if (frame == 0 || weight <= most) continue;
    most = weight;
    line = frame;
  }
  if (line != 0) rank.at = view.stacks().where(line);
}

}  // namespace

Rank summarize_rank(const Run& run) {
  Rank rank;
  rank.host = run.fact("host.name");
  rank.begin_unix_ns = parse_number<int64_t>(run.fact("run.begin_unix_ns")).value_or(0);
  rank.recorded = run.end - run.begin;
  rank.program = run.fact("code.file");
  rank.steps = run.steps.summary;
  rank.samples = rank.steps.samples_per_s * to_s(rank.steps.mean);
  rank.finished = run.finished;
  rank.wait_status = run.wait_status;
  rank.end = run.end;
  if (const model::Process* process = run.main_process()) rank.pid = process->pid;
  rank.findings = diagnose(run).findings;
  const RunView view(run);
  for (size_t p = 0; p < model::kPartCount; ++p) rank.parts[p] = view.steps().parts[p];
  keep_steps(run, rank);
  if (!rank.aside.empty()) find_aside(view, rank);
  if (view.steps().count > 0) {
    keep_collectives(view, rank);
    keep_lines(view, rank);
  }
  find_state(view, rank);
  return rank;
}

std::string not_one_job(std::span<const Rank> ranks) {
  // Clocks of several machines agree no better than this; a launcher takes a moment for each.
  constexpr double kClocks = 60, kMoment = 10;
  const Rank* first = nullptr;  // of those that no launcher has numbered
  for (const Rank& rank : ranks) {
    if (rank.world > 0) continue;
    if (first == nullptr) {
      first = &rank;
      continue;
    }
    if (!first->program.empty() && !rank.program.empty() && first->program != rank.program) {
      return fmt::format("{} ran {}, {} ran {}", first->folder, first->program, rank.folder,
                         rank.program);
    }
    if (first->begin_unix_ns == 0 || rank.begin_unix_ns == 0) continue;
    if (first->begin_unix_ns == rank.begin_unix_ns && first->pid == rank.pid &&
        first->host == rank.host) {
      return fmt::format("{} and {} are one recording", first->folder, rank.folder);
    }
    const Rank& early = first->begin_unix_ns <= rank.begin_unix_ns ? *first : rank;
    const Rank& late = &early == first ? rank : *first;
    const double apart =
        static_cast<double>(late.begin_unix_ns - early.begin_unix_ns) * 1e-9 - to_s(early.recorded);
    if (apart > (early.host == late.host ? kMoment : kClocks) ||
        (apart > 0 && early.host == late.host && early.finished)) {
      return fmt::format("{} had ended when {} began", early.folder, late.folder);
    }
  }
  return "";
}

}  // namespace flatout::diagnose
