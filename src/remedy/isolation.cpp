#include "remedy/isolation.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <vector>

#include "base/fs.h"
#include "base/text.h"

namespace flatout::remedy {
namespace {

// Folders that stay as they are: devices, what the system says of itself and its sockets, and
// programs, of which only /usr/local is the user's.
constexpr std::string_view kSystem[] = {"bin",   "boot",       "dev",    "lib", "lib32",
                                        "lib64", "lost+found", "libx32", "nix", "proc",
                                        "run",   "sbin",       "snap",   "sys", "usr"};
// Where an overlay cannot be: files of a folder up to this size are copied, larger ones can be
// read.
constexpr off_t kMostToCopy = 1 << 20;
constexpr size_t kMostEntries = 4000;

struct Mount {
  std::string path;
  bool read_only = false;
  bool folder = true;
  int fd = -1;  // of what is there now: overlays laid above it hide its path
};

bool is_below(std::string_view path, std::string_view folder) {
  return path == folder ||
         (path.starts_with(folder) && (folder == "/" || path[folder.size()] == '/'));
}

std::vector<std::string> folders_to_cover(const std::string& cwd) {
  std::vector<std::string> out;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/", ignored)) {
    const std::string name = entry.path().filename();
    if (std::find(std::begin(kSystem), std::end(kSystem), name) != std::end(kSystem)) continue;
    if (entry.is_directory(ignored) && !entry.is_symlink(ignored)) out.push_back("/" + name);
  }
  out.emplace_back("/usr/local");
  if (cwd != "/" && std::none_of(out.begin(), out.end(), [&](const std::string& folder) {
        return is_below(cwd, folder);
      })) {
    out.push_back(cwd);
  }
  return out;
}

bool within(const std::string& path, const std::vector<std::string>& folders) {
  return std::any_of(folders.begin(), folders.end(),
                     [&](const std::string& folder) { return is_below(path, folder); });
}

// The folders themselves, and the mounts below them: an overlay does not show those.
Result<std::vector<Mount>> mounts_below(const std::vector<std::string>& folders) {
  std::vector<Mount> out;
  std::transform(folders.begin(), folders.end(), std::back_inserter(out),
                 [](const std::string& folder) { return Mount{folder}; });
  FLATOUT_TRY(const std::string table, fs::Root("/").read("proc/self/mountinfo"));
  std::string_view rest = table, line;
  while (next_line(rest, line)) {
    for (int i = 0; i < 4; ++i) next_word(line);
    const std::string path = unescape_octal(next_word(line));
    const std::string_view options = next_word(line);
    if (!within(path, folders)) continue;
    const bool read_only = options == "ro" || options.starts_with("ro,");
    const auto known = std::find_if(out.begin(), out.end(),
                                    [&](const Mount& mount) { return mount.path == path; });
    if (known != out.end()) {
      known->read_only = read_only;
    } else {
      out.push_back({path, read_only});
    }
  }
  std::sort(out.begin(), out.end(), [](const Mount& a, const Mount& b) { return a.path < b.path; });
  return out;
}

Status write_file(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return fs::error_from_errno(errno, std::string("cannot write ") + path);
  const ssize_t put = ::write(fd, text.data(), text.size());
  const int error = errno;
  ::close(fd);
  if (put < 0) return fs::error_from_errno(error, std::string("cannot write ") + path);
  return {};
}

Status enter_namespace() {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      return fs::error_from_errno(errno, "user namespaces are not permitted");
    }
    FLATOUT_TRY_STATUS(write_file("/proc/self/setgroups", "deny"));
    FLATOUT_TRY_STATUS(
        write_file("/proc/self/uid_map", std::to_string(uid) + " " + std::to_string(uid) + " 1"));
    FLATOUT_TRY_STATUS(
        write_file("/proc/self/gid_map", std::to_string(gid) + " " + std::to_string(gid) + " 1"));
  }
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return fs::error_from_errno(errno, "cannot make mounts private");
  }
  return {};
}

std::string path_of(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

// Shows at `path` what `fd` is; to be read only, unless `writable`.
Status show(int fd, const std::string& path, bool writable) {
  if (::mount(path_of(fd).c_str(), path.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0)
    return fs::error_from_errno(errno, "cannot keep " + path);
  if (writable) return {};
  struct statvfs info = {};
  unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY;
  if (::statvfs(path.c_str(), &info) == 0) {  // a user namespace may not take those away
    if ((info.f_flag & ST_NOSUID) != 0) flags |= MS_NOSUID;
    if ((info.f_flag & ST_NODEV) != 0) flags |= MS_NODEV;
    if ((info.f_flag & ST_NOEXEC) != 0) flags |= MS_NOEXEC;
    if ((info.f_flag & ST_NOATIME) != 0) flags |= MS_NOATIME;
    if ((info.f_flag & ST_NODIRATIME) != 0) flags |= MS_NODIRATIME;
    if ((info.f_flag & ST_RELATIME) != 0) flags |= MS_RELATIME;
  }
  if (::mount(nullptr, path.c_str(), nullptr, flags, nullptr) != 0)
    return fs::error_from_errno(errno, "cannot keep " + path);
  return {};
}

// Lays overlays over folders. What cannot be the lower half of one is taken apart: a folder that
// the scratch folder lies in, and in a user namespace one with mounts below it, which the kernel
// lets nobody look under.
class Cover {
 public:
  Cover(const std::vector<Mount>& mounts, const std::string& scratch)
      : mounts_(mounts),
        kept_(scratch.substr(0, scratch.rfind('/'))),
        scratch_fd_(::open(scratch.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)),
        scratch_(path_of(scratch_fd_)) {}
  ~Cover() { ::close(scratch_fd_); }
  Cover(const Cover&) = delete;
  Cover& operator=(const Cover&) = delete;

  Status lay(const Mount& mount) {
    if (!mount.folder) return show(mount.fd, mount.path, false);
    if (mount.read_only) return show(mount.fd, mount.path, true);
    const Status done = lay(mount.fd, mount.path);
    // What services mount below the system's folders need not bear an overlay, nor be written.
    const bool services = is_below(mount.path, "/var/lib") || is_below(mount.path, "/etc");
    return done.ok() || !services ? done : show(mount.fd, mount.path, false);
  }

 private:
  bool has_mounts(const std::string& path) const {
    return std::any_of(mounts_.begin(), mounts_.end(), [&](const Mount& mount) {
      return mount.path != path && is_below(mount.path, path);
    });
  }
  bool is_mount(const std::string& path) const {
    return std::any_of(mounts_.begin(), mounts_.end(),
                       [&](const Mount& mount) { return mount.path == path && mount.fd >= 0; });
  }

  Result<std::string> make_half(int fd) {
    const std::string half = scratch_ + "/" + std::to_string(count_++);
    std::error_code failed;
    std::filesystem::create_directories(half + "/upper", failed);
    std::filesystem::create_directories(half + "/work", failed);
    if (failed) return Error{Code::kIo, "cannot make " + half, ""};
    struct stat info = {};
    if (::fstat(fd, &info) == 0) ::chmod((half + "/upper").c_str(), info.st_mode & 07777);
    return half;
  }

  Status lay(int fd, const std::string& path) {
    FLATOUT_TRY(const std::string half, make_half(fd));
    if (is_below(kept_, path)) return take_apart(fd, path, half + "/upper");
    const std::string options =
        fmt::format("lowerdir={},upperdir={}/upper,workdir={}/work", path_of(fd), half, half);
    if (::mount("overlay", path.c_str(), "overlay", 0, options.c_str()) == 0) return {};
    const int error = errno;
    // In a user namespace the overlay's own attributes need another name.
    if (::mount("overlay", path.c_str(), "overlay", 0, (options + ",userxattr").c_str()) == 0)
      return {};
    if (has_mounts(path)) return take_apart(fd, path, half + "/upper");
    return fs::error_from_errno(error, "cannot lay an overlay over " + path);
  }

  // A folder in the place of this one, with an overlay over each folder in it. Its files are copied
  // where they are small; others can be read there, but not written.
  Status take_apart(int fd, const std::string& path, const std::string& stand_in) {
    const int listed = ::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (listed < 0) return show(fd, path, false);  // nor can the job see what is in it
    DIR* const folder = ::fdopendir(listed);
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(folder)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    ::closedir(folder);
    if (names.size() > kMostEntries) {
      return Error{Code::kUnsupported,
                   fmt::format("{} holds another mount, and too many files to copy them", path),
                   ""};
    }
    // What is mounted there has its own turn.
    std::erase_if(names, [&](const std::string& name) {
      struct stat info = {};
      if (::fstatat(fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return true;  // just gone
      const std::string made = stand_in + "/" + name;
      if (S_ISDIR(info.st_mode)) {
        ::mkdir(made.c_str(), 0700);
        return is_mount(path + "/" + name);
      }
      std::error_code failed;
      if (S_ISLNK(info.st_mode)) {
        std::filesystem::copy_symlink(path_of(fd) + "/" + name, made, failed);
        return true;
      }
      if (S_ISREG(info.st_mode) && copied(path_of(fd) + "/" + name, info, made)) return true;
      ::close(::open(made.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
      return is_mount(path + "/" + name);
    });
    if (::mount(stand_in.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) != 0)
      return fs::error_from_errno(errno, "cannot cover " + path);
    for (const std::string& name : names) {
      const int part = ::openat(fd, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
      struct stat info = {};
      if (part < 0) continue;
      ::fstat(part, &info);
      const std::string shown = fmt::format("{}/{}", path, name);
      const bool kept = shown == kept_;
      Status done = S_ISDIR(info.st_mode) && !kept
                        ? lay(part, shown)
                        : show(part, shown, kept || !S_ISREG(info.st_mode));
      ::close(part);
      if (!done.ok()) return done;
    }
    return {};
  }

  static bool copied(const std::string& from, const struct stat& info, const std::string& to) {
    if (info.st_size > kMostToCopy) return false;
    std::error_code failed;
    std::filesystem::copy_file(from, to, failed);
    if (failed) return false;
    const timespec times[2] = {info.st_atim, info.st_mtim};
    ::chmod(to.c_str(), info.st_mode & 07777);
    ::utimensat(AT_FDCWD, to.c_str(), times, 0);
    return true;
  }

  const std::vector<Mount>& mounts_;
  std::string kept_;  // the folder of the run, which is really written
  int scratch_fd_;
  std::string scratch_;  // by way of the descriptor: its path is covered for a while
  size_t count_ = 0;
};

// Sockets that somebody listens on: through an overlay they cannot be reached.
std::vector<Mount> sockets_below(const std::vector<std::string>& folders) {
  std::vector<Mount> out;
  const auto table = fs::Root("/").read("proc/net/unix", 1 << 22);
  if (!table.ok()) return out;
  std::string_view rest = *table, line;
  while (next_line(rest, line)) {
    for (int i = 0; i < 7; ++i) next_word(line);
    const std::string path(trim(line));
    if (!path.starts_with('/') || !within(path, folders)) continue;
    const int fd = ::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat info = {};
    if (fd < 0) continue;
    if (::fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode)) {
      out.push_back({path, false, false, fd});
    } else {
      ::close(fd);
    }
  }
  return out;
}

}  // namespace

Status isolate_files(const std::string& scratch) {
  char cwd[PATH_MAX];
  if (::getcwd(cwd, sizeof cwd) == nullptr) return fs::error_from_errno(errno, "no working folder");
  const std::vector<std::string> folders = folders_to_cover(cwd);
  FLATOUT_TRY(std::vector<Mount> mounts, mounts_below(folders));
  FLATOUT_TRY_STATUS(enter_namespace());
  for (Mount& mount : mounts) {
    mount.fd = ::open(mount.path.c_str(), O_PATH | O_CLOEXEC);
    struct stat info = {};
    mount.folder = mount.fd >= 0 && ::fstat(mount.fd, &info) == 0 && S_ISDIR(info.st_mode);
  }
  const std::vector<Mount> sockets = sockets_below(folders);
  Status done;
  Cover cover(mounts, scratch);
  for (size_t i = 0; i < mounts.size() && done.ok(); ++i) {
    if (mounts[i].fd >= 0) done = cover.lay(mounts[i]);  // else not ours to see
  }
  for (const Mount& socket : sockets) {
    if (done.ok()) (void)show(socket.fd, socket.path, true);  // its folder may be out of reach
    ::close(socket.fd);
  }
  for (const Mount& mount : mounts) {
    if (mount.fd >= 0) ::close(mount.fd);
  }
  if (done.ok() && ::chdir(cwd) != 0)
    return fs::error_from_errno(errno, std::string("cannot enter ") + cwd);
  return done;
}

Status can_isolate(const std::string& scratch) {
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) return fs::error_from_errno(errno, "cannot make a pipe");
  const pid_t pid = ::fork();
  if (pid == 0) {
    const Status done = isolate_files(scratch);
    const std::string text = done.ok() ? "" : done.error().message;
    [[maybe_unused]] const ssize_t put = ::write(report[1], text.data(), text.size());
    ::_exit(done.ok() ? 0 : 1);
  }
  ::close(report[1]);
  std::string text;
  char buffer[512];
  for (ssize_t got; (got = ::read(report[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  ::close(report[0]);
  int status = 0;
  if (pid < 0 || ::waitpid(pid, &status, 0) != pid)
    return Error{Code::kIo, "cannot start a process", ""};
  if (status != 0) return Error{Code::kDenied, text.empty() ? "it was ended" : text, ""};
  return {};
}

}  // namespace flatout::remedy
