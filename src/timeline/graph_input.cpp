#include "timeline/graph_input.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "base/stats.h"
#include "timeline/intervals.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr int64_t kRevealed = INT64_MIN;  // value2 of slices that were made here
// Share of the forward slices in which Python makes batches, from which nothing else can be what
// they wait for: who is ahead of its consumer pauses.
constexpr double kWithoutPause = 0.85;
// And of the time in which the process computes nothing, below which there is no wait to speak of.
constexpr double kLeastWait = 0.05;
constexpr double kShortPause = 0.1;  // of a step
constexpr double kCompiles = 4;      // times the median from which a call did more than a step
constexpr std::ptrdiff_t kEnoughReadings = 20;

int64_t ns(TimePoint t) { return t.time_since_epoch().count(); }

bool on_core(ThreadState state) {
  return state == ThreadState::kOnCpuPython || state == ThreadState::kOnCpuNative ||
         state == ThreadState::kKernel;
}

std::vector<double> lengths_of(const std::vector<Interval64>& pieces) {
  std::vector<double> out;
  out.reserve(pieces.size());
  for (const Interval64& p : pieces) out.push_back(static_cast<double>(p.end - p.begin));
  return out;
}

/// When batches were being made: who calls Python for each sample does something of its own between
/// two calls, which is no pause while it is short beside the calls or the `step`.
Intervals making_of(std::vector<Interval64> fed, double step) {
  const auto shortest_pause =
      static_cast<int64_t>(std::max(median(lengths_of(fed)), kShortPause * step));
  const Intervals calls = unite(std::move(fed));
  if (calls.empty()) return {};
  Intervals out;
  int64_t end = calls.all().front().begin;
  for (const Interval64& call : calls.all()) {
    out.add(call.begin - end < shortest_pause ? end : call.begin, call.end);
    end = call.end;
  }
  return out;
}

void take_back(Run& run, ThreadId trainer) {
  std::vector<Slice> revealed;
  for (const Slice& s : run.slices)
    if (s.kind == SliceKind::kInputWait && s.value2 == kRevealed) revealed.push_back(s);
  if (revealed.empty()) return;
  std::erase_if(run.slices, [](const Slice& s) {
    return s.kind == SliceKind::kInputWait && s.value2 == kRevealed;
  });
  auto wait = revealed.begin();
  for (Slice& s : run.slices) {
    if (s.kind != SliceKind::kForward || s.thread != trainer) continue;
    while (wait != revealed.end() && wait->end < s.begin) ++wait;
    if (wait != revealed.end() && wait->end == s.begin) s.begin = wait->begin;
  }
}

/// What the process does between two readings of the training thread.
struct Tick {
  TimePoint at;         // of the later one
  double seconds = 0;   // that it stands for
  double computed = 0;  // by the thread that computed longest, of those that make no batches
};

/// Share of the time within `graphs` in which nobody in the trainer's process computes but those
/// who make batches. A thread that waits for a core computes as far as it is not they who have it.
/// nullopt: too few readings.
std::optional<double> idle_share(const Run& run, ThreadId trainer, const Intervals& graphs,
                                 const std::vector<bool>& feeds) {
  const ProcessId process = run.threads[trainer].process;
  std::vector<const StackReading*> readings;
  std::vector<Tick> ticks;
  double fed = 0, worked = 0;
  for (const StackReading& r : run.readings) {
    if (r.thread >= run.threads.size() || run.threads[r.thread].process != process) continue;
    if (overlap(graphs, ns(r.at), ns(r.at) + 1) == 0) continue;
    readings.push_back(&r);
    if (on_core(r.state)) (feeds[r.thread] ? fed : worked) += r.weight_us;
    if (r.thread == trainer) ticks.push_back({r.at, static_cast<double>(r.weight_us)});
  }
  const auto earlier = [](const Tick& a, const Tick& b) { return a.at < b.at; };
  std::sort(ticks.begin(), ticks.end(), earlier);
  const double theirs = fed > 0 ? fed / (fed + worked) : 0;
  for (const StackReading* r : readings) {
    const auto tick = std::lower_bound(ticks.begin(), ticks.end(), Tick{r->at}, earlier);
    if (tick == ticks.end() || feeds[r->thread]) continue;
    const double part = on_core(r->state) ? 1 : r->state == ThreadState::kRunQueue ? 1 - theirs : 0;
    tick->computed = std::max(tick->computed, std::min(tick->seconds, part * r->weight_us));
  }
  double all = 0, computed = 0;
  for (const Tick& t : ticks) {
    all += t.seconds;
    computed += t.computed;
  }
  if (std::ssize(ticks) < kEnoughReadings || all <= 0) return std::nullopt;
  return 1 - computed / all;
}

}  // namespace

void reveal_graph_input(Run& run, ThreadId trainer) {
  take_back(run, trainer);
  if (trainer >= run.threads.size()) return;
  const ProcessId process = run.threads[trainer].process;
  std::vector<Interval64> fed, forward;
  std::vector<bool> feeds(run.threads.size());
  for (const Slice& s : run.slices) {
    if (s.thread >= run.threads.size() || run.threads[s.thread].process != process) continue;
    if (s.kind == SliceKind::kFeed && s.thread != trainer) {
      fed.push_back({ns(s.begin), ns(s.end)});
      feeds[s.thread] = true;
    }
    if (s.kind == SliceKind::kForward && s.thread == trainer)
      forward.push_back({ns(s.begin), ns(s.end)});
  }
  if (fed.empty() || forward.empty()) return;
  // The first calls compile the graph.
  const double step = median(lengths_of(forward));
  std::erase_if(forward, [&](const Interval64& f) {
    return static_cast<double>(f.end - f.begin) > kCompiles * step;
  });
  const Intervals graphs = unite(std::move(forward));
  const Intervals making = making_of(std::move(fed), step);
  if (making.empty()) return;
  if (static_cast<double>(overlap(making, graphs)) <
      kWithoutPause * static_cast<double>(graphs.length())) {
    return;
  }
  const auto idle = idle_share(run, trainer, graphs, feeds);
  if (!idle || *idle < kLeastWait) return;
  std::vector<Slice> waits;
  for (Slice& s : run.slices) {
    if (s.kind != SliceKind::kForward || s.thread != trainer) continue;
    const auto made = static_cast<double>(overlap(making, ns(s.begin), ns(s.end)));
    // The batch is taken first.
    Slice wait;
    wait.kind = SliceKind::kInputWait;
    wait.thread = trainer;
    wait.value2 = kRevealed;
    wait.begin = s.begin;
    wait.end = s.begin + Nanos(static_cast<int64_t>(made * *idle));
    if (wait.end <= wait.begin) continue;
    s.begin = wait.end;
    waits.push_back(wait);
  }
  const auto by_end = [](const Slice& a, const Slice& b) { return a.end < b.end; };
  const auto middle =
      static_cast<std::ptrdiff_t>(run.slices.size());  // both halves are in order of their ends
  run.slices.insert(run.slices.end(), waits.begin(), waits.end());
  std::inplace_merge(run.slices.begin(), run.slices.begin() + middle, run.slices.end(), by_end);
}

}  // namespace flatout::timeline
