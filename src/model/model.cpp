#include <algorithm>
#include <array>

#include "model/finding.h"
#include "model/rank.h"
#include "model/run.h"

namespace flatout::model {

std::string_view name(ThreadState state) {
  static constexpr std::array<std::string_view, 13> kNames = {
      "unknown", "python", "native", "run_queue", "gil_wait", "lock",   "disk",
      "poll",    "sleep",  "child",  "kernel",    "stopped",  "reclaim"};
  static_assert(kNames.size() == static_cast<size_t>(ThreadState::kCount));
  const size_t index = static_cast<size_t>(state);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string_view name(RankState state) {
  static constexpr std::array<std::string_view, 5> kNames = {"unknown", "in_collective", "working",
                                                             "blocked", "stopped"};
  const size_t index = static_cast<size_t>(state);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string_view name(IdleCause cause) {
  static constexpr std::array<std::string_view, kIdleCauses> kNames = {
      "host", "launch", "sync", "round_trip", "dependency", "input"};
  const size_t index = static_cast<size_t>(cause);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string_view name(SliceKind kind) {
  static constexpr std::array<std::string_view, 24> kNames = {
      "unknown",      "step",      "input_wait",    "forward",    "backward", "optimizer",
      "h2d",          "sync",      "communication", "checkpoint", "gc",       "validation",
      "loader_start", "fetch",     "sample",        "collate",    "handover", "worker",
      "logging",      "zero_grad", "phase",         "epoch",      "feed",     "device_idle"};
  const size_t index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string_view name(Part part) {
  static constexpr std::array<std::string_view, kPartCount> kNames = {
      "input_wait",    "h2d",  "forward",    "backward", "optimizer",
      "communication", "sync", "checkpoint", "other",    "compute"};
  const size_t index = static_cast<size_t>(part);
  return index < kNames.size() ? kNames[index] : "unknown";
}

Part part_of(SliceKind kind) {
  switch (kind) {
    case SliceKind::kInputWait:
    case SliceKind::kLoaderStart:
    case SliceKind::kFetch:
    case SliceKind::kSample:
    case SliceKind::kCollate:
    case SliceKind::kHandover:
    case SliceKind::kFeed:
      return Part::kInputWait;
    case SliceKind::kForward:
    case SliceKind::kValidation:  // not cut out of the steps: a teacher, a pass without gradients
      return Part::kForward;
    case SliceKind::kBackward:
      return Part::kBackward;
    case SliceKind::kOptimizer:
    case SliceKind::kZeroGrad:
      return Part::kOptimizer;
    case SliceKind::kH2d:
      return Part::kH2d;
    case SliceKind::kSync:
      return Part::kSync;
    case SliceKind::kCommunication:
      return Part::kCommunication;
    case SliceKind::kCheckpoint:
      return Part::kCheckpoint;
    case SliceKind::kStep:
    case SliceKind::kGc:
    case SliceKind::kWorker:
    case SliceKind::kPhase:
    case SliceKind::kEpoch:
    case SliceKind::kDeviceIdle:
    case SliceKind::kProfiler:
      return Part::kCount;
    case SliceKind::kLogging:
      break;
  }
  return Part::kOther;
}

const Series* Run::find(SignalId signal, EntityId entity) const {
  for (const Series& s : series) {
    if (s.signal == signal && s.entity == entity) return &s;
  }
  return nullptr;
}

const Series* Run::find(SignalId signal) const {
  for (const Series& s : series) {
    if (s.signal == signal) return &s;
  }
  return nullptr;
}

std::vector<const Series*> Run::all(SignalId signal) const {
  std::vector<const Series*> out;
  for (const Series& s : series) {
    if (s.signal == signal) out.push_back(&s);
  }
  return out;
}

EntityId Run::entity(EntityKind kind, int64_t key) const {
  for (size_t i = entities.size(); i-- > 0;) {  // the latest of a reused pid
    if (entities[i].kind == kind && entities[i].key == key) return static_cast<EntityId>(i);
  }
  return kNoEntity;
}

std::string Run::damage() const {
  const auto it =
      std::ranges::find_if(missing, [](const Missing& m) { return m.signal == "recording"; });
  return it == missing.end() ? "" : it->reason;
}

std::string_view Run::fact(const std::string& key) const {
  const auto it = info.find(key);
  return it == info.end() ? std::string_view() : std::string_view(it->second);
}

const Process* Run::main_process() const {
  for (const Process& p : processes) {
    if (p.main) return &p;
  }
  return nullptr;
}

}  // namespace flatout::model
