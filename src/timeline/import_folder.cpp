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

// Reads the blocks of one file in order, from damaged ones on to the next that is whole.
class BlockReader {
 public:
  explicit BlockReader(int fd) : fd_(fd) {}
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;
  ~BlockReader() {
    if (fd_ >= 0) ::close(fd_);
  }

  bool next(std::string& packets) {
    bool lost = false;  // between blocks: count the damage once
    for (;;) {
      flatout_block header;
      const size_t got = read_at(offset_, reinterpret_cast<char*>(&header), sizeof header);
      if (got == 0) return false;
      if (got == sizeof header && header.magic == FLATOUT_BLOCK_MAGIC) {
        if (header.version != FLATOUT_WIRE_VERSION) newer_ = newer_ || damage_.blocks == 0;
        if (header.version == FLATOUT_WIRE_VERSION && header.size <= kMaxBlock) {
          packets.resize(header.size);
          if (read_at(offset_ + sizeof header, packets.data(), header.size) == header.size &&
              crc32(packets) == header.crc32) {
            offset_ += sizeof header + header.size;
            ++damage_.blocks;
            return true;
          }
        }
      }
      if (!lost) ++damage_.bad;
      lost = true;
      if (!find_magic(offset_ + 1)) return false;
    }
  }

  const FolderDamage& damage() const { return damage_; }
  bool newer() const { return newer_; }

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
      if (chunk.size() < kChunk) return false;
      from += kChunk - wanted.size() + 1;
    }
  }

  int fd_;
  uint64_t offset_ = 0;
  FolderDamage damage_;
  bool newer_ = false;
};

// The packets of one file, with the time up to which it has been read.
class PacketStream {
 public:
  explicit PacketStream(int fd) : blocks_(fd) { load(); }

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
      if (!blocks_.next(block_)) return;
      rest_ = block_;
    }
  }

  BlockReader blocks_;
  std::string block_;
  std::string_view rest_;
  uint64_t time_ = 0;
};

int open_file(const std::string& path) { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }

}  // namespace

Result<Run> read_run_folder(const std::string& folder, FolderDamage* damage, size_t max_bytes) {
  const int events_fd = open_file(folder + "/events.bin");
  const int events_errno = errno;
  const int series_fd = open_file(folder + "/series.bin");
  if (events_fd < 0 && series_fd < 0) {
    if (events_errno != ENOENT && events_errno != ENOTDIR) {
      return fs::error_from_errno(events_errno, "cannot read " + escape_terminal(folder));
    }
    return Error{Code::kNotFound, escape_terminal(folder) + " is not a run folder",
                 "a run folder holds series.bin and events.bin"};
  }
  PacketStream series(series_fd), events(events_fd);
  RunDecoder decoder;
  std::string batch;
  size_t since_thin = 0;
  const auto flush = [&] {
    decoder.feed(batch);
    since_thin += batch.size();
    batch.clear();
    if (since_thin < kThinBytes) return;
    since_thin = 0;
    decoder.thin(max_bytes);
  };
  while (!series.done() || !events.done()) {
    const bool from_series = !series.done() && (events.done() || series.time() <= events.time());
    PacketStream& stream = from_series ? series : events;
    stream.take(batch);
    if (batch.size() >= kFeedBytes) flush();
  }
  flush();
  decoder.thin(max_bytes);

  const FolderDamage& a = series.blocks().damage();
  const FolderDamage& b = events.blocks().damage();
  const FolderDamage sum{a.blocks + b.blocks, a.bad + b.bad};
  if (damage != nullptr) *damage = sum;
  if (sum.blocks == 0 && (series.blocks().newer() || events.blocks().newer())) {
    return Error{Code::kUnsupported, escape_terminal(folder) + " was written by another version",
                 "read it with the flatout that recorded it"};
  }
  Run run = std::move(decoder.run());
  if (sum.bad > 0) {
    run.missing.push_back({"recording", std::to_string(sum.bad) + " damaged places were skipped",
                           "the recording was cut off or its disk is full"});
  }
  if (decoder.counts().unknown > 0) {
    run.missing.push_back(
        {"packets", std::to_string(decoder.counts().unknown) + " of unknown types were skipped",
         "a newer flatout or agent wrote them"});
  }
  find_steps(run);
  return run;
}

}  // namespace flatout::timeline
