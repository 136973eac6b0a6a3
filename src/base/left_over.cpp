#include "base/left_over.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <filesystem>

namespace flatout::fs {
namespace {

// Only then the kernel gives a lease for writing, and only to the file's owner.
bool is_held_by_nobody(const std::string& path, std::chrono::seconds least_age) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  struct stat info;
  const bool is_old = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
                      ::time(nullptr) - info.st_mtime >= least_age.count();
  const bool nobody = is_old && ::fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
  if (nobody) ::fcntl(fd, F_SETLEASE, F_UNLCK);
  ::close(fd);
  return nobody;
}

}  // namespace

void remove_left_over(const std::string& prefix, std::string_view letters,
                      std::chrono::seconds least_age) {
  const size_t slash = prefix.rfind('/');
  const std::string folder = slash == prefix.npos ? "." : prefix.substr(0, slash + 1);
  const std::string begin = slash == prefix.npos ? prefix : prefix.substr(slash + 1);
  // Who opens a leased file meanwhile waits, and its holder is told by this signal.
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGIO, &ignore, &before);
  std::error_code failed;
  for (std::filesystem::directory_iterator it(folder, failed), end; !failed && it != end;
       it.increment(failed)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(begin) || name.size() == begin.size() ||
        name.find_first_not_of(letters, begin.size()) != name.npos)
      continue;
    const std::string path = it->path().string();
    if (is_held_by_nobody(path, least_age)) ::unlink(path.c_str());
  }
  ::sigaction(SIGIO, &before, nullptr);
}

}  // namespace flatout::fs
