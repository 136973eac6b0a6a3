#include "model/signal.h"

#include <array>

namespace flatout::model {
namespace {
// The .def file writes the enumerators without their types.
using enum SignalKind;
using enum EntityKind;
constexpr std::array kSignals = {
#define FLATOUT_SIGNAL(id, name, unit, kind, entity, text) \
  SignalInfo{name, unit, kind, entity, text},
#include "model/signals.def"
#undef FLATOUT_SIGNAL
};
static_assert(kSignals.size() == static_cast<size_t>(SignalId::kCount));
}  // namespace

const SignalInfo& info(SignalId id) {
  static constexpr SignalInfo kUnknown{"unknown", "", kGauge, kHost, ""};
  const size_t index = static_cast<size_t>(id);
  return index < kSignals.size() ? kSignals[index] : kUnknown;
}

std::string_view name(EntityKind kind) {
  static constexpr std::array<std::string_view, 11> kNames = {
      "host",   "cpu",   "disk", "mount",       "cgroup",      "process",
      "thread", "other", "gpu",  "gpu_process", "user_counter"};
  const size_t index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown";
}

}  // namespace flatout::model
