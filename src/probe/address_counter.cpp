#include "probe/address_counter.h"

#include <fmt/format.h>
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/fs.h"
#include "base/text.h"
#include "probe/perf_event.h"
#include "symbols/process_maps.h"

namespace flatout::probe {
namespace {

perf_event_attr counting(uint32_t most) {
  perf_event_attr attr{};
  attr.size = sizeof attr;
  attr.exclude_kernel = 1;
  attr.exclude_hv = 1;
  attr.sample_period = most;
  attr.disabled = 1;
  return attr;
}

Result<int> open_breakpoint(int32_t tid, uint64_t address, uint32_t most) {
  perf_event_attr attr = counting(most);
  attr.type = PERF_TYPE_BREAKPOINT;
  attr.bp_type = HW_BREAKPOINT_X;
  attr.bp_addr = address;
  attr.bp_len = sizeof(long);
  return open_perf_event(attr, tid, "count how often an address is reached");
}

/// Each of these lets it come to its limit once more.
Status let_run(int fd) {
  if (ioctl(fd, PERF_EVENT_IOC_REFRESH, 1) == 0) return {};
  return Error{Code::kUnsupported, "cannot count a limited number of times", ""};
}

/// Of stores that cross a cache line.
Nanos time_of_stores() {
  alignas(64) static char lines[128];
  Nanos best = std::chrono::seconds(1);
  for (int round = 0; round < 5; ++round) {
    const TimePoint begin = MonotonicClock::now();
    for (uint64_t i = 0; i < 20'000; ++i) {
      std::memcpy(lines + 60, &i, sizeof i);
      asm volatile("" : : "r"(lines) : "memory");  // or all but the last store are left out
    }
    best = std::min<Nanos>(best, MonotonicClock::now() - begin);
  }
  return best;
}

[[gnu::noinline]] void never_called() { asm volatile(""); }

bool breakpoints_slow_down() {
  auto fd = open_breakpoint(0, reinterpret_cast<uint64_t>(&never_called), 1);
  if (!fd.ok()) return false;
  const Nanos without = time_of_stores();
  const bool runs = let_run(*fd).ok();
  const Nanos with = time_of_stores();
  close(*fd);
  return runs && with > 2 * without;
}

}  // namespace

AddressCounter::By AddressCounter::best() {
  static const By by = breakpoints_slow_down() ? By::kUprobe : By::kBreakpoint;
  return by;
}

Result<std::unique_ptr<AddressCounter>> AddressCounter::open(int32_t tid, uint64_t address,
                                                             uint32_t most, By by) {
  std::unique_ptr<AddressCounter> counter(new AddressCounter(tid, most));
  if (by == By::kUprobe) {
    FLATOUT_TRY(const std::vector<symbols::Mapping> maps, symbols::read_maps(fs::Root("/"), tid));
    const symbols::Mapping* m = symbols::find_mapping(maps, address);
    if (m == nullptr || !m->is_file()) {
      return Error{Code::kUnsupported, "cannot count: the code lies in no file", ""};
    }
    // The very file, even where another one has its name by now.
    counter->file_ = fmt::format("/proc/{}/map_files/{:x}-{:x}", tid, m->begin, m->end);
    counter->offset_ = address - m->begin + m->offset;
  } else {
    FLATOUT_TRY(counter->fd_, open_breakpoint(tid, address, most));
  }
  FLATOUT_TRY_STATUS(counter->resume());
  return counter;
}

AddressCounter::~AddressCounter() {
  if (fd_ >= 0) close_event();
}

/// The kernel takes 80 ms to take a trap away.
void AddressCounter::close_event() {
  if (file_.empty()) {
    close(fd_);
  } else {
    ioctl(fd_, PERF_EVENT_IOC_DISABLE, 0);
    try {
      std::thread([fd = fd_] { close(fd); }).detach();
    } catch (const std::system_error&) {  // no thread is left
      close(fd_);
    }
  }
  fd_ = -1;
}

Result<int> AddressCounter::open_uprobe() const {
  FLATOUT_TRY(const std::string type,
              fs::Root("/").read("sys/bus/event_source/devices/uprobe/type", 64));
  perf_event_attr attr = counting(most_);
  attr.type = parse_number<uint32_t>(trim(type)).value_or(0);
  attr.config1 = reinterpret_cast<uint64_t>(file_.c_str());
  attr.config2 = offset_;
  auto fd = open_perf_event(attr, tid_, "count how often code is reached");
  if (!fd.ok() && fd.error().code == Code::kDenied) {
    return Error{Code::kDenied,
                 "steps of less than 75 ms are not counted: hardware breakpoints slow this "
                 "processor's stores down, and uprobes need root",
                 "run flatout as root or with CAP_SYS_ADMIN, or mark the steps (flatout/marker.h)"};
  }
  return fd;
}

uint64_t AddressCounter::count() const {
  uint64_t value = 0;
  const bool got = fd_ >= 0 && read(fd_, &value, sizeof value) == sizeof value;
  return before_ + (got ? value : 0);
}

void AddressCounter::pause() {
  if (fd_ < 0) return;
  if (file_.empty()) {
    ioctl(fd_, PERF_EVENT_IOC_DISABLE, 0);
    return;
  }
  // The trap is there as long as the event is.
  before_ = count();
  close_event();
}

Status AddressCounter::resume() {
  if (fd_ < 0) {
    FLATOUT_TRY(fd_, open_uprobe());
  }
  return let_run(fd_);
}

}  // namespace flatout::probe
