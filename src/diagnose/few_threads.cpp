// Fewer threads than the cores that idle beside them: the job was told to compute with so few.
#include "diagnose/few_threads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/findings.h"
#include "diagnose/input.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Part;

namespace {

// What an operation takes on one core however many threads share its work: its dispatch, and theirs
// to begin together and to wait for the last. Tensors that are too small to be shared take about
// as long altogether.
constexpr double kUnshared = 40e-6;
constexpr double kNearlyIdle = 0.3;  // of a core, that others may use of one that idles
constexpr double kMuchFaster = 1.2;  // less is not worth a word
// Of a core: others of the job, or input that is waited for, have plans of their own for idle
// cores.
constexpr double kOthersWork = 0.1, kMuchInput = 0.1;

/// Kernels of the training thread's, which PyTorch lets its threads share.
bool computes(const Cell& c) {
  return c.role == Role::kTrainer && c.act == Act::kNative && c.part != Part::kInputWait &&
         c.part != Part::kCheckpoint && c.part != Part::kOther && (c.traits & kNotComputing) == 0;
}

/// Whether somebody asked for so few, in the code or in the environment: what PyTorch takes by
/// itself (the cores without their second threads) is nobody's mistake.
bool asked_for(const model::Run& run, std::string_view threads) {
  return setting_line(run, "torch.num_threads.set_at") ||
         run.fact("env.OMP_NUM_THREADS") == threads || run.fact("env.MKL_NUM_THREADS") == threads;
}

}  // namespace

std::string few_threads(const RunView& view) {
  const CpuView& cpu = view.cpu();
  const std::string_view fact = view.run().fact("torch.num_threads");
  const auto threads = parse_number<double>(fact);
  const double ops = graph_operations(view.run());
  if (!threads || *threads < 1 || ops <= 0 || !view.has_steps() || !cpu.idle_known) return "";
  // Ranks of one host share its idle cores.
  const double ranks =
      std::max(1.0, parse_number<double>(view.run().fact("env.LOCAL_WORLD_SIZE")).value_or(1));
  const double free = std::floor(std::min(cpu.idle / ranks, cpu.usable - *threads) + kNearlyIdle);
  if (free < 1 || !asked_for(view.run(), fact)) return "";
  const double step = view.steps().mean;
  if (cpu.producers > kOthersWork || cpu.throttled > 0.05) return "";
  if (view.steps().part(Part::kInputWait) > kMuchInput * step) return "";
  const double computing = view.per_step(Role::kTrainer, computes);
  const double shared = std::max(0.0, computing - kUnshared * 2 * ops);  // there and back
  const double then = shared * *threads / (*threads + free) * WhatIf(view).beside(free);
  const double gain = step / (step - shared + then);
  if (gain < kMuchFaster) return "";
  return fmt::format(
      "It was told to compute with {:.0f} thread{}{} beside {:.0f} idle core{}: with {:.0f} it "
      "may be {:.1f} times as fast.",
      *threads, *threads == 1 ? "" : "s",
      in_brackets(setting_line(view.run(), "torch.num_threads.set_at")), free, free == 1 ? "" : "s",
      *threads + free, gain);
}

}  // namespace flatout::diagnose
