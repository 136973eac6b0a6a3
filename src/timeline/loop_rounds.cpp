#include "timeline/loop_rounds.h"

#include <algorithm>

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr double kMinRounds = 6;
constexpr double kMinCovered = 0.75;  // of the longest loop's time
constexpr double kMinOfWork = 0.05;   // of what the process did since any was seen
constexpr Nanos kShortRound = std::chrono::microseconds(250);
constexpr Nanos kShortestRound = std::chrono::microseconds(50);  // less is no step
constexpr double kMaxSteps = 100'000;

struct Loop {
  const Series* series = nullptr;
  int64_t place = 0;  // larger: further inside
  TimePoint first() const { return series->readings.front().at; }
  TimePoint last() const { return series->readings.back().at; }
  double rounds() const { return series->readings.back().value - series->readings.front().value; }
};

std::vector<Loop> loops_of(const Run& run, int32_t pid) {
  std::vector<Loop> loops;
  for (const Series* series : run.all(SignalId::kLoopRounds)) {
    const int64_t key = run.entities[series->entity].key;
    if (key >> 32 != pid || series->readings.size() < 2) continue;
    loops.push_back({series, key & 0xFFFFFFFF});
  }
  return loops;
}

/// The time from one reading of any loop to the next in which `loop` was there both times.
Nanos covered(const Loop& loop, const std::vector<TimePoint>& times) {
  Nanos sum{};
  size_t at = 0;
  for (size_t i = 1; i < loop.series->readings.size(); ++i) {
    const TimePoint before = loop.series->readings[i - 1].at;
    while (at < times.size() && times[at] <= before) ++at;
    if (at < times.size() && times[at] == loop.series->readings[i].at) sum += times[at] - before;
  }
  return sum;
}

/// When the process was last seen working: what hangs from then on is still its loop's.
TimePoint last_worked(const Run& run, int32_t pid) {
  TimePoint last{};
  for (const StackReading& r : run.readings) {
    if (r.state != ThreadState::kOnCpuPython && r.state != ThreadState::kOnCpuNative) continue;
    if (r.thread >= run.threads.size()) continue;
    const ProcessId process = run.threads[r.thread].process;
    if (process < run.processes.size() && run.processes[process].pid == pid)
      last = std::max(last, r.at);
  }
  return last;
}

const Loop* choose(const std::vector<Loop>& loops, TimePoint over) {
  const auto longest = std::ranges::max_element(
      loops, {}, [](const Loop& loop) { return loop.last() - loop.first(); });
  const auto inside = [&](TimePoint at) { return at >= longest->first() && at <= longest->last(); };
  std::vector<TimePoint> times;
  for (const Loop& loop : loops) {
    for (const Reading& reading : loop.series->readings) {
      if (inside(reading.at)) times.push_back(reading.at);
    }
  }
  std::ranges::sort(times);
  times.erase(std::unique(times.begin(), times.end()), times.end());
  const double most = to_s(covered(*longest, times));

  const Loop* chosen = nullptr;
  bool chosen_short = false;
  for (const Loop& loop : loops) {
    const double time = to_s(covered(loop, times));
    if (loop.rounds() < kMinRounds || time < kMinCovered * most ||
        time < to_s(kShortestRound) * loop.rounds()) {
      continue;
    }
    const bool is_short = time < to_s(kShortRound) * loop.rounds();
    // The innermost whose rounds are long enough, else the outermost.
    const bool better = chosen == nullptr || (chosen_short && !is_short) ||
                        (chosen_short == is_short && (loop.place > chosen->place) != is_short);
    if (!better) continue;
    chosen = &loop;
    chosen_short = is_short;
  }
  const TimePoint begun = std::ranges::min_element(loops, {}, &Loop::first)->first();
  if (chosen == nullptr) return nullptr;
  const bool tells = to_s(chosen->last() - chosen->first()) >= kMinOfWork * to_s(over - begun);
  return tells ? chosen : nullptr;
}

}  // namespace

std::vector<StepEnd> find_loop_rounds(const Run& run, int32_t pid) {
  const std::vector<Loop> loops = loops_of(run, pid);
  if (loops.empty()) return {};
  const Loop* loop = choose(loops, last_worked(run, pid));
  if (loop == nullptr) return {};
  std::vector<StepEnd> ends;
  const std::vector<Reading>& readings = loop->series->readings;
  // Of very many rounds only those between some of the readings.
  const double stride = std::max(1.0, loop->rounds() / kMaxSteps);
  double skipped = 0;
  bool lost = false;
  for (size_t i = 1; i < readings.size(); ++i) {
    const Reading &from = readings[i - 1], &to = readings[i];
    const double count = to.value - from.value;
    if (count < 1) continue;
    if ((skipped += 1) < stride) {
      lost = true;
      continue;
    }
    skipped -= stride;
    const double length = static_cast<double>((to.at - from.at).count());
    for (int64_t round = 0; static_cast<double>(round) + 1 <= count; ++round) {
      const int64_t index = static_cast<int64_t>(from.value) + round;
      const double middle = (static_cast<double>(round) + 0.5) / count;
      ends.push_back({from.at + nanos(length * middle), index, lost});
      lost = false;
    }
  }
  if (ends.size() < static_cast<size_t>(kMinRounds)) return {};
  // Where the first one ends the second begins: what was before is not known.
  const int64_t first = ends.front().index;
  for (StepEnd& end : ends) end.index -= first + 1;
  return ends;
}

std::set<StringId> functions_with_loops(const Run& run, int32_t pid) {
  constexpr std::string_view kCalls = " calls ";
  std::set<StringId> functions;
  for (const Series* series : run.all(SignalId::kLoopRounds)) {
    const Entity& entity = run.entities[series->entity];
    const size_t end = entity.name.find(kCalls);
    if (entity.key >> 32 != pid || end == std::string::npos) continue;
    const auto name = std::ranges::find(run.strings, entity.name.substr(0, end));
    if (name != run.strings.end())
      functions.insert(static_cast<StringId>(name - run.strings.begin()));
  }
  return functions;
}

}  // namespace flatout::timeline
