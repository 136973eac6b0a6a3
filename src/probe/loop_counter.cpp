#include "probe/loop_counter.h"

#include <algorithm>

namespace flatout::probe {

std::span<const PythonLoop> outside_iterators(const PythonThread& thread,
                                              const PythonReader& python) {
  const size_t frames = thread.frames.size();
  size_t outside = 0;  // Python frames
  while (outside < frames &&
         python.code(thread.frames[frames - 1 - outside].code).function != "__next__") {
    ++outside;
  }
  const auto inside = std::ranges::find_if(
      thread.loops, [&](const PythonLoop& loop) { return loop.depth >= outside; });
  return {thread.loops.begin(), inside};
}

namespace {

constexpr size_t kMaxLoops = 64;
constexpr int64_t kMostRuns = 1 << 20;  // between two readings: more is damage

bool same_place(const PythonLoop& a, const PythonLoop& b) {
  return a.code == b.code && a.depth == b.depth && a.slot == b.slot;
}

}  // namespace

/// What is known of the loop; a new one if there is nothing. Imports alone have many loops: the one
/// that was not there for longest makes room.
LoopCounter::State& LoopCounter::state_of(const PythonLoop& loop, int64_t outer) {
  auto state =
      std::ranges::find_if(states_, [&](const State& s) { return same_place(s.last, loop); });
  if (state == states_.end()) {
    if (states_.size() < kMaxLoops) {
      state = states_.insert(states_.end(), State{});
    } else {
      state = std::ranges::min_element(states_, {}, &State::seen);
    }
    *state = {loop, 0, outer, readings_, false};
  }
  return *state;
}

std::span<const LoopRounds> LoopCounter::update(std::span<const PythonLoop> loops) {
  out_.clear();
  readings_++;
  int64_t outer = 0;  // rounds of the loop around, as far as it is known
  for (const PythonLoop& loop : loops) {
    State& state = state_of(loop, outer);
    const PythonLoop& last = state.last;
    if (loop.iterator == last.iterator && loop.begun >= last.begun && outer == state.outer) {
      state.rounds += loop.begun - last.begun;
    } else {
      // It ended and was begun anew, perhaps more than once.
      const int64_t runs = std::max<int64_t>(outer - state.outer, 1);
      const bool known = last.length >= 0 && (runs == 1 || loop.length == last.length);
      state.lost = state.lost || (!known && runs > 1) || runs > kMostRuns;
      state.rounds += loop.begun;
      if (known && !state.lost) state.rounds += last.length - last.begun + (runs - 1) * last.length;
    }
    state.last = loop;
    state.outer = outer;
    state.seen = readings_;
    if (state.lost) continue;
    outer = state.rounds;
    out_.push_back({loop.code, loop.depth, loop.slot, state.rounds});
  }
  return out_;
}

}  // namespace flatout::probe
