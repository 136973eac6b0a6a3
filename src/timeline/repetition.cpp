#include "timeline/repetition.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/stats.h"
#include "timeline/loop_rounds.h"
#include "timeline/step_evidence.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr size_t kMinReadings = 40;
constexpr size_t kMinRounds = 5;
constexpr double kRegular = 0.75;  // of the rounds must take within half of the usual time

// Where the loop was in one reading: any value, equal for equal places.
using Place = uint64_t;

struct Visit {
  TimePoint at;
  Place place = 0;
  StackId stack = 0;
};

std::vector<FrameId> path_of(const Run& run, StackId stack) {
  std::vector<FrameId> path;
  for (; stack != 0 && stack < run.stacks.size(); stack = run.stacks[stack].parent) {
    const FrameId frame = run.stacks[stack].frame;
    if (run.frames[frame].kind != FrameKind::kUnderPython) path.push_back(frame);
  }
  std::ranges::reverse(path);
  return path;
}

// The place of each reading: the line of the deepest frame that nearly all readings share and the
// function it calls. Without stacks: what the thread does for the system.
std::vector<Visit> visits_of(const Run& run, ThreadId thread) {
  std::vector<const StackReading*> readings;
  for (const StackReading& reading : run.readings) {
    if (reading.thread == thread) readings.push_back(&reading);
  }
  // Imports and set-up come first and are not part of the loop.
  readings.erase(readings.begin(),
                 readings.begin() + static_cast<std::ptrdiff_t>(readings.size() / 4));
  std::map<StackId, std::vector<FrameId>> paths;
  size_t with_stack = 0;
  for (const StackReading* r : readings) {
    with_stack += r->stack != 0;
    if (!paths.contains(r->stack)) paths[r->stack] = path_of(run, r->stack);
  }
  std::vector<Visit> visits;
  if (with_stack * 2 < readings.size()) {
    for (const StackReading* r : readings) {
      const auto state = static_cast<uint64_t>(r->state);
      visits.push_back({r->at, state << 32 | static_cast<uint16_t>(r->syscall), 0});
    }
    return visits;
  }
  const auto same_function = [&](FrameId a, FrameId b) {
    return run.frames[a].function == run.frames[b].function &&
           run.frames[a].file == run.frames[b].file;
  };
  size_t depth = 0;
  for (;; ++depth) {
    std::map<std::pair<StringId, StringId>, size_t> functions;
    size_t most = 0;
    for (const StackReading* r : readings) {
      const std::vector<FrameId>& path = paths[r->stack];
      if (depth >= path.size()) continue;
      const Frame& frame = run.frames[path[depth]];
      if (makes_items(run.string(frame.function), run.string(frame.file))) continue;
      most = std::max(most, ++functions[{frame.function, frame.file}]);
    }
    if (most * 10 < with_stack * 9) break;
  }
  if (depth == 0) return visits;
  const size_t loop = depth - 1;
  FrameId loop_frame = 0;
  std::map<FrameId, size_t> votes;
  for (const StackReading* r : readings) {
    if (const auto& path = paths[r->stack]; loop < path.size()) {
      if (++votes[path[loop]] > votes[loop_frame]) loop_frame = path[loop];
    }
  }
  for (const StackReading* r : readings) {
    const std::vector<FrameId>& path = paths[r->stack];
    if (loop >= path.size() || !same_function(path[loop], loop_frame)) continue;
    const StringId callee = loop + 1 < path.size() ? run.frames[path[loop + 1]].function : 0;
    visits.push_back({r->at, uint64_t{run.frames[path[loop]].line} << 32 | callee, r->stack});
  }
  return visits;
}

// Rounds of fewer readings than this may be no more than chance: a shorter loop's places, read in
// no order, come and go about every fourth reading. And the part of the readings elsewhere that
// ones a round after the place must be there beyond chance.
constexpr double kFewReadings = 6, kBeyondChance = 0.25;

constexpr Nanos kSampleBeat{1'000'000'000 / model::kNativeSamplesPerSecond};

bool has_python(const Run& run, const std::vector<Visit>& visits) {
  return std::ranges::any_of(visits, [&](const Visit& v) {
    for (StackId at = v.stack; at != 0; at = run.stacks[at].parent) {
      if (is_python(run.frames[run.stacks[at].frame].kind)) return true;
    }
    return false;
  });
}

/// One visit for each sample.
void merge_samples(std::vector<Visit>& visits) {
  const Visit* kept = nullptr;
  std::vector<Visit> fresh;
  for (const Visit& v : visits) {
    if (kept != nullptr && v.stack == kept->stack && v.at - kept->at < kSampleBeat * 5 / 4) {
      continue;
    }
    fresh.push_back(v);
    kept = &v;
  }
  visits = std::move(fresh);
}

/// Whether the thread is still at a place at the next sample, beyond chance. An even beat that a
/// faster loop does not wait for comes by each of its places in turn: that is as regular as a loop,
/// of a round that has nothing to do with the loop's.
bool stays(const std::vector<Visit>& visits, const std::map<Place, size_t>& places) {
  const double all = static_cast<double>(visits.size());
  double chance = 0, same = 0;
  for (const auto& [place, count] : places) {
    const double share = static_cast<double>(count) / all;
    chance += share * share;
  }
  for (size_t i = 1; i < visits.size(); ++i) same += visits[i].place == visits[i - 1].place;
  return same / all > chance + kBeyondChance * (1 - chance);
}

/// Of the readings at `place`, the part that has one there a round later, too.
double returns(const std::vector<Visit>& visits, Place place, Nanos round, Nanos tolerance) {
  size_t later = 0, all = 0, there = 0;
  for (const Visit& v : visits) {
    if (v.place != place) continue;
    while (later < visits.size() && visits[later].at < v.at + round - tolerance) ++later;
    if (later == visits.size()) break;
    if (visits[later].at > v.at + round + tolerance) continue;
    ++all;
    there += visits[later].place == place;
  }
  return all == 0 ? 0 : static_cast<double>(there) / static_cast<double>(all);
}

struct Rounds {
  std::vector<TimePoint> starts;
  double score = 0;
};

// The moments at which the thread comes to `place`, if they are regular.
Rounds rounds_of(const std::vector<Visit>& visits, Place place, double period_ns) {
  Rounds rounds;
  size_t count = 0;
  for (size_t i = 0; i < visits.size(); ++i) {
    if (visits[i].place != place) continue;
    ++count;
    if (i > 0 && visits[i - 1].place != place) rounds.starts.push_back(visits[i].at);
  }
  if (rounds.starts.size() < kMinRounds + 1) return rounds;
  std::vector<double> lengths;
  for (size_t i = 1; i < rounds.starts.size(); ++i) {
    lengths.push_back(static_cast<double>((rounds.starts[i] - rounds.starts[i - 1]).count()));
  }
  const double usual = median(lengths);
  // A place that readings often miss cannot tell rounds apart.
  if (usual < 3 * period_ns) return rounds;
  const auto regular =
      std::ranges::count_if(lengths, [&](double l) { return l > 0.5 * usual && l < 1.5 * usual; });
  const double share = static_cast<double>(regular) / static_cast<double>(lengths.size());
  const double all = static_cast<double>(visits.size());
  const double covered = usual * static_cast<double>(lengths.size()) /
                         static_cast<double>((visits.back().at - visits.front().at).count());
  if (share < kRegular || covered < 0.5) return rounds;
  const double stays = static_cast<double>(count) / all;
  if (usual < kFewReadings * period_ns &&
      returns(visits, place, nanos(usual), nanos(period_ns / 2)) <
          stays + kBeyondChance * (1 - stays)) {
    return rounds;
  }
  rounds.score = share + 0.2 * std::min(1.0, static_cast<double>(count) / all / 0.2) -
                 mad_sigma(lengths) / usual;
  return rounds;
}

/// The usual time from one of them to the next, in ns.
double beat_of(const std::vector<Visit>& visits) {
  std::vector<double> distances;
  for (size_t i = 1; i < visits.size(); ++i) {
    distances.push_back(static_cast<double>((visits[i].at - visits[i - 1].at).count()));
  }
  return median(distances);
}

}  // namespace

// The job's processes in the order in which they were seen: a loader's workers come after the one
// that trains. A launcher only waits for its child.
std::optional<ThreadId> find_main_thread(const Run& run) {
  struct Weights {
    size_t count = 0;
    double total = 0, child = 0;
  };
  std::vector<Weights> weights(run.threads.size());
  for (const StackReading& reading : run.readings) {
    if (reading.thread >= weights.size() || !run.threads[reading.thread].is_main) continue;
    Weights& w = weights[reading.thread];
    ++w.count;
    w.total += reading.weight_us;
    if (reading.state == ThreadState::kChild) w.child += reading.weight_us;
  }
  std::optional<ThreadId> chosen;
  for (ThreadId t = 0; t < weights.size(); ++t) {
    const ProcessId process = run.threads[t].process;
    if (process >= run.processes.size() || !run.processes[process].in_job) continue;
    if (weights[t].count < kMinReadings || weights[t].child > 0.8 * weights[t].total) continue;
    if (!chosen || process < run.threads[*chosen].process) chosen = t;
  }
  return chosen;
}

/// The thread of process `pid` whose stacks hold the function with the loop that was counted, which
/// need not be the main one; `otherwise` where none does.
ThreadId thread_with_loop(const Run& run, int32_t pid, ThreadId otherwise) {
  const std::set<StringId> functions = functions_with_loops(run, pid);
  std::vector<bool> holds(run.stacks.size());  // a stack comes after those around it
  for (size_t s = 1; s < run.stacks.size(); ++s) {
    holds[s] =
        holds[run.stacks[s].parent] || functions.contains(run.frames[run.stacks[s].frame].function);
  }
  std::vector<double> weights(run.threads.size());
  for (const StackReading& reading : run.readings) {
    if (reading.thread >= weights.size() || reading.stack >= holds.size()) continue;
    if (run.processes[run.threads[reading.thread].process].pid == pid && holds[reading.stack])
      weights[reading.thread] += reading.weight_us;
  }
  const auto most = std::ranges::max_element(weights);
  if (most == weights.end() || *most <= 0 || weights[otherwise] > 0) return otherwise;
  return static_cast<ThreadId>(most - weights.begin());
}

std::optional<Repetition> find_repetition(const Run& run) {
  const std::optional<ThreadId> thread = find_main_thread(run);
  if (!thread) return std::nullopt;
  const int32_t pid = run.processes[run.threads[*thread].process].pid;
  // What prepares data before a framework's first step is a loop, too, but not the training.
  const bool hooks_may_tell = !run.finished && (!run.fact("torch.version").empty() ||
                                                !run.fact("tensorflow.version").empty());
  std::vector<StepEnd> ends;
  if (!hooks_may_tell) ends = find_loop_rounds(run, pid);
  if (!ends.empty()) {
    return Repetition{thread_with_loop(run, pid, *thread), std::move(ends)};
  }
  std::vector<Visit> visits = visits_of(run, *thread);
  if (visits.size() < kMinReadings || visits.back().at <= visits.front().at) return std::nullopt;
  double period = beat_of(visits);
  const bool sampled = visits.front().stack != 0 && !has_python(run, visits) &&
                       period < 0.5 * static_cast<double>(kSampleBeat.count());
  if (sampled) {
    merge_samples(visits);
    period = beat_of(visits);
  }
  std::map<Place, size_t> places;
  for (const Visit& v : visits) ++places[v.place];
  if (visits.size() < kMinReadings || (sampled && !stays(visits, places))) return std::nullopt;
  Rounds best;
  for (const auto& [place, count] : places) {
    const double share = static_cast<double>(count) / static_cast<double>(visits.size());
    if (share < 0.03 || share > 0.8) continue;
    Rounds rounds = rounds_of(visits, place, period);
    if (rounds.score > best.score) best = std::move(rounds);
  }
  if (best.score <= 0) return std::nullopt;
  Repetition repetition;
  repetition.thread = *thread;
  const Nanos half = nanos(period / 2);  // it came there between two readings
  for (const TimePoint start : best.starts) {
    repetition.ends.push_back(
        {start - half, static_cast<int64_t>(repetition.ends.size()) - 1, false});
  }
  return repetition;
}

}  // namespace flatout::timeline
