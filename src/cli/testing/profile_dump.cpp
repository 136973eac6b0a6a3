// Prints what the detectors see of a run folder: steps, loader, cores, and the largest cells of the
// profile. For working on detectors.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "diagnose/view.h"
#include "diagnose/whatif.h"
#include "timeline/import_folder.h"
#include "timeline/steps.h"

namespace flatout::diagnose {
namespace {

constexpr const char* kRoles[] = {"trainer", "pool", "producer", "producer-pool", "helper"};
constexpr const char* kStages[] = {"-", "fetch", "collate", "handover"};
constexpr const char* kLoaders[] = {"none", "serial", "processes", "threads"};
constexpr const char* kActs[] = {
    "python", "native", "kernel", "memory", "runqueue", "gil",     "lock", "read", "meta",   "seek",
    "write",  "sleep",  "poll",   "net",    "child",    "reclaim", "gc",   "idle", "unknown"};

void dump(const model::Run& run, size_t most) {
  const RunView view(run);
  const StepsView& steps = view.steps();
  fmt::print("steps {} mean {:.3f} ms median {:.3f} ms\n", steps.count, steps.mean * 1e3,
             steps.median * 1e3);
  for (size_t p = 0; p < model::kPartCount; ++p) {
    if (steps.parts[p] > 0) {
      fmt::print("  {:14} {:8.3f} ms\n", name(static_cast<model::Part>(p)), steps.parts[p] * 1e3);
    }
  }
  const LoaderView& l = view.loader();
  fmt::print(
      "loader {}{} workers {} batches {} fetch {:.3f} collate {:.3f} handover {:.3f} ms "
      "busy {:.2f}\n",
      kLoaders[static_cast<size_t>(l.kind)], l.measured ? " (measured)" : "", l.workers, l.batches,
      l.fetch * 1e3, l.collate * 1e3, l.handover * 1e3, l.busy);
  const CpuView& c = view.cpu();
  fmt::print(
      "cpu cores {} usable {} affinity {} quota {} idle {:.2f} job {:.2f} trainer {:.2f} "
      "pool {:.2f} producers {:.2f} others {:.2f} throttled {:.3f}\n",
      c.cores, c.usable, c.affinity, c.quota.value_or(0), c.idle, c.job, c.trainer, c.pool,
      c.producers, c.others, c.throttled);
  fmt::print("delay trainer {:.3f} (in wait {:.3f}) pool {:.3f} ms, producer share {:.2f}\n",
             view.trainer_delay() * 1e3, view.trainer_delay_in_wait() * 1e3,
             view.pool_delay() * 1e3, view.producer_delay_share());
  const WhatIf whatif(view);
  fmt::print("what-if: compute alone {:.3f} ms\n", whatif.compute() * 1e3);
  std::vector<Cell> cells = view.profile().cells();
  std::sort(cells.begin(), cells.end(),
            [](const Cell& a, const Cell& b) { return a.seconds > b.seconds; });
  if (cells.size() > most) cells.resize(most);
  for (const Cell& cell : cells) {
    const model::Frame& f = run.frames[cell.user < run.frames.size() ? cell.user : 0];
    const std::string_view file = run.string(f.file);
    fmt::print("{:8.3f} s {:5} {:13} {:8} {:9} {:11} {:04x}{} {}:{}\n", cell.seconds, cell.readings,
               kRoles[static_cast<size_t>(cell.role)], kStages[static_cast<size_t>(cell.stage)],
               kActs[static_cast<size_t>(cell.act)],
               cell.part == model::Part::kCount ? "-" : name(cell.part), cell.traits,
               cell.slow_step ? " slow" : "", file.substr(file.rfind('/') + 1), f.line);
  }
}

}  // namespace
}  // namespace flatout::diagnose

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: profile_dump RUN [CELLS]\n");
    return 2;
  }
  auto run = flatout::timeline::read_run_folder(argv[1]);
  if (!run.ok()) {
    fmt::print(stderr, "{}\n", run.error().message);
    return 1;
  }
  flatout::timeline::find_steps(*run);
  flatout::diagnose::dump(*run, argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 40);
}
