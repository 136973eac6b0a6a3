// The Sink behind which the run is recorded: what probes deliver becomes packets.
// Names of processes and command lines pass through redact() here, once, on their way to any file.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "model/sink.h"
#include "recorder/recording.h"

namespace flatout::recorder {

class PacketSink final : public model::Sink {
 public:
  explicit PacketSink(Recording& recording) : recording_(recording) {}

  model::EntityId entity(model::EntityKind kind, int64_t key, std::string_view name,
                         model::EntityId parent) override;
  void reading(model::SignalId signal, model::EntityId entity, TimePoint at, double value) override;
  void missing(const model::Missing& missing) override;
  void process(const model::Process& process) override;
  void process_end(int32_t pid, int wait_status, TimePoint at) override;
  model::ThreadId thread(int32_t pid, int32_t tid, std::string_view name) override;
  model::FrameId frame(std::string_view function, std::string_view file, uint32_t line,
                       model::FrameKind kind) override;
  model::StackId stack(model::StackId parent, model::FrameId frame) override;
  void stack_reading(const model::StackReading& reading) override;
  void fact(std::string_view key, std::string_view value) override;

  /// Hands on readings that wait to be put into one packet; call before Recording::pump().
  void flush();

 private:
  void flush_readings();
  void flush_stack_readings();

  struct KnownThread {
    model::ThreadId id;
    std::string name;
  };
  struct KnownProcess {
    uint64_t start_time_ticks = 0;
    bool ended = false;
    int wait_status = -1;
  };

  Recording& recording_;
  std::map<std::tuple<model::EntityKind, int64_t, std::string>, model::EntityId> entities_;
  std::set<std::string, std::less<>> missing_;
  std::unordered_map<std::string, size_t> facts_;  // hash of what was told last
  std::unordered_map<int32_t, KnownProcess> processes_;
  std::unordered_map<uint64_t, KnownThread> threads_;  // pid << 32 | tid
  std::unordered_map<std::string, model::FrameId> frames_;
  std::unordered_map<uint64_t, model::StackId> stacks_;  // parent << 32 | frame
  uint32_t next_thread_ = 1;
  std::string key_;  // scratch

  std::string readings_, stack_readings_;  // payloads of the packets to be
  TimePoint readings_at_{}, stack_readings_at_{};
};

}  // namespace flatout::recorder
