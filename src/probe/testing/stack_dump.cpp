// stack_dump PID [--repeat N --interval-us US]: the Python stacks of a process as JSON, with the
// cost of N readings. stack_dump PID --states SECONDS: what each thread did, by StackProbe. A tool
// for tests and benchmarks; users have `flatout attach --dump`.
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/text.h"
#include "base/uneven_beat.h"
#include "probe/python_reader.h"
#include "probe/stack_probe.h"

namespace flatout::probe {
namespace {

using nlohmann::json;

Nanos cpu_now() {
  timespec ts{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return Nanos(int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec);
}

std::vector<int32_t> tids_of(const fs::Root& root, int32_t pid) {
  std::vector<int32_t> tids;
  for (const auto& name : root.list("proc/" + std::to_string(pid) + "/task").value_or({})) {
    if (const auto tid = parse_number<int32_t>(name)) tids.push_back(*tid);
  }
  return tids;
}

int fail(const Error& error) {
  std::fprintf(stderr, "stack_dump: %s (%s)\n", error.message.c_str(), error.hint.c_str());
  return 1;
}

/// `only_sleep`: the loop without the readings, which is what waking up costs on this machine now.
int dump(int32_t pid, int repeat, int interval_us, bool only_sleep) {
  const fs::Root root;
  PythonFinder finder;
  auto reader = PythonReader::open(root, pid, finder);
  if (!reader.ok()) return fail(reader.error());
  PythonReading reading;
  const auto tids = tids_of(root, pid);
  if (repeat == 0) {
    (*reader)->read_loops_of(pid);
    (void)(*reader)->read(reading, tids);  // finds the thread
  }
  Status status = (*reader)->read(reading, tids);
  if (!status.ok()) return fail(status.error());

  const uint64_t calls = (*reader)->system_calls();
  int failed = 0;
  const Nanos begin = cpu_now();
  for (int i = 0; i < repeat; i++) {
    usleep(static_cast<useconds_t>(interval_us));
    if (!only_sleep && !(*reader)->read(reading, tids).ok()) failed++;
  }
  const Nanos spent = cpu_now() - begin;

  json out = {{"python", "3." + std::to_string((*reader)->minor())},
              {"free_threaded", (*reader)->free_threaded()},
              {"gc_running", reading.gc_running},
              {"threads", json::array()}};
  if (repeat > 0) {
    out["cost"] = {{"readings", repeat},
                   {"failed", failed},
                   {"cpu_us", static_cast<double>(spent.count()) / 1e3 / repeat},
                   {"system_calls", static_cast<double>((*reader)->system_calls() - calls) /
                                        static_cast<double>(repeat)}};
  }
  for (const PythonThread& thread : reading.threads) {
    json frames = json::array();
    for (const PythonFrame& frame : thread.frames) {
      const PythonCode& code = (*reader)->code(frame.code);
      frames.push_back(
          {{"name", to_utf8(code.function)}, {"file", to_utf8(code.file)}, {"line", frame.line}});
    }
    json loops = json::array();
    for (const PythonLoop& loop : thread.loops) {
      loops.push_back({{"function", to_utf8((*reader)->code(loop.code).function)},
                       {"begun", loop.begun},
                       {"length", loop.length}});
    }
    out["threads"].push_back({{"tid", thread.tid},
                              {"thread_id", thread.pthread_id},
                              {"gil", thread.holds_gil},
                              {"torn", thread.torn},
                              {"loops", std::move(loops)},
                              {"frames", std::move(frames)}});
  }
  std::printf("%s\n", out.dump(1).c_str());
  return 0;
}

/// Adds up the time of each thread in each state, and under each innermost function.
class Totals : public model::Sink {
 public:
  model::EntityId entity(model::EntityKind, int64_t, std::string_view, model::EntityId) override {
    return 0;
  }
  void reading(model::SignalId, model::EntityId, TimePoint, double) override {}
  void missing(const model::Missing& m) override {
    missing_[m.signal] = {{"reason", m.reason}, {"hint", m.hint}};
  }
  void process(const model::Process&) override {}
  void process_end(int32_t, int, TimePoint) override {}
  model::ThreadId thread(int32_t pid, int32_t tid, std::string_view name) override {
    threads_.push_back({pid, tid, std::string(name)});
    return static_cast<model::ThreadId>(threads_.size() - 1);
  }
  model::FrameId frame(std::string_view function, std::string_view file, uint32_t line,
                       model::FrameKind kind) override {
    frames_.push_back(std::string(function) + " (" + std::string(file) + ":" +
                      std::to_string(line) + ")" + (model::is_python(kind) ? "" : " native"));
    return static_cast<model::FrameId>(frames_.size() - 1);
  }
  model::StackId stack(model::StackId parent, model::FrameId frame) override {
    auto& id = nodes_[{parent, frame}];
    if (id == 0) {
      stacks_.emplace_back(parent, frame);
      id = static_cast<model::StackId>(stacks_.size() - 1);
    }
    return id;
  }
  void stack_reading(const model::StackReading& r) override {
    const double seconds = r.weight_us * 1e-6;
    json& t = totals_[std::to_string(threads_[r.thread].tid)];
    t["pid"] = threads_[r.thread].pid;
    t["name"] = to_utf8(threads_[r.thread].name);
    add(t["states"][std::string(model::name(r.state))], seconds);
    std::string stack;
    for (model::StackId id = r.stack; id != 0; id = stacks_[id].first) {
      stack.insert(0, frames_[stacks_[id].second] + (stack.empty() ? "" : ";"));
    }
    add(t["stacks"][to_utf8(stack)], seconds);
    if ((r.flags & model::kHoldsGil) != 0) add(t["gil"], seconds);
    if ((r.flags & model::kGcRunning) != 0) add(t["gc"], seconds);
    if ((r.flags & model::kIdleWorker) != 0) add(t["idle"], seconds);
  }
  void fact(std::string_view, std::string_view) override {}
  json result() const { return {{"threads", totals_}, {"missing", missing_}}; }

 private:
  static void add(json& to, double seconds) {
    to = (to.is_number() ? to.get<double>() : 0.0) + seconds;
  }
  struct Name {
    int32_t pid, tid;
    std::string name;
  };
  std::vector<Name> threads_;
  std::vector<std::string> frames_{""};
  std::vector<std::pair<model::StackId, model::FrameId>> stacks_{{0, 0}};
  std::map<std::pair<model::StackId, model::FrameId>, model::StackId> nodes_;
  json totals_ = json::object(), missing_ = json::object();
};

int states(int32_t pid, double seconds, int interval_us) {
  const fs::Root root;
  JobTree job(root, pid, getpid());
  Scope scope;
  scope.self_pid = getpid();
  scope.job = &job;
  StackProbe probe(scope);
  Totals totals;
  TimePoint last = MonotonicClock::now();
  const TimePoint end = last + nanos(seconds * 1e9);
  Nanos cpu{}, native{};
  int ticks = 0;
  UnevenBeat beat;
  while (last < end) {
    std::this_thread::sleep_for(beat.vary(std::chrono::microseconds(interval_us)));
    const TimePoint now = MonotonicClock::now();
    job.update(now, totals);
    if (job.processes().empty()) break;
    probe.tick(now, now - last, totals);
    cpu += probe.last_cost().cpu;
    native += probe.last_cost().native;
    ticks++;
    last = now;
  }
  json out = totals.result();
  out["ticks"] = ticks;
  out["cpu_us_per_tick"] = ticks != 0 ? static_cast<double>(cpu.count()) / 1e3 / ticks : 0.0;
  out["native_ms"] = static_cast<double>(native.count()) / 1e6;
  std::printf("%s\n", out.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace flatout::probe

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): a tool for tests
  int pid = 0, repeat = 0, interval_us = 20000;
  double seconds = 0;
  bool only_sleep = false;
  for (int i = 1; i < argc; i++) {
    const auto next = [&] { return i + 1 < argc ? argv[++i] : "0"; };
    if (std::strcmp(argv[i], "--repeat") == 0) {
      repeat = std::atoi(next());
    } else if (std::strcmp(argv[i], "--interval-us") == 0) {
      interval_us = std::atoi(next());
    } else if (std::strcmp(argv[i], "--only-sleep") == 0) {
      only_sleep = true;
    } else if (std::strcmp(argv[i], "--states") == 0) {
      seconds = std::atof(next());
    } else {
      pid = std::atoi(argv[i]);
    }
  }
  if (pid <= 0) {
    std::fprintf(
        stderr,
        "usage: stack_dump PID [--repeat N [--only-sleep]] [--interval-us US] [--states S]\n");
    return 2;
  }
  return seconds > 0 ? flatout::probe::states(pid, seconds, interval_us)
                     : flatout::probe::dump(pid, repeat, interval_us, only_sleep);
}
