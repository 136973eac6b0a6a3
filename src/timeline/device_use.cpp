#include "timeline/device_use.h"

#include <algorithm>
#include <map>
#include <vector>

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr const char* kDeviceTime = "gpu.device_time";

void add(DeviceUse& use, const DeviceWindow& w) {
  DeviceWindow& sum = use.sum;
  if (use.windows == 0) sum.begin = w.begin;
  sum.end = w.end;
  for (Nanos DeviceWindow::*time :
       {&DeviceWindow::busy, &DeviceWindow::compute, &DeviceWindow::communication,
        &DeviceWindow::copies, &DeviceWindow::exposed_communication, &DeviceWindow::exposed_copies,
        &DeviceWindow::exposed_pageable, &DeviceWindow::kernel_sum, &DeviceWindow::filled,
        &DeviceWindow::norm_sum, &DeviceWindow::follow_sum, &DeviceWindow::launch_sum}) {
    sum.*time += w.*time;
  }
  for (size_t i = 0; i < kIdleCauses; ++i) sum.idle[i] += w.idle[i];
  for (uint64_t DeviceWindow::*count :
       {&DeviceWindow::kernels, &DeviceWindow::launches, &DeviceWindow::copy_count,
        &DeviceWindow::copy_bytes, &DeviceWindow::lost}) {
    sum.*count += w.*count;
  }
  use.recorded += w.length();
  ++use.windows;
}

// Time of [begin, end) within pieces of input wait, which are in order.
Nanos input_within(std::span<const PartPiece> pieces, TimePoint begin, TimePoint end) {
  Nanos out{};
  auto it = std::ranges::upper_bound(pieces, begin, {}, &PartPiece::end);
  for (; it != pieces.end() && it->begin < end; ++it) {
    if (it->part != Part::kInputWait) continue;
    out += std::min(end, it->end) - std::max(begin, it->begin);
  }
  return out;
}

// Where the training thread took its batches, in order.
std::vector<PartPiece> input_waits(const Run& run) {
  std::vector<PartPiece> out;
  for (const Slice& s : run.slices) {
    if (s.kind == SliceKind::kInputWait && s.thread == run.steps.thread)
      out.push_back({s.begin, s.end, Part::kInputWait});
  }
  std::ranges::sort(out, {}, &PartPiece::end);
  return out;
}

}  // namespace

void find_device_use(Run& run, std::span<const PartPiece> pieces) {
  run.devices.clear();
  std::erase_if(run.missing, [](const Missing& m) { return m.signal == kDeviceTime; });
  if (const std::string_view state = run.fact("cuda.live"); !state.empty() && state != "on") {
    run.missing.push_back({kDeviceTime,
                           "what the GPU waits for is not known: " + std::string(state),
                           "leave CUPTI to flatout for a run, or record a trace: flatout trace"});
  }
  if (run.device_windows.empty()) return;
  ProcessId training = kNone;
  if (run.steps.source != StepSource::kNone && run.steps.thread < run.threads.size()) {
    training = run.threads[run.steps.thread].process;
  }
  const std::vector<PartPiece> batches = input_waits(run);
  std::map<uint32_t, DeviceUse> devices;
  for (const DeviceWindow& w : run.device_windows) {
    if (training != kNone && w.process != training) continue;
    DeviceUse& use = devices[w.device];
    use.sum.process = w.process;
    use.sum.device = w.device;
    add(use, w);
  }
  for (const Slice& s : run.slices) {
    if (s.kind != SliceKind::kDeviceIdle || s.thread >= run.threads.size()) continue;
    if (training != kNone && run.threads[s.thread].process != training) continue;
    const auto of = s.value >= 0 ? devices.find(static_cast<uint32_t>(s.value)) : devices.end();
    if (of == devices.end() || s.value2 < 0 || s.value2 >= static_cast<int64_t>(IdleCause::kInput))
      continue;
    auto& idle = of->second.sum.idle;
    const auto cause = static_cast<IdleCause>(s.value2);
    const auto move = [&](Nanos time, IdleCause to) {
      Nanos& as_told = idle[static_cast<size_t>(cause)];
      const Nanos moved = std::min(as_told, time);
      as_told -= moved;
      idle[static_cast<size_t>(to)] += moved;
    };
    const Nanos input = input_within(pieces, s.begin, s.end);
    move(input, IdleCause::kInput);
    // Where a batch was taken meanwhile, that came from the host then, not what had gone there.
    if (cause == IdleCause::kRoundTrip && input_within(batches, s.begin, s.end).count() > 0)
      move(s.length() - input, IdleCause::kSync);
  }
  for (auto& [number, use] : devices) run.devices.push_back(use);
}

}  // namespace flatout::timeline
