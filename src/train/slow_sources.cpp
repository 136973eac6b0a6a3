// Ways to store a data set that make reading it slow: the causes input.small_files,
// input.random_seek, input.too_few_workers and cpu.process_churn. What is slow stands in functions
// of its own, so that a stack names it.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/bytes.h"
#include "base/fs.h"
#include "train/source.h"

extern char** environ;

namespace flatout::train {
namespace {

constexpr size_t kTiles = 768;
constexpr size_t kTileBytes = size_t{kSide} * kSide * 3 / kTiles;
// Folders are made for this many samples; more samples read them again.
constexpr size_t kMostFolders = 24;
// Entries of the archive without a picture, before each that has one: notes, paths, attributes.
constexpr int kNotes = 15;
constexpr uint32_t kNote = 0xFFFFFFFF;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// ---- input.small_files ----

/// Looks every tile up in the folder, then opens and reads it: about four system calls for each.
__attribute__((noinline)) Status read_tiles(const std::string& folder, std::vector<uint8_t>& rgb) {
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return fs::error_from_errno(errno, folder);
  Status status;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] == '.') continue;
    const std::string path = folder + "/" + entry->d_name;
    struct stat info {};
    if (stat(path.c_str(), &info) != 0 || static_cast<size_t>(info.st_size) != kTileBytes) {
      status = fs::error_from_errno(errno, path);
      break;
    }
    const size_t tile = static_cast<size_t>(atoi(entry->d_name));
    const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.get() < 0 || tile >= kTiles ||
        read(file.get(), rgb.data() + tile * kTileBytes, kTileBytes) !=
            static_cast<ssize_t>(kTileBytes)) {
      status = fs::error_from_errno(errno, path);
      break;
    }
  }
  closedir(dir);
  return status;
}

class SmallFiles : public Source {
 public:
  SmallFiles(uint64_t seed, size_t count, std::string folder)
      : count_(count), folder_(std::move(folder)) {
    for (size_t i = 0; i < count_; ++i) labels_.push_back(draw_image(seed, i).label);
  }
  Result<Image> read(size_t index) const override {
    Image image;
    image.side = kSide;
    image.label = labels_[index % count_];
    image.rgb.resize(kTiles * kTileBytes);
    FLATOUT_TRY_STATUS(read_tiles(fmt::format("{}/{}", folder_, index % count_), image.rgb));
    return image;
  }

 private:
  size_t count_;
  std::string folder_;
  std::vector<int> labels_;
};

Status write_file(const std::string& path, std::string_view data) {
  std::ofstream file(path, std::ios::binary);
  file.write(data.data(), static_cast<std::streamsize>(data.size()));
  if (!file.flush()) return Error{Code::kIo, "cannot write " + path, "is the disk full?"};
  return {};
}

// ---- input.random_seek ----

class Archive : public Source {
 public:
  Archive(int fd, size_t count) : file_(fd), count_(count) {}
  Result<Image> read(size_t index) const override {
    std::string bytes;
    FLATOUT_TRY_STATUS(find_by_scanning(index % count_, bytes));
    return decode_image(bytes);
  }

 private:
  /// Reads header after header from the start until the wanted one has come.
  __attribute__((noinline)) Status find_by_scanning(size_t wanted, std::string& bytes) const {
    off_t at = 0;
    for (;;) {
      uint32_t head[2] = {};  // number, size
      if (pread(file_.get(), head, sizeof head, at) != sizeof head) {
        return Error{Code::kBadInput, "the archive ends early", ""};
      }
      at += static_cast<off_t>(sizeof head);
      if (head[0] == wanted) {
        bytes.resize(head[1]);
        if (pread(file_.get(), bytes.data(), bytes.size(), at) !=
            static_cast<ssize_t>(bytes.size())) {
          return Error{Code::kBadInput, "the archive ends early", ""};
        }
        return {};
      }
      at += head[1];
    }
  }

  FileDescriptor file_;
  size_t count_;
};

// ---- input.too_few_workers ----

/// Answers each request after the same time, as a store across a network does. A request is the
/// socket on which the answer is awaited.
class DistantStore {
 public:
  ~DistantStore() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    asked_.notify_one();
    thread_.join();
  }
  void ask(int socket) {
    {
      const std::lock_guard lock(mutex_);
      requests_.emplace_back(Clock::now() + kAway, socket);
    }
    asked_.notify_one();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kAway{2500};

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      asked_.wait(lock, [this] { return stop_ || !requests_.empty(); });
      if (stop_) return;
      const auto [due, socket] = requests_.front();
      requests_.pop_front();
      lock.unlock();
      std::this_thread::sleep_until(due);
      const char answer = 'y';
      (void)send(socket, &answer, 1, MSG_NOSIGNAL);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<std::pair<Clock::time_point, int>> requests_;
  bool stop_ = false;
  std::thread thread_{[this] { serve(); }};
};

class DistantSource : public Source {
 public:
  explicit DistantSource(std::unique_ptr<Source> kept) : kept_(std::move(kept)) {}
  Result<Image> read(size_t index) const override {
    FLATOUT_TRY_STATUS(await_answer());
    return kept_->read(index);
  }

 private:
  __attribute__((noinline)) Status await_answer() const {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return fs::error_from_errno(errno, "socketpair");
    }
    const FileDescriptor here(ends[0]), there(ends[1]);
    store_.ask(there.get());
    char answer = 0;
    ssize_t size = -1;
    do {
      size = recv(here.get(), &answer, 1, 0);
    } while (size < 0 && errno == EINTR);
    if (size != 1) return fs::error_from_errno(errno, "the store");
    return {};
  }

  std::unique_ptr<Source> kept_;
  mutable DistantStore store_;
};

// ---- cpu.process_churn ----

/// Reads a file through a shell and a command of its own.
__attribute__((noinline)) Status read_through_process(const std::string& path, std::string& out) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return fs::error_from_errno(errno, "pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::string words[] = {"sh", "-c", "test -r \"$1\" && cat \"$1\"", "sh", path};
  char* const argv[] = {words[0].data(), words[1].data(), words[2].data(),
                        words[3].data(), words[4].data(), nullptr};
  pid_t pid = 0;
  const int err = posix_spawnp(&pid, "sh", &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  const FileDescriptor from(ends[0]);
  if (err != 0) return fs::error_from_errno(err, "cannot start sh");
  char buffer[4096];
  for (;;) {
    const ssize_t size = read(from.get(), buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    out.append(buffer, static_cast<size_t>(size));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) return Error{Code::kIo, "cannot read " + path + " through sh", ""};
  return {};
}

class CommandSource : public Source {
 public:
  CommandSource(size_t count, std::string folder) : count_(count), folder_(std::move(folder)) {}
  Result<Image> read(size_t index) const override {
    std::string bytes;
    FLATOUT_TRY_STATUS(read_through_process(fmt::format("{}/{}", folder_, index % count_), bytes));
    return decode_image(bytes);
  }

 private:
  size_t count_;
  std::string folder_;
};

}  // namespace

Result<std::unique_ptr<Source>> small_files_source(uint64_t seed, size_t count,
                                                   const std::string& folder) {
  count = std::min(count, kMostFolders);
  for (size_t i = 0; i < count; ++i) {
    const std::string sample = fmt::format("{}/{}", folder, i);
    if (mkdir(sample.c_str(), 0700) != 0) return fs::error_from_errno(errno, sample);
    const Image image = draw_image(seed, i);
    for (size_t t = 0; t < kTiles; ++t) {
      const auto* tile = reinterpret_cast<const char*>(image.rgb.data() + t * kTileBytes);
      FLATOUT_TRY_STATUS(write_file(fmt::format("{}/{}", sample, t), {tile, kTileBytes}));
    }
  }
  return std::unique_ptr<Source>(std::make_unique<SmallFiles>(seed, count, folder));
}

Result<std::unique_ptr<Source>> archive_source(uint64_t seed, size_t count,
                                               const std::string& folder) {
  const std::string path = folder + "/samples.archive";
  std::string all;
  for (size_t i = 0; i < count; ++i) {
    const std::string bytes = encode_image(draw_image(seed, i));
    for (int n = 0; n < kNotes; ++n) {
      put(all, kNote);
      put(all, uint32_t{64});
      all.append(64, 'n');
    }
    put(all, static_cast<uint32_t>(i));
    put(all, static_cast<uint32_t>(bytes.size()));
    all += bytes;
  }
  FLATOUT_TRY_STATUS(write_file(path, all));
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fs::error_from_errno(errno, path);
  return std::unique_ptr<Source>(std::make_unique<Archive>(fd, count));
}

Result<std::unique_ptr<Source>> distant_source(uint64_t seed, size_t count) {
  return std::unique_ptr<Source>(
      std::make_unique<DistantSource>(memory_source(seed, count, kSide, count)));
}

Result<std::unique_ptr<Source>> command_source(uint64_t seed, size_t count,
                                               const std::string& folder) {
  count = std::min<size_t>(count, 256);
  for (size_t i = 0; i < count; ++i) {
    FLATOUT_TRY_STATUS(
        write_file(fmt::format("{}/{}", folder, i), encode_image(draw_image(seed, i))));
  }
  return std::unique_ptr<Source>(std::make_unique<CommandSource>(count, folder));
}

}  // namespace flatout::train
