#include "feed/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fs.h"
#include "base/output.h"
#include "base/text.h"

namespace flatout::feed {
namespace {

constexpr size_t kShardsKept = 64;  // of the thousand files that a process may have open
constexpr size_t kBuffer = 1 << 20;

Error error_of(std::string_view verb, const std::string& path) {
  const int err = errno;
  if (err == EMFILE || err == ENFILE || err == ENOMEM) {
    return {Code::kFull,
            fmt::format("cannot {} {}: {}", verb, escape_terminal(path), std::strerror(err)),
            "raise `ulimit -n`, or the container's limit of memory"};
  }
  return fs::error_from_errno(
      err, std::string("cannot ") + std::string(verb) + " " + escape_terminal(path));
}

}  // namespace

DataFile::DataFile(int fd, uint64_t bytes, std::string path)
    : fd_(fd), bytes_(bytes), path_(std::move(path)) {}
DataFile::DataFile(DataFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_), path_(std::move(other.path_)) {}
DataFile::~DataFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<DataFile> DataFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // of a pipe, too
  if (fd < 0) return error_of("read", path);
  DataFile file(fd, 0, path);
  struct stat status {};
  if (::fstat(fd, &status) != 0) return error_of("read", path);
  if (!S_ISREG(status.st_mode))
    return Error{Code::kIo, "cannot read " + escape_terminal(path) + ": it is no regular file", ""};
  file.bytes_ = status.st_size > 0 ? static_cast<uint64_t>(status.st_size) : 0;
  return file;
}

Result<size_t> DataFile::read(uint64_t offset, std::span<uint8_t> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error_of("read", path_);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

void DataFile::will_need(uint64_t offset, uint64_t bytes) const {
  ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

Result<Shards> Shards::open(std::vector<std::string> paths) {
  Shards shards;
  shards.paths_ = std::move(paths);
  if (shards.paths_.size() > kShardsKept) return shards;
  for (const std::string& path : shards.paths_) {
    FLATOUT_TRY(DataFile file, DataFile::open(path));
    shards.kept_.push_back(std::move(file));
  }
  return shards;
}

Status Shards::read(size_t shard, uint64_t offset, uint64_t bytes,
                    std::vector<uint8_t>& out) const {
  out.resize(bytes);
  size_t got = 0;
  if (!kept_.empty()) {
    FLATOUT_TRY(got, kept_[shard].read(offset, out));
  } else {
    FLATOUT_TRY(const DataFile opened, file(shard));
    FLATOUT_TRY(got, opened.read(offset, out));
  }
  out.resize(got);
  return {};
}

Result<std::unique_ptr<MappedFile>> MappedFile::open(const std::string& path) {
  FLATOUT_TRY(const DataFile file, DataFile::open(path));
  const size_t size = file.bytes();
  void* data = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd_, 0) : nullptr;
  if (data == MAP_FAILED) return error_of("map", path);
  return std::unique_ptr<MappedFile>(
      new MappedFile(std::string_view(static_cast<const char*>(data), size)));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

FileWriter::FileWriter(int fd, std::string path, std::string temporary)
    : fd_(fd), path_(std::move(path)), temporary_(std::move(temporary)) {}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

Result<std::unique_ptr<FileWriter>> FileWriter::create(const std::string& path) {
  if (fs::is_special(path)) {  // the rename at the end would put a file in its place
    return Error{Code::kBadInput, escape_terminal(path) + " is no regular file", "name a file"};
  }
  std::string temporary = path + ".tmp" + std::to_string(::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return error_of("write", temporary);
  return std::unique_ptr<FileWriter>(new FileWriter(fd, path, std::move(temporary)));
}

Status FileWriter::append(std::string_view bytes) {
  written_ += bytes.size();
  buffer_ += bytes;
  return buffer_.size() < kBuffer ? Status() : flush();
}

Status FileWriter::flush() {
  FLATOUT_TRY_STATUS(fs::write_all(fd_, buffer_, escape_terminal(temporary_)));
  buffer_.clear();
  return {};
}

// On the disk before it has its name: what has the name is whole after a power cut, too.
Status FileWriter::finish(std::string_view start) {
  FLATOUT_TRY_STATUS(flush());
  if (::lseek(fd_, 0, SEEK_SET) != 0) return error_of("write", temporary_);
  FLATOUT_TRY_STATUS(fs::write_all(fd_, start, escape_terminal(temporary_)));
  if (::fdatasync(fd_) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0)
    return error_of("write", path_);
  ::close(std::exchange(fd_, -1));
  return {};
}

}  // namespace flatout::feed
