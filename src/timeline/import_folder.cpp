#include "timeline/import_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/fs.h"
#include "base/text.h"
#include "timeline/run_decoder.h"
#include "timeline/steps.h"
#include "wire/messages.h"

namespace flatout::timeline {

using model::Run;

namespace {

constexpr uint32_t kMaxBlock = 64 << 20;
constexpr size_t kChunk = 256 << 10;      // searched at once for the next block
constexpr size_t kFeedBytes = 512 << 10;  // packets fed at once
constexpr size_t kThinBytes = 8 << 20;    // packets between two looks at the memory
// The two files are flushed about once a second, each for itself: so long an event waits at most
// for the definitions that it may refer to.
constexpr Nanos kPatience = std::chrono::seconds(3);
// What every job leaves within that time: the state of its threads, in events.bin.
constexpr Nanos kUneventful = std::chrono::seconds(2);

// Reads the blocks of one file in order, from damaged ones on to the next that is whole.
class BlockReader {
 public:
  explicit BlockReader(int fd) : fd_(fd) {}
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;
  ~BlockReader() {
    if (fd_ >= 0) ::close(fd_);
  }

  // `ended`: the file will not grow, so what is cut off at its end is damaged, not under way.
  bool next(std::string& packets, bool ended) {
    for (;;) {
      flatout_block header;
      const size_t got = read_at(offset_, reinterpret_cast<char*>(&header), sizeof header);
      if (got == 0 || (got < sizeof header && !ended)) return false;
      if (got == sizeof header && header.magic == FLATOUT_BLOCK_MAGIC) {
        if (header.version != FLATOUT_WIRE_VERSION) newer_ = newer_ || damage_.blocks == 0;
        if (header.version == FLATOUT_WIRE_VERSION && header.size <= kMaxBlock) {
          packets.resize(header.size);
          const size_t size = read_at(offset_ + sizeof header, packets.data(), header.size);
          if (size < header.size && !ended) return false;
          if (size == header.size && crc32(packets) == header.crc32) {
            offset_ += sizeof header + header.size;
            ++damage_.blocks;
            lost_ = false;
            return true;
          }
        }
      }
      if (!lost_) ++damage_.bad;
      lost_ = true;
      if (!find_magic(offset_ + 1)) return false;
    }
  }

  const FolderDamage& damage() const { return damage_; }
  bool newer() const { return newer_; }
  // Nothing in it at all, not even damage.
  bool empty() const { return damage_.blocks == 0 && damage_.bad == 0; }

 private:
  size_t read_at(uint64_t offset, char* out, size_t size) {
    size_t done = 0;
    while (done < size) {
      const ssize_t n = ::pread(fd_, out + done, size - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    return done;
  }

  // Else the next search begins where this one ended.
  bool find_magic(uint64_t from) {
    const uint32_t magic = FLATOUT_BLOCK_MAGIC;
    const std::string_view wanted(reinterpret_cast<const char*>(&magic), sizeof magic);
    std::string chunk;
    for (;;) {
      chunk.resize(kChunk);
      chunk.resize(read_at(from, chunk.data(), kChunk));
      const size_t at = chunk.find(wanted);
      if (at != std::string::npos) {
        offset_ = from + at;
        return true;
      }
      if (chunk.size() < kChunk) {
        offset_ = std::max(offset_, from + chunk.size() - std::min(chunk.size(), wanted.size()));
        return false;
      }
      from += kChunk - wanted.size() + 1;
    }
  }

  int fd_;
  uint64_t offset_ = 0;
  FolderDamage damage_;
  bool lost_ = false;  // between blocks: the damage is counted once
  bool newer_ = false;
};

// The packets of one file, with the time up to which it has been read.
class PacketStream {
 public:
  explicit PacketStream(int fd) : blocks_(fd) {}

  // Looks for more, where there was none.
  void refill(bool ended) {
    ended_ = ended;
    if (rest_.empty()) load();
  }
  // There is no packet, for now.
  bool done() const { return rest_.empty(); }
  uint64_t time() const { return time_; }
  const BlockReader& blocks() const { return blocks_; }

  // Takes the next packet. Its time may lie before that of the one before: order within a file
  // counts more (names come before what uses them).
  void take(std::string& out) {
    flatout_packet header;
    std::memcpy(&header, rest_.data(), sizeof header);
    out.append(rest_.substr(0, header.size));
    rest_.remove_prefix(header.size);
    load();
  }

 private:
  void load() {
    for (;;) {
      flatout_packet header;
      if (rest_.size() >= sizeof header) {
        std::memcpy(&header, rest_.data(), sizeof header);
        if (header.size >= sizeof header && header.size % 8 == 0 && header.size <= rest_.size()) {
          // What agents say about the time is no order to go by.
          if (!is_agent_packet(header.type)) time_ = std::max(time_, header.time_ns);
          return;
        }
      }
      rest_ = {};  // the end of the block, or nonsense up to there
      if (!blocks_.next(block_, ended_)) return;
      rest_ = block_;
    }
  }

  BlockReader blocks_;
  std::string block_;
  std::string_view rest_;
  uint64_t time_ = 0;
  bool ended_ = false;
};

// Both files, merged by time and fed to a decoder.
class Merger {
 public:
  Merger(int series_fd, int events_fd, size_t max_bytes)
      : series_(series_fd), events_(events_fd), max_bytes_(max_bytes) {}

  bool read(TimePoint now, bool ended) {
    series_.refill(ended);
    events_.refill(ended);
    bool any = false;
    while (!series_.done() || !events_.done()) {
      const bool from_series =
          !series_.done() && (events_.done() || series_.time() <= events_.time());
      if (!from_series && !ended && series_.done() && events_.time() > series_.time()) {
        if (waiting_since_ == TimePoint{}) waiting_since_ = now;
        if (now - waiting_since_ < kPatience) break;
      }
      any = true;
      if (from_series) waiting_since_ = {};
      (from_series ? series_ : events_).take(batch_);
      if (batch_.size() >= kFeedBytes) flush();
    }
    if (events_.done()) waiting_since_ = {};
    flush();
    return any;
  }

  RunDecoder& decoder() { return decoder_; }
  FolderDamage damage() const {
    const FolderDamage& a = series_.blocks().damage();
    const FolderDamage& b = events_.blocks().damage();
    return {a.blocks + b.blocks, a.bad + b.bad};
  }
  bool newer() const { return series_.blocks().newer() || events_.blocks().newer(); }
  const BlockReader& series() const { return series_.blocks(); }
  const BlockReader& events() const { return events_.blocks(); }
  void thin() { decoder_.thin(max_bytes_); }

 private:
  void flush() {
    decoder_.feed(batch_);
    since_thin_ += batch_.size();
    batch_.clear();
    if (since_thin_ < kThinBytes) return;
    since_thin_ = 0;
    thin();
  }

  PacketStream series_, events_;
  RunDecoder decoder_;
  std::string batch_;
  size_t max_bytes_, since_thin_ = 0;
  TimePoint waiting_since_{};  // an event waits for the series
};

// -1, with errno `otherwise` where it is no regular file. Never waits for a pipe.
int open_regular(int folder, const char* name, int flags, int otherwise) {
  const int fd = ::openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
  struct stat info;
  if (fd < 0 || (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode))) return fd;
  ::close(fd);
  errno = otherwise;
  return -1;
}

int open_file(const std::string& path) { return open_regular(AT_FDCWD, path.c_str(), 0, EINVAL); }

// In that folder itself.
int open_inside(int folder, const char* name) {
  return open_regular(folder, name, O_NOFOLLOW, ENOENT);
}

Error not_a_run_folder(const std::string& folder) {
  return Error{Code::kNotFound, escape_terminal(folder) + " is not a run folder",
               "a run folder holds series.bin and events.bin"};
}

Error incomplete(const std::string& folder, std::string_view what) {
  return Error{Code::kIo,
               "the recording is incomplete: " + escape_terminal(folder) + "/" + std::string(what),
               "copy the whole folder again, or record the job again"};
}

// Why so little of the recording is left that it tells nothing: a run without its events looks as
// one in which nothing happened. "": it can be read. A killed recorder leaves both files, whole up
// to its last second.
std::string what_is_lost(const Merger& merger, const Run& run) {
  if (merger.series().empty() && merger.events().empty()) return "series.bin is empty";
  for (const auto& [name, blocks] :
       {std::pair{"series.bin", &merger.series()}, {"events.bin", &merger.events()}}) {
    if (blocks->damage().blocks > 0) continue;
    if (!blocks->empty()) return std::string(name) + " is damaged from its beginning to its end";
    const bool short_job = blocks == &merger.events() && run.end - run.begin < kUneventful;
    if (!short_job) return std::string(name) + " is empty";
  }
  return "";
}

std::string skipped(const FolderDamage& damage) {
  return damage.bad == 1 ? "one damaged place was skipped"
                         : std::to_string(damage.bad) + " damaged places were skipped";
}

void tell_damage(const std::string& what, Run& run) {
  std::erase_if(run.missing, [](const model::Missing& m) { return m.signal == "recording"; });
  run.missing.push_back({"recording", what, "the recording was cut off or its disk is full"});
}

}  // namespace

Result<Run> read_run_folder(const std::string& folder, FolderDamage* damage, size_t max_bytes) {
  const int events_fd = open_file(folder + "/events.bin");
  const int events_errno = errno;
  const int series_fd = open_file(folder + "/series.bin");
  const int series_errno = errno;
  if (events_fd < 0 && series_fd < 0) {
    if (events_errno != ENOENT && events_errno != ENOTDIR) {
      return fs::error_from_errno(events_errno, "cannot read " + escape_terminal(folder));
    }
    return not_a_run_folder(folder);
  }
  Merger merger(series_fd, events_fd, max_bytes);  // closes them
  const auto why = [](int error) { return error == ENOENT ? " is missing" : " cannot be read"; };
  if (series_fd < 0) return incomplete(folder, std::string("series.bin") + why(series_errno));
  if (events_fd < 0) return incomplete(folder, std::string("events.bin") + why(events_errno));
  merger.read(TimePoint{}, true);
  merger.thin();
  const FolderDamage sum = merger.damage();
  if (damage != nullptr) *damage = sum;
  if (sum.blocks == 0 && merger.newer()) {
    return Error{Code::kUnsupported, escape_terminal(folder) + " was written by another version",
                 "read it with the flatout that recorded it"};
  }
  const RunDecoder& decoder = merger.decoder();
  Run run = std::move(merger.decoder().run());
  if (const std::string lost = what_is_lost(merger, run); !lost.empty()) {
    return incomplete(folder, lost);
  }
  if (sum.bad > 0) tell_damage(skipped(sum), run);
  if (decoder.counts().unknown > 0) {
    run.missing.push_back(
        {"packets", std::to_string(decoder.counts().unknown) + " of unknown types were skipped",
         "a newer flatout or agent wrote them"});
  }
  find_steps(run);
  return run;
}

struct FolderFollower::State {
  State(int series_fd, int events_fd, size_t max_bytes) : merger(series_fd, events_fd, max_bytes) {}
  Merger merger;
};

FolderFollower::FolderFollower(std::unique_ptr<State> state) : state_(std::move(state)) {}
FolderFollower::~FolderFollower() = default;

Result<std::unique_ptr<FolderFollower>> FolderFollower::open(const std::string& folder,
                                                             size_t max_bytes) {
  const int inside = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (inside < 0) return not_a_run_folder(folder);
  const int series_fd = open_inside(inside, "series.bin");
  const int events_fd = open_inside(inside, "events.bin");
  ::close(inside);
  auto state = std::make_unique<State>(series_fd, events_fd, max_bytes);  // closes them
  if (series_fd < 0 && events_fd < 0) return not_a_run_folder(folder);
  return std::unique_ptr<FolderFollower>(new FolderFollower(std::move(state)));
}

bool FolderFollower::read(TimePoint now, bool ended) {
  Merger& merger = state_->merger;
  const bool any = merger.read(now, ended);
  merger.thin();
  if (!ended) return any;
  std::string lost = what_is_lost(merger, run());
  if (lost.empty() && merger.damage().bad > 0) lost = skipped(merger.damage());
  if (!lost.empty()) tell_damage(lost, run());
  return any;
}

Run& FolderFollower::run() { return state_->merger.decoder().run(); }
FolderDamage FolderFollower::damage() const { return state_->merger.damage(); }

}  // namespace flatout::timeline
