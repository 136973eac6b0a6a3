#include "recorder/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fs.h"
#include "base/text.h"
#include "recorder/launch.h"
#include "recorder/rank_place.h"
#include "wire/messages.h"

namespace flatout::recorder {
namespace {

constexpr std::string_view kFiles[] = {
    "series.bin",    "events.bin",  "run.json",   "trace.json.gz", "stacks.folded",
    "findings.json", "report.html", "heap.pb.gz", "rank.json",     ".gitignore"};

std::string sanitized(std::string_view text, size_t limit) {
  std::string out;
  for (const char c : text.substr(0, limit)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
    out += plain ? c : '_';
  }
  while (!out.empty() && out.front() == '.') out.erase(0, 1);
  return out.empty() ? "job" : out;
}

std::string_view base_name(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path.substr(path.rfind('/') + 1);
}

// Makes missing folders of the path, then the last one. 0 if it is there and writable, else the
// errno that says why not: of the first folder that could not be made, since those below it fail
// for its sake.
int make_path(const std::string& path, mode_t mode) {
  int first_error = 0;
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const int made = ::mkdir(path.substr(0, slash).c_str(), mode);
    if (made != 0 && errno != EEXIST && first_error == 0) first_error = errno;
    if (slash == std::string::npos) break;
  }
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return first_error != 0 ? first_error : errno;
  if (!S_ISDIR(info.st_mode)) return ENOTDIR;
  return ::access(path.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
}

// When the run began, as its name tells and, within a second, its oldest file.
using Begin = std::pair<std::string, int64_t>;
Begin begin_of(const std::string& parent, const std::string& name) {
  struct stat info {};
  ::lstat(fmt::format("{}/{}/.gitignore", parent, name).c_str(), &info);
  return {name.substr(0, 15), int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

void write_ignore_file(const std::string& folder) {
  const std::string path = folder + "/.gitignore";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(fd, "*\n", 2);
  ::close(fd);
}

bool is_empty(const std::string& path) {
  const auto names = fs::Root(path).list("");
  return names.ok() && names->empty();
}

void remove_our_files(const std::string& path) {
  for (const std::string_view name : kFiles) ::unlink((path + "/" + std::string(name)).c_str());
}

// The process that has locked the file or folder, as /proc/locks has it: "1: FLOCK  ADVISORY  WRITE
// 4121 fd:00:1234 0 EOF". 0 where it does not tell.
int32_t holder_of(const std::string& path) {
  struct stat info {};
  const auto locks = fs::Root("/proc").read("locks");
  if (!locks.ok() || ::stat(path.c_str(), &info) != 0) return 0;
  const std::string file = fmt::format("{:02x}:{:02x}:{}", gnu_dev_major(info.st_dev),
                                       gnu_dev_minor(info.st_dev), info.st_ino);
  std::string_view rest = *locks, line;
  while (next_line(rest, line)) {
    std::string_view word, pid;
    while (!(word = next_word(line)).empty() && word != file) pid = word;
    if (word == file) return parse_number<int32_t>(pid).value_or(0);
  }
  return 0;
}

Error in_use(const std::string& path) {
  const int32_t pid = std::max(holder_of(path), holder_of(path + "/series.bin"));
  return {Code::kIo,
          fmt::format("the run folder {} is in use: {} records into it", escape_terminal(path),
                      pid > 0 ? fmt::format("flatout with pid {}", pid) : "another flatout"),
          "give --out another folder, or wait until that run has ended"};
}

struct Lock {
  explicit Lock(int file) : fd(file) {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() {
    if (fd >= 0) ::close(fd);
  }
  const int fd;
};

// Null where another process has it. Some file systems have no locks: there nobody has.
std::shared_ptr<void> hold(const std::string& path) {
  auto lock = std::make_shared<Lock>(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const bool taken =
      lock->fd >= 0 && ::flock(lock->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  return taken ? nullptr : lock;
}

Result<RunFolder> make_fixed(std::string path) {
  char cwd[4096];
  if (path[0] != '/' && ::getcwd(cwd, sizeof cwd) != nullptr) path = std::string(cwd) + "/" + path;
  if (const int err = make_path(path, 0700); err != 0) {
    struct stat info;
    const bool is_file = ::stat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode);
    const std::string what = "cannot write the run folder " + escape_terminal(path);
    Error error =
        is_file ? Error{Code::kIo, what + ": it is a file", ""} : fs::error_from_errno(err, what);
    error.hint = "give --out a new or empty folder";
    return error;
  }
  RunFolder out;
  out.held = hold(path);
  if (out.held == nullptr || is_live(path)) return in_use(path);
  if (!is_empty(path)) {
    if (!is_run_folder(path)) {
      return Error{Code::kBadInput,
                   "the folder " + escape_terminal(path) + " holds something else than a run",
                   "give --out a new or empty folder"};
    }
    remove_our_files(path);
    out.replaced = true;
  }
  ::chmod(path.c_str(), 0700);
  write_ignore_file(path);
  out.path = path;
  return out;
}

// 0, or the errno that says why not.
int try_parent(const std::string& parent, const FolderName& name, RunFolder& out) {
  if (const int err = make_path(parent, 0700); err != 0) return err;
  write_ignore_file(parent);
  const std::string leaf = folder_name(name, unix_now_ns(), ::getpid());
  for (int attempt = 0; attempt < 100; ++attempt) {
    // Another pid namespace may share this folder.
    const std::string candidate = attempt == 0 ? leaf : fmt::format("{}.{}", leaf, attempt);
    std::string path = fmt::format("{}/{}", parent, candidate);
    if (::mkdir(path.c_str(), 0700) == 0) {
      out.path = std::move(path);
      out.parent = parent;
      write_ignore_file(out.path);
      return 0;
    }
    if (errno != EEXIST) return errno;
  }
  return EEXIST;
}

}  // namespace

std::string short_name(const std::vector<std::string>& command) {
  if (command.empty()) return "job";
  const std::string_view program = base_name(command[0]);
  if (!program.starts_with("python")) {
    std::string_view leaf = program;
    if (leaf.ends_with(".py") || leaf.ends_with(".sh")) leaf.remove_suffix(3);
    return sanitized(leaf, 40);
  }
  for (size_t i = 1; i < command.size(); ++i) {
    std::string_view word = command[i];
    if (word == "-c") break;
    if (word == "-m") {
      return i + 1 < command.size() ? sanitized(command[i + 1], 40) : std::string("python");
    }
    if (word == "-W" || word == "-X") ++i;  // these take a value
    if (word.starts_with('-')) continue;
    word = base_name(word);
    if (word.ends_with(".py")) word.remove_suffix(3);
    return sanitized(word, 40);
  }
  return "python";
}

std::string folder_name(const FolderName& name, int64_t unix_ns, int32_t pid) {
  const time_t seconds = unix_ns / 1'000'000'000;
  tm local{};
  ::localtime_r(&seconds, &local);
  char stamp[32];
  ::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
  const RankPlace place = rank_place(name.environment);
  const std::string host = host_name();
  return fmt::format("{}-{}-{}{}-{}", stamp, short_name(name.command),
                     sanitized(host.empty() ? "host" : host, 40),
                     place.is_rank() ? fmt::format("-r{}", place.rank) : "", pid);
}

Result<RunFolder> make_run_folder(const FolderName& name) {
  if (!name.fixed.empty()) return make_fixed(name.fixed);
  RunFolder out;
  char cwd[4096];
  std::string first_error = "the working folder is gone";
  if (::getcwd(cwd, sizeof cwd) != nullptr && cwd[0] == '/') {
    const int err = try_parent(std::string(cwd) + "/flatout-runs", name, out);
    if (err == 0) return out;
    first_error = std::strerror(err);
  }
  std::string state = variable(name.environment, "XDG_STATE_HOME");
  const std::string home = variable(name.environment, "HOME");
  if (!state.starts_with('/')) state = home.starts_with('/') ? home + "/.local/state" : "";
  if (!state.empty() && try_parent(state + "/flatout/flatout-runs", name, out) == 0) {
    out.notice = fmt::format("cannot write here ({}); the run folder is {}", first_error,
                             escape_terminal(out.path));
    return out;
  }
  out.notice = fmt::format("cannot write a run folder ({}); recording in memory only", first_error);
  return out;
}

void publish(const RunFolder& folder) {
  if (folder.parent.empty()) return;
  const std::string link = folder.parent + "/latest";
  struct stat info;
  // Something else of that name is left alone.
  if (::lstat(link.c_str(), &info) == 0 && !S_ISLNK(info.st_mode)) return;
  const std::string temporary = fmt::format("{}/.latest.{}", folder.parent, ::getpid());
  const std::string leaf(base_name(folder.path));
  ::unlink(temporary.c_str());
  if (::symlink(leaf.c_str(), temporary.c_str()) != 0) return;
  if (::rename(temporary.c_str(), link.c_str()) != 0) ::unlink(temporary.c_str());
}

void discard(const RunFolder& folder) {
  if (folder.path.empty()) return;
  remove_our_files(folder.path);
  ::rmdir(folder.path.c_str());
}

bool is_run_folder(const std::string& path) {
  const auto begins_with_block = [](const std::string& file) {
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    uint32_t magic = 0;
    struct stat info;
    const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    const bool ours = regular && (info.st_size == 0 || (::read(fd, &magic, sizeof magic) == 4 &&
                                                        magic == FLATOUT_BLOCK_MAGIC));
    ::close(fd);
    return ours;
  };
  return begins_with_block(path + "/series.bin") && begins_with_block(path + "/events.bin");
}

bool is_live(const std::string& path) {
  const int fd = ::open((path + "/series.bin").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  const bool live = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return live;
}

namespace {

// Date, name, host and pid as folder_name() makes them.
bool looks_like_name(std::string_view name) {
  if (name.size() < 20 || name[8] != '-' || name[15] != '-') return false;
  for (size_t i = 0; i < 15; ++i) {
    if (i != 8 && std::isdigit(static_cast<unsigned char>(name[i])) == 0) return false;
  }
  return true;
}

uint64_t size_of(const std::string& path) {
  uint64_t bytes = 0;
  for (const std::string_view name : kFiles) {
    struct stat info;
    if (::lstat((path + "/" + std::string(name)).c_str(), &info) == 0) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes;
}

}  // namespace

size_t prune_runs(const std::string& parent, size_t keep, uint64_t max_bytes) {
  const auto names = fs::Root(parent).list("");
  if (!names.ok()) return 0;
  std::vector<std::pair<Begin, std::string>> runs;
  for (const std::string& name : *names) {
    if (looks_like_name(name)) runs.emplace_back(begin_of(parent, name), name);
  }
  std::sort(runs.rbegin(), runs.rend());  // the newest first
  size_t kept = 0, removed = 0;
  uint64_t bytes = 0;
  for (const auto& [begin, name] : runs) {
    const std::string path = fmt::format("{}/{}", parent, name);
    struct stat info;
    if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() ||
        !is_run_folder(path)) {
      continue;
    }
    bytes += size_of(path);
    ++kept;
    if ((kept <= keep && (bytes <= max_bytes || kept == 1)) || is_live(path)) continue;
    remove_our_files(path);
    ::rmdir(path.c_str());  // stays if the user has put something into it
    ++removed;
  }
  return removed;
}

}  // namespace flatout::recorder
