// Turns packets (wire/messages.h) into a Run, while the job runs and from a run folder alike.
// Packets of agents come from the job and are hostile: nothing in them is trusted, all that they
// make us keep is bounded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "model/run.h"
#include "wire/messages.h"

namespace flatout::timeline {

/// Types that an agent may send. What else it writes into its ring must not be passed on.
constexpr bool is_agent_packet(uint16_t type) {
  return type >= FLATOUT_PACKET_STRING && type <= FLATOUT_PACKET_DEVICE;
}

struct DecoderCounts {
  uint64_t packets = 0;
  uint64_t unknown = 0;    // packets of a type that this version does not know
  uint64_t malformed = 0;  // packets whose contents make no sense
  uint64_t dropped = 0;    // said by agents: packets that they could not write
  uint64_t refused = 0;    // things not kept because a bound was reached
};

class RunDecoder {
 public:
  RunDecoder();

  /// Whole packets, one after another. What follows a packet with an impossible size is dropped.
  /// Ids in packets of the recorder (entities, threads, frames, stacks) are one space for all that
  /// is fed to a decoder.
  void feed(std::string_view packets);

  /// Always consistent between calls: slices by end, readings by time. Steps are not found here:
  /// call find_steps() (timeline/steps.h).
  model::Run& run() { return run_; }
  const model::Run& run() const { return run_; }
  const DecoderCounts& counts() const { return counts_; }

  /// Brings memory() below `max_bytes`, if it is above: drops windows of 10 s (shorter ones where
  /// there is very much) of slices and stack readings from the middle and says so in Run::gaps,
  /// makes the older part of the series coarser, forgets processes that nothing refers to.
  void thin(size_t max_bytes);
  /// Bytes that the Run and this decoder hold, roughly.
  size_t memory() const;

 private:
  // What is known about a process besides run_.processes, which this is parallel to.
  struct ProcessState {
    std::vector<model::StringId> strings;      // by the agent's id
    std::map<std::string, std::string> facts;  // from its agent
    uint64_t trained = 0;                      // slices that only a training process has
    double hooks = 0, hook_ns = 0, interrupted = 0, interrupted_ns = 0,
           dropped = 0;                         // the agent's totals
    model::EntityId entity = model::kNoEntity;  // where the agent's own series go
    bool placeholder = false;  // known from its agent only; the recorder has not told yet
  };
  // Maps ids of packets, which should be dense, to indices of ours.
  class IdMap {
   public:
    bool set(uint32_t id, uint32_t index);
    uint32_t get(uint32_t id) const { return id < map_.size() ? map_[id] : model::kNone; }
    size_t memory() const { return map_.capacity() * sizeof(uint32_t); }
    void renumber(const std::vector<uint32_t>& new_index);

   private:
    std::vector<uint32_t> map_;
  };

  bool packet(const flatout_packet& header, std::string_view payload);
  bool agent_packet(const flatout_packet& header, std::string_view payload);
  bool recorder_packet(const flatout_packet& header, std::string_view payload);
  bool on_string(ProcessState& state, ByteReader& reader);
  bool on_slice(model::ProcessId process, const flatout_packet& header, ByteReader& reader);
  bool on_counter(model::ProcessId process, TimePoint at, ByteReader& reader);
  bool on_info(ProcessState& state, std::string_view payload);
  bool on_cost(model::ProcessId process, TimePoint at, ByteReader& reader);
  bool on_device(model::ProcessId process, const flatout_packet& header, ByteReader& reader);
  bool on_dropped(model::ProcessId process, TimePoint at, ByteReader& reader);
  bool on_entity(ByteReader& reader);
  bool on_readings(TimePoint at, ByteReader& reader);
  bool on_process(ByteReader& reader, TimePoint at);
  bool on_process_end(ByteReader& reader);
  bool on_thread(ByteReader& reader, TimePoint at);
  bool on_frame(ByteReader& reader);
  bool on_stack(ByteReader& reader);
  bool on_stack_readings(TimePoint at, ByteReader& reader);
  bool on_missing(std::string_view payload);
  bool on_run_info(std::string_view payload);
  bool on_gap(ByteReader& reader);

  model::StringId intern(std::string_view text);
  model::ProcessId process_of(int32_t pid, TimePoint at);
  model::ProcessId add_process(int32_t pid);
  model::ThreadId thread_of(model::ProcessId process, int32_t tid);
  model::EntityId add_entity(model::Entity entity);
  model::EntityId process_entity(model::ProcessId process);
  void add_reading(model::SignalId signal, model::EntityId entity, TimePoint at, double value);
  void publish_facts();
  void restore_order();
  void see(TimePoint at, bool trusted);

  bool window_kept(TimePoint at) const;
  int64_t middle_windows() const;
  size_t event_bytes() const;
  size_t series_bytes() const;
  void drop_windows();
  void coarsen_series();
  void forget_processes();
  void forget_entities();
  void join_gaps(std::vector<model::Gap> thinned);

  model::Run run_;
  DecoderCounts counts_;
  std::vector<ProcessState> states_;
  std::map<std::string, std::string> run_facts_;              // the recorder's own
  std::unordered_map<int32_t, model::ProcessId> pids_;        // the latest process of a pid
  std::unordered_map<uint64_t, model::ThreadId> thread_ids_;  // process << 32 | tid
  std::unordered_map<std::string, model::StringId> string_ids_;
  std::unordered_map<uint64_t, uint32_t> series_ids_;  // entity << 16 | signal
  std::map<std::pair<model::ProcessId, model::StringId>, model::EntityId> counters_;
  std::unordered_map<int64_t, model::EntityId> unnamed_;  // processes' entities made here, by pid
  IdMap entities_, threads_, frames_, stacks_;
  bool facts_changed_ = false, gaps_changed_ = false;
  size_t string_bytes_ = 0;
  size_t fact_bytes_ = 0;
  size_t readings_ = 0;         // in all series
  size_t sorted_slices_ = 0;    // so many of run_.slices are known to be in order
  size_t sorted_readings_ = 0;  // the same for run_.readings
  bool begun_ = false;
  bool trusted_ = false;  // run_.begin and end come from the recorder's clock
  TimePoint trusted_end_{};

  // Thinning: the head and the tail stay whole, of the middle every keep_every_-th window.
  Nanos window_ = std::chrono::seconds(10);
  int64_t keep_every_ = 1;
  std::vector<model::Gap> told_gaps_, thinned_gaps_;
  Nanos series_spacing_{0};
  Nanos series_margin_ = std::chrono::seconds(60);
};

}  // namespace flatout::timeline
