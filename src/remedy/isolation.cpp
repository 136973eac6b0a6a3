#include "remedy/isolation.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
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

// Folders of the system, where jobs write nothing of the user's; the scratch folder lies in one.
constexpr std::string_view kSystem[] = {"bin",   "boot",       "dev",    "etc", "lib",  "lib32",
                                        "lib64", "lost+found", "libx32", "nix", "proc", "run",
                                        "sbin",  "snap",       "sys",    "usr", "var"};

struct Mount {
  std::string path;
  bool read_only = false;
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
  if (cwd != "/" && std::none_of(out.begin(), out.end(), [&](const std::string& folder) {
        return is_below(cwd, folder);
      })) {
    out.push_back(cwd);
  }
  return out;
}

// The folders themselves, and the mounts below them: an overlay does not show those.
Result<std::vector<Mount>> mounts_below(const std::vector<std::string>& folders) {
  std::vector<Mount> out;
  std::transform(folders.begin(), folders.end(), std::back_inserter(out),
                 [](const std::string& folder) {
                   return Mount{folder, false, -1};
                 });
  FLATOUT_TRY(const std::string table, fs::Root("/").read("proc/self/mountinfo"));
  std::string_view rest = table, line;
  while (next_line(rest, line)) {
    for (int i = 0; i < 4; ++i) next_word(line);
    const std::string path = unescape_octal(next_word(line));
    const std::string_view options = next_word(line);
    for (const std::string& folder : folders) {
      if (!is_below(path, folder)) continue;
      const bool read_only = options == "ro" || options.starts_with("ro,");
      const auto known = std::find_if(out.begin(), out.end(),
                                      [&](const Mount& mount) { return mount.path == path; });
      if (known != out.end()) {
        known->read_only = read_only;
      } else {
        out.push_back({path, read_only, -1});
      }
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
      return fs::error_from_errno(errno, "cannot make a mount namespace");
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

Status cover(const Mount& mount, const std::string& scratch, size_t number) {
  const std::string below = "/proc/self/fd/" + std::to_string(mount.fd);
  if (mount.read_only) {
    if (::mount(below.c_str(), mount.path.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0)
      return {};
    return fs::error_from_errno(errno, "cannot keep " + mount.path);
  }
  const std::string half = scratch + "/" + std::to_string(number);
  std::error_code failed;
  std::filesystem::create_directories(half + "/upper", failed);
  std::filesystem::create_directories(half + "/work", failed);
  if (failed) return Error{Code::kIo, "cannot make " + half, ""};
  struct stat info;
  if (::fstat(mount.fd, &info) == 0) ::chmod((half + "/upper").c_str(), info.st_mode & 07777);
  const std::string options =
      fmt::format("lowerdir={},upperdir={}/upper,workdir={}/work", below, half, half);
  if (::mount("overlay", mount.path.c_str(), "overlay", 0, options.c_str()) == 0) return {};
  const int error = errno;
  // In a user namespace the overlay's own attributes need another name.
  if (::mount("overlay", mount.path.c_str(), "overlay", 0, (options + ",userxattr").c_str()) == 0) {
    return {};
  }
  return fs::error_from_errno(error, "cannot lay an overlay over " + mount.path);
}

}  // namespace

Status isolate_files(const std::string& scratch) {
  char cwd[PATH_MAX];
  if (::getcwd(cwd, sizeof cwd) == nullptr) return fs::error_from_errno(errno, "no working folder");
  const std::vector<std::string> folders = folders_to_cover(cwd);
  for (const std::string& folder : folders) {
    if (is_below(scratch, folder)) {
      return Error{Code::kBadInput,
                   fmt::format("{} lies within {}, which is to be covered", scratch, folder), ""};
    }
  }
  FLATOUT_TRY(std::vector<Mount> mounts, mounts_below(folders));
  FLATOUT_TRY_STATUS(enter_namespace());
  for (Mount& mount : mounts) {
    mount.fd = ::open(mount.path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  }
  Status done;
  for (size_t i = 0; i < mounts.size() && done.ok(); ++i) {
    if (mounts[i].fd >= 0) done = cover(mounts[i], scratch, i);  // else a file, or not ours to see
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
