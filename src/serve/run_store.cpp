#include "serve/run_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "base/fs.h"
#include "report/html.h"
#include "report/json.h"

namespace flatout::serve {
namespace {

constexpr Nanos kTick = std::chrono::milliseconds(250);
constexpr Nanos kInterest = std::chrono::seconds(5);    // after the last sign of it
constexpr Nanos kKeepOpen = std::chrono::seconds(60);   // a source that nobody asks for
constexpr Nanos kScrapeTime = std::chrono::seconds(4);  // Prometheus waits ten
constexpr size_t kLeastLiveBytes = size_t{4} << 20, kMostLiveBytes = size_t{24} << 20;
constexpr size_t kMostNames = 20'000;  // looked at in one folder
constexpr size_t kMostJson = size_t{8} << 20;
constexpr size_t kMostId = 120;

// A file of a run folder, never through a link; "" where it is not there.
std::string read_inside(const std::string& folder, const char* name, size_t limit) {
  const int inside = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (inside < 0) return "";
  const int fd = ::openat(inside, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  ::close(inside);
  if (fd < 0) return "";
  std::string out;
  struct stat info;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
      static_cast<uint64_t>(info.st_size) <= limit) {
    out.resize(static_cast<size_t>(info.st_size));
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t got =
          ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(done));
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    out.resize(done);
  }
  ::close(fd);
  return out;
}

// Of the recording itself: another one in the same folder is another run.
uint64_t identity_of(const std::string& folder) {
  struct statx info {};
  if (::statx(AT_FDCWD, (folder + "/series.bin").c_str(), AT_SYMLINK_NOFOLLOW,
              STATX_INO | STATX_BTIME, &info) != 0) {
    return 0;
  }
  // The number alone is given out again when a file is made anew.
  return info.stx_ino ^
         (static_cast<uint64_t>(info.stx_btime.tv_sec) * 1'000'000'007 + info.stx_btime.tv_nsec);
}

bool is_folder(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

double folder_time(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0 ? static_cast<double>(info.st_mtim.tv_sec) : 0;
}

}  // namespace

struct RunStore::Entry {
  std::string id, path;
  uint64_t identity = 0;
  double made_unix_s = 0;  // for the order of runs of which nothing else is known

  // Written with both locks held, so read with either.
  bool live = false;
  bool known = false;  // what follows is
  report::RunSummary summary;
  std::vector<report::Sample> samples;  // of one that is or was live; else none
  TimePoint ended{};                    // when that was seen; zero where it was over when found
  TimePoint refreshed{};
  Nanos cost{};  // of the last refresh
  uint64_t revision = 1;

  TimePoint wanted{};  // RunStore::mutex_

  // RunStore::work_:
  std::unique_ptr<RunSource> source;
  TimePoint used{};  // the source
  bool source_live = false;
  model::Diagnosis diagnosis;
  report::StepTotals totals;

  std::string page_key() const { return id + " " + std::to_string(revision); }
};

std::shared_ptr<const std::string> RunStore::Pages::find(const std::string& key) {
  for (auto page = pages_.begin(); page != pages_.end(); ++page) {
    if (page->key != key) continue;
    pages_.splice(pages_.begin(), pages_, page);
    return pages_.front().text;
  }
  return nullptr;
}

std::shared_ptr<const std::string> RunStore::Pages::keep(const std::string& key, std::string page) {
  auto text = std::make_shared<const std::string>(std::move(page));
  bytes_ += text->size();
  pages_.push_front({key, text});
  while (bytes_ > most_ && pages_.size() > 1) {
    bytes_ -= pages_.back().text->size();
    pages_.pop_back();
  }
  return text;
}

RunStore::RunStore(std::vector<std::string> folders, RunReader& reader, const std::string& version,
                   const StoreLimits& limits)
    : folders_(std::move(folders)),
      reader_(reader),
      limits_(limits),
      build_(report::build_samples(version)),
      pages_(limits.page_bytes) {}

RunStore::~RunStore() { stop(); }

void RunStore::start() {
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!stopped_) {
      lock.unlock();
      look(MonotonicClock::now());
      lock.lock();
      // Also woken by each change, its own among them: a few times a second at most.
      const TimePoint until = MonotonicClock::now() + kTick;
      while (!stopped_ && MonotonicClock::now() < until) {
        changed_.wait_for(lock, until - MonotonicClock::now());
      }
    }
  });
}

void RunStore::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// ---- finding them ----

std::string RunStore::free_id(const std::string& path) const {
  std::string base;
  for (const char c : path.substr(path.rfind('/') + 1).substr(0, kMostId)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
    base += plain || (c == '.' && !base.empty()) ? c : '_';
  }
  if (base.empty()) base = "run";
  std::string id = base;
  for (int n = 2; by_id_.contains(id); ++n) id = base + "-" + std::to_string(n);
  return id;
}

void RunStore::add_run(const std::string& path, Found& found) const {
  const uint64_t identity = identity_of(path);
  const auto known = by_path_.find(path);
  if (known != by_path_.end() && known->second->identity == identity) {
    found.emplace(path, known->second);
    return;
  }
  if (!reader_.is_run(path)) return;
  auto entry = std::make_shared<Entry>();
  entry->path = path;
  entry->identity = identity;
  entry->made_unix_s = folder_time(path);
  entry->live = reader_.is_live(path);
  found.emplace(path, std::move(entry));
}

void RunStore::add_folder(const std::string& path, Found& found) const {
  if (reader_.is_run(path)) return add_run(path, found);
  const auto names = fs::Root(path).list("");
  if (!names.ok()) return;
  // Names begin with the date: the newest are last.
  size_t looked = 0;
  for (auto name = names->rbegin(); name != names->rend() && looked < kMostNames; ++name) {
    ++looked;
    const std::string child = path + "/" + *name;
    if (is_folder(child)) add_run(child, found);  // `latest` is a link, and no run of its own
  }
}

void RunStore::scan(TimePoint now) {
  Found found;
  for (const std::string& folder : folders_) add_folder(folder, found);
  while (found.size() > limits_.runs) {
    found.erase(std::min_element(found.begin(), found.end(), [](const auto& a, const auto& b) {
      return a.second->made_unix_s < b.second->made_unix_s;
    }));
  }
  std::vector<EntryPtr> ended;
  for (const auto& [path, entry] : found) {
    if (entry->live && !reader_.is_live(path)) ended.push_back(entry);
  }
  const std::lock_guard lock(mutex_);
  const bool differs = found != by_path_;
  for (const auto& [path, entry] : by_path_) {
    const auto still = found.find(path);
    if (still == found.end() || still->second != entry) by_id_.erase(entry->id);
  }
  for (const auto& [path, entry] : found) {
    if (!entry->id.empty()) continue;
    entry->id = free_id(path);
    by_id_.emplace(entry->id, entry);
  }
  by_path_ = std::move(found);
  for (const EntryPtr& entry : ended) end(*entry, now);
  if (!differs) return;
  ++revision_;
  changed_.notify_all();
}

RunStore::EntryPtr RunStore::find(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return nullptr;
  it->second->wanted = MonotonicClock::now();
  return it->second;
}

std::vector<RunStore::EntryPtr> RunStore::entries() const {
  std::vector<EntryPtr> out;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : by_id_) out.push_back(entry);
  const auto began = [](const Entry& e) {
    return e.summary.begin_unix_s > 0 ? e.summary.begin_unix_s : e.made_unix_s;
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](const EntryPtr& a, const EntryPtr& b) { return began(*a) > began(*b); });
  return out;
}

// ---- reading them ----

void RunStore::changed(Entry& entry) {
  ++entry.revision;
  ++revision_;
  changed_.notify_all();
}

// Closes others' sources, so that this one can be opened.
void RunStore::make_room(const Entry& entry) {
  std::vector<EntryPtr> open;
  for (const EntryPtr& other : entries()) {
    if (other.get() != &entry && other->source && other->source_live == entry.live) {
      open.push_back(other);
    }
  }
  std::sort(open.begin(), open.end(),
            [](const EntryPtr& a, const EntryPtr& b) { return a->used > b->used; });
  const size_t most = (entry.live ? limits_.live_sources : limits_.ended_sources) - 1;
  for (size_t i = most; i < open.size(); ++i) open[i]->source.reset();
}

// Opens the folder where it is not, and reads what there is.
bool RunStore::open(Entry& entry) {
  entry.used = MonotonicClock::now();
  if (entry.source) return true;
  make_room(entry);
  size_t live = 0;
  for (const EntryPtr& other : entries()) live += other->live ? 1 : 0;
  const size_t most = entry.live ? std::clamp(limits_.live_bytes / std::max<size_t>(live, 1),
                                              kLeastLiveBytes, kMostLiveBytes)
                                 : limits_.ended_bytes;
  auto source = reader_.open(entry.path, most);
  if (!source.ok()) return false;
  entry.source = std::move(source).value();
  entry.source_live = entry.live;
  entry.source->read(!entry.live);
  model::Run& run = entry.source->run();
  entry.diagnosis = reader_.judge(run);
  // What its end has left says nothing of what was damaged since: the list is to say what its page
  // says.
  const bool damaged = std::ranges::any_of(
      run.missing, [](const model::Missing& m) { return m.signal == "recording"; });
  if (!entry.live && entry.known && damaged) {
    auto summary = report::summarise(run, entry.diagnosis);
    const std::lock_guard lock(mutex_);
    if (summary.verdict != entry.summary.verdict || summary.steps != entry.summary.steps) {
      entry.summary = std::move(summary);
      changed(entry);
    }
  }
  return true;
}

// Brings what is known of a run up to date. False if it cannot be read.
bool RunStore::refresh(Entry& entry) {
  const TimePoint begin = MonotonicClock::now();
  const bool was_open = entry.source != nullptr;
  if (!open(entry)) {
    const std::lock_guard lock(mutex_);
    entry.known = true;  // as far as it can be
    entry.refreshed = begin;
    return false;
  }
  model::Run& run = entry.source->run();
  entry.source_live = entry.live;
  const bool more = was_open && entry.source->read(!entry.live);
  if (more) entry.diagnosis = reader_.judge(run);
  if (was_open && !more && entry.known) {
    const std::lock_guard lock(mutex_);
    entry.refreshed = begin;
    return true;
  }
  report::add_steps(run, entry.totals);
  // The recorder's last word; its lock on the files may be gone only later.
  const bool over = entry.live && !run.fact("run.end_ns").empty();
  auto samples = report::run_samples(entry.id, run, entry.diagnosis, entry.totals, entry.live);
  auto summary = report::summarise(run, entry.diagnosis);
  const std::lock_guard lock(mutex_);
  entry.samples = std::move(samples);
  entry.summary = std::move(summary);
  entry.known = true;
  if (over) end(entry, begin);
  entry.refreshed = begin;
  entry.cost = MonotonicClock::now() - begin;
  changed(entry);
  return true;
}

// What it says is looked at once more.
void RunStore::end(Entry& entry, TimePoint now) {
  entry.live = entry.known = false;
  entry.ended = now;
  changed(entry);
}

// Of a run that has ended: from what it has left, where it has. One whose counters were told is
// read to its end.
void RunStore::learn_summary(Entry& entry) {
  if (entry.samples.empty()) {
    const auto told = report::read_summary(read_inside(entry.path, "run.json", kMostJson),
                                           read_inside(entry.path, "findings.json", kMostJson));
    if (told) {
      const std::lock_guard lock(mutex_);
      entry.summary = *told;
      entry.known = true;
      changed(entry);
      return;
    }
  }
  refresh(entry);
}

bool RunStore::due(const Entry& entry, TimePoint now) const {
  const Nanos pause =
      std::max(limits_.refresh, nanos(static_cast<double>(entry.cost.count()) / limits_.share));
  return !entry.known || now - entry.refreshed >= pause;
}

void RunStore::look_at_all() {
  const std::lock_guard work(work_);
  for (const EntryPtr& entry : entries()) {
    if (entry->live) refresh(*entry);
    if (entry->ended != TimePoint{} && !entry->known) refresh(*entry);
  }
}

void RunStore::look(TimePoint now) {
  const std::lock_guard work(work_);
  if (now >= next_scan_) {
    scan(now);
    next_scan_ = now + limits_.scan;
  }
  EntryPtr stalest, unknown;
  for (const EntryPtr& entry : entries()) {
    Nanos unasked, list_unasked;
    {
      const std::lock_guard lock(mutex_);
      unasked = now - entry->wanted;
      list_unasked = now - list_wanted_;
    }
    if (unasked > kKeepOpen && now - entry->used > kKeepOpen) entry->source.reset();
    const bool wanted = unasked < kInterest || list_unasked < kInterest;
    if (!entry->live && !entry->known && unknown == nullptr) unknown = entry;
    if (!entry->live || !due(*entry, now) || (entry->known && !wanted)) continue;
    if (stalest == nullptr || entry->refreshed < stalest->refreshed) stalest = entry;
  }
  if (stalest != nullptr) refresh(*stalest);
  if (unknown != nullptr) learn_summary(*unknown);
}

// ---- what is asked for ----

std::string RunStore::runs_json() {
  const std::vector<EntryPtr> all = entries();
  const std::lock_guard lock(mutex_);
  list_wanted_ = MonotonicClock::now();
  std::vector<report::ListedRun> runs;
  for (const EntryPtr& entry : all) {
    const bool read = entry->known || entry->refreshed != TimePoint{};
    runs.push_back({entry->id, entry->live, read, entry->summary});
    double& begin = runs.back().summary.begin_unix_s;
    if (begin == 0 && read) begin = entry->made_unix_s;
  }
  return report::runs_json(runs, revision_);
}

std::string RunStore::metrics(report::Exposition exposition) {
  const std::lock_guard work(work_);
  const TimePoint begin = MonotonicClock::now();
  std::vector<const std::vector<report::Sample>*> lists = {&build_};
  const std::vector<EntryPtr> all = entries();
  for (const EntryPtr& entry : all) {
    const bool over = entry->ended == TimePoint{} || begin - entry->ended > limits_.after_end;
    if (!entry->live && over) continue;
    if (entry->live && due(*entry, begin) && MonotonicClock::now() - begin < kScrapeTime) {
      refresh(*entry);
    }
    if (!entry->live && !entry->known) learn_summary(*entry);
    if (!entry->samples.empty()) lists.push_back(&entry->samples);
  }
  return report::render_metrics(lists, exposition);
}

// Has the run read, and what is known of it as new as it should be. False if it cannot be read.
bool RunStore::make_ready(Entry& entry) {
  const bool late = entry.live ? !entry.source || due(entry, MonotonicClock::now()) : !entry.known;
  return (!late || refresh(entry)) && open(entry);
}

std::optional<ReportBody> RunStore::report(std::string_view id) {
  const EntryPtr entry = find(id);
  if (entry == nullptr) return std::nullopt;
  const std::lock_guard work(work_);
  // The page of a run that has ended outlives its source.
  auto page = !entry->live && entry->known ? pages_.find(entry->page_key()) : nullptr;
  if (page == nullptr) {
    if (!make_ready(*entry)) return std::nullopt;
    page = pages_.find(entry->page_key());
  }
  if (page == nullptr) {
    page =
        pages_.keep(entry->page_key(), report::report_body(entry->source->run(), entry->diagnosis));
  }
  return ReportBody{page, {entry->revision, entry->live}};
}

std::optional<std::string> RunStore::findings_json(std::string_view id) {
  const EntryPtr entry = find(id);
  const std::lock_guard work(work_);
  if (entry == nullptr || !make_ready(*entry)) return std::nullopt;
  return report::findings_json(entry->source->run(), entry->diagnosis);
}

std::optional<std::string> RunStore::run_json(std::string_view id) {
  const EntryPtr entry = find(id);
  const std::lock_guard work(work_);
  if (entry == nullptr || !make_ready(*entry)) return std::nullopt;
  return report::run_json(entry->source->run());
}

std::optional<model::Comparison> RunStore::compare(Entry& older, Entry& newer) {
  // The first stays open while the second is: ended_sources and live_sources are two at least.
  if (!make_ready(older) || !make_ready(newer)) return std::nullopt;
  model::Comparison out = reader_.compare(older.source->run(), newer.source->run());
  out.old_name = older.id;
  out.new_name = newer.id;
  return out;
}

std::optional<std::string> RunStore::comparison_json(std::string_view older,
                                                     std::string_view newer) {
  const EntryPtr a = find(older), b = find(newer);
  const std::lock_guard work(work_);
  if (a == nullptr || b == nullptr) return std::nullopt;
  const auto comparison = compare(*a, *b);
  if (!comparison) return std::nullopt;
  return report::comparison_json(*comparison);
}

std::optional<ReportBody> RunStore::comparison(std::string_view older, std::string_view newer) {
  const EntryPtr a = find(older), b = find(newer);
  const std::lock_guard work(work_);
  if (a == nullptr || b == nullptr) return std::nullopt;
  const auto key = [&] { return a->page_key() + " " + b->page_key(); };
  auto page = !a->live && a->known && !b->live && b->known ? pages_.find(key()) : nullptr;
  if (page == nullptr) {
    const auto comparison = compare(*a, *b);
    if (!comparison) return std::nullopt;
    report::HtmlOptions options;
    options.comparison = &*comparison;
    page = pages_.keep(key(), report::report_body(b->source->run(), b->diagnosis, options));
  }
  return ReportBody{page, {b->revision, false}};
}

std::optional<RunState> RunStore::wait(std::string_view id, uint64_t seen, Nanos most) {
  std::unique_lock lock(mutex_);
  const TimePoint until = MonotonicClock::now() + most;
  for (;;) {
    if (stopped_) return std::nullopt;
    const TimePoint now = MonotonicClock::now();
    RunState state;
    if (id.empty()) {
      list_wanted_ = now;
      state.revision = revision_;
    } else {
      const auto it = by_id_.find(id);
      if (it == by_id_.end()) return std::nullopt;
      it->second->wanted = now;
      state = {it->second->revision, it->second->live};
    }
    if (state.revision != seen || now >= until) return state;
    changed_.wait_for(lock, until - now);
  }
}

}  // namespace flatout::serve
