// probe_dump PID [SECONDS]: runs all probes on a process and prints what they delivered, one
// reading a line, with the CPU time that each probe cost. For debugging and for tests.
#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "probe/job_tree.h"
#include "probe/probe.h"
#include "probe/testing/record_sink.h"

namespace {

double cpu_us() {
  timespec ts{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
  return static_cast<double>(ts.tv_sec) * 1e6 + static_cast<double>(ts.tv_nsec) * 1e-3;
}

struct Cost {
  double us = 0;
  int reads = 0;
};

}  // namespace

int main(int argc, char** argv) {
  using namespace flatout;
  if (argc < 2) {
    fmt::print(stderr, "usage: probe_dump PID [SECONDS]\n");
    return 2;
  }
  const int32_t pid = std::atoi(argv[1]);
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0;
  probe::JobTree tree(fs::Root("/"), pid, getpid());
  probe::RecordSink sink;
  const auto probes =
      probe::make_probes({.root = fs::Root("/"), .self_pid = getpid(), .job = &tree});
  std::vector<TimePoint> due(probes.size());
  std::map<std::string, Cost> costs;
  const auto timed = [&](const std::string& name, auto work) {
    const double before = cpu_us();
    work();
    costs[name].us += cpu_us() - before;
    ++costs[name].reads;
  };
  const TimePoint begin = MonotonicClock::now();
  for (TimePoint now = begin;; now = MonotonicClock::now()) {
    timed("job_tree", [&] { tree.update(now, sink); });
    for (size_t i = 0; i < probes.size(); ++i) {
      if (now < due[i]) continue;
      timed(probes[i]->name(), [&] { probes[i]->read(now, sink); });
      due[i] = now + probes[i]->period();
    }
    if (to_s(now - begin) >= seconds) break;
    usleep(100'000);
  }
  for (const model::Process& p : sink.run.processes) {
    fmt::print("process {} parent {} {}{}{} exe {} command {}\n", p.pid, p.ppid,
               escape_terminal(p.name), p.main ? " main" : "", p.python ? " python" : "",
               escape_terminal(p.exe), escape_terminal(p.command));
  }
  for (const auto& [ended, status] : sink.ends) fmt::print("ended {} status {}\n", ended, status);
  for (const model::Series& series : sink.run.series) {
    const model::Entity& entity = sink.run.entities[series.entity];
    fmt::print("{} {} {} {} {:.17g}{}\n", model::info(series.signal).name, model::name(entity.kind),
               entity.key, entity.name.empty() ? "-" : escape_terminal(entity.name),
               series.readings.back().value,
               series.readings.size() > 1
                   ? fmt::format(" first {:.17g}", series.readings.front().value)
                   : "");
  }
  for (const auto& [key, value] : sink.facts)
    fmt::print("fact {} {}\n", key, escape_terminal(value));
  for (const auto& [signal, missing] : sink.missing_signals) {
    fmt::print("missing {}: {} ({})\n", signal, missing.reason, missing.hint);
  }
  double all = 0;
  for (const auto& [name, cost] : costs) {
    fmt::print("cost {} reads {} us_per_read {:.1f}\n", name, cost.reads, cost.us / cost.reads);
    all += cost.us;
  }
  const double wall = to_s(MonotonicClock::now() - begin);
  fmt::print("cost all readings {} share_of_core {:.5f}\n", sink.delivered, all * 1e-6 / wall);
  return 0;
}
