// A model that computes in double precision, or in half precision where that takes longer.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/device.h"
#include "diagnose/findings.h"
#include "diagnose/framework.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;

namespace {

// A float has half the bytes, and a register twice as many of them: so much of the time at least is
// spared. (A GPU that is not made for double precision spares far more.)
constexpr double kSpared = 0.5;
constexpr double kMostOfIt = 0.5;    // of the parameters
constexpr double kMuchSlower = 1.2;  // than float32: less is not sure of what was timed alone
constexpr double kDispatch = 10e-6;  // of an operation, whatever its type

/// Share of the parameters' elements.
double in_float64(const model::Run& run) {
  const auto parts = split(run.fact("model.float64"), '/');
  if (parts.size() != 2) return 0;
  const auto doubles = parse_number<double>(parts[0]), all = parse_number<double>(parts[1]);
  return doubles && all && *all > 0 ? std::clamp(*doubles / *all, 0.0, 1.0) : 0;
}

/// Of the training thread: kernels, and the memory that they ask for. It waits while TensorFlow's
/// own threads compute.
Profile::Filter computing_in(const model::Run& run) {
  const bool graphs = framework(run) == Framework::kTensorFlow;
  return [graphs](const Cell& c) {
    return c.role == Role::kTrainer &&
           (c.act == Act::kNative || in_kernel(c.act) || (graphs && c.act == Act::kLock)) &&
           c.part != Part::kInputWait && c.part != Part::kH2d && c.part != Part::kSync &&
           c.part != Part::kCheckpoint && (c.traits & kNotComputing) == 0;
  };
}

/// What the agent measured: seconds of a core for convolutions and matrix products of the job's.
struct HalfPrecision {
  std::string_view type;
  double half = 0, single = 0;
};

std::optional<HalfPrecision> in_half(const model::Run& run) {
  const auto parts = split(run.fact("model.half"), '/');
  if (parts.size() != 3) return std::nullopt;
  const auto half = parse_number<double>(parts[1]), single = parse_number<double>(parts[2]);
  if (!half || !single || *single <= 0 || *half <= *single) return std::nullopt;
  return HalfPrecision{parts[0], *half / 1e3, *single / 1e3};
}

void detect_float64(const RunView& view, Findings& findings) {
  const double share = in_float64(view.run());
  if (share < kMostOfIt || !view.has_steps()) return;
  const auto computing = computing_in(view.run());
  const double device = device_computes(view.run()) * view.steps().mean;
  const double dispatch = kDispatch * 2 * graph_operations(view.run());  // there and back
  const double host =
      device > 0 ? 0 : std::max(view.per_step(Role::kTrainer, computing) - dispatch, 0.0);
  const double spared = kSpared * share;
  const WhatIf whatif(view);
  Finding* f = findings.add(
      "cpu.float64", "The model computes in double precision", 0.8,
      device > 0 ? spared * device
                 : whatif.saved_by({.trainer = spared * host, .trainer_cpu = spared * host}));
  if (f == nullptr) return;
  f->where = setting_line(view.run(), "model.float64.set_at");
  if (!f->where) f->where = view.where(computing);
  evidence(*f, fmt::format("{} of what it trains is float64", format_percent(share)), share,
           "ratio", "agent.graph", 1);
  if (device > 0) {
    evidence(*f, fmt::format("the device computes {} a step", ms(device)), device * 1e3, "ms",
             "agent.cuda", 1);
  } else {
    evidence(*f, fmt::format("computing takes {} a step", ms(host)), host * 1e3, "ms", "stacks",
             view.readings(computing));
  }
  remedy(*f, "float32",
         "Compute in float32: model.float(), and data as np.float32, which NumPy makes of Python's "
         "numbers only where it is told to.");
  if (device > 0) {
    remedy(*f, "float32_device",
           "At least half of the time: GPUs that are not made for it take 32 to 64 times as long.");
  }
}

void detect_half(const RunView& view, Findings& findings) {
  const auto found = in_half(view.run());
  if (!found || !view.has_steps() || device_computes(view.run()) > 0) return;
  const auto computing = computing_in(view.run());
  const double host = view.per_step(Role::kTrainer, computing);
  const double slower = found->half / found->single;
  if (slower < kMuchSlower) return;
  // What else is computed takes about as long as these do in float32, and as long in either type.
  double saved = host * (slower - 1) / (slower + 1);
  // Where only part of the model is in half precision. (A step may have two passes.)
  if (framework(view.run()) != Framework::kTensorFlow) {
    saved = std::min(saved, 2 * (found->half - found->single) / torch_threads(view.run()));
  }
  const std::string type(found->type);
  Finding* f = findings.add("cpu.half_precision",
                            fmt::format("{} takes longer than float32 on this processor", type),
                            0.8, WhatIf(view).saved_by({.trainer = saved, .trainer_cpu = saved}));
  if (f == nullptr) return;
  f->where = setting_line(view.run(), "model.half.set_at");
  if (!f->where) f->where = view.where(computing);
  evidence(
      *f,
      fmt::format("its convolutions and matrix products, timed alone, take {} in {}, {} in float32",
                  ms(found->half), type, ms(found->single)),
      slower, "ratio", "agent.half", 1);
  evidence(*f, fmt::format("computing takes {} a step", ms(host)), host * 1e3, "ms", "stacks",
           view.readings(computing));
  remedy(*f, "float32",
         "Compute in float32 on this machine: no autocast (enabled=False), no half() or "
         "bfloat16(), no mixed_float16 policy. Keep half precision for where there are "
         "instructions for it: most GPUs, "
         "processors with AMX.");
}

}  // namespace

void detect_precision(const RunView& view, Findings& findings) {
  detect_float64(view, findings);
  detect_half(view, findings);
}

}  // namespace flatout::diagnose
