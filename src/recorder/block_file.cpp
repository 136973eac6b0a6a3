#include "recorder/block_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/fs.h"
#include "wire/messages.h"

namespace flatout::recorder {
namespace {
constexpr size_t kBlockBytes = 64 << 10;
constexpr Nanos kFlushPeriod = std::chrono::seconds(1);
}  // namespace

Result<BlockFile> BlockFile::create(const std::string& path) {
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return fs::error_from_errno(errno, "cannot create " + path);
  ::flock(fd, LOCK_EX | LOCK_NB);  // best effort: some file systems have no locks
  return BlockFile(fd);
}

BlockFile::BlockFile(BlockFile&& other) noexcept { *this = std::move(other); }

BlockFile& BlockFile::operator=(BlockFile&& other) noexcept {
  if (this == &other) return *this;
  close_file();
  fd_ = std::exchange(other.fd_, -1);
  bytes_ = other.bytes_;
  buffer_ = std::move(other.buffer_);
  flushed_ = other.flushed_;
  return *this;
}

BlockFile::~BlockFile() { close_file(); }

void BlockFile::close_file() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void BlockFile::append(std::string_view packets) {
  if (fd_ < 0) return;
  if (buffer_.empty()) buffer_.resize(sizeof(flatout_block));
  buffer_.append(packets);
}

bool BlockFile::flush_due(TimePoint now) const {
  return fd_ >= 0 && !buffer_.empty() &&
         (buffer_.size() >= kBlockBytes || now - flushed_ >= kFlushPeriod);
}

Status BlockFile::flush(TimePoint now) {
  if (fd_ < 0 || buffer_.empty()) return {};
  flushed_ = now;
  Status status = write_block();
  buffer_.clear();
  if (!status.ok()) {
    // Half a block would be skipped by readers anyway; without it the file is clean.
    if (::ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) close_file();
    close_file();
  }
  return status;
}

Status BlockFile::write_block() {
  const std::string_view packets = std::string_view(buffer_).substr(sizeof(flatout_block));
  const flatout_block header{FLATOUT_BLOCK_MAGIC, FLATOUT_WIRE_VERSION,
                             static_cast<uint32_t>(packets.size()), crc32(packets)};
  std::memcpy(buffer_.data(), &header, sizeof header);
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t put = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return fs::error_from_errno(errno, "cannot write to the run folder");
    done += static_cast<size_t>(put);
  }
  bytes_ += buffer_.size();
  return {};
}

}  // namespace flatout::recorder
