// RunDecoder: the packets of agents, which come from the job: hostile.
#include <algorithm>

#include "timeline/decoder_limits.h"
#include "timeline/run_decoder.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr uint64_t kMostAtOnce = 128;       // kernels that a device runs side by side
constexpr size_t kMaxDeviceWindows = 4096;  // about five hours

// Only these kinds tell a process that trains; everything else happens elsewhere too.
bool trains(SliceKind kind) { return kind == SliceKind::kStep || kind == SliceKind::kOptimizer; }

}  // namespace

bool RunDecoder::on_string(ProcessState& state, ByteReader& reader) {
  const auto header = reader.get<flatout_string>();
  const std::string_view text = reader.take(header.size);
  if (!reader.ok() || header.id == 0) return false;
  if (header.id >= kMaxAgentStrings || header.id > state.strings.size() * 2 + kAgentSlots) {
    ++counts_.refused;
    return true;
  }
  if (header.id >= state.strings.size()) state.strings.resize(header.id + 1, 0);
  state.strings[header.id] = intern(text);
  return true;
}

bool RunDecoder::on_slice(ProcessId process, const flatout_packet& header, ByteReader& reader) {
  const auto in = reader.get<flatout_slice>();
  if (!reader.ok() || in.end_ns > header.time_ns + 1'000'000'000) return false;
  // A marker that only says "a step ended here" has no begin: the step before ends there.
  const uint64_t begin_ns = in.begin_ns == 0 ? in.end_ns : in.begin_ns;
  if (begin_ns > in.end_ns || in.end_ns == 0) return false;
  Slice slice;
  slice.begin = time_of(begin_ns);
  slice.end = time_of(in.end_ns);
  if (slice.length() > kMaxLength) return false;
  slice.kind = static_cast<SliceKind>(in.kind);
  if (in.kind == 0 || in.kind > static_cast<uint32_t>(SliceKind::kProfiler)) {
    ++counts_.unknown;
    return true;
  }
  slice.thread = thread_of(process, static_cast<int32_t>(header.tid));
  if (slice.thread == kNone) return true;
  ProcessState& state = states_[process];
  if (in.name < state.strings.size()) slice.name = state.strings[in.name];
  slice.value = in.value;
  slice.value2 = in.value2;
  if (trains(slice.kind)) {
    // Who trains is decided by comparing these: look again when one doubles.
    if (++state.trained, (state.trained & (state.trained - 1)) == 0) facts_changed_ = true;
  }
  run_.slices.push_back(slice);
  return true;
}

bool RunDecoder::on_counter(ProcessId process, TimePoint at, ByteReader& reader) {
  const auto in = reader.get<flatout_counter>();
  if (!reader.ok()) return false;
  const ProcessState& state = states_[process];
  const StringId name = in.name < state.strings.size() ? state.strings[in.name] : 0;
  auto it = counters_.find({process, name});
  if (it == counters_.end()) {
    if (counters_.size() >= kMaxCounters) {
      ++counts_.refused;
      return true;
    }
    const EntityId entity =
        add_entity({EntityKind::kUserCounter, static_cast<int64_t>(counters_.size()),
                    process_entity(process), std::string(run_.string(name))});
    it = counters_.emplace(std::pair(process, name), entity).first;
  }
  add_reading(SignalId::kJobCounter, it->second, at, in.value);
  return true;
}

bool RunDecoder::on_info(ProcessState& state, std::string_view payload) {
  const std::string_view key = until_nul(payload);
  const std::string_view value = until_nul(payload).substr(0, kMaxFactSize);
  if (key.empty() || key.size() > 128) return false;
  if (fact_bytes_ + key.size() + value.size() > kMaxFactBytes) {
    ++counts_.refused;
    return true;
  }
  std::string& slot = state.facts[std::string(key)];
  fact_bytes_ += key.size() + value.size() - slot.size();
  slot = value;
  facts_changed_ = true;
  return true;
}

bool RunDecoder::on_cost(ProcessId process, TimePoint at, ByteReader& reader) {
  flatout_cost in{};
  in.hooks = reader.get<uint64_t>();
  in.sum_ns = reader.get<uint64_t>();
  in.max_ns = reader.get<uint64_t>();
  in.steps = reader.get<uint64_t>();
  if (!reader.ok()) return false;
  if (reader.left() != 0) {
    in.interrupted = reader.get<uint64_t>();
    in.interrupted_ns = reader.get<uint64_t>();
    if (!reader.ok()) return false;
  }
  ProcessState& state = states_[process];
  const EntityId entity = process_entity(process);
  state.interrupted += static_cast<double>(in.interrupted);
  state.interrupted_ns += static_cast<double>(in.interrupted_ns);
  add_reading(SignalId::kAgentInterrupted, entity, at, state.interrupted);
  add_reading(SignalId::kAgentInterruptedTime, entity, at, state.interrupted_ns);
  state.hooks += static_cast<double>(in.hooks);
  state.hook_ns += static_cast<double>(in.sum_ns);
  add_reading(SignalId::kAgentHooks, entity, at, state.hooks);
  add_reading(SignalId::kAgentTime, entity, at, state.hook_ns);
  add_reading(SignalId::kAgentMax, entity, at, static_cast<double>(in.max_ns));
  return true;
}

bool RunDecoder::on_device(ProcessId process, const flatout_packet& header, ByteReader& reader) {
  const auto in = reader.get<flatout_device>();
  if (!reader.ok() || in.begin_ns >= in.end_ns || in.end_ns > header.time_ns + 1'000'000'000) {
    return false;
  }
  DeviceWindow out;
  out.begin = time_of(in.begin_ns);
  out.end = time_of(in.end_ns);
  if (out.length() > kMaxLength) return false;
  // Nothing of it is longer than the window, or, of what runs side by side, than all of a device.
  const auto length = static_cast<uint64_t>(out.length().count());
  const auto within = [&](uint64_t ns) {
    return Nanos(static_cast<int64_t>(std::min(ns, length)));
  };
  const auto summed = [&](uint64_t ns) {
    return Nanos(static_cast<int64_t>(std::min(ns, length * kMostAtOnce)));
  };
  out.process = process;
  out.device = in.device;
  out.busy = within(in.busy);
  out.compute = within(in.compute);
  out.communication = within(in.communication);
  out.copies = within(in.copies);
  out.exposed_communication = within(in.exposed_communication);
  out.exposed_copies = within(in.exposed_copies);
  out.exposed_pageable = within(in.exposed_pageable);
  for (size_t i = 0; i < FLATOUT_IDLE_CAUSES; ++i) out.idle[i] = within(in.idle[i]);
  out.kernel_sum = summed(in.kernel_sum);
  out.filled = summed(in.filled);
  out.norm_sum = summed(in.norm_sum);
  out.follow_sum = summed(in.follow_sum);
  out.launch_sum = summed(in.launch_sum);
  out.kernels = in.kernels;
  out.launches = in.launches;
  out.copy_count = in.copy_count;
  out.copy_bytes = in.copy_bytes;
  out.lost = in.lost;
  auto& windows = run_.device_windows;
  if (windows.size() >= kMaxDeviceWindows) {
    // Half of them say as much: the even ones go.
    size_t kept = 0;
    for (size_t i = 1; i < windows.size(); i += 2) windows[kept++] = windows[i];
    windows.resize(kept);
  }
  windows.push_back(out);
  return true;
}

bool RunDecoder::on_dropped(ProcessId process, TimePoint at, ByteReader& reader) {
  const auto in = reader.get<flatout_counter>();
  if (!reader.ok() || !(in.value >= 0 && in.value < 1e15)) return false;
  ProcessState& state = states_[process];
  state.dropped += in.value;
  counts_.dropped += static_cast<uint64_t>(in.value);
  add_reading(SignalId::kAgentDropped, process_entity(process), at, state.dropped);
  return true;
}

}  // namespace flatout::timeline
