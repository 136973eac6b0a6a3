#include "probe/leftover.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

constexpr size_t kMaxLinks = 512;

std::string_view base_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}

// The kind of process that training leaves behind: an interpreter (whose name a framework may
// have changed) ...
bool is_interpreter(const fs::Root& root, int32_t pid, std::string_view name) {
  if (starts_with_any(name, {"python", "pypy", "pt_"})) return true;
  const auto cmdline = root.read(proc_path(pid, "cmdline"), 512);
  if (cmdline.ok()) {
    const std::string_view program = base_name(std::string_view(cmdline->c_str()));
    if (starts_with_any(program, {"python", "pypy"})) return true;
  }
  const auto exe = root.read_link(proc_path(pid, "exe"));
  return exe.ok() && starts_with_any(base_name(*exe), {"python", "pypy"});
}

// ... or a program that has a framework or the CUDA driver mapped.
bool has_framework(const fs::Root& root, int32_t pid) {
  const auto maps = root.read(proc_path(pid, "maps"), 1 << 20);
  if (!maps.ok()) return false;
  constexpr std::array kLibraries = {"/libpython", "/libtorch",  "/libtensorflow", "/libcuda.so",
                                     "/libmxnet",  "/libcudart", "/libnccl"};
  return std::any_of(kLibraries.begin(), kLibraries.end(),
                     [&](const char* library) { return maps->find(library) != std::string::npos; });
}

// Shared memory and GPUs among its open files.
void inspect_files(const fs::Root& root, int32_t pid, Leftover& out) {
  const std::string dir = proc_path(pid, "fd");
  const auto names = root.list(dir);
  if (!names.ok()) return;
  std::set<std::string> files;
  uint64_t open_bytes = 0;
  for (size_t i = 0; i < names->size() && i < kMaxLinks; ++i) {
    const std::string path = dir + "/" + (*names)[i];
    const auto target = root.read_link(path);
    if (!target.ok()) continue;
    if (target->starts_with("/dev/nvidia")) out.holds_gpu = true;
    if (target->starts_with("/dev/shm/") && files.insert(*target).second) {
      struct stat st {};
      if (::stat(root.full(path).c_str(), &st) == 0 && S_ISREG(st.st_mode)) {
        open_bytes += static_cast<uint64_t>(st.st_blocks) * 512;
      }
    }
  }
  out.shm_bytes = std::max(out.shm_bytes, open_bytes);
}

bool is_plain_init(std::string_view name) {
  constexpr std::array kNames = {"systemd",   "init",  "tini", "docker-init", "dumb-init",
                                 "catatonit", "sleep", "tail", "pause",       "s6-svscan"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

enum class Parent { kAlive, kMaybeGone, kGone };

// Orphans are handed to init or to a subreaper. A service that init itself started has the same
// parent; what tells them apart is that an orphan's process group or session has lost its leader.
Parent parent_of(const fs::Root& root, const PidStat& stat) {
  std::string parent_name;
  int32_t grandparent = 0;
  std::string buffer;
  if (root.read_into(proc_path(stat.ppid, "stat"), buffer, 4096).ok()) {
    if (const auto parent = parse_pid_stat(buffer)) {
      parent_name = parent->comm;
      grandparent = parent->ppid;
    }
  }
  const bool user_manager = parent_name == "systemd" && grandparent == 1;
  if (stat.ppid != 1 && !user_manager) return Parent::kAlive;
  const auto gone = [&](int32_t leader) {
    return leader > 0 && leader != stat.pid && !root.exists(proc_path(leader, "stat"));
  };
  if (gone(stat.pgrp) || gone(stat.session)) return Parent::kGone;
  if (user_manager || parent_name == "systemd") {
    const auto group = root.read(proc_path(stat.pid, "cgroup"), 4096);
    const bool service = group.ok() && group->find(".service") != std::string::npos &&
                         group->find("user@") == std::string::npos;
    return service ? Parent::kAlive : Parent::kMaybeGone;
  }
  return is_plain_init(parent_name) ? Parent::kGone : Parent::kMaybeGone;
}

}  // namespace

Leftover inspect_leftover(const fs::Root& root, const LeftoverQuestion& question) {
  Leftover out;
  const int32_t pid = question.stat.pid;
  const auto status = root.read(proc_path(pid, "status"), 8192);
  if (status.ok()) out.shm_bytes = parse_pid_status(*status).rss_shmem_bytes.value_or(0);
  const Parent parent = parent_of(root, question.stat);
  const bool interpreter = is_interpreter(root, pid, question.name);
  // Most processes: their parent lives, and they are no interpreters. Their mappings stay unread.
  if (!interpreter && parent == Parent::kAlive) return out;
  const bool trains = interpreter || (parent != Parent::kAlive && has_framework(root, pid));
  inspect_files(root, pid, out);
  const bool holds = out.holds_gpu || out.shm_bytes >= kLeastShm;
  if (parent == Parent::kGone) out.orphan = trains || holds;
  // A child of an unknown program that runs as init may be its service: only what sleeps and
  // still keeps something counts.
  if (parent == Parent::kMaybeGone) {
    out.orphan = trains && question.cpu_share < 0.01 && (holds || question.memory_share >= 0.03);
  }
  return out;
}

std::string program_and_script(std::string_view cmdline) {
  std::vector<std::string_view> words;
  for (const std::string_view word : split(cmdline, '\0')) {
    if (!word.empty()) words.push_back(word);
  }
  if (words.empty()) return "";
  std::string out(words[0]);
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "-m" && i + 1 < words.size()) {
      out += " -m " + std::string(words[i + 1]);
      break;
    }
    if (words[i] == "-c") {
      out += " -c";
      break;
    }
    if (words[i].starts_with('-')) continue;
    if (starts_with_any(base_name(words[0]), {"python", "pypy", "bash", "sh", "node", "perl"})) {
      out += " " + std::string(words[i]);
    }
    break;
  }
  return out;
}

}  // namespace flatout::probe
