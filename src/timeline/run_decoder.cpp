#include "timeline/run_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "timeline/decoder_limits.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

bool RunDecoder::IdMap::set(uint32_t id, uint32_t index) {
  // Ids are dense: one far beyond the last is damage, and must not make us allocate for it.
  if (id >= kMaxId || id > map_.size() * 2 + 65'536) return false;
  if (id >= map_.size()) map_.resize(id + 1, kNone);
  map_[id] = index;
  return true;
}

void RunDecoder::IdMap::renumber(const std::vector<uint32_t>& new_index) {
  for (uint32_t& index : map_) index = index < new_index.size() ? new_index[index] : kNone;
}

RunDecoder::RunDecoder() = default;

void RunDecoder::feed(std::string_view packets) {
  while (!packets.empty()) {
    flatout_packet header;
    if (packets.size() < sizeof header) {
      ++counts_.malformed;
      break;
    }
    std::memcpy(&header, packets.data(), sizeof header);
    if (header.size < sizeof header || header.size % 8 != 0 || header.size > packets.size()) {
      ++counts_.malformed;
      break;
    }
    ++counts_.packets;
    if (!packet(header, packets.substr(sizeof header, header.size - sizeof header))) {
      ++counts_.malformed;
    }
    packets.remove_prefix(header.size);
  }
  restore_order();
  if (gaps_changed_) join_gaps(std::move(thinned_gaps_));
  if (facts_changed_) publish_facts();
  for (Process& process : run_.processes) {
    if (!process.ended) process.end = run_.end;
  }
}

bool RunDecoder::packet(const flatout_packet& header, std::string_view payload) {
  if (header.type == FLATOUT_PACKET_PAD) return true;
  return is_agent_packet(header.type) ? agent_packet(header, payload)
                                      : recorder_packet(header, payload);
}

bool RunDecoder::agent_packet(const flatout_packet& header, std::string_view payload) {
  const TimePoint at = time_of(header.time_ns);
  if (trusted_ && (at < run_.begin - kClockSlack || at > run_.end + kClockSlack)) return false;
  const ProcessId process = process_of(static_cast<int32_t>(header.pid), at);
  if (process == kNone) {
    ++counts_.refused;
    return true;
  }
  see(at, false);
  ByteReader reader(payload);
  switch (header.type) {
    case FLATOUT_PACKET_STRING:
      return on_string(states_[process], reader);
    case FLATOUT_PACKET_SLICE:
      return on_slice(process, header, reader);
    case FLATOUT_PACKET_COUNTER:
      return on_counter(process, at, reader);
    case FLATOUT_PACKET_INFO:
      return on_info(states_[process], payload);
    case FLATOUT_PACKET_COST:
      return on_cost(process, at, reader);
    case FLATOUT_PACKET_DEVICE:
      return on_device(process, header, reader);
    default:
      return on_dropped(process, at, reader);
  }
}

bool RunDecoder::recorder_packet(const flatout_packet& header, std::string_view payload) {
  const TimePoint at = time_of(header.time_ns);
  ByteReader reader(payload);
  switch (header.type) {
    case FLATOUT_PACKET_ENTITY:
      return on_entity(reader);
    case FLATOUT_PACKET_READINGS:
      see(at, true);
      return on_readings(at, reader);
    case FLATOUT_PACKET_PROCESS:
      see(at, true);
      return on_process(reader, at);
    case FLATOUT_PACKET_PROCESS_END:
      see(at, true);
      return on_process_end(reader);
    case FLATOUT_PACKET_THREAD:
      return on_thread(reader, at);
    case FLATOUT_PACKET_FRAME:
      return on_frame(reader);
    case FLATOUT_PACKET_STACK:
      return on_stack(reader);
    case FLATOUT_PACKET_STACK_READINGS:
      see(at, true);
      return on_stack_readings(at, reader);
    case FLATOUT_PACKET_MISSING:
      return on_missing(payload);
    case FLATOUT_PACKET_RUN_INFO:
      return on_run_info(payload);
    case FLATOUT_PACKET_GAP:
      return on_gap(reader);
    default:
      ++counts_.unknown;
      return true;
  }
}

// ---- packets of the recorder ----

bool RunDecoder::on_entity(ByteReader& reader) {
  const auto in = reader.get<flatout_entity>();
  const std::string_view name = reader.take(in.name_size);
  if (!reader.ok()) return false;
  const auto kind = static_cast<EntityKind>(in.kind);
  const EntityId parent = in.parent == kNone ? kNoEntity : entities_.get(in.parent);
  // Packets of the process's agent may have made it already.
  if (const auto known = unnamed_.find(in.key);
      kind == EntityKind::kProcess && known != unnamed_.end()) {
    const EntityId entity = known->second;
    unnamed_.erase(known);
    run_.entities[entity].name = name.substr(0, kMaxStringSize);
    run_.entities[entity].parent = parent;
    return entities_.set(in.id, entity);
  }
  const EntityId entity =
      add_entity({kind, in.key, parent, std::string(name.substr(0, kMaxStringSize))});
  return entity == kNoEntity || entities_.set(in.id, entity);
}

bool RunDecoder::on_readings(TimePoint at, ByteReader& reader) {
  const auto in = reader.get<flatout_readings>();
  for (uint32_t i = 0; i < in.count && reader.ok(); ++i) {
    const auto one = reader.get<flatout_reading>();
    if (!reader.ok()) break;
    const EntityId entity = entities_.get(one.entity);
    if (entity == kNoEntity || one.signal >= static_cast<uint16_t>(SignalId::kCount)) {
      ++counts_.refused;
      continue;
    }
    add_reading(static_cast<SignalId>(one.signal), entity, at, one.value);
  }
  return reader.ok();
}

bool RunDecoder::on_process(ByteReader& reader, TimePoint at) {
  const auto in = reader.get<flatout_process>();
  std::string_view text = reader.take(reader.left());
  if (!reader.ok()) return false;
  const auto it = pids_.find(in.pid);
  ProcessId id = it == pids_.end() ? kNone : it->second;
  if (id != kNone && !states_[id].placeholder &&
      run_.processes[id].start_time_ticks != in.start_time_ticks) {
    id = kNone;  // the pid was used again
  }
  if (id == kNone) id = add_process(in.pid);
  if (id == kNone) return true;
  states_[id].placeholder = false;
  Process& process = run_.processes[id];
  process.ppid = in.ppid;
  process.start_time_ticks = in.start_time_ticks;
  process.start = time_of(in.start_ns);
  process.end = std::max(process.end, at);
  process.in_job = (in.flags & FLATOUT_PROCESS_IN_JOB) != 0;
  process.main = (in.flags & FLATOUT_PROCESS_MAIN) != 0;
  process.python = (in.flags & FLATOUT_PROCESS_PYTHON) != 0;
  process.name = until_nul(text).substr(0, kMaxStringSize);
  process.exe = until_nul(text).substr(0, kMaxStringSize);
  process.command = until_nul(text).substr(0, kMaxStringSize);
  return true;
}

bool RunDecoder::on_process_end(ByteReader& reader) {
  const auto in = reader.get<flatout_process_end>();
  const auto it = pids_.find(in.pid);
  if (!reader.ok()) return false;
  if (it == pids_.end()) return true;
  Process& process = run_.processes[it->second];
  // Said twice when the parent's wait tells more than what /proc had told: the later one wins.
  if (!process.ended) process.end = time_of(in.end_ns);
  process.ended = true;
  if (in.wait_status != -1) process.wait_status = in.wait_status;
  if (process.main) {
    run_.finished = true;
    run_.wait_status = process.wait_status;
  }
  return true;
}

bool RunDecoder::on_thread(ByteReader& reader, TimePoint at) {
  const auto in = reader.get<flatout_thread>();
  const std::string_view name = reader.take(in.name_size);
  if (!reader.ok()) return false;
  const ProcessId process = process_of(in.pid, at);
  if (process == kNone) return true;
  const ThreadId thread = thread_of(process, in.tid);
  if (thread == kNone) return true;
  if (!name.empty()) run_.threads[thread].name = name.substr(0, 256);
  return threads_.set(in.id, thread);
}

bool RunDecoder::on_frame(ByteReader& reader) {
  const auto in = reader.get<flatout_frame>();
  const std::string_view function = reader.take(in.function_size);
  reader.take(1);  // the NUL between the two
  const std::string_view file = reader.take(in.file_size);
  if (!reader.ok()) return false;
  if (run_.frames.size() >= kMaxStacks) {
    ++counts_.refused;
    return true;
  }
  const FrameKind kind = in.kind <= static_cast<uint32_t>(FrameKind::kUnderPython)
                             ? static_cast<FrameKind>(in.kind)
                             : FrameKind::kPython;
  run_.frames.push_back({intern(function), intern(file), in.line, kind});
  return frames_.set(in.id, static_cast<uint32_t>(run_.frames.size() - 1));
}

bool RunDecoder::on_stack(ByteReader& reader) {
  const auto in = reader.get<flatout_stack>();
  if (!reader.ok() || in.id == 0) return false;
  const uint32_t frame = frames_.get(in.frame);
  const uint32_t parent = in.parent == 0 ? 0 : stacks_.get(in.parent);
  if (frame == kNone || parent == kNone || run_.stacks.size() >= kMaxStacks) {
    ++counts_.refused;
    return true;
  }
  run_.stacks.push_back({parent, frame});  // its parent lies before it: no cycles
  return stacks_.set(in.id, static_cast<uint32_t>(run_.stacks.size() - 1));
}

bool RunDecoder::on_stack_readings(TimePoint at, ByteReader& reader) {
  const auto in = reader.get<flatout_readings>();
  for (uint32_t i = 0; i < in.count && reader.ok(); ++i) {
    const auto one = reader.get<flatout_stack_reading>();
    if (!reader.ok()) break;
    const ThreadId thread = threads_.get(one.thread);
    if (thread == kNone) {
      ++counts_.refused;
      continue;
    }
    const uint32_t stack = one.stack == 0 ? 0 : stacks_.get(one.stack);
    const auto state = one.state < static_cast<uint8_t>(ThreadState::kCount)
                           ? static_cast<ThreadState>(one.state)
                           : ThreadState::kUnknown;
    run_.readings.push_back(
        {at, thread, stack == kNone ? 0 : stack, one.weight_us, state, one.flags, one.syscall});
  }
  return reader.ok();
}

bool RunDecoder::on_missing(std::string_view payload) {
  Missing missing;
  missing.signal = until_nul(payload);
  missing.reason = until_nul(payload);
  missing.hint = until_nul(payload);
  if (missing.signal.empty()) return false;
  const auto same = [&](const Missing& m) { return m.signal == missing.signal; };
  if (run_.missing.size() >= kMaxMissing || std::ranges::any_of(run_.missing, same)) return true;
  run_.missing.push_back(std::move(missing));
  return true;
}

bool RunDecoder::on_run_info(std::string_view payload) {
  const std::string_view key = until_nul(payload);
  const std::string_view value = until_nul(payload);
  if (key.empty()) return false;
  if (fact_bytes_ + key.size() + value.size() > 2 * kMaxFactBytes) {
    ++counts_.refused;
    return true;
  }
  std::string& slot = run_facts_[std::string(key)];
  fact_bytes_ += key.size() + value.size() - slot.size();
  slot = value;
  facts_changed_ = true;
  return true;
}

bool RunDecoder::on_gap(ByteReader& reader) {
  const auto in = reader.get<flatout_gap>();
  if (!reader.ok() || in.end_ns < in.begin_ns) return false;
  if (told_gaps_.size() >= kMaxGaps) return true;
  told_gaps_.push_back({time_of(in.begin_ns), time_of(in.end_ns)});
  gaps_changed_ = true;
  return true;
}

// ---- what packets refer to ----

StringId RunDecoder::intern(std::string_view text) {
  if (text.empty()) return 0;
  const std::string key(text.substr(0, kMaxStringSize));
  if (const auto it = string_ids_.find(key); it != string_ids_.end()) return it->second;
  if (string_bytes_ + key.size() + 128 > kMaxStringBytes) {
    ++counts_.refused;
    return 0;
  }
  string_bytes_ += key.size() + 128;  // two copies and the nodes around them
  const auto id = static_cast<StringId>(run_.strings.size());
  run_.strings.push_back(key);
  string_ids_.emplace(key, id);
  return id;
}

ProcessId RunDecoder::process_of(int32_t pid, TimePoint at) {
  const auto it = pids_.find(pid);
  // Packets may still be read from the ring of a process that has ended; later ones are another's.
  if (it != pids_.end()) {
    const Process& process = run_.processes[it->second];
    if (!process.ended || at <= process.end) return it->second;
  }
  const ProcessId id = add_process(pid);
  if (id == kNone) return kNone;
  states_[id].placeholder = true;
  run_.processes[id].in_job = true;
  run_.processes[id].start = run_.processes[id].end = at;
  return id;
}

ProcessId RunDecoder::add_process(int32_t pid) {
  if (run_.processes.size() >= kMaxProcesses) {
    ++counts_.refused;
    return kNone;
  }
  const auto id = static_cast<ProcessId>(run_.processes.size());
  run_.processes.emplace_back().pid = pid;
  states_.emplace_back();
  pids_[pid] = id;
  return id;
}

ThreadId RunDecoder::thread_of(ProcessId process, int32_t tid) {
  const uint64_t key = uint64_t{process} << 32 | static_cast<uint32_t>(tid);
  if (const auto it = thread_ids_.find(key); it != thread_ids_.end()) return it->second;
  if (run_.threads.size() >= kMaxThreads) {
    ++counts_.refused;
    return kNone;
  }
  const auto id = static_cast<ThreadId>(run_.threads.size());
  run_.threads.push_back({process, tid, "", run_.processes[process].pid == tid});
  thread_ids_.emplace(key, id);
  return id;
}

EntityId RunDecoder::add_entity(Entity entity) {
  if (run_.entities.size() >= kMaxEntities) {
    ++counts_.refused;
    return kNoEntity;
  }
  run_.entities.push_back(std::move(entity));
  return static_cast<EntityId>(run_.entities.size() - 1);
}

EntityId RunDecoder::process_entity(ProcessId process) {
  EntityId& entity = states_[process].entity;
  if (entity != kNoEntity) return entity;
  const int64_t pid = run_.processes[process].pid;
  entity = run_.entity(EntityKind::kProcess, pid);
  if (entity == kNoEntity) {
    entity = add_entity({EntityKind::kProcess, pid, kNoEntity, ""});
    if (entity != kNoEntity) unnamed_[pid] = entity;
  }
  return entity;
}

void RunDecoder::add_reading(SignalId signal, EntityId entity, TimePoint at, double value) {
  if (entity == kNoEntity || !std::isfinite(value)) return;
  const uint64_t key = uint64_t{entity} << 16 | static_cast<uint16_t>(signal);
  const auto [it, is_new] = series_ids_.emplace(key, static_cast<uint32_t>(run_.series.size()));
  if (is_new) run_.series.push_back({signal, entity, {}});
  std::vector<Reading>& readings = run_.series[it->second].readings;
  auto where = readings.end();
  if (!readings.empty() && at < readings.back().at) {
    where = std::ranges::upper_bound(readings, at, {}, &Reading::at);
  }
  readings.insert(where, {at, value});
  ++readings_;
}

void RunDecoder::see(TimePoint at, bool trusted) {
  if (trusted && !trusted_) {
    trusted_ = true;
    begun_ = false;  // what agents said about the time counts no more
    trusted_end_ = at;
  }
  if (trusted) trusted_end_ = std::max(trusted_end_, at);
  // The recorder reads at least once a second: agents can be ahead of it by no more than that.
  if (!trusted && trusted_ && (at < run_.begin || at > trusted_end_ + std::chrono::minutes(1))) {
    return;
  }
  run_.begin = begun_ ? std::min(run_.begin, at) : at;
  run_.end = begun_ ? std::max(run_.end, at) : at;
  begun_ = true;
}

// Run::info: the recorder's facts, those of the training process under their own keys, those of
// other processes as "pid.<pid>.<key>".
void RunDecoder::publish_facts() {
  facts_changed_ = false;
  uint64_t most = 0;
  for (const ProcessState& state : states_) most = std::max(most, state.trained);
  // Of several ranks the command itself, else the first. Without any step yet: who speaks at all.
  ProcessId chosen = kNone;
  for (ProcessId id = 0; id < states_.size(); ++id) {
    const bool fits = most > 0 ? states_[id].trained * 2 >= most : !states_[id].facts.empty();
    if (!fits) continue;
    if (chosen == kNone || run_.processes[id].main) chosen = id;
  }
  run_.info = run_facts_;
  run_.training_facts.clear();
  for (ProcessId id = 0; id < states_.size(); ++id) {
    const std::string prefix =
        id == chosen ? "" : "pid." + std::to_string(run_.processes[id].pid) + ".";
    for (const auto& [key, value] : states_[id].facts) {
      const bool told = run_.info.emplace(prefix + key, value).second;
      if (told && id == chosen) run_.training_facts.push_back(key);
    }
  }
  run_.training_process = chosen;
}

void RunDecoder::restore_order() {
  const auto restore = [](auto& items, size_t& sorted, auto time) {
    const auto middle = items.begin() + static_cast<std::ptrdiff_t>(sorted);
    std::ranges::stable_sort(middle, items.end(), {}, time);
    if (middle != items.begin() && middle != items.end() &&
        std::invoke(time, *middle) < std::invoke(time, *(middle - 1))) {
      const auto first =
          std::ranges::upper_bound(items.begin(), middle, std::invoke(time, *middle), {}, time);
      std::inplace_merge(first, middle, items.end(), [&](const auto& a, const auto& b) {
        return std::invoke(time, a) < std::invoke(time, b);
      });
    }
    sorted = items.size();
  };
  restore(run_.slices, sorted_slices_, &Slice::end);
  restore(run_.readings, sorted_readings_, &StackReading::at);
}

}  // namespace flatout::timeline
