// Builds synthetic Runs for the tests of the detectors: a training thread whose steps have given
// parts, loader workers, what each thread does when, and what the kernel's counters said.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/run.h"

namespace flatout::diagnose {

using model::EntityKind;
using model::Part;
using model::SignalId;
using model::SliceKind;
using model::ThreadState;

struct Line {
  std::string function, file;
  uint32_t line = 1;
  model::FrameKind kind = model::FrameKind::kPython;
};

/// What a thread does for a while.
struct Doing {
  ThreadState state = ThreadState::kOnCpuNative;
  std::vector<Line> stack;  // outermost first
  int16_t syscall = -1;
  uint8_t flags = 0;
};

inline const Line kMain{"main", "/home/u/train.py", 10};
inline const Line kItem{"__getitem__", "/home/u/data.py", 41};

class RunBuilder {
 public:
  RunBuilder() {
    model::Process main;
    main.pid = 100;
    main.in_job = main.main = main.python = true;
    main.name = "python";
    main.command = "python /home/u/train.py";
    run_.processes.push_back(main);
    trainer_ = thread(0, 100, true);
    host_ = entity(EntityKind::kHost, 0, "");
    run_.begin = now_ = time_point_ns(1'000'000'000);
  }

  model::ThreadId trainer() const { return trainer_; }
  TimePoint now() const { return now_; }
  model::Run& run() { return run_; }

  model::ThreadId thread(model::ProcessId process, int32_t tid, bool is_main = false) {
    run_.threads.push_back({process, tid, "t", is_main});
    return static_cast<model::ThreadId>(run_.threads.size() - 1);
  }
  /// A process of the job with its main thread.
  model::ThreadId worker(int32_t pid) {
    model::Process p;
    p.pid = pid;
    p.in_job = p.python = true;
    p.name = "python";
    run_.processes.push_back(p);
    return thread(static_cast<model::ProcessId>(run_.processes.size() - 1), pid, true);
  }
  model::EntityId entity(EntityKind kind, int64_t key, const std::string& name) {
    run_.entities.push_back({kind, key, model::kNoEntity, name});
    return static_cast<model::EntityId>(run_.entities.size() - 1);
  }
  model::EntityId host() const { return host_; }
  model::EntityId process_entity(int32_t pid) {
    const model::EntityId known = run_.entity(EntityKind::kProcess, pid);
    return known != model::kNoEntity ? known : entity(EntityKind::kProcess, pid, "");
  }
  model::EntityId thread_entity(int32_t tid) {
    const model::EntityId known = run_.entity(EntityKind::kThread, tid);
    return known != model::kNoEntity ? known : entity(EntityKind::kThread, tid, "");
  }

  /// `thread` does this in [begin, end): a reading each millisecond.
  void doing(model::ThreadId thread, TimePoint begin, TimePoint end, const Doing& what) {
    const model::StackId stack = stack_of(what.stack);
    for (TimePoint t = begin; t < end; t += Nanos(1'000'000)) {
      run_.readings.push_back(
          {t, thread, stack,
           static_cast<uint32_t>(std::min<int64_t>(1000, (end - t).count() / 1000)), what.state,
           what.flags, what.syscall});
    }
  }
  void slice(model::ThreadId thread, SliceKind kind, TimePoint begin, TimePoint end,
             int64_t value = 0, int64_t value2 = 0) {
    run_.slices.push_back({begin, end, kind, thread, 0, value, value2});
  }

  struct PartTime {
    Part part{};
    double ms = 0;
    Doing what;
  };
  /// One step of the training thread; the time goes on by its length.
  RunBuilder& step(const std::vector<PartTime>& parts, bool warmup = false) {
    model::Step s;
    s.index = static_cast<int64_t>(run_.steps.steps.size());
    s.begin = now_;
    s.warmup = warmup;
    for (const PartTime& p : parts) {
      const TimePoint end = now_ + nanos(p.ms * 1e6);
      s.part(p.part) += end - now_;
      if (const SliceKind kind = kind_of(p.part); kind != SliceKind::kPhase) {
        slice(trainer_, kind, now_, end);
      }
      doing(trainer_, now_, end, p.what);
      now_ = end;
    }
    s.end = now_;
    run_.steps.steps.push_back(s);
    run_.steps.source = model::StepSource::kHooks;
    run_.steps.thread = trainer_;
    return *this;
  }
  /// A counter that grows evenly over the run so far, to `total`.
  RunBuilder& counter(SignalId signal, model::EntityId entity, double total) {
    model::Series s{signal, entity, {}};
    constexpr int kPoints = 50;
    for (int i = 0; i <= kPoints; ++i) {
      s.readings.push_back({run_.begin + (now_ - run_.begin) * i / kPoints, total * i / kPoints});
    }
    run_.series.push_back(std::move(s));
    return *this;
  }
  RunBuilder& gauge(SignalId signal, model::EntityId entity, double value) {
    return ramp(signal, entity, value, value);
  }
  RunBuilder& ramp(SignalId signal, model::EntityId entity, double from, double to) {
    model::Series s{signal, entity, {}};
    constexpr int kPoints = 50;
    for (int i = 0; i <= kPoints; ++i) {
      s.readings.push_back(
          {run_.begin + (now_ - run_.begin) * i / kPoints, from + (to - from) * i / kPoints});
    }
    run_.series.push_back(std::move(s));
    return *this;
  }
  double wall_ns() const { return static_cast<double>((now_ - run_.begin).count()); }
  /// A machine of `cores`, of which so many were idle and so many busy with others.
  RunBuilder& machine(double cores, double idle, double others = 0) {
    gauge(SignalId::kHostCores, host_, cores);
    counter(SignalId::kHostCpuIdle, host_, idle * wall_ns());
    counter(SignalId::kHostCpuBusy, host_, (cores - idle) * wall_ns());
    counter(SignalId::kOthersCpu, host_, others * wall_ns());
    return *this;
  }
  RunBuilder& process_cpu(int32_t pid, double user_cores, double kernel_cores = 0) {
    counter(SignalId::kProcCpuUser, process_entity(pid), user_cores * wall_ns());
    counter(SignalId::kProcCpuSystem, process_entity(pid), kernel_cores * wall_ns());
    return *this;
  }

  /// Puts everything in order.
  model::Run build(bool finished = true, int wait_status = 0) {
    run_.end = std::max(run_.end, now_);
    run_.finished = finished;
    run_.wait_status = finished ? wait_status : -1;
    std::stable_sort(run_.slices.begin(), run_.slices.end(),
                     [](const model::Slice& a, const model::Slice& b) { return a.end < b.end; });
    std::stable_sort(
        run_.readings.begin(), run_.readings.end(),
        [](const model::StackReading& a, const model::StackReading& b) { return a.at < b.at; });
    return run_;
  }

  void pass(double ms) { now_ += nanos(ms * 1e6); }

 private:
  static SliceKind kind_of(Part part) {
    switch (part) {
      case Part::kInputWait:
        return SliceKind::kInputWait;
      case Part::kForward:
        return SliceKind::kForward;
      case Part::kBackward:
        return SliceKind::kBackward;
      case Part::kOptimizer:
        return SliceKind::kOptimizer;
      case Part::kCheckpoint:
        return SliceKind::kCheckpoint;
      case Part::kH2d:
        return SliceKind::kH2d;
      default:
        return SliceKind::kPhase;  // no slice: the rest of the step
    }
  }
  model::StringId string(const std::string& text) {
    for (size_t i = 0; i < run_.strings.size(); ++i) {
      if (run_.strings[i] == text) return static_cast<model::StringId>(i);
    }
    run_.strings.push_back(text);
    return static_cast<model::StringId>(run_.strings.size() - 1);
  }
  model::StackId stack_of(const std::vector<Line>& lines) {
    model::StackId at = 0;
    for (const Line& l : lines) {
      const model::Frame frame{string(l.function), string(l.file), l.line, l.kind};
      model::FrameId id = 0;
      for (size_t i = 1; i < run_.frames.size() && id == 0; ++i) {
        const model::Frame& f = run_.frames[i];
        if (f.function == frame.function && f.file == frame.file && f.line == frame.line) {
          id = static_cast<model::FrameId>(i);
        }
      }
      if (id == 0) {
        run_.frames.push_back(frame);
        id = static_cast<model::FrameId>(run_.frames.size() - 1);
      }
      model::StackId next = 0;
      for (size_t i = 1; i < run_.stacks.size() && next == 0; ++i) {
        if (run_.stacks[i].parent == at && run_.stacks[i].frame == id) {
          next = static_cast<model::StackId>(i);
        }
      }
      if (next == 0) {
        run_.stacks.push_back({at, id});
        next = static_cast<model::StackId>(run_.stacks.size() - 1);
      }
      at = next;
    }
    return at;
  }

  model::Run run_;
  TimePoint now_;
  model::ThreadId trainer_ = 0;
  model::EntityId host_ = 0;
};

}  // namespace flatout::diagnose
