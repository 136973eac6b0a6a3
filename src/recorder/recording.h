// Where all packets of a run come together: they are fed to the live Run and written to the run
// folder's series.bin and events.bin, both kept within bounds however long the job runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "recorder/block_file.h"
#include "timeline/run_decoder.h"

namespace flatout::recorder {

/// Decides which windows of 10 s of a stream go to its file: all of them up to `budget` bytes, then
/// every second until an eighth of the budget is used up again, then every fourth, and so on. So
/// the file grows with the logarithm of time.
class Thinner {
 public:
  explicit Thinner(uint64_t budget) : budget_(budget), next_limit_(budget) {}
  /// Whether what happens at `now` is to be written, if the file has `bytes` bytes.
  bool keeps(TimePoint now, uint64_t bytes);
  uint64_t keep_every() const { return uint64_t{1} << level_; }

 private:
  uint64_t budget_, next_limit_;
  uint32_t level_ = 0;
};

struct RecordingLimits {
  uint64_t events_bytes = uint64_t{192} << 20;
  uint64_t series_bytes = uint64_t{64} << 20;
  size_t memory_bytes = size_t{14} << 20;  // the live Run; flatout in all stays below 64 MB
};

class Recording {
 public:
  explicit Recording(const RecordingLimits& limits = {});

  /// Opens the two files in `folder`. Before, and after a failure, everything is kept in memory
  /// only.
  Status open_files(const std::string& folder);

  /// Packets that later ones refer to (names, processes, facts): never thinned.
  void define(std::string_view packets);
  /// As define(), for what belongs to events.bin.
  void define_event(std::string_view packets);
  /// Readings of signals.
  void series(std::string_view packets, TimePoint now);
  /// Slices and stack readings.
  void event(std::string_view packets, TimePoint now);
  /// Events of this time are not in the recording.
  void gap(TimePoint begin, TimePoint end);

  /// Feeds what has come in to the Run and writes blocks that are due (`all`: also those that are
  /// not). An error means that the files are closed; it is returned once.
  Status pump(TimePoint now, bool all = false);

  /// As of the last pump().
  model::Run& run() { return decoder_.run(); }
  const timeline::RunDecoder& decoder() const { return decoder_; }
  bool on_disk() const { return events_.is_open(); }

 private:
  RecordingLimits limits_;
  timeline::RunDecoder decoder_;
  std::string pending_;  // for decoder_
  BlockFile series_, events_;
  Thinner series_thinner_, events_thinner_;
  TimePoint thinned_since_{};  // events are being left out since then
  TimePoint next_thin_{};
};

}  // namespace flatout::recorder
