#include "recorder/packet_sink.h"

#include <algorithm>

#include "base/bytes.h"
#include "recorder/redact.h"
#include "wire/messages.h"

namespace flatout::recorder {
namespace {

// Bounds for code that makes functions or threads without end; what is above reads as "unknown".
constexpr size_t kMaxFrames = 100'000;
constexpr size_t kMaxStacks = 400'000;
constexpr size_t kMaxEntities = 200'000;
constexpr size_t kMaxThreads = 200'000;
constexpr size_t kMaxProcesses = 50'000;
constexpr size_t kMaxReadingBytes = 32 << 10;  // of one packet
constexpr size_t kMaxName = 4096;

std::string packet(uint16_t type, TimePoint at, std::string_view payload) {
  const size_t size = (sizeof(flatout_packet) + payload.size() + 7) / 8 * 8;
  flatout_packet header{};
  header.size = static_cast<uint32_t>(size);
  header.type = type;
  header.time_ns = static_cast<uint64_t>(to_ns(at));
  std::string out;
  out.reserve(size);
  put(out, header);
  out.append(payload);
  out.resize(size, '\0');
  return out;
}

void append_text(std::string& out, std::string_view text) { out.append(text.substr(0, kMaxName)); }

}  // namespace

model::EntityId PacketSink::entity(model::EntityKind kind, int64_t key, std::string_view name,
                                   model::EntityId parent) {
  const auto [it, is_new] = entities_.try_emplace({kind, key, std::string(name)}, 0);
  if (!is_new) return it->second;
  if (entities_.size() > kMaxEntities) {
    entities_.erase(it);
    return model::kNoEntity;
  }
  it->second = static_cast<model::EntityId>(entities_.size() - 1);
  const std::string shown = redact_text(name.substr(0, kMaxName));
  std::string payload;
  flatout_entity header{};
  header.id = it->second;
  header.kind = static_cast<uint16_t>(kind);
  header.key = key;
  header.parent = parent;
  header.name_size = static_cast<uint32_t>(shown.size());
  put(payload, header);
  payload += shown;
  recording_.define(packet(FLATOUT_PACKET_ENTITY, MonotonicClock::now(), payload));
  return it->second;
}

void PacketSink::reading(model::SignalId signal, model::EntityId entity, TimePoint at,
                         double value) {
  if (entity == model::kNoEntity) return;
  if (at != readings_at_ || readings_.size() > kMaxReadingBytes) flush_readings();
  readings_at_ = at;
  put(readings_, flatout_reading{entity, static_cast<uint16_t>(signal), 0, value});
}

void PacketSink::flush_readings() {
  if (readings_.empty()) return;
  std::string payload;
  put(payload,
      flatout_readings{static_cast<uint32_t>(readings_.size() / sizeof(flatout_reading)), 0});
  payload += readings_;
  recording_.series(packet(FLATOUT_PACKET_READINGS, readings_at_, payload), readings_at_);
  readings_.clear();
}

void PacketSink::missing(const model::Missing& missing) {
  if (!missing_.emplace(missing.signal).second) return;
  std::string payload;
  append_text(payload, missing.signal);
  payload += '\0';
  append_text(payload, missing.reason);
  payload += '\0';
  append_text(payload, missing.hint);
  recording_.define(packet(FLATOUT_PACKET_MISSING, MonotonicClock::now(), payload));
}

void PacketSink::process(const model::Process& process) {
  if (processes_.size() > kMaxProcesses) {
    std::erase_if(processes_, [](const auto& item) { return item.second.ended; });
  }
  const auto [it, is_new] = processes_.try_emplace(process.pid);
  KnownProcess& known = it->second;
  if (is_new) known.start_time_ticks = process.start_time_ticks;
  if (known.start_time_ticks != process.start_time_ticks || known.ended) {
    // The pid was given out again: its threads are others.
    std::erase_if(threads_, [&](const auto& item) {
      return static_cast<int32_t>(item.first >> 32) == process.pid;
    });
    known = KnownProcess{process.start_time_ticks};
  }
  flatout_process header{};
  header.pid = process.pid;
  header.ppid = process.ppid;
  header.start_time_ticks = process.start_time_ticks;
  header.start_ns = static_cast<uint64_t>(to_ns(process.start));
  header.flags = (process.in_job ? FLATOUT_PROCESS_IN_JOB : 0) |
                 (process.main ? FLATOUT_PROCESS_MAIN : 0) |
                 (process.python ? FLATOUT_PROCESS_PYTHON : 0);
  std::string payload;
  put(payload, header);
  append_text(payload, redact_text(process.name));
  payload += '\0';
  append_text(payload, process.exe);
  payload += '\0';
  append_text(payload, redact_command(process.command));
  recording_.define(packet(FLATOUT_PACKET_PROCESS, MonotonicClock::now(), payload));
}

void PacketSink::process_end(int32_t pid, int wait_status, TimePoint at) {
  // Two may tell: the job tree sees it vanish, the recorder may know how it ended.
  KnownProcess& known = processes_[pid];
  if (known.ended && (wait_status == -1 || known.wait_status != -1)) return;
  known.ended = true;
  known.wait_status = wait_status;
  std::string payload;
  put(payload, flatout_process_end{pid, wait_status, static_cast<uint64_t>(to_ns(at))});
  recording_.define(packet(FLATOUT_PACKET_PROCESS_END, at, payload));
}

model::ThreadId PacketSink::thread(int32_t pid, int32_t tid, std::string_view name) {
  const uint64_t key = uint64_t{static_cast<uint32_t>(pid)} << 32 | static_cast<uint32_t>(tid);
  const auto [it, is_new] = threads_.try_emplace(key, KnownThread{next_thread_, ""});
  if (!is_new && it->second.name == name) return it->second.id;
  if (is_new) {
    if (next_thread_ > kMaxThreads) {
      threads_.erase(it);
      return model::kNone;
    }
    ++next_thread_;
  }
  it->second.name = std::string(name);
  const std::string shown = redact_text(name.substr(0, kMaxName));
  std::string payload;
  put(payload, flatout_thread{it->second.id, pid, tid, static_cast<uint32_t>(shown.size())});
  payload += shown;
  recording_.define_event(packet(FLATOUT_PACKET_THREAD, MonotonicClock::now(), payload));
  return it->second.id;
}

model::FrameId PacketSink::frame(std::string_view function, std::string_view file, uint32_t line,
                                 model::FrameKind kind) {
  function = function.substr(0, kMaxName);
  file = file.substr(0, kMaxName);
  key_.clear();
  put(key_, line);
  put(key_, kind);
  key_.append(function);
  key_ += '\0';
  key_.append(file);
  const auto known = frames_.find(key_);
  if (known != frames_.end()) return known->second;
  if (frames_.size() >= kMaxFrames) return 0;
  const auto id = static_cast<model::FrameId>(frames_.size() + 1);
  frames_.emplace(key_, id);
  std::string payload;
  put(payload,
      flatout_frame{id, line, static_cast<uint32_t>(kind), static_cast<uint32_t>(function.size()),
                    static_cast<uint32_t>(file.size()), 0});
  payload.append(function);
  payload += '\0';
  payload.append(file);
  recording_.define_event(packet(FLATOUT_PACKET_FRAME, MonotonicClock::now(), payload));
  return id;
}

model::StackId PacketSink::stack(model::StackId parent, model::FrameId frame) {
  const uint64_t key = uint64_t{parent} << 32 | frame;
  const auto known = stacks_.find(key);
  if (known != stacks_.end()) return known->second;
  if (stacks_.size() >= kMaxStacks) return parent;  // the caller's stack is true, if shorter
  const auto id = static_cast<model::StackId>(stacks_.size() + 1);
  stacks_.emplace(key, id);
  std::string payload;
  put(payload, flatout_stack{id, parent, frame, 0});
  recording_.define_event(packet(FLATOUT_PACKET_STACK, MonotonicClock::now(), payload));
  return id;
}

void PacketSink::stack_reading(const model::StackReading& reading) {
  if (reading.thread == model::kNone) return;
  if (reading.at != stack_readings_at_ || stack_readings_.size() > kMaxReadingBytes) {
    flush_stack_readings();
  }
  stack_readings_at_ = reading.at;
  put(stack_readings_,
      flatout_stack_reading{reading.thread, reading.stack, reading.weight_us,
                            static_cast<uint8_t>(reading.state), reading.flags, reading.syscall});
}

void PacketSink::flush_stack_readings() {
  if (stack_readings_.empty()) return;
  std::string payload;
  put(payload,
      flatout_readings{
          static_cast<uint32_t>(stack_readings_.size() / sizeof(flatout_stack_reading)), 0});
  payload += stack_readings_;
  recording_.event(packet(FLATOUT_PACKET_STACK_READINGS, stack_readings_at_, payload),
                   stack_readings_at_);
  stack_readings_.clear();
}

void PacketSink::fact(std::string_view key, std::string_view value) {
  // Facts are never thinned, and some are told anew with each reading: only news is written.
  const size_t hash = std::hash<std::string_view>()(value);
  const auto [it, is_new] = facts_.try_emplace(std::string(key), hash);
  if (!is_new && it->second == hash) return;
  it->second = hash;
  std::string payload(key.substr(0, kMaxName));
  payload += '\0';
  payload.append(value.substr(0, 16 * kMaxName));
  recording_.define(packet(FLATOUT_PACKET_RUN_INFO, MonotonicClock::now(), payload));
}

void PacketSink::flush() {
  flush_readings();
  flush_stack_readings();
}

}  // namespace flatout::recorder
