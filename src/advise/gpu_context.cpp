#include "advise/gpu_context.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/fs.h"

namespace flatout::advise {
namespace {

constexpr int kMostDevices = 64;

enum class Stage : int32_t { kNoLibrary, kNotStarted, kDevice, kDone };

// What the child tells through a pipe, a record at a time.
struct Record {
  Stage stage{};
  int32_t device = 0, code = 0;
  char error[64] = {};
  char uuid[48] = {};
  uint64_t free_bytes = 0, total_bytes = 0;
};

struct Cuda {
  int (*init)(unsigned) = nullptr;
  int (*count)(int*) = nullptr;
  int (*device)(int*, int) = nullptr;
  int (*uuid)(unsigned char*, int) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*release)(int) = nullptr;
  int (*set_current)(void*) = nullptr;
  int (*memory)(size_t*, size_t*) = nullptr;
  int (*error_name)(int, const char**) = nullptr;

  template <class F>
  static void load(void* library, F& function, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      function = reinterpret_cast<F>(::dlsym(library, name));
      if (function != nullptr) return;
    }
  }

  bool open(const char* path) {
    void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    load(library, init, {"cuInit"});
    load(library, count, {"cuDeviceGetCount"});
    load(library, device, {"cuDeviceGet"});
    load(library, uuid, {"cuDeviceGetUuid_v2", "cuDeviceGetUuid"});
    // The context that CUDA's runtime, and so every framework, would use.
    load(library, retain, {"cuDevicePrimaryCtxRetain"});
    load(library, release, {"cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease"});
    load(library, set_current, {"cuCtxSetCurrent"});
    load(library, memory, {"cuMemGetInfo_v2"});
    load(library, error_name, {"cuGetErrorName"});
    return init != nullptr && count != nullptr && device != nullptr && retain != nullptr &&
           release != nullptr;
  }

  void explain(Record& record) const {
    const char* name = nullptr;
    if (error_name != nullptr) error_name(record.code, &name);
    std::snprintf(record.error, sizeof record.error, "%s",
                  name != nullptr ? name : std::to_string(record.code).c_str());
  }
};

void tell(int pipe, const Record& record) {
  if (::write(pipe, &record, sizeof record) != static_cast<ssize_t>(sizeof record)) ::_exit(1);
}

void try_device(const Cuda& cuda, int ordinal, Record& record) {
  record.device = ordinal;
  int device = 0;
  record.code = cuda.device(&device, ordinal);
  if (record.code != 0) return;
  unsigned char id[16];
  if (cuda.uuid != nullptr && cuda.uuid(id, device) == 0) {
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
      text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
    }
    std::snprintf(record.uuid, sizeof record.uuid, "%s", text.c_str());
  }
  void* context = nullptr;
  record.code = cuda.retain(&context, device);
  if (record.code != 0) return;
  size_t left = 0, total = 0;
  if (cuda.set_current != nullptr && cuda.memory != nullptr && cuda.set_current(context) == 0 &&
      cuda.memory(&left, &total) == 0) {
    record.free_bytes = left;
    record.total_bytes = total;
  }
  cuda.release(device);
}

[[noreturn]] void be_child(int pipe, const std::string& library, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  const int nothing = ::open("/dev/null", O_RDWR);
  ::dup2(nothing, STDOUT_FILENO);
  ::dup2(nothing, STDERR_FILENO);
  ::setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);  // as NVML counts
  Cuda cuda;
  Record record;
  if (!cuda.open(library.c_str())) {
    record.stage = Stage::kNoLibrary;
    tell(pipe, record);
    ::_exit(0);
  }
  int count = 0;
  record.stage = Stage::kNotStarted;
  record.code = cuda.init(0);
  if (record.code == 0) record.code = cuda.count(&count);
  if (record.code != 0) {
    cuda.explain(record);
    tell(pipe, record);
    ::_exit(0);
  }
  for (int i = 0; i < std::min(count, kMostDevices); ++i) {
    record = {};
    record.stage = Stage::kDevice;
    try_device(cuda, i, record);
    if (record.code != 0) cuda.explain(record);
    tell(pipe, record);
  }
  record = {};
  record.stage = Stage::kDone;
  tell(pipe, record);
  ::_exit(0);  // not the driver's own way out, which may hang
}

enum class Read : uint8_t { kRecord, kEnd, kLate };

Read read_record(int pipe, TimePoint until, Record& record) {
  size_t done = 0;
  while (done < sizeof record) {
    const Nanos left = until - MonotonicClock::now();
    pollfd poll{pipe, POLLIN, 0};
    const int ready =
        ::poll(&poll, 1, static_cast<int>(std::max<int64_t>(0, left.count() / 1'000'000)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return Read::kLate;
    const ssize_t got = ::read(pipe, reinterpret_cast<char*>(&record) + done, sizeof record - done);
    if (got <= 0) return Read::kEnd;
    done += static_cast<size_t>(got);
  }
  return Read::kRecord;
}

}  // namespace

Result<std::vector<ContextTrial>> try_contexts(const std::string& library, Nanos most) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fs::error_from_errno(errno, "cannot make a pipe");
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    const int failed = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    return fs::error_from_errno(failed, "cannot start a process");
  }
  if (child == 0) be_child(ends[1], library, parent);
  ::close(ends[1]);
  const TimePoint until = MonotonicClock::now() + most;
  std::vector<ContextTrial> out;
  Record record;
  Read read = Read::kRecord;
  while ((read = read_record(ends[0], until, record)) == Read::kRecord &&
         record.stage == Stage::kDevice) {
    record.error[sizeof record.error - 1] = record.uuid[sizeof record.uuid - 1] = 0;
    out.push_back({record.device, record.code, record.error, record.uuid, record.free_bytes,
                   record.total_bytes});
  }
  ::close(ends[0]);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  if (read == Read::kLate) {
    return Error{Code::kTimeout, fmt::format("CUDA did not answer within {:.0f} s", to_s(most)),
                 "look in dmesg for NVRM and Xid"};
  }
  if (read == Read::kEnd) {
    return Error{Code::kGone, fmt::format("the driver crashed at GPU {}", out.size()),
                 "look in dmesg for NVRM and Xid"};
  }
  if (record.stage == Stage::kNoLibrary) {
    return Error{Code::kNotFound, "libcuda.so.1, the driver's library for CUDA, is not here",
                 "in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"};
  }
  if (record.stage == Stage::kNotStarted) {
    return Error{Code::kUnsupported, fmt::format("CUDA does not start: {}", record.error), ""};
  }
  return out;
}

}  // namespace flatout::advise
