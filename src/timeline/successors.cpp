#include "timeline/successors.h"

#include <algorithm>
#include <map>
#include <span>
#include <vector>

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

struct Training {
  ThreadId thread = 0;
  TimePoint first = TimePoint::max();  // of its optimizer's calls or marked steps
  TimePoint over = TimePoint::min();   // the last that was seen of it
};

bool trains(SliceKind kind) { return kind == SliceKind::kOptimizer || kind == SliceKind::kStep; }

/// Events of threads that are known to continue another become that one's.
void relabel(Run& run) {
  const auto head = [&](ThreadId thread) {
    const ThreadId first = run.threads[thread].continues;
    return first == kNone ? thread : first;
  };
  if (std::ranges::none_of(run.threads, [](const Thread& t) { return t.continues != kNone; })) {
    return;
  }
  for (Slice& slice : run.slices) slice.thread = head(slice.thread);
  for (StackReading& reading : run.readings) reading.thread = head(reading.thread);
}

}  // namespace

void join_successors(Run& run) {
  relabel(run);
  std::vector<Training> threads(run.threads.size());
  std::map<ProcessId, std::vector<ThreadId>> by_process;
  for (const Slice& slice : run.slices) {
    if (!trains(slice.kind)) continue;
    Training& t = threads[slice.thread];
    if (t.first == TimePoint::max())
      by_process[run.threads[slice.thread].process].push_back(slice.thread);
    t.thread = slice.thread;
    t.first = std::min(t.first, slice.begin);
  }
  std::erase_if(by_process, [](const auto& entry) { return entry.second.size() < 2; });
  if (by_process.empty()) return;
  for (const Slice& slice : run.slices) {
    threads[slice.thread].over = std::max(threads[slice.thread].over, slice.end);
  }
  for (const StackReading& reading : run.readings) {
    threads[reading.thread].over = std::max(threads[reading.thread].over, reading.at);
  }
  for (auto& [process, ids] : by_process) {
    std::ranges::sort(ids, {}, [&](ThreadId t) { return threads[t].first; });
    Training* last = &threads[ids.front()];
    for (const ThreadId id : std::span(ids).subspan(1)) {
      if (threads[id].first < last->over) {
        last = &threads[id];
        continue;
      }
      run.threads[id].continues = last->thread;
      last->over = threads[id].over;
    }
  }
  relabel(run);
}

}  // namespace flatout::timeline
