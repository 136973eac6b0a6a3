#include "recorder/launch.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/fs.h"
#include "base/text.h"

namespace flatout::recorder {
namespace {

// Runs in the child: only async-signal-safe calls, everything is prepared.
[[noreturn]] void become_job(char* const* arguments, char* const* environment,
                             const LaunchOptions& options, const InheritedSignals& signals,
                             int report) {
  if (options.dies_with_us) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (options.stdout_to_stderr) ::dup2(STDERR_FILENO, STDOUT_FILENO);
  ::sigaction(SIGPIPE, &signals.pipe, nullptr);
  ::sigaction(SIGCHLD, &signals.child, nullptr);
  ::sigprocmask(SIG_SETMASK, &signals.mask, nullptr);
  ::execvpe(arguments[0], arguments, environment);
  const int err = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &err, sizeof err);
  ::_exit(err == ENOENT ? 127 : 126);
}

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

// The file that execvpe() found for `program`; "" where there is none.
std::string found_program(const std::string& program) {
  if (program.find('/') != std::string::npos)
    return ::access(program.c_str(), F_OK) == 0 ? program : "";
  const char* set = ::getenv("PATH");
  const std::string path = set != nullptr ? set : "/bin:/usr/bin";
  for (const std::string_view folder : split(path, ':')) {
    std::string file = std::string(folder.empty() ? "." : folder) + "/" + program;
    if (::access(file.c_str(), F_OK) == 0) return file;
  }
  return "";
}

// Of a file that is there though executing it says that there is none: what it needs is not.
Error lacks_interpreter(const std::string& program, const std::string& file) {
  std::string first(256, '\0');  // as much as the kernel looks at
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t got = fd < 0 ? 0 : ::read(fd, first.data(), first.size());
  if (fd >= 0) ::close(fd);
  first.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  const std::string what = "cannot run '" + escape_terminal(program) + "': ";
  if (!first.starts_with("#!"))
    return {Code::kDenied, what + "the loader that it names is not on this machine",
            "it is built for another system: see `file " + escape_terminal(file) + "`"};
  std::string_view line = std::string_view(first).substr(2);
  line = line.substr(0, line.find('\n'));
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  const std::string_view interpreter = line.substr(0, line.find_first_of(" \t"));
  return {Code::kDenied, what + "its interpreter " + escape_terminal(interpreter) + " is not there",
          interpreter.ends_with('\r') ? "the file has the line ends of Windows: dos2unix"
                                      : "the file's first line names it"};
}

}  // namespace

void guard_standard_files() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);  // takes the lowest number: fd
    if (null > 2) ::close(null);
  }
}

Result<int32_t> start_job(const LaunchOptions& options, const InheritedSignals& signals) {
  std::vector<char*> arguments, environment;
  for (const std::string& word : options.command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  for (const std::string& entry : options.environment) {
    environment.push_back(const_cast<char*>(entry.c_str()));
  }
  environment.push_back(nullptr);

  int report[2];  // carries errno of a failed exec; closed by a good one
  if (::pipe2(report, O_CLOEXEC) != 0) return fs::error_from_errno(errno, "cannot make a pipe");
  const pid_t pid = ::fork();
  if (pid == 0) {
    become_job(arguments.data(), environment.data(), options, signals, report[1]);
  }
  const int fork_error = errno;
  ::close(report[1]);
  if (pid < 0) {
    ::close(report[0]);
    Error error = fs::error_from_errno(fork_error, "cannot start a process");
    error.code = Code::kIo;
    return error;
  }
  int exec_error = 0;
  ssize_t got = 0;
  do {
    got = ::read(report[0], &exec_error, sizeof exec_error);
  } while (got < 0 && errno == EINTR);
  ::close(report[0]);
  if (got == sizeof exec_error) {
    if (exec_error == ENOENT) {
      if (const std::string file = found_program(options.command[0]); !file.empty())
        return lacks_interpreter(options.command[0], file);
    }
    Error error = fs::error_from_errno(exec_error,
                                       "cannot run '" + escape_terminal(options.command[0]) + "'");
    error.code = exec_error == ENOENT ? Code::kNotFound : Code::kDenied;
    return error;
  }
  return pid;
}

std::vector<std::string> current_environment() {
  std::vector<std::string> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    out.emplace_back(*entry);
  }
  return out;
}

void set_variable(std::vector<std::string>& environment, const std::string& name,
                  const std::string& value) {
  const std::string start = name + "=";
  std::erase_if(environment, [&](const std::string& entry) { return entry.starts_with(start); });
  environment.push_back(start + value);
}

std::string variable(const std::vector<std::string>& environment, const std::string& name) {
  const std::string start = name + "=";
  for (const std::string& entry : environment) {
    if (entry.starts_with(start)) return entry.substr(start.size());
  }
  return "";
}

void add_preload(std::vector<std::string>& environment, const std::string& library) {
  const std::string before = variable(environment, "LD_PRELOAD");
  // The dynamic linker separates by colons or blanks; a flatout within flatout adds nothing.
  for (size_t at = 0; at < before.size();) {
    const size_t end = std::min(before.find_first_of(": ", at), before.size());
    if (before.substr(at, end - at) == library) return;
    at = end + 1;
  }
  set_variable(environment, "LD_PRELOAD", before.empty() ? library : before + ":" + library);
}

AgentPaths find_agent() {
  AgentPaths out;
  char self[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", self, sizeof self - 1);
  if (size <= 0) return out;
  const std::string bin = folder_of(std::string(self, static_cast<size_t>(size)));
  const auto first = [](std::initializer_list<std::string> candidates) -> std::string {
    for (const std::string& path : candidates) {
      char resolved[PATH_MAX];
      if (::access(path.c_str(), R_OK) == 0 && ::realpath(path.c_str(), resolved) != nullptr) {
        return resolved;
      }
    }
    return "";
  };
  const auto library = [&](const std::string& so) {
    return first({bin + "/" + so, bin + "/../lib/flatout/" + so, bin + "/../lib/" + so});
  };
  out.library = library("libflatout_agent.so");
  out.mpi = library("libflatout_mpi.so");
  out.allocator = library("libflatout_malloc.so");
  out.feed = library("libflatout_feed.so");
  out.nn = library("libflatout_nn.so");
  out.limiter = library("libflatout_devlimit.so");
  out.devmem = library("libflatout_devmem.so");
  const std::string inject = "/agent/inject/sitecustomize.py";
  const std::string found =
      first({bin + "/.." + inject, bin + "/../lib/flatout/python/flatout" + inject,
             bin + "/../python/flatout" + inject, bin + "/../../python/flatout" + inject});
  if (!found.empty()) out.inject = folder_of(found);
  return out;
}

}  // namespace flatout::recorder
