#include "timeline/trace_processes.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr size_t kMostProcesses = 4096;

// The first call of a process with that id.
struct Call {
  uint32_t correlation = 0, process = 0;
  EventId event = 0;
  uint32_t id = 0;        // in place of `correlation`
  bool has_work = false;  // something on a device is its
};

// As numbers where they are: 9 before 10.
bool comes_before(std::string_view a, std::string_view b) {
  return a.size() != b.size() && parse_number<uint64_t>(a) && parse_number<uint64_t>(b)
             ? a.size() < b.size()
             : a < b;
}

class Processes {
 public:
  explicit Processes(Trace& trace) : trace_(trace) {}

  /// Finds calls of several processes with one id; false where there are none.
  bool find() {
    std::vector<bool> calls(trace_.tracks.size());
    for (size_t i = 0; i < trace_.size(); ++i)
      if (is_call(i)) calls[trace_.track[i]] = true;
    std::vector<std::string_view> pids;
    for (size_t t = 0; t < calls.size(); ++t)
      if (calls[t]) pids.push_back(trace_.tracks[t].pid);
    std::ranges::sort(pids, comes_before);
    pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
    if (pids.size() < 2 || pids.size() > kMostProcesses) return false;
    count_ = pids.size();
    process_.resize(calls.size());
    for (size_t t = 0; t < calls.size(); ++t) {
      if (!calls[t]) continue;
      const auto at = std::ranges::lower_bound(pids, trace_.tracks[t].pid, comes_before);
      process_[t] = static_cast<uint32_t>(at - pids.begin());
    }
    for (size_t i = 0; i < trace_.size(); ++i) {
      if (!is_call(i)) continue;
      const uint32_t correlation = trace_.correlation[i];
      calls_.push_back(
          {correlation, process_[trace_.track[i]], static_cast<EventId>(i), correlation, false});
    }
    const auto key = [](const Call& c) { return std::pair(c.correlation, c.process); };
    std::ranges::stable_sort(calls_, {}, key);
    calls_.erase(std::unique(calls_.begin(), calls_.end(),
                             [&](const Call& a, const Call& b) { return key(a) == key(b); }),
                 calls_.end());
    return std::ranges::adjacent_find(calls_, {}, &Call::correlation) != calls_.end();
  }

  void separate() {
    if (!number()) return;
    find_owners();
    // Of what shares an id, the first begun takes the first call that is free.
    std::vector<EventId> work;
    for (size_t i = 0; i < trace_.size(); ++i)
      if (on_device(trace_.kind[i]) && calls_of(trace_.correlation[i]).size() > 1)
        work.push_back(static_cast<EventId>(i));
    std::ranges::stable_sort(work, {}, [this](EventId e) { return trace_.start[e]; });
    for (const EventId e : work) {
      const std::span<Call> calls = calls_of(trace_.correlation[e]);
      const auto owner = owner_.find(trace_.track_of(e).device);
      Call* const call =
          owner != owner_.end() ? call_of(calls, owner->second) : free_before(calls, e);
      if (call == nullptr) continue;
      call->has_work = true;
      trace_.correlation[e] = call->id;
    }
    for (size_t i = 0; i < trace_.size(); ++i) {
      if (!is_call(i)) continue;
      const std::span<Call> calls = calls_of(trace_.correlation[i]);
      trace_.correlation[i] = call_of(calls, process_[trace_.track[i]])->id;
    }
  }

 private:
  bool is_call(size_t i) const {
    return trace_.kind[i] == EventKind::kRuntime && trace_.correlation[i] != 0;
  }
  std::span<Call> calls_of(uint32_t correlation) {
    const auto first = std::ranges::lower_bound(calls_, correlation, {}, &Call::correlation);
    auto end = first;
    while (end != calls_.end() && end->correlation == correlation) ++end;
    return {first, end};
  }
  // The first process's keep theirs. False: there are not so many ids.
  bool number() {
    uint32_t last = 0;
    for (size_t i = 0; i < trace_.size(); ++i)
      if (trace_.correlation[i] < kLargeCorrelations) last = std::max(last, trace_.correlation[i]);
    for (size_t i = 1; i < calls_.size(); ++i) {
      if (calls_[i].correlation != calls_[i - 1].correlation) continue;
      if (last + 1 >= kLargeCorrelations) return false;
      calls_[i].id = ++last;
    }
    return true;
  }
  static Call* call_of(std::span<Call> calls, uint32_t process) {
    const auto at = std::ranges::find(calls, process, &Call::process);
    return at != calls.end() ? &*at : nullptr;
  }
  Call* free_before(std::span<Call> calls, EventId event) const {
    Call* out = nullptr;
    for (Call& call : calls) {
      if (trace_.start[call.event] > trace_.start[event]) continue;
      if (out == nullptr || (out->has_work && !call.has_work)) out = &call;
    }
    return out;
  }

  // By device. None of any where there are more processes than devices: some must share one then.
  void find_owners() {
    // How much each process may have launched: it made such a call, and in time.
    std::map<int64_t, std::vector<uint64_t>> devices;
    for (size_t i = 0; i < trace_.size(); ++i) {
      if (!on_device(trace_.kind[i])) continue;
      for (const Call& call : calls_of(trace_.correlation[i])) {
        if (trace_.start[call.event] > trace_.start[i]) continue;
        std::vector<uint64_t>& possible = devices[trace_.track_of(static_cast<EventId>(i)).device];
        possible.resize(count_);
        ++possible[call.process];
      }
    }
    std::vector<bool> could(count_), owns(count_);
    for (const auto& [device, possible] : devices) {
      size_t owner = 0;
      for (size_t p = 0; p < count_; ++p) {
        if (possible[p] == 0) continue;
        could[p] = true;
        if (possible[p] > possible[owner] ||
            (possible[p] == possible[owner] && owns[owner] && !owns[p]))
          owner = p;
      }
      owns[owner] = true;
      owner_[device] = static_cast<uint32_t>(owner);
    }
    if (could != owns) owner_.clear();
  }

  Trace& trace_;
  size_t count_ = 0;               // of processes
  std::vector<uint32_t> process_;  // by track
  std::vector<Call> calls_;
  std::map<int64_t, uint32_t> owner_;
};

}  // namespace

void separate_processes(Trace& trace) {
  Processes processes(trace);
  if (processes.find()) processes.separate();
}

}  // namespace flatout::timeline
