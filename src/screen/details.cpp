#include "screen/details.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/text.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::screen {
namespace {

constexpr size_t kMaxFiles = 1024;
constexpr size_t kMaxWords = 4096;

std::vector<std::string> split_words(std::string_view text) {
  while (!text.empty() && text.back() == '\0') text.remove_suffix(1);
  std::vector<std::string> out;
  if (text.empty()) return out;
  for (const std::string_view word : split(text, '\0')) {
    if (out.size() == kMaxWords) break;
    out.emplace_back(word);
  }
  return out;
}

std::string list_of(std::string_view status, std::string_view key) {
  std::string_view line;
  while (next_line(status, line)) {
    if (line.starts_with(key)) return std::string(trim(line.substr(key.size())));
  }
  return "";
}

// O_RDONLY, O_WRONLY and O_RDWR are 0, 1 and 2, written in octal.
void set_access(std::string_view info, OpenFile& file) {
  const std::string flags = list_of(info, "flags:");
  if (flags.empty()) return;
  const int access = (flags.back() - '0') & 3;
  file.reads = access != 1;
  file.writes = access != 0;
}

}  // namespace

DetailsReader::DetailsReader(fs::Root root, Redactor redact, TaskTable::Clock clock)
    : root_(std::move(root)), redact_(std::move(redact)), clock_(clock) {}

std::shared_ptr<const Details> DetailsReader::look(int32_t pid, bool native,
                                                   const Snapshot& snapshot) {
  const auto task = std::find_if(snapshot.task_list.begin(), snapshot.task_list.end(),
                                 [&](const Task& t) { return t.pid == pid && !t.is_thread(); });
  if (pid == 0 || task == snapshot.task_list.end()) {
    watch_.reset();
    native_.reset();
    positions_.clear();
    return nullptr;
  }
  if (watch_ == nullptr || watch_->pid() != pid || start_ticks_ != task->start_ticks) {
    watch_.reset();
    native_.reset();
    positions_.clear();
    start_ticks_ = task->start_ticks;
    watch_ = std::make_unique<FunctionWatch>(root_, pid);
  }
  if (!native) native_.reset();
  if (native && native_ == nullptr) native_ = std::make_unique<NativeWatch>(root_, pid);
  auto out = std::make_shared<Details>();
  out->pid = pid;
  out->command = split_words(root_.read(probe::proc_path(pid, "cmdline")).value_or(""));
  const auto environment = root_.read(probe::proc_path(pid, "environ"));
  if (environment.ok()) {
    if (redact_) out->environment = redact_(split_words(*environment));
  } else {
    out->environment_trouble = environment.error().message;
  }
  const std::string limits = root_.read(probe::proc_path(pid, "limits"), 16 << 10).value_or("");
  for (const probe::LimitRow& row : probe::parse_limits(limits)) {
    out->limits.push_back({std::string(row.name), std::string(row.soft), std::string(row.hard),
                           std::string(row.unit)});
  }
  const std::string status = root_.read(probe::proc_path(pid, "status"), 16 << 10).value_or("");
  out->allowed_cores = list_of(status, "Cpus_allowed_list:");
  read_files(*out);
  out->autogroup =
      std::string(trim(root_.read(probe::proc_path(pid, "autogroup"), 256).value_or("")));
  out->python = watch_->take();
  if (native_ != nullptr) out->native = native_->take();
  return out;
}

void DetailsReader::read_files(Details& out) {
  const std::string dir = probe::proc_path(out.pid, "fd");
  const auto names = root_.list(dir);
  if (!names.ok()) {
    out.files_trouble = names.error().message;
    return;
  }
  std::map<int32_t, Position> positions;
  for (const std::string& name : *names) {
    if (out.files.size() == kMaxFiles) break;
    const auto fd = parse_number<int32_t>(name);
    const std::string link = fmt::format("{}/{}", dir, name);
    const auto target = root_.read_link(link);
    if (!fd || !target.ok()) continue;
    OpenFile file;
    file.fd = *fd;
    file.path = *target;
    const auto info = root_.read(probe::proc_path(out.pid, "fdinfo/" + name), 1024);
    if (info.ok() && file.path.starts_with('/')) {
      file.position = probe::parse_fd_position(*info);
      set_access(*info, file);
      const auto mount = probe::find_field(*info, "mnt_id");
      const TimePoint now = clock_();
      const std::string type =
          mount ? mounts_.type_of(root_, out.pid, static_cast<int64_t>(*mount), now) : "";
      // Asking for a file's size may wait for a server; of a local one it does not.
      struct stat st {};
      if (probe::is_local_fs(type) && ::stat(root_.full(link).c_str(), &st) == 0 &&
          S_ISREG(st.st_mode)) {
        file.bytes = static_cast<uint64_t>(st.st_size);
      }
      if (file.position) {
        const auto before = positions_.find(*fd);
        if (before != positions_.end() && before->second.path == file.path &&
            now > before->second.at) {
          const int64_t moved = *file.position - before->second.position;
          file.bytes_per_s =
              std::max(0.0, static_cast<double>(moved) / to_s(now - before->second.at));
        }
        positions[*fd] = {file.path, *file.position, now};
      }
    }
    out.files.push_back(std::move(file));
  }
  positions_ = std::move(positions);
  std::stable_sort(out.files.begin(), out.files.end(), [](const OpenFile& a, const OpenFile& b) {
    return a.bytes_per_s.value_or(-1) > b.bytes_per_s.value_or(-1);
  });
}

}  // namespace flatout::screen
