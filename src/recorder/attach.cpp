// Checks whether a process can be watched, and says in plain words why not.
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/text.h"
#include "recorder/recorder.h"

namespace flatout::recorder {
namespace {

constexpr uint64_t kKernelThread = 0x00200000;  // PF_KTHREAD, field 9 of /proc/PID/stat

std::string user_name(uid_t uid) {
  const passwd* entry = ::getpwuid(uid);
  return entry != nullptr ? escape_terminal(entry->pw_name) : std::to_string(uid);
}

}  // namespace

Status Recorder::start_attach() {
  const int32_t pid = options_.attach_pid;
  const fs::Root root("/");
  const std::string proc = fmt::format("proc/{}", pid);
  if (pid == ::getpid()) return Error{Code::kBadInput, "cannot attach to flatout itself", ""};
  const auto text = root.read(proc + "/stat", 4096);
  if (!text.ok()) {
    return Error{Code::kNotFound, fmt::format("there is no process {}", pid),
                 "list training jobs with: ps -eo pid,etime,args | grep -i python"};
  }
  std::string_view rest = *text;
  rest.remove_prefix(std::min(rest.rfind(')') + 1, rest.size()));
  const std::string_view state = next_word(rest);
  for (int field = 4; field < 9; ++field) next_word(rest);
  const uint64_t flags = parse_number<uint64_t>(next_word(rest)).value_or(0);
  if (state == "Z" || state == "X") {
    return Error{Code::kGone, fmt::format("process {} has ended already", pid), ""};
  }
  if ((flags & kKernelThread) != 0) {
    return Error{Code::kBadInput, fmt::format("{} is a thread of the kernel, not a job", pid), ""};
  }
  if (const auto status = root.read(proc + "/status", 8192); status.ok()) {
    std::string_view lines = *status, line;
    while (next_line(lines, line)) {
      if (!line.starts_with("Tgid:")) continue;
      const auto group = parse_number<int32_t>(trim(line.substr(5)));
      if (group && *group != pid) {
        return Error{Code::kBadInput, fmt::format("{} is a thread of process {}", pid, *group),
                     fmt::format("flatout attach {}", *group)};
      }
    }
  }
  struct stat owner;
  if (::stat(root.full(proc).c_str(), &owner) == 0 && owner.st_uid != ::geteuid() &&
      ::geteuid() != 0) {
    return Error{Code::kDenied,
                 fmt::format("process {} belongs to {}", pid, user_name(owner.st_uid)),
                 "run flatout as that user, or as root"};
  }
  if (state == "T" || state == "t") {
    log_warning(
        fmt::format("process {} is stopped, by Ctrl-Z, SIGSTOP or a debugger: `kill -CONT "
                    "{}` or the debugger lets it go on",
                    pid, pid));
  }
  job_ = pid;
  if (options_.stacks_only) return {};
  FLATOUT_TRY(folder_,
              make_run_folder({{fmt::format("attach_{}", pid)}, environment_, options_.out}));
  if (!folder_.path.empty()) {
    if (const Status opened = recording_.open_files(folder_.path); !opened.ok()) {
      folder_.notice = opened.error().message + "; recording in memory only";
    }
  }
  publish(folder_);
  sink_.missing({"agent", "attached from outside: nothing is loaded into a running job",
                 "start it with: flatout run -- COMMAND"});
  return {};
}

}  // namespace flatout::recorder
