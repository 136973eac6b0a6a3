// Runs for tests: a loop is written down as it would have run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/run.h"

namespace flatout::timeline::testing {

constexpr int64_t kMs = 1'000'000;

/// Writes slices of one thread at a clock that moves on with each.
class RunBuilder {
 public:
  RunBuilder() {
    run_.processes.emplace_back();
    run_.processes[0].pid = 100;
    run_.processes[0].main = run_.processes[0].in_job = run_.processes[0].python = true;
    run_.threads.push_back({0, 100, "main", true});
    run_.begin = run_.end = time_point_ns(now_);
  }

  TimePoint now() const { return time_point_ns(now_); }
  RunBuilder& idle(double ms) {
    now_ += static_cast<int64_t>(ms * kMs);
    return *this;
  }
  RunBuilder& slice(model::SliceKind kind, double ms, int64_t value = 0, int64_t value2 = 0) {
    const TimePoint begin = now();
    idle(ms);
    return add(kind, begin, now(), value, value2);
  }
  RunBuilder& add(model::SliceKind kind, TimePoint begin, TimePoint end, int64_t value = 0,
                  int64_t value2 = 0) {
    run_.slices.push_back({begin, end, kind, thread_, 0, value, value2});
    return *this;
  }
  RunBuilder& wait(double ms) { return slice(model::SliceKind::kInputWait, ms); }
  RunBuilder& forward(double ms) { return slice(model::SliceKind::kForward, ms); }
  RunBuilder& backward(double ms) { return slice(model::SliceKind::kBackward, ms); }
  RunBuilder& optimizer(double ms, int64_t id = 0, int64_t count = 0) {
    return slice(model::SliceKind::kOptimizer, ms, id, count);
  }
  RunBuilder& validation(double ms) { return slice(model::SliceKind::kValidation, ms); }

  /// Another thread, in process `process` (made if it is the next one); later slices are its.
  RunBuilder& thread(uint32_t process, int32_t tid) {
    if (process == run_.processes.size()) {
      run_.processes.emplace_back().pid = tid;
      run_.processes.back().in_job = true;
    }
    run_.threads.push_back({process, tid, "", run_.processes[process].pid == tid});
    thread_ = static_cast<model::ThreadId>(run_.threads.size() - 1);
    return *this;
  }
  RunBuilder& on(model::ThreadId thread) {
    thread_ = thread;
    return *this;
  }

  struct At {
    const char* function;
    const char* file;
    uint32_t line;
  };
  /// A stack, outermost frame first.
  model::StackId stack(const std::vector<At>& frames) {
    model::StackId node = 0;
    for (const At& at : frames) {
      run_.frames.push_back({text(at.function), text(at.file), at.line, model::FrameKind::kPython});
      run_.stacks.push_back({node, static_cast<model::FrameId>(run_.frames.size() - 1)});
      node = static_cast<model::StackId>(run_.stacks.size() - 1);
    }
    return node;
  }
  /// Time passes with this stack and state: readings every `every_ms`, on a grid of the whole run.
  RunBuilder& during(double ms, model::StackId stack, model::ThreadState state) {
    const int64_t end = now_ + static_cast<int64_t>(ms * kMs);
    read_until(end, stack, state);
    now_ = end;
    return *this;
  }
  /// The same around slices: the readings of the last `ms`.
  RunBuilder& read_back(double ms, model::StackId stack, model::ThreadState state) {
    const int64_t end = now_;
    now_ -= static_cast<int64_t>(ms * kMs);
    return during(to_ms(Nanos(end - now_)), stack, state);
  }
  RunBuilder& every(double ms) {
    period_ = static_cast<int64_t>(ms * kMs);
    return *this;
  }

  model::Run build() {
    run_.end = now();
    std::stable_sort(run_.slices.begin(), run_.slices.end(),
                     [](const auto& a, const auto& b) { return a.end < b.end; });
    std::stable_sort(run_.readings.begin(), run_.readings.end(),
                     [](const auto& a, const auto& b) { return a.at < b.at; });
    return run_;
  }
  model::Run& run() { return run_; }

 private:
  model::StringId text(const std::string& s) {
    for (model::StringId i = 0; i < run_.strings.size(); ++i) {
      if (run_.strings[i] == s) return i;
    }
    run_.strings.push_back(s);
    return static_cast<model::StringId>(run_.strings.size() - 1);
  }
  void read_until(int64_t end, model::StackId stack, model::ThreadState state) {
    for (int64_t at = (now_ / period_ + 1) * period_; at <= end; at += period_) {
      run_.readings.push_back(
          {time_point_ns(at), thread_, stack, static_cast<uint32_t>(period_ / 1000), state, 0, -1});
    }
  }

  model::Run run_;
  int64_t now_ = 1000 * kMs;
  int64_t period_ = 10 * kMs;
  model::ThreadId thread_ = 0;
};

}  // namespace flatout::timeline::testing
