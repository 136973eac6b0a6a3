// Turns events as they come from an importer into the rows of a Trace: names interned, tracks
// found, begins and ends paired.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/trace.h"
#include "timeline/chrome_scanner.h"

namespace flatout::timeline {

struct TraceOptions {
  // Of the operators and Python functions beyond so many only those of at least kLongSlice are
  // kept, so that memory stays bounded; what was left out is counted. Device events, launches and
  // annotations are always kept.
  uint64_t host_slices = 4'000'000;
  bool shapes = false;  // names of operators get their input shapes: "aten::mm [2, 3], [3, 4]"
  // Nothing but ranges with a number ("ProfilerStep#3") and the earliest event: enough to find a
  // window, in memory that does not grow with the trace.
  bool steps_only = false;
  unsigned threads = 1;  // that read one file of Chrome JSON; the result does not depend on it
};

/// A slice as importers of binary formats know it.
struct ImportedSlice {
  int64_t time_ns = 0, duration_ns = 0;
  std::string_view name, category, pid, tid;
  model::EventKind kind = model::EventKind::kOther;
  uint64_t correlation = 0;               // 0: none
  std::optional<int64_t> device, stream;  // of a device's event
  std::optional<uint64_t> bytes;
  uint64_t args_offset = 0;
};

/// What a category says about its events. `name` decides where the category does not.
model::EventKind kind_of_category(std::string_view category);
/// A device's event known by its name alone: "MemcpyHtoD".
model::EventKind kind_of_device_name(std::string_view name);

class TraceBuilder : public ChromeSink {
 public:
  explicit TraceBuilder(const TraceOptions& options = {}) : options_(options) {}

  void event(const ChromeEvent& event) override;
  void member(std::string_view key, std::string_view value) override;

  /// For importers of other formats.
  void add(const ImportedSlice& slice);
  void begin(model::TrackId track, int64_t time_ns, std::string_view name,
             std::string_view category);
  void end(model::TrackId track, int64_t time_ns);
  model::TrackId track(std::string_view pid, std::string_view tid);
  model::TrackId stream(int64_t device, int64_t stream);
  uint16_t category(std::string_view name);
  void name_process(std::string_view pid, std::string_view name);

  /// Adds what another builder was given of the same file, after what is here already: as if this
  /// one had been given it. Slices of begins and ends must not go from one to the other: see
  /// has_begins_and_ends().
  void append(const TraceBuilder& next);
  bool has_begins_and_ends() const {
    return phase_counts_[size_t{'B'}] + phase_counts_[size_t{'E'}] > 0;
  }

  model::Trace& trace() { return trace_; }
  /// Closes what is open, sorts out which tracks are devices. Call once, at the end.
  model::Trace finish(const ScanReport& report);

 private:
  struct TrackKey {
    uint64_t first = 0, second = 0;
    bool operator==(const TrackKey&) const = default;
  };
  struct TrackKeyHash {
    size_t operator()(const TrackKey& key) const {
      const uint64_t h = (key.first ^ (key.second * 0x9E3779B97F4A7C15ull)) * 0xA0761D6478BD642Full;
      return static_cast<size_t>(h ^ (h >> 32));
    }
  };
  uint64_t key_of(std::string_view word);
  uint32_t correlation_of(std::string_view value);
  uint32_t narrow(uint64_t correlation);
  bool has_usable_time(const ChromeEvent& e);
  void slice(const ChromeEvent& e, uint16_t category_id, model::EventKind kind);
  void device_slice(const ChromeEvent& e, uint16_t category_id, model::EventKind kind);
  void metadata(const ChromeEvent& e);
  void begin_slice(const ChromeEvent& e);
  void open(model::TrackId on);
  void end_slice(const ChromeEvent& e);
  void classify_tracks();
  model::StringId name_of(const ChromeEvent& e);
  model::StringId kernel_name(const ChromeEvent& e);

  TraceOptions options_;
  model::Trace trace_;
  std::vector<model::EventKind> category_kinds_;
  std::vector<uint64_t> category_counts_;
  std::array<uint16_t, 32> recent_categories_{};
  std::unordered_map<TrackKey, model::TrackId, TrackKeyHash> tracks_, streams_;
  std::string last_pid_, last_tid_;
  model::TrackId last_track_ = model::kNoEvent, last_stream_ = model::kNoEvent;
  std::unordered_map<std::string, std::string> process_names_;  // by pid
  std::unordered_map<uint64_t, uint32_t> large_correlations_;
  std::vector<std::vector<model::EventId>> open_;  // by track: slices begun and not ended
  uint64_t host_slices_ = 0, slices_added_ = 0;
  int64_t earliest_ = INT64_MAX;
  std::unordered_map<std::string, model::StringId> demangled_;  // names of kernels
  std::unordered_map<model::StringId, model::StringId>
      python_names_;  // VizTracer's, as PyTorch has them
  std::string buffer_;
  uint64_t phase_counts_[256] = {};
};

}  // namespace flatout::timeline
