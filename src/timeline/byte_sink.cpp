#include "timeline/byte_sink.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <optional>

#include "base/fs.h"
#include "base/output.h"
#include "base/text.h"

namespace flatout::timeline {
namespace {

constexpr size_t kBuffer = 1 << 20;

class FileSink : public ByteSink {
 public:
  FileSink(int fd, std::string path, std::string temporary)
      : fd_(fd), path_(std::move(path)), temporary_(std::move(temporary)) {
    buffer_.reserve(kBuffer);
  }
  ~FileSink() override {
    if (fd_ >= 0) ::close(fd_);
    if (!done_ && temporary_ != path_) ::unlink(temporary_.c_str());
  }
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  void write(std::string_view bytes) override {
    if (buffer_.size() + bytes.size() > kBuffer) flush();
    if (bytes.size() > kBuffer) {
      put(bytes);
    } else {
      buffer_.append(bytes);
    }
  }
  Status finish() override {
    flush();
    if (::close(fd_) != 0 && !error_) error_ = fs::error_from_errno(errno, what());
    fd_ = -1;
    if (error_) return *error_;
    if (temporary_ != path_ && ::rename(temporary_.c_str(), path_.c_str()) != 0)
      return fs::error_from_errno(errno, what());
    done_ = true;
    return {};
  }

 private:
  std::string what() const { return "cannot write " + escape_terminal(path_); }
  void flush() {
    put(buffer_);
    buffer_.clear();
  }
  void put(std::string_view bytes) {
    if (error_) return;
    const Status written = fs::write_all(fd_, bytes, escape_terminal(path_));
    if (!written.ok()) error_ = written.error();
  }

  int fd_;
  std::string path_, temporary_, buffer_;
  std::optional<Error> error_;
  bool done_ = false;
};

class GzipSink : public ByteSink {
 public:
  explicit GzipSink(std::unique_ptr<ByteSink> to) : to_(std::move(to)), out_(256 << 10, '\0') {
    // Level 1: a trace shrinks 12 times by it, 15 times by the best, which takes five times as
    // long.
    ok_ = deflateInit2(&stream_, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK;
  }
  ~GzipSink() override { deflateEnd(&stream_); }
  GzipSink(const GzipSink&) = delete;
  GzipSink& operator=(const GzipSink&) = delete;

  void write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const size_t size = bytes.size() < (1u << 30) ? bytes.size() : (1u << 30);
      run(bytes.substr(0, size), Z_NO_FLUSH);
      bytes.remove_prefix(size);
    }
  }
  Status finish() override {
    run({}, Z_FINISH);
    if (!ok_) return Error{Code::kIo, "zlib could not pack the trace", ""};
    return to_->finish();
  }

 private:
  void run(std::string_view bytes, int flush) {
    if (!ok_) return;
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    int code = Z_OK;
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(out_.data());
      stream_.avail_out = static_cast<uInt>(out_.size());
      code = deflate(&stream_, flush);
      to_->write({out_.data(), out_.size() - stream_.avail_out});
    } while (stream_.avail_out == 0);
    if (code == Z_STREAM_ERROR) ok_ = false;
  }

  std::unique_ptr<ByteSink> to_;
  std::string out_;
  z_stream stream_{};
  bool ok_ = false;
};

class StringSink : public ByteSink {
 public:
  explicit StringSink(std::string& out) : out_(out) {}
  void write(std::string_view bytes) override { out_.append(bytes); }
  Status finish() override { return {}; }

 private:
  std::string& out_;
};

}  // namespace

Result<std::unique_ptr<ByteSink>> create_sink(const std::string& path) {
  // A pipe or a device is written itself: a rename would put a file in its place.
  const std::string temporary =
      fs::is_special(path) ? path : fmt::format("{}.{}.tmp", path, ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return fs::error_from_errno(errno, "cannot create " + escape_terminal(path));
  std::unique_ptr<ByteSink> sink = std::make_unique<FileSink>(fd, path, temporary);
  if (path.ends_with(".gz")) sink = std::make_unique<GzipSink>(std::move(sink));
  return sink;
}

std::unique_ptr<ByteSink> string_sink(std::string& out) {
  return std::make_unique<StringSink>(out);
}

}  // namespace flatout::timeline
