#include "recorder/recording.h"

#include <algorithm>

#include "base/bytes.h"
#include "wire/messages.h"

namespace flatout::recorder {
namespace {

constexpr int64_t kWindowNs = 10'000'000'000;
constexpr Nanos kThinPeriod = std::chrono::seconds(5);

std::string gap_packet(TimePoint begin, TimePoint end) {
  std::string out;
  flatout_packet header{};
  header.size = sizeof(flatout_packet) + sizeof(flatout_gap);
  header.type = FLATOUT_PACKET_GAP;
  header.time_ns = static_cast<uint64_t>(to_ns(end));
  put(out, header);
  put(out, flatout_gap{static_cast<uint64_t>(to_ns(begin)), static_cast<uint64_t>(to_ns(end))});
  return out;
}

}  // namespace

bool Thinner::keeps(TimePoint now, uint64_t bytes) {
  while (bytes >= next_limit_ && level_ < 40) {
    ++level_;
    next_limit_ += std::max<uint64_t>(1, budget_ / 8);
  }
  const auto window = static_cast<uint64_t>(to_ns(now) / kWindowNs);
  return (window & (keep_every() - 1)) == 0;
}

Recording::Recording(const RecordingLimits& limits)
    : limits_(limits), series_thinner_(limits.series_bytes), events_thinner_(limits.events_bytes) {}

Status Recording::open_files(const std::string& folder) {
  FLATOUT_TRY(BlockFile series, BlockFile::create(folder + "/series.bin"));
  FLATOUT_TRY(BlockFile events, BlockFile::create(folder + "/events.bin"));
  series_ = std::move(series);
  events_ = std::move(events);
  return {};
}

void Recording::define(std::string_view packets) {
  pending_.append(packets);
  series_.append(packets);
}

void Recording::define_event(std::string_view packets) {
  pending_.append(packets);
  events_.append(packets);
}

void Recording::series(std::string_view packets, TimePoint now) {
  pending_.append(packets);
  // No gap is noted: a series with fewer readings is still a series.
  if (series_thinner_.keeps(now, series_.bytes())) series_.append(packets);
}

void Recording::event(std::string_view packets, TimePoint now) {
  pending_.append(packets);
  if (!events_.is_open()) return;
  if (!events_thinner_.keeps(now, events_.bytes())) {
    if (thinned_since_ == TimePoint{}) thinned_since_ = now;
    return;
  }
  if (thinned_since_ != TimePoint{}) {
    events_.append(gap_packet(thinned_since_, now));
    thinned_since_ = {};
  }
  events_.append(packets);
}

void Recording::gap(TimePoint begin, TimePoint end) { define_event(gap_packet(begin, end)); }

Status Recording::pump(TimePoint now, bool all) {
  if (!pending_.empty()) {
    decoder_.feed(pending_);
    pending_.clear();
  }
  if (now >= next_thin_) {
    decoder_.thin(limits_.memory_bytes);
    next_thin_ = now + kThinPeriod;
  }
  if (all && thinned_since_ != TimePoint{}) {
    events_.append(gap_packet(thinned_since_, now));
    thinned_since_ = {};
  }
  for (BlockFile* file : {&series_, &events_}) {
    if (!all && !file->flush_due(now)) continue;
    if (Status status = file->flush(now); !status.ok()) {
      series_ = BlockFile();
      events_ = BlockFile();
      return status;
    }
  }
  return {};
}

}  // namespace flatout::recorder
