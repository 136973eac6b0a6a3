#include "screen/functions.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::screen {
namespace {

constexpr size_t kMostFunctions = 200;
constexpr size_t kMostThreads = 4096;

}  // namespace

PythonProfile FunctionTable::take(size_t most) {
  PythonProfile out;
  out.readings = readings_;
  const double whole = static_cast<double>(interval_.count());
  const auto share = [&](Nanos part) {
    return whole > 0 ? static_cast<double>(part.count()) / whole : 0.0;
  };
  out.gil_share = share(gil_);
  for (auto& [code, sums] : sums_) {
    Function f = sums.function;
    f.own_share = share(sums.own);
    f.waiting_share = share(sums.waiting);
    f.total_share = share(sums.total);
    f.gil_share = share(sums.gil);
    f.own_s = to_s(sums.own_ever);
    f.total_s = to_s(sums.total_ever);
    out.functions.push_back(std::move(f));
    sums.own = sums.waiting = sums.total = sums.gil = Nanos{};
  }
  std::sort(out.functions.begin(), out.functions.end(), [](const Function& a, const Function& b) {
    if (a.total_share != b.total_share) return a.total_share > b.total_share;
    if (a.total_s != b.total_s) return a.total_s > b.total_s;
    return std::tie(a.function, a.file, a.line) < std::tie(b.function, b.file, b.line);
  });
  if (out.functions.size() > most) out.functions.resize(most);
  interval_ = gil_ = Nanos{};
  return out;
}

FunctionWatch::FunctionWatch(fs::Root root, int32_t pid)
    : root_(std::move(root)),
      pid_(pid),
      files_(probe::FileBudget::from_limit()),
      thread_([this](Nanos weight) { return tick(weight); }) {}

PythonProfile FunctionWatch::take() {
  const std::lock_guard lock(mutex_);
  PythonProfile out = table_.take(kMostFunctions);
  out.version = version_;
  out.trouble = trouble_;
  return out;
}

bool FunctionWatch::open() {
  auto opened = probe::PythonReader::open(root_, pid_, finder_);
  const std::lock_guard lock(mutex_);
  if (!opened.ok()) {
    trouble_ = opened.error().code == Code::kDenied
                   ? "its memory may not be read: run flatout as that user, or as root"
                   : opened.error().message;
    return false;
  }
  reader_ = std::move(*opened);
  version_ = "3." + std::to_string(reader_->minor());
  trouble_.clear();
  return true;
}

bool FunctionWatch::runs(int32_t tid) {
  if (tid == 0) return true;  // not known
  if (threads_.size() > kMostThreads) threads_.clear();
  std::array<char, 1024> buffer{};
  const auto text = threads_[tid].read(root_, pid_, tid, probe::ThreadFiles::kStat, buffer, files_);
  if (!text.ok()) {
    threads_.erase(tid);
    return true;
  }
  const auto stat = probe::parse_pid_stat(*text);
  return !stat || stat->state == 'R';
}

void FunctionWatch::read_once(Nanos weight) {
  std::vector<int32_t> tids;
  if (reader_->minor() <= 10) {  // newer ones say it themselves
    const auto names = root_.list(probe::proc_path(pid_, "task"));
    for (const std::string& name : names.value_or({})) {
      if (const auto tid = parse_number<int32_t>(name)) tids.push_back(*tid);
    }
  }
  const Status got = reader_->read(reading_, tids);
  if (!got.ok()) {
    if (got.error().code == Code::kTorn) return;
    const std::lock_guard lock(mutex_);
    trouble_ = got.error().message;
    reader_.reset();
    return;
  }
  std::unordered_map<int32_t, bool> running;
  for (const probe::PythonThread& thread : reading_.threads) running[thread.tid] = runs(thread.tid);
  const std::lock_guard lock(mutex_);
  table_.add(
      reading_, weight, [&](int32_t tid) { return running[tid]; },
      [&](uint32_t code, Function& out) {
        const probe::PythonCode& known = reader_->code(code);
        out.function = known.function;
        out.file = known.file;
        out.line = known.first_line;
      });
}

bool FunctionWatch::tick(Nanos weight) {
  if (!reader_ && !open()) return false;
  read_once(weight);
  return true;
}

}  // namespace flatout::screen
