// flatout devmem limit: a job under a limit on device memory. The work is done in the job, by
// libflatout_devlimit.so; this starts it, keeps the file that its processes share, and waits.
#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/fs.h"
#include "base/left_over.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"
#include "devmem/limits.h"
#include "recorder/launch.h"

namespace flatout::cli {
namespace {

const Usage kLimit{
    "devmem limit",
    "[options] SIZE|FRACTION|0=SIZE,1=SIZE -- COMMAND...",
    "Runs a job that gets no more device memory than that: on each device by itself, and all of "
    "its "
    "processes together. What it sees as the card's memory is the limit; at the limit it gets the "
    "error that a full card gives. The exit code is the job's own.",
    "  flatout devmem limit 8GiB -- python train.py\n"
    "  flatout devmem limit 0.5 -- python train.py           # half of each card\n"
    "  flatout devmem limit 0=8GiB,1=25% -- python train.py  # by device; others have no limit\n"
    "  flatout devmem limit --record memory.jsonl 100% -- ./train   # and what it took, to replay",
    {"record"},
    false,
    false,
    true,
    2,
    1'000'000};

// "8GiB" or "0=8GiB,1=0.5", checked, as FLATOUT_DEVLIMIT. Errors: kBadInput.
Result<std::string> read_limits(std::string_view text) {
  FLATOUT_TRY(const auto devices, devmem::parse_limits(text));
  std::string out;
  for (const devmem::DeviceLimits& device : devices) {
    if (device.limits.size() > 1)
      return Error{Code::kBadInput,
                   fmt::format("'{}' says twice what a device may take", escape_terminal(text)),
                   "one size for each device: the processes of a job share it"};
    const devmem::Limit& limit = device.limits[0];
    if (!out.empty()) out += ',';
    if (device.device >= 0) out += fmt::format("{}=", device.device);
    out += limit.bytes > 0 ? std::to_string(limit.bytes) : fmt::format("{:.9f}", limit.fraction);
  }
  return out;
}

// The file that a shell would run; "" if there is none.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* const path = ::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/usr/bin:/bin";
  while (true) {
    const size_t end = std::min(rest.find(':'), rest.size());
    std::string file = std::string(end > 0 ? rest.substr(0, end) : ".") + "/" + name;
    struct stat s;
    if (::access(file.c_str(), X_OK) == 0 && ::stat(file.c_str(), &s) == 0 && S_ISREG(s.st_mode))
      return file;
    if (end == rest.size()) return "";
    rest.remove_prefix(end + 1);
  }
}

// A program that is linked statically, or runs with another user's rights, does not load what
// LD_PRELOAD names. Only the command itself can be looked at, not what it starts. Errors:
// kUnsupported.
Status check_program(const std::string& command) {
  const std::string file = find_program(command);
  const auto bytes =
      fs::Root("/").read(file.starts_with('/') ? file.substr(1) : "proc/self/cwd/" + file, 1 << 16);
  if (!bytes.ok() || bytes->size() < sizeof(Elf64_Ehdr) ||
      std::memcmp(bytes->data(), ELFMAG, SELFMAG) != 0)
    return {};  // scripts, and whatever starting it will complain about
  const auto cannot = [&](std::string_view why) {
    return Error{Code::kUnsupported,
                 fmt::format("{} {}: the limit would not hold", escape_terminal(file), why),
                 "start a dynamically linked 64-bit program"};
  };
  if ((*bytes)[EI_CLASS] != ELFCLASS64) return cannot("is no 64-bit program");
  struct stat s;
  if (::stat(file.c_str(), &s) == 0 && (s.st_mode & (S_ISUID | S_ISGID)) != 0)
    return cannot("runs with another user's rights");
  Elf64_Ehdr header;
  std::memcpy(&header, bytes->data(), sizeof header);
  for (size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    const size_t at = header.e_phoff + i * sizeof segment;
    if (at > bytes->size() - sizeof segment) return {};
    std::memcpy(&segment, bytes->data() + at, sizeof segment);
    if (segment.p_type == PT_INTERP) return {};
  }
  return cannot("is linked statically");
}

constexpr std::string_view kSharedName = "flatout-devlimit-";

// The file that the job's processes count in, gone with this. It is open as long, so that it is no
// left-over one.
class SharedFile {
 public:
  /// In /dev/shm, or, where there is no room (containers have little there), where TMPDIR says.
  static Result<SharedFile> open() {
    const char* const variable = ::getenv("TMPDIR");
    const std::string folder = variable != nullptr && variable[0] == '/' ? variable : "/tmp";
    int err = 0;
    for (const std::string& place : {std::string("/dev/shm"), folder}) {
      const std::string begin = fmt::format("{}/{}", place, kSharedName);
      fs::remove_left_over(begin, fs::kMkstemp, std::chrono::seconds(0));
      std::string path = begin + "XXXXXX";
      const int fd = ::mkostemp(path.data(), O_CLOEXEC);
      err = errno;
      if (fd < 0) continue;
      // The library counts in less (devlimit/ledger.h); what is not taken now may be gone later.
      constexpr off_t kBytes = 1 << 20;
      const bool has_room =
          ::fallocate(fd, 0, 0, kBytes) == 0 || errno == EOPNOTSUPP || errno == ENOSYS;
      err = errno;
      if (has_room) return SharedFile(std::move(path), fd);
      ::close(fd);
      ::unlink(path.c_str());
    }
    return fs::error_from_errno(err, "cannot make a file in /dev/shm or " + folder);
  }
  ~SharedFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
    if (fd_ >= 0) ::close(fd_);
  }
  SharedFile(SharedFile&& other) noexcept
      : path_(std::exchange(other.path_, "")), fd_(std::exchange(other.fd_, -1)) {}
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  SharedFile& operator=(SharedFile&&) = delete;
  const std::string& path() const { return path_; }

 private:
  SharedFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
};

}  // namespace

int devmem_limit(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kLimit, arguments, code);
  if (!settings) return code;
  std::vector<std::string> command(settings->positional.begin() + 1, settings->positional.end());
  if (command[0] == "--") {
    command.erase(command.begin());
  } else if (command[0].starts_with('-')) {
    return bad_usage(fmt::format("{} stands behind the size", escape_terminal(command[0])),
                     "options come first: flatout devmem limit --record FILE 8GiB -- COMMAND...");
  }
  if (command.empty())
    return bad_usage("there is no command to run", "flatout devmem limit 8GiB -- COMMAND...");
  const auto limits = read_limits(settings->positional[0]);
  if (!limits.ok()) return bad_usage(limits.error().message, limits.error().hint);
  std::error_code ignored;
  if (!settings->record.empty() && std::filesystem::exists(settings->record, ignored))
    return bad_usage(fmt::format("{} is there already", escape_terminal(settings->record)),
                     "--record with the name of a new file");
  if (const char* outer = ::getenv("FLATOUT_DEVLIMIT_SHARED");
      outer != nullptr && ::access(outer, F_OK) == 0)
    return bad_usage(
        "this runs under `flatout devmem limit` already, and one limit knows nothing of another",
        "set the smaller one outside");
  const std::string library = recorder::find_agent().limiter;
  if (library.empty()) {
    log_error("libflatout_devlimit.so is not beside flatout",
              "install it again; it is built for x86-64 only");
    return 125;
  }
  if (library.find_first_of(": ") != std::string::npos) {
    log_error("LD_PRELOAD cannot name a path with a blank or a colon: " + library,
              "install flatout elsewhere");
    return 125;
  }
  if (const Status able = check_program(command[0]); !able.ok()) {
    log_error(able.error().message, able.error().hint);
    return 125;
  }
  const auto shared = SharedFile::open();
  if (!shared.ok()) return start_failed(shared.error(), command);
  std::vector<std::string> environment = recorder::current_environment();
  recorder::add_preload(environment, library);
  recorder::set_variable(environment, "FLATOUT_DEVLIMIT", *limits);
  recorder::set_variable(environment, "FLATOUT_DEVLIMIT_SHARED", shared->path());
  if (!settings->record.empty())
    recorder::set_variable(environment, "FLATOUT_DEVLIMIT_RECORD",
                           std::filesystem::absolute(settings->record, ignored));
  return run_job(command, std::move(environment));
}

}  // namespace flatout::cli
