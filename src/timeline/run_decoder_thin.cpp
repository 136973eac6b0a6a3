// RunDecoder::thin(): keeps a recording of any length in bounded memory.
// Of slices and stack readings whole windows go, so that what stays can be judged step by step; of
// series the older part gets coarser. Both rules are nested: what a later, stricter one keeps,
// every earlier one kept, so what is left does not depend on how often thin() was called.
#include <algorithm>

#include "timeline/decoder_limits.h"
#include "timeline/run_decoder.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr int64_t kHeadWindows = 6;   // of 10 s: the first minute
constexpr int64_t kTailWindows = 12;  // the last two
constexpr int64_t kFewWindows = 32;   // so many of the middle stay before windows get shorter
constexpr Nanos kShortestWindow = std::chrono::milliseconds(10);
constexpr size_t kMaxKeptKinds = 16'384;
constexpr size_t kManyProcesses = 2048, kManyThreads = 8192, kManySeries = 16'384;

// Rare, and what comes later needs them: which worker a process is, when epochs began.
bool stays(SliceKind kind) {
  return kind == SliceKind::kWorker || kind == SliceKind::kLoaderStart || kind == SliceKind::kEpoch;
}

template <class T>
size_t bytes_of(const std::vector<T>& v) {
  return v.capacity() * sizeof(T);
}

}  // namespace

size_t RunDecoder::event_bytes() const { return bytes_of(run_.slices) + bytes_of(run_.readings); }

size_t RunDecoder::series_bytes() const {
  return readings_ * sizeof(Reading) + run_.series.size() * (sizeof(Series) + 96);
}

size_t RunDecoder::memory() const {
  size_t sum = event_bytes() + series_bytes() + string_bytes_ + 2 * fact_bytes_;
  sum += bytes_of(run_.frames) + bytes_of(run_.stacks) + bytes_of(run_.gaps);
  sum += entities_.memory() + threads_.memory() + frames_.memory() + stacks_.memory();
  sum += run_.device_windows.size() * sizeof(DeviceWindow);
  sum += run_.processes.size() * (sizeof(Process) + sizeof(ProcessState) + 256);
  sum += run_.threads.size() * (sizeof(Thread) + 64);
  sum += run_.entities.size() * (sizeof(Entity) + 32);
  sum += bytes_of(run_.steps.steps);
  for (const ProcessState& state : states_) sum += bytes_of(state.strings);
  return sum;
}

bool RunDecoder::window_kept(TimePoint at) const {
  if (at < run_.begin + window_ * kHeadWindows || at >= run_.end - window_ * kTailWindows) {
    return true;
  }
  return (to_ns(at) / window_.count()) % keep_every_ == 0;
}

int64_t RunDecoder::middle_windows() const {
  const Nanos middle = run_.end - run_.begin - window_ * (kHeadWindows + kTailWindows);
  return std::max<int64_t>(0, middle / window_ / keep_every_);
}

void RunDecoder::thin(size_t max_bytes) {
  if (memory() <= max_bytes) return;
  const size_t target = max_bytes / 8 * 7;  // so that the next call has nothing to do for a while
  forget_processes();
  if (run_.series.size() > kManySeries) forget_entities();
  for (int round = 0; round < 24 && memory() > target && series_bytes() > max_bytes / 4; ++round) {
    coarsen_series();
  }
  // What has left the tail since the last call goes by the rule as it is. Stricter rules come only
  // where that is not enough.
  if (keep_every_ > 1) drop_windows();
  if (memory() <= max_bytes / 16 * 15) return;
  while (memory() > target) {
    if (middle_windows() < kFewWindows && window_ / 2 >= kShortestWindow) {
      window_ /= 2;
    } else if (middle_windows() == 0) {
      break;
    }
    keep_every_ *= 2;
    drop_windows();
  }
}

void RunDecoder::drop_windows() {
  size_t kept_kinds = 0;
  std::erase_if(run_.slices, [&](const Slice& slice) {
    if (stays(slice.kind) && ++kept_kinds <= kMaxKeptKinds) return false;
    return !window_kept(slice.end);
  });
  std::erase_if(run_.readings, [&](const StackReading& r) { return !window_kept(r.at); });
  run_.slices.shrink_to_fit();
  run_.readings.shrink_to_fit();
  sorted_slices_ = run_.slices.size();
  sorted_readings_ = run_.readings.size();

  std::vector<Gap> gaps;
  const int64_t width = window_.count();
  const TimePoint stop = run_.end - window_ * kTailWindows;
  TimePoint at = run_.begin + window_ * kHeadWindows;
  while (at < stop && gaps.size() < kMaxGaps) {
    // From `at` to the next kept window, or to the tail.
    const int64_t index = to_ns(at) / width;
    if (index % keep_every_ == 0) {
      at = time_point_ns((index + 1) * width);
      continue;
    }
    const int64_t next = (index / keep_every_ + 1) * keep_every_;
    const TimePoint end = std::min(stop, time_point_ns(next * width));
    gaps.push_back({at, end});
    at = end;
  }
  join_gaps(std::move(gaps));
}

void RunDecoder::join_gaps(std::vector<Gap> thinned) {
  gaps_changed_ = false;
  thinned_gaps_ = std::move(thinned);
  std::vector<Gap> all = told_gaps_;
  all.insert(all.end(), thinned_gaps_.begin(), thinned_gaps_.end());
  std::ranges::sort(all, {}, &Gap::begin);
  run_.gaps.clear();
  for (const Gap& gap : all) {
    if (!run_.gaps.empty() && gap.begin <= run_.gaps.back().end) {
      run_.gaps.back().end = std::max(run_.gaps.back().end, gap.end);
    } else {
      run_.gaps.push_back(gap);
    }
  }
}

void RunDecoder::coarsen_series() {
  series_spacing_ = std::max<Nanos>(series_spacing_ * 2, std::chrono::milliseconds(125));
  // With very many series even the whole head and tail are too much.
  if (series_spacing_ > std::chrono::minutes(1)) series_margin_ /= 2;
  const TimePoint from = run_.begin + series_margin_;
  const TimePoint to = run_.end - 2 * series_margin_;
  const Nanos spacing = series_spacing_ - series_spacing_ / 16;  // readings come a little early
  readings_ = 0;
  for (Series& series : run_.series) {
    TimePoint last{};
    const TimePoint final = series.readings.empty() ? TimePoint{} : series.readings.back().at;
    std::erase_if(series.readings, [&](const Reading& reading) {
      const bool drop = reading.at > from && reading.at < to && reading.at != final &&
                        last != TimePoint{} && reading.at - last < spacing;
      if (!drop) last = reading.at;
      return drop;
    });
    series.readings.shrink_to_fit();
    readings_ += series.readings.size();
  }
}

// Processes come and go by the thousand in some jobs: those that ended in the middle and that no
// event refers to any more are forgotten, with their threads.
void RunDecoder::forget_processes() {
  if (run_.processes.size() < kManyProcesses && run_.threads.size() < kManyThreads) return;
  std::vector<bool> used_thread(run_.threads.size(), false);
  for (const Slice& slice : run_.slices) used_thread[slice.thread] = true;
  for (const StackReading& reading : run_.readings) used_thread[reading.thread] = true;

  std::vector<bool> used_process(run_.processes.size(), false);
  const TimePoint recent = run_.end - std::chrono::minutes(2);
  for (ProcessId id = 0; id < run_.processes.size(); ++id) {
    const Process& p = run_.processes[id];
    used_process[id] = p.main || !p.ended || p.end >= recent || states_[id].trained > 0;
  }
  for (ThreadId id = 0; id < run_.threads.size(); ++id) {
    if (used_thread[id]) used_process[run_.threads[id].process] = true;
  }

  std::vector<uint32_t> new_process(run_.processes.size(), kNone);
  uint32_t count = 0;
  for (ProcessId id = 0; id < run_.processes.size(); ++id) {
    if (!used_process[id]) continue;
    if (count != id) {
      run_.processes[count] = std::move(run_.processes[id]);
      states_[count] = std::move(states_[id]);
    }
    new_process[id] = count++;
  }
  run_.processes.resize(count);
  states_.resize(count);

  std::vector<uint32_t> new_thread(run_.threads.size(), kNone);
  count = 0;
  for (ThreadId id = 0; id < run_.threads.size(); ++id) {
    const ProcessId process = new_process[run_.threads[id].process];
    if (process == kNone) continue;
    if (count != id) run_.threads[count] = std::move(run_.threads[id]);
    run_.threads[count].process = process;
    new_thread[id] = count++;
  }
  run_.threads.resize(count);
  for (Thread& thread : run_.threads) {
    if (thread.continues != kNone) thread.continues = new_thread[thread.continues];
  }

  for (Slice& slice : run_.slices) slice.thread = new_thread[slice.thread];
  for (StackReading& reading : run_.readings) reading.thread = new_thread[reading.thread];
  if (run_.steps.thread < new_thread.size()) {
    const ThreadId thread = new_thread[run_.steps.thread];
    run_.steps.thread = thread == kNone ? 0 : thread;
  }
  threads_.renumber(new_thread);
  std::erase_if(pids_, [&](const auto& entry) { return new_process[entry.second] == kNone; });
  for (auto& [pid, id] : pids_) id = new_process[id];
  std::erase_if(run_.device_windows,
                [&](const DeviceWindow& w) { return new_process[w.process] == kNone; });
  for (DeviceWindow& w : run_.device_windows) w.process = new_process[w.process];
  thread_ids_.clear();
  for (ThreadId id = 0; id < run_.threads.size(); ++id) {
    const Thread& thread = run_.threads[id];
    thread_ids_[uint64_t{thread.process} << 32 | static_cast<uint32_t>(thread.tid)] = id;
  }
  decltype(counters_) counters;
  for (const auto& [key, entity] : counters_) {
    if (const ProcessId p = new_process[key.first]; p != kNone) counters[{p, key.second}] = entity;
  }
  counters_ = std::move(counters);
  fact_bytes_ = 0;
  for (const auto& [key, value] : run_facts_) fact_bytes_ += key.size() + value.size();
  for (const ProcessState& state : states_) {
    for (const auto& [key, value] : state.facts) fact_bytes_ += key.size() + value.size();
  }
  publish_facts();
}

// The same for the series of processes and threads that nothing was read of for two minutes.
void RunDecoder::forget_entities() {
  const TimePoint recent = run_.end - std::chrono::minutes(2);
  const auto passes_away = [](EntityKind kind) {
    return kind == EntityKind::kProcess || kind == EntityKind::kThread ||
           kind == EntityKind::kOther || kind == EntityKind::kGpuProcess;
  };
  std::vector<bool> used(run_.entities.size(), false);
  for (EntityId id = 0; id < run_.entities.size(); ++id) {
    used[id] = !passes_away(run_.entities[id].kind);
  }
  for (const Series& series : run_.series) {
    if (!series.empty() && series.readings.back().at >= recent) used[series.entity] = true;
  }
  for (const ProcessState& state : states_) {
    if (state.entity != kNoEntity) used[state.entity] = true;
  }
  for (EntityId id = 0; id < run_.entities.size(); ++id) {
    // Parents lie before their children, but a child may have been made first.
    for (EntityId e = id; used[e] && run_.entities[e].parent < run_.entities.size();) {
      e = run_.entities[e].parent;
      if (used[e]) break;
      used[e] = true;
    }
  }
  std::vector<uint32_t> new_entity(run_.entities.size(), kNone);
  uint32_t count = 0;
  for (EntityId id = 0; id < run_.entities.size(); ++id) {
    if (!used[id]) continue;
    if (count != id) run_.entities[count] = std::move(run_.entities[id]);
    new_entity[id] = count++;
  }
  run_.entities.resize(count);
  const auto renumber = [&](EntityId& id) { id = id < new_entity.size() ? new_entity[id] : kNone; };
  for (Entity& entity : run_.entities) renumber(entity.parent);
  for (ProcessState& state : states_) renumber(state.entity);
  for (auto& [key, entity] : counters_) renumber(entity);
  std::erase_if(unnamed_, [&](const auto& entry) { return new_entity[entry.second] == kNone; });
  for (auto& [pid, id] : unnamed_) renumber(id);
  entities_.renumber(new_entity);

  std::erase_if(run_.series, [&](const Series& series) { return !used[series.entity]; });
  series_ids_.clear();
  readings_ = 0;
  for (uint32_t i = 0; i < run_.series.size(); ++i) {
    Series& series = run_.series[i];
    renumber(series.entity);
    series_ids_[uint64_t{series.entity} << 16 | static_cast<uint16_t>(series.signal)] = i;
    readings_ += series.readings.size();
  }
}

}  // namespace flatout::timeline
