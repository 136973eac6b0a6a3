// Who holds up whom. All ranks leave a collective together; who came last came from the longest
// stretch of work of its own. So the stretches from the end of one collective to the begin of the
// next are compared: clocks of ranks need not agree for that.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "diagnose/trace_findings.h"

namespace flatout::diagnose {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr double kWorthWaiting = 0.05;  // of a step
constexpr double kWorthTelling = 0.01;
constexpr size_t kFewCollectives = 4;
constexpr size_t kManyCollectives =
    12;  // where there is one step alone: it may be that one's chance

struct Stretch {
  int64_t own = 0;     // from the last collective's end to this one's begin
  int64_t inside = 0;  // in the collective: waiting and sending
};

// Communication that overlaps other communication is one collective here.
std::map<std::pair<std::string, size_t>, Stretch> stretches(const TraceSummary& trace) {
  std::map<std::pair<std::string, size_t>, Stretch> out;
  std::map<std::string, size_t> seen;
  int64_t end = INT64_MIN;
  for (const auto& c : trace.collectives) {
    const size_t number = seen[c.name]++;
    if (end != INT64_MIN)
      out[{c.name, number}] = {std::max<int64_t>(0, c.begin - end), c.end - c.begin};
    end = std::max(end, c.end);
  }
  return out;
}

int64_t median_of(std::vector<int64_t> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

RankWaits compare_ranks(std::span<const TraceSummary> ranks) {
  RankWaits out;
  if (ranks.size() < 2) return out;
  std::vector<std::map<std::pair<std::string, size_t>, Stretch>> all;
  for (const TraceSummary& trace : ranks) all.push_back(stretches(trace));
  // Collectives that every rank has.
  std::vector<int64_t> late(ranks.size()), last(ranks.size());
  size_t common = 0;
  std::vector<int64_t> waits(ranks.size());
  std::map<std::pair<size_t, size_t>, int64_t> pairs;  // who waits for whom
  for (const auto& [key, first] : all[0]) {
    std::vector<int64_t> own, inside;
    for (const auto& rank : all) {
      const auto at = rank.find(key);
      if (at == rank.end()) break;
      own.push_back(at->second.own);
      inside.push_back(at->second.inside);
    }
    if (own.size() < ranks.size()) continue;
    ++common;
    const int64_t middle = ranks.size() == 2 ? std::min(own[0], own[1]) : median_of(own);
    const auto came_last = std::min_element(inside.begin(), inside.end());
    const int64_t shortest = *came_last;
    for (size_t r = 0; r < ranks.size(); ++r) {
      late[r] += own[r] - middle;
      waits[r] += inside[r] - shortest;
      if (inside[r] > shortest)
        pairs[{r, static_cast<size_t>(came_last - inside.begin())}] += inside[r] - shortest;
      if (inside[r] == shortest) last[r] += median_of(inside) - shortest;
    }
  }
  if (common < kFewCollectives) return out;
  int64_t step = 0;
  size_t steps = 1;
  for (const TraceSummary& trace : ranks) {
    int64_t sum = 0;
    for (const TraceStepSummary& s : trace.steps) sum += s.wall;
    if (sum > step) {
      step = sum;
      steps = trace.steps.size();
    }
  }
  if (step == 0) {
    for (const TraceSummary& trace : ranks) step = std::max(step, trace.length());
  }
  if (steps < 2 && common < kManyCollectives) return out;
  const auto number = [&](size_t r) {
    return ranks[r].rank >= 0 ? ranks[r].rank : static_cast<int>(r);
  };
  for (const auto& [pair, time] : pairs) {
    if (static_cast<double>(time) >= kWorthTelling * static_cast<double>(step))
      out.waits.push_back(
          {number(pair.first), number(pair.second), time / static_cast<int64_t>(steps)});
  }
  std::stable_sort(out.waits.begin(), out.waits.end(),
                   [](const RankWait& a, const RankWait& b) { return a.time > b.time; });
  std::vector<Straggler>& late_ones = out.stragglers;
  for (size_t r = 0; r < ranks.size(); ++r) {
    // Late by its own work, and the others' waiting says so too.
    const int64_t delay = std::min(late[r], last[r]);
    if (static_cast<double>(delay) < kWorthWaiting * static_cast<double>(step)) continue;
    Straggler s;
    s.rank = number(r);
    s.delay = late[r] / static_cast<int64_t>(steps);
    for (size_t other = 0; other < ranks.size(); ++other) {
      if (other != r && waits[other] * 2 > delay) s.waiting.push_back(number(other));
    }
    late_ones.push_back(std::move(s));
  }
  std::sort(late_ones.begin(), late_ones.end(),
            [](const Straggler& a, const Straggler& b) { return a.delay > b.delay; });
  // Who comes well before the last one is not whom the others wait for.
  while (late_ones.size() > 1 && late_ones.back().delay * 2 < late_ones.front().delay)
    late_ones.pop_back();
  return out;
}

}  // namespace flatout::diagnose
