#include "timeline/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

#include "base/fs.h"
#include "base/output.h"
#include "base/text.h"
#include "timeline/inflate.h"

namespace flatout::timeline {
namespace {

class FileSource : public ByteSource {
 public:
  /// `head`: what has been read of it already.
  FileSource(int fd, uint64_t left, std::string head = "")
      : fd_(fd), left_(left), head_(std::move(head)) {}
  ~FileSource() override { ::close(fd_); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  Result<size_t> read(char* to, size_t size) override {
    const size_t known = std::min(size, head_.size());
    std::memcpy(to, head_.data(), known);
    head_.erase(0, known);
    size = static_cast<size_t>(std::min<uint64_t>(size - known, left_));
    while (size > 0) {
      const ssize_t got = ::read(fd_, to + known, size);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return fs::error_from_errno(errno, "cannot read the trace");
      left_ -= static_cast<uint64_t>(got);
      return known + static_cast<size_t>(got);
    }
    return known;
  }

 private:
  int fd_;
  uint64_t left_;
  std::string head_;
};

class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  Result<size_t> read(char* to, size_t size) override {
    size = std::min(size, bytes_.size());
    if (size > 0) std::memcpy(to, bytes_.data(), size);
    bytes_.remove_prefix(size);
    return size;
  }

 private:
  std::string_view bytes_;
};

class GzipSource : public ByteSource {
 public:
  explicit GzipSource(std::unique_ptr<ByteSource> packed)
      : packed_(std::move(packed)), input_(256 << 10, '\0') {}

  Result<size_t> read(char* to, size_t size) override {
    size_t done = 0;
    while (done < size && !inflater_.ended()) {
      if (inflater_.hungry()) {
        FLATOUT_TRY(const size_t got, packed_->read(input_.data(), input_.size()));
        if (got == 0) {
          inflater_.end_of_input();
          break;
        }
        inflater_.feed({input_.data(), got});
      }
      done += inflater_.unpack(to + done, size - done);
    }
    return done;
  }
  bool damaged() const override { return inflater_.damaged(); }

 private:
  std::unique_ptr<ByteSource> packed_;
  std::string input_;
  Inflater inflater_;
};

// Unpacks ahead in a thread of its own, a few blocks at most.
class AheadSource : public ByteSource {
 public:
  explicit AheadSource(std::unique_ptr<ByteSource> source) : source_(std::move(source)) {
    thread_ = std::thread([this] { work(); });
  }
  ~AheadSource() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Result<size_t> read(char* to, size_t size) override {
    if (taken_ == current_.size()) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return full_ > 0 || ended_; });
      if (full_ == 0) {
        if (error_) return *error_;
        return size_t{0};
      }
      current_.swap(blocks_[first_]);
      taken_ = 0;
      first_ = (first_ + 1) % blocks_.size();
      --full_;
      lock.unlock();
      changed_.notify_all();
    }
    size = std::min(size, current_.size() - taken_);
    std::memcpy(to, current_.data() + taken_, size);
    taken_ += size;
    return size;
  }
  bool damaged() const override { return damaged_; }

 private:
  static constexpr size_t kBlock = 512 << 10;

  void work() {
    std::string block;
    for (;;) {
      block.resize(kBlock);
      const auto got = source_->read(block.data(), block.size());
      block.resize(got.ok() ? *got : 0);
      std::unique_lock lock(mutex_);
      if (block.empty()) {
        if (!got.ok()) error_ = got.error();
        damaged_ = source_->damaged();
        ended_ = true;
        lock.unlock();
        changed_.notify_all();
        return;
      }
      changed_.wait(lock, [&] { return full_ < blocks_.size() || stop_; });
      if (stop_) return;
      blocks_[(first_ + full_) % blocks_.size()].swap(block);
      ++full_;
      lock.unlock();
      changed_.notify_all();
    }
  }

  std::unique_ptr<ByteSource> source_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::string, 3> blocks_;
  size_t first_ = 0, full_ = 0;
  bool ended_ = false, stop_ = false, damaged_ = false;
  std::optional<Error> error_;
  std::string current_;  // the reader's own
  size_t taken_ = 0;
  std::thread thread_;
};

Result<int> open_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fs::error_from_errno(errno, "cannot open " + escape_terminal(path));
  struct stat st {};
  if (::fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
    ::close(fd);
    return Error{Code::kBadInput, escape_terminal(path) + " is a directory",
                 "name the trace files in it"};
  }
  return fd;
}

constexpr size_t kMagic = 3;  // bytes that tell gzip

}  // namespace

bool looks_gzipped(std::string_view head) {
  return head.size() >= kMagic && head[0] == '\x1f' && head[1] == '\x8b' && head[2] == '\x08';
}

Result<std::unique_ptr<ByteSource>> open_source(const std::string& path, bool ahead) {
  FLATOUT_TRY(const int fd, open_file(path));
  // Not at an offset: a pipe has none.
  FileSource first(::fcntl(fd, F_DUPFD_CLOEXEC, 0), kMagic);
  std::string head(kMagic, '\0');
  size_t size = 0;
  while (size < kMagic) {
    const auto got = first.read(head.data() + size, kMagic - size);
    if (!got.ok() || *got == 0) break;  // who reads on meets the error, too
    size += *got;
  }
  head.resize(size);
  const bool gzipped = looks_gzipped(head);
  auto plain = std::make_unique<FileSource>(fd, UINT64_MAX, std::move(head));
  if (gzipped) {
    auto unpacked = std::make_unique<GzipSource>(std::move(plain));
    if (!ahead) return std::unique_ptr<ByteSource>(std::move(unpacked));
    return std::unique_ptr<ByteSource>(std::make_unique<AheadSource>(std::move(unpacked)));
  }
  return std::unique_ptr<ByteSource>(std::move(plain));
}

Result<std::unique_ptr<ByteSource>> open_range(const std::string& path, uint64_t begin,
                                               uint64_t end) {
  FLATOUT_TRY(const int fd, open_file(path));
  auto source = std::make_unique<FileSource>(fd, end - begin);
  if (::lseek(fd, static_cast<off_t>(begin), SEEK_SET) < 0)
    return fs::error_from_errno(errno, "cannot seek in " + escape_terminal(path));
  return std::unique_ptr<ByteSource>(std::move(source));
}

Result<std::string> rereadable(const std::string& path) {
  std::error_code failed;
  const auto type = std::filesystem::status(path, failed).type();
  using Type = std::filesystem::file_type;
  if (type != Type::fifo && type != Type::socket) return path;
  FLATOUT_TRY(const int from, open_file(path));
  FileSource source(from, UINT64_MAX);
  std::string name = (std::filesystem::temp_directory_path(failed) / "flatout-XXXXXX").string();
  const int to = ::mkostemp(name.data(), O_CLOEXEC);
  if (to < 0) return fs::error_from_errno(errno, "cannot create " + escape_terminal(name));
  ::unlink(name.c_str());
  const auto copy = [&]() -> Status {
    std::string block(1 << 20, '\0');
    for (;;) {
      FLATOUT_TRY(const size_t got, source.read(block.data(), block.size()));
      if (got == 0) return {};
      FLATOUT_TRY_STATUS(
          fs::write_all(to, std::string_view(block).substr(0, got), escape_terminal(name)));
    }
  };
  const Status copied = copy();
  if (copied.ok()) return fmt::format("/proc/self/fd/{}", to);
  ::close(to);
  return copied.error();
}

std::unique_ptr<ByteSource> memory_source(std::string_view bytes) {
  auto plain = std::make_unique<MemorySource>(bytes);
  if (!looks_gzipped(bytes)) return plain;
  return std::make_unique<GzipSource>(std::move(plain));
}

Result<std::string> read_all(ByteSource& source, size_t limit) {
  std::string out;
  for (;;) {
    const size_t old = out.size();
    if (old > limit) {
      return Error{
          Code::kFull,
          fmt::format("the file is larger than {}", format_bytes(static_cast<double>(limit))),
          "this format has to be held in memory: cut the recording shorter"};
    }
    out.resize(old + std::max<size_t>(1 << 20, old / 2));
    FLATOUT_TRY(const size_t got, source.read(out.data() + old, out.size() - old));
    out.resize(old + got);
    if (got == 0) return out;
  }
}

}  // namespace flatout::timeline
