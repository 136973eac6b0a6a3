// Reads wait for storage: is it the disk, a limit on it, a cache that forgets, or the order of
// access?
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "diagnose/input.h"
#include "diagnose/room.h"

namespace flatout::diagnose {

using model::Finding;
using model::Series;
using model::SignalId;

namespace {

// Reads at this share of a limit are held up by it.
constexpr double kAtLimit = 0.6;
// Requests smaller than this get nothing from read-ahead (which grows to 128 KiB and more).
constexpr double kSmallRequest = 48 * 1024;
constexpr double kMuchRead = 256e6;
constexpr double kReadAgain = 1.3;
// Bytes read per byte of a batch from which no decoder is at work, and per byte of the data.
constexpr double kScanned = 100, kScannedAgain = 2;
constexpr double kBigFile = 4 << 20;
// Of what is fetched, what calls return at most where files are read through mappings; and bytes
// fetched for each page that was missing from which most of them were read ahead.
constexpr double kByCalls = 0.1, kReadAround = 64 * 1024, kFewFaults = 100;

double job_reads(const RunView& view) {
  return view.process_increase(SignalId::kProcReadBytes, [](model::ProcessId) { return true; });
}

/// What the kernel fetches for each page that is missing in a mapped file; nullopt where files are
/// read by calls, or a page alone is fetched.
std::optional<double> read_around(const RunView& view) {
  const auto all = [](model::ProcessId) { return true; };
  const double read = job_reads(view);
  const double faults = view.process_increase(SignalId::kProcMajorFaults, all);
  const double by_calls = view.process_increase(SignalId::kProcReadChars, all);
  if (faults < kFewFaults || by_calls > kByCalls * read || read < kReadAround * faults) return {};
  return read / faults;
}

struct Requests {
  double count = 0, bytes = 0, busy = 0, seconds = 0;
};

/// Of the disk that was read most.
Requests requests(const RunView& view) {
  Requests most;
  for (const Series* s : view.run().all(SignalId::kDiskReadBytes)) {
    const double bytes = view.increase(s).value_or(0);
    if (bytes <= most.bytes) continue;
    most.bytes = bytes;
    most.count = view.increase(view.series(SignalId::kDiskReads, s->entity)).value_or(0);
    most.busy = view.increase(view.series(SignalId::kDiskBusy, s->entity)).value_or(0) * 1e-9;
    most.seconds =
        view.increase(view.series(SignalId::kDiskReadTime, s->entity)).value_or(0) * 1e-9;
  }
  return most;
}

/// Sum over the job's processes of a signal at the end of the run (or of the process).
double total(const RunView& view, SignalId signal) {
  double sum = 0;
  for (const Series* s : view.run().all(signal)) sum += s->last().value_or(0);
  return sum;
}

double largest(const RunView& view, SignalId signal) {
  double most = 0;
  for (const Series* s : view.run().all(signal)) {
    for (const model::Reading& r : s->readings) most = std::max(most, r.value);
  }
  return most;
}

/// Mean size of what a process has open at a time.
double open_file_bytes(const RunView& view) {
  double sum = 0;
  int64_t readings = 0;
  for (const Series* s : view.run().all(SignalId::kProcOpenDataBytes)) {
    for (const model::Reading& r : s->readings) {
      if (r.value <= 0) continue;
      sum += r.value;
      ++readings;
    }
  }
  return readings > 0 ? sum / static_cast<double>(readings) : 0;
}

bool refaults(const RunView& view) {
  const double read = job_reads(view);
  double again = 0;
  for (const SignalId id : {SignalId::kVmRefaultFile, SignalId::kCgroupRefaultFile}) {
    for (const Series* s : view.run().all(id)) {
      again = std::max(again, view.increase(s).value_or(0) * kOsPageBytes);
    }
  }
  return read > 0 && again > 0.2 * read;
}

/// Of all data files, where no file is new any more.
std::optional<double> data_bytes(const RunView& view) {
  double early = 0, late = 0, seen = 0;
  for (const Series* s : view.run().all(SignalId::kProcFilesSeen)) {
    if (s->readings.size() < 4) continue;
    const double first = s->readings.front().value, last = s->readings.back().value;
    const double half = s->readings[s->readings.size() / 2].value;
    early += half - first;
    late += last - half;
    seen += last;
  }
  if (seen <= 0 || late > 0.1 * (early + 1)) return std::nullopt;
  // What lies open at a time, as often as there were files.
  const double bytes =
      std::max(open_file_bytes(view) * seen, largest(view, SignalId::kProcOpenDataBytes));
  return bytes > 0 ? std::optional(bytes) : std::nullopt;
}

/// Whether what is read now was read before: no file is new any more and more was read than there
/// is.
bool reads_again(const RunView& view) {
  if (refaults(view)) return true;
  // What is read does not stay, though there is room: somebody lets it go.
  const Series* cached = view.host(SignalId::kMemCached);
  const Series* room = view.host(SignalId::kMemAvailable);
  const double fetched = job_reads(view);
  if (cached != nullptr && room != nullptr && !cached->empty() && room->last() &&
      fetched > kMuchRead && *room->last() > fetched) {
    const auto& windows = view.steps().windows;
    const double grown =
        cached->at(windows.back().end).value_or(0) - cached->at(windows.front().begin).value_or(0);
    if (grown < 0.3 * fetched) return true;
  }
  const auto data = data_bytes(view);
  return data && total(view, SignalId::kProcReadBytes) > kReadAgain * *data;
}

bool jumps_about(const RunView& view) {
  const Requests r = requests(view);
  const double read = job_reads(view);
  const double jumps =
      view.process_increase(SignalId::kProcFileJumps, [](model::ProcessId) { return true; });
  const double major =
      view.process_increase(SignalId::kProcMajorFaults, [](model::ProcessId) { return true; });
  const double moves =
      view.process_increase(SignalId::kProcFileMoves, [](model::ProcessId) { return true; });
  const bool small = r.count > 0 && r.bytes / r.count < kSmallRequest;
  if (jumps >= 3 && jumps > 0.25 * moves && small) return true;
  // In a big file read in sequence the kernel would have made the requests large.
  if (small && open_file_bytes(view) > kBigFile) return true;
  // A mapped file: every access faults, and far more is read than batches hold.
  const LoaderView& loader = view.loader();
  const double used = loader.batch_bytes * static_cast<double>(loader.batches);
  const double steps = static_cast<double>(std::max<int64_t>(view.steps().count, 1));
  return major > steps && used > 0 && read > 4 * used;
}

/// Whether both what is asked for and what is fetched comes in little pieces, none from a big file.
bool small_files(const RunView& view) {
  const Requests r = requests(view);
  const auto all = [](model::ProcessId) { return true; };
  const double calls = view.process_increase(SignalId::kProcReadCalls, all);
  const double chars = view.process_increase(SignalId::kProcReadChars, all);
  return r.count > 0 && r.bytes / r.count < kSmallRequest && calls > 0 &&
         chars / calls < kSmallRequest && open_file_bytes(view) < kBigFile;
}

}  // namespace

bool big_file_open(const RunView& view) { return open_file_bytes(view) > kBigFile; }

bool scans(const RunView& view, double bytes) {
  const LoaderView& loader = view.loader();
  if (loader.batch_samples <= 0 || loader.batch_bytes <= 0) {
    // A loop of its own, of whose samples nothing is known: but for one batch nobody needs more
    // than there is.
    const std::optional<double> data = data_bytes(view);
    return data && bytes > kScannedAgain * *data;
  }
  if (bytes < kScanned * loader.batch_bytes) return false;
  const double seen = static_cast<double>(loader.batches) * loader.batch_samples;
  const double pass = parse_number<double>(view.run().fact("loader.dataset_size")).value_or(seen);
  const double in_a_pass = bytes / loader.batch_samples * std::min(seen, pass);
  // What is not known to be so much less cannot be more than the machine caches: nothing came from
  // storage.
  std::optional<double> data = data_bytes(view);
  if (const Series* cached = view.host(SignalId::kMemCached); !data && cached != nullptr) {
    data = cached->max(view.run().begin, view.run().end);
  }
  return data && in_a_pass > kScannedAgain * *data;
}

std::string storage_cause(const RunView& view) {
  const double wall = view.seconds();
  const double read = job_reads(view);
  if (wall > 0) {
    const auto bytes = lowest_limit(view.run(), SignalId::kCgroupIoLimitRead);
    if (bytes && read / wall > kAtLimit * *bytes) return "input.disk_throttled";
    const auto ops = lowest_limit(view.run(), SignalId::kCgroupIoLimitReadOps);
    if (ops && requests(view).count / wall > kAtLimit * *ops) return "input.disk_throttled";
  }
  // Files so small that each costs its look-up: that they are cold makes it only worse.
  if (small_files(view)) return "input.small_files";
  if (reads_again(view)) return "input.cold_cache";
  if (jumps_about(view)) return "input.random_seek";
  return "input.disk";
}

void storage_evidence(const RunView& view, Finding& f) {
  const double wall = view.seconds();
  const double read = job_reads(view);
  if (wall <= 0) return;
  const int64_t steps = view.steps().count;
  evidence(f, fmt::format("the job fetched {}/s from storage", format_bytes(read / wall)),
           read / wall, "bytes/s", "probe.processes", steps);
  const Requests r = requests(view);
  if (r.count > 0) {
    evidence(f, fmt::format("the disk was busy {} of the time", format_percent(r.busy / wall)),
             r.busy / wall, "ratio", "probe.disks", steps);
    evidence(f, fmt::format("a read fetched {} on average", format_bytes(r.bytes / r.count)),
             r.bytes / r.count, "bytes", "probe.disks", static_cast<int64_t>(r.count));
  }
  if (const auto around = read_around(view)) {
    evidence(f,
             fmt::format("{} are fetched for each page that is missing in a mapped file",
                         format_bytes(*around)),
             *around, "bytes", "probe.processes", steps);
  }
  if (const auto cap = lowest_limit(view.run(), SignalId::kCgroupIoLimitRead)) {
    evidence(f, fmt::format("a limit allows {}/s", format_bytes(*cap)), *cap, "bytes/s",
             "probe.cgroup", 1);
  }
}

void storage_remedies(const RunView& view, Finding& f) {
  if (!read_around(view)) return;
  remedy(f, "no_read_ahead",
         "Where records are taken at random from a mapped file (np.memmap): switch reading ahead "
         "off for it, x._mmap.madvise(mmap.MADV_RANDOM). What nobody asked for pushes out what "
         "will be wanted.");
}

}  // namespace flatout::diagnose
