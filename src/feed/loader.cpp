#include "feed/loader.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <new>

#include "base/text.h"

namespace flatout::feed {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kBadKept = 100;
// A read from the page cache takes some 20 us; one that takes this long waits for storage, and more
// of them at a time are better.
constexpr int64_t kSlowReadNs = 1'000'000;
constexpr int kReaders = 16;
constexpr int kReplacements = 64;  // tried before a batch fails: more than a broken data set needs

int allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

Nanos thread_cpu() {
  timespec ts{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
  return Nanos(int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec);
}

// The thread's CPU time since the start, divided as wall time was: reading that clock at each
// stage would cost more than the stages' ends.
class StageClock {
 public:
  StageClock() : cpu_(thread_cpu()), wall_(MonotonicClock::now()) {}
  Nanos wall() const { return MonotonicClock::now() - wall_; }
  void divide(Nanos read, Nanos resize, Report& into) const {
    const double cpu = static_cast<double>((thread_cpu() - cpu_).count());
    const double all = std::max(1.0, static_cast<double>(wall().count()));
    const Nanos read_cpu = nanos(cpu * static_cast<double>(read.count()) / all);
    const Nanos resize_cpu = nanos(cpu * static_cast<double>(resize.count()) / all);
    into.read += read_cpu;
    into.resize += resize_cpu;
    into.decode += nanos(cpu) - read_cpu - resize_cpu;
  }

 private:
  Nanos cpu_;
  TimePoint wall_;
};

Error unusable(const BadSample& bad) {
  return {
      Code::kBadInput,
      fmt::format("{}: {} ({})", escape_terminal(bad.file), outcome_name(bad.verdict.outcome),
                  bad.verdict.detail),
      "mend or remove the file, or let other samples take the place of bad ones: on_bad='skip'"};
}

// Only JPEG has scans to be indexed.
bool can_be_indexed(std::span<const uint8_t> picture) {
  return picture.size() > 2 && picture[0] == 0xFF && picture[1] == 0xD8;
}

}  // namespace

Status LoaderOptions::check() const {
  const auto bad = [](std::string message, std::string hint) {
    return Error{Code::kBadInput, std::move(message), std::move(hint)};
  };
  if (batch < 1 || batch > 65536) return bad("a batch holds 1 to 65536 samples", "batch=64");
  if (threads < 0 || threads > 1024)
    return bad("there can be 1 to 1024 threads", "threads=0 asks for one each core");
  if (prefetch < 1 || prefetch > 1024)
    return bad("1 to 1024 batches can be made ahead", "prefetch=2");
  if (augment.width < 1 || augment.width > 16384 || augment.height < 1 || augment.height > 16384)
    return bad("a sample is 1 to 16384 pixels wide and high", "size=224");
  if (ranks < 1 || rank >= ranks)
    return bad(fmt::format("there is no rank {} of {}", rank, ranks), "0 <= rank < ranks");
  if (!(augment.area[0] > 0 && augment.area[0] <= augment.area[1] && augment.area[1] <= 1))
    return bad("the area of a random part is within (0, 1], the smaller first", "scale=(0.08, 1)");
  if (!(augment.ratio[0] > 0 && augment.ratio[0] <= augment.ratio[1] &&
        std::isfinite(augment.ratio[1])))
    return bad("the ratio of a random part is above 0, the smaller first", "ratio=(3/4, 4/3)");
  if (index.empty())
    return bad("the seek index has no name", "index='memory', index='off' or a file for it");
  if (!(augment.flip >= 0 && augment.flip <= 1)) return bad("flip is a probability", "flip=0.5");
  for (const auto* range : {augment.brightness, augment.contrast, augment.saturation}) {
    if (!(range[0] >= 0 && range[0] <= range[1] && range[1] <= 1000))
      return bad("factors of colours are at least 0, the smaller first", "brightness=(0.6, 1.4)");
  }
  if (!(augment.hue[0] >= -0.5 && augment.hue[0] <= augment.hue[1] && augment.hue[1] <= 0.5))
    return bad("hue is turned by -0.5 to 0.5, the smaller first", "hue=(-0.1, 0.1)");
  if (augment.kind == Augment::Kind::kCenterCrop &&
      augment.shorter < std::max(augment.width, augment.height))
    return bad(fmt::format("the middle {} x {} does not fit a side of {}", augment.width,
                           augment.height, augment.shorter),
               "make resize at least as large as size");
  for (const float s : std) {
    if (!(s > 0)) return bad("std has to be above 0", "std=(1, 1, 1) leaves values as they are");
  }
  return {};
}

Batch::Batch(size_t bytes, int most)
    : data(std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment)) {
  const size_t n = static_cast<size_t>(most);
  labels.resize(n);
  indices.resize(n);
  views.resize(n);
}
Batch::~Batch() { std::free(data); }

// Batches that are free for use. Outlives the loader while somebody holds a batch.
struct Loader::Pool {
  std::mutex mutex;
  std::vector<std::unique_ptr<Batch>> free;
  size_t bytes = 0;
  int most = 0;
  size_t keep = 0;

  static std::shared_ptr<Batch> take(const std::shared_ptr<Pool>& pool) {
    std::unique_ptr<Batch> batch;
    {
      const std::lock_guard lock(pool->mutex);
      if (!pool->free.empty()) {
        batch = std::move(pool->free.back());
        pool->free.pop_back();
      }
    }
    if (!batch) batch = std::make_unique<Batch>(pool->bytes, pool->most);
    if (batch->data == nullptr) return nullptr;
    return {batch.release(), [pool](Batch* done) {
              std::unique_ptr<Batch> back(done);
              const std::lock_guard lock(pool->mutex);
              if (pool->free.size() < pool->keep) pool->free.push_back(std::move(back));
            }};
  }
};

struct Loader::InFlight {
  std::shared_ptr<Batch> batch;
  Shard shard;
  int assigned = 0;
  int done = 0;
  int failed_slot = -1;
  Status failure;
};

struct Loader::Worker {
  explicit Worker(const Limits& limits) : renderer(limits) {}
  Renderer renderer;
  Sample sample;
  std::vector<Checkpoint> found;  // in the picture at hand
  Report report;                  // of the sample at hand; added to the loader's under its lock
};

Result<std::unique_ptr<Loader>> Loader::open(std::unique_ptr<Source> source,
                                             const LoaderOptions& options) {
  FLATOUT_TRY_STATUS(options.check());
  std::unique_ptr<Loader> loader(new Loader(std::move(source), options));
  if (loader->batches_per_epoch() == 0)
    return Error{Code::kBadInput,
                 fmt::format("{} samples do not fill a batch of {}", loader->source_->count(),
                             options.batch),
                 "a smaller batch, or drop_last=False"};
  const std::vector<BadSample>& damage = loader->source_->damage();
  if (!damage.empty() && options.policy == Policy::kStrict) return unusable(damage[0]);
  loader->report_.bad.assign(damage.begin(), damage.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                  damage.size(), kBadKept)));
  FLATOUT_TRY_STATUS(loader->open_index());
  loader->start({});
  return loader;
}

Loader::Loader(std::unique_ptr<Source> source, const LoaderOptions& options)
    : source_(std::move(source)),
      options_(options),
      order_(source_->count(), options.seed, options.shuffle),
      normalize_(Normalize::from_mean_std(options.mean, options.std)),
      pool_(std::make_shared<Pool>()) {
  if (options_.threads == 0) options_.threads = allowed_processors();
  const size_t picture = static_cast<size_t>(options.augment.width) *
                         static_cast<size_t>(options.augment.height) * 3 * type_bytes(options.type);
  pool_->bytes = picture * static_cast<size_t>(options.batch);
  pool_->most = options.batch;
  pool_->keep = static_cast<size_t>(options.prefetch) + 2;
}

Loader::~Loader() { stop(); }

void Loader::start(Place place) {
  stop_ = false;
  process_ = ::getpid();
  enter_ = place;
  opened_ = 0;
  place_ = place;
  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { work(); });
    pthread_setname_np(threads_.back().native_handle(), "flatout-feed");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wanted_.notify_all();
  announced_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (std::thread& thread : readers_) thread.join();
  threads_.clear();
  readers_.clear();
  flight_.clear();
  ahead_.clear();
}

Shard Loader::shard(uint64_t first) const {
  return {order_.count(), first, options_.rank, options_.ranks, options_.drop_last};
}

static uint64_t batches_of(const Shard& shard, int batch) {
  const uint64_t samples = shard.size();
  const uint64_t each = static_cast<uint64_t>(batch);
  return shard.drop_last ? samples / each : (samples + each - 1) / each;
}

uint64_t Loader::batches_per_epoch() const { return batches_of(shard(0), options_.batch); }

// Begins the next batch in line, which may be of the next epoch. Under the lock.
void Loader::open_batch() {
  while (opened_ == batches_of(shard(enter_.position), options_.batch)) {
    enter_ = {enter_.epoch + 1, 0};
    opened_ = 0;
  }
  auto flight = std::make_unique<InFlight>();
  flight->shard = shard(enter_.position);
  flight->batch = Pool::take(pool_);
  if (!flight->batch) {
    flight->batch = std::make_shared<Batch>(0, 1);
    flight->failure = Error{Code::kFull, "no memory for a batch", "a smaller batch or size"};
    flight->failed_slot = 0;
    flight->assigned = flight->done = 1;
    flight->batch->count = 1;
  }
  Batch& batch = *flight->batch;
  const uint64_t each = static_cast<uint64_t>(options_.batch);
  batch.epoch = enter_.epoch;
  batch.first = opened_ * each;
  batch.count = static_cast<int>(std::min(each, flight->shard.size() - batch.first));
  const uint64_t taken = enter_.position + (batch.first + each) * options_.ranks;
  batch.after = {enter_.epoch, std::min(taken, order_.count())};
  ++opened_;
  flight_.push_back(std::move(flight));
  if (read_ns_.load(std::memory_order_relaxed) > kSlowReadNs) announce(*flight_.back());
}

// Has a batch's samples brought in. Under the lock, by one of the threads that stop() waits for
// first.
void Loader::announce(const InFlight& flight) {
  const Batch& batch = *flight.batch;
  for (int slot = 0; slot < batch.count; ++slot) {
    const uint64_t position = flight.shard.position(batch.first + static_cast<uint64_t>(slot));
    ahead_.push_back(order_.index(batch.epoch, position));
  }
  while (readers_.size() < kReaders) {
    readers_.emplace_back([this] { read_ahead(); });
    pthread_setname_np(readers_.back().native_handle(), "flatout-read");
  }
  announced_.notify_all();
}

void Loader::read_ahead() {
  std::unique_lock lock(mutex_);
  for (;;) {
    announced_.wait(lock, [this] { return stop_ || !ahead_.empty(); });
    if (stop_) return;
    const uint64_t index = ahead_.front();
    ahead_.pop_front();
    lock.unlock();
    source_->will_need(index);
    lock.lock();
  }
}

void Loader::work() {
  Worker worker(options_.limits);
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [this] {
      return stop_ || flight_.size() < static_cast<size_t>(options_.prefetch) ||
             flight_.back()->assigned < flight_.back()->batch->count;
    });
    if (stop_) return;
    if (flight_.empty() || flight_.back()->assigned >= flight_.back()->batch->count) open_batch();
    InFlight& flight = *flight_.back();
    if (flight.assigned >= flight.batch->count) {  // there was no memory for it
      ready_.notify_all();
      continue;
    }
    const int slot = flight.assigned++;
    const uint64_t position =
        flight.shard.position(flight.batch->first + static_cast<uint64_t>(slot));
    lock.unlock();
    const Status status = make_sample(worker, *flight.batch, slot, position);
    lock.lock();
    if (!status.ok() && (flight.failed_slot < 0 || slot < flight.failed_slot)) {
      flight.failure = status;
      flight.failed_slot = slot;
    }
    Report& report = worker.report;
    report_.samples += report.samples;
    report_.replaced += report.replaced;
    report_.read += report.read;
    report_.decode += report.decode;
    report_.resize += report.resize;
    for (size_t i = 0; i < kOutcomes; ++i) report_.outcomes[i] += report.outcomes[i];
    for (BadSample& bad : report.bad) {
      if (report_.bad.size() < kBadKept) report_.bad.push_back(std::move(bad));
    }
    report = {};
    if (++flight.done == flight.batch->count) ready_.notify_all();
  }
}

Status Loader::make_sample(Worker& worker, Batch& batch, int slot, uint64_t position) {
  const uint64_t index = order_.index(batch.epoch, position);
  ++worker.report.samples;
  bool usable = false;
  FLATOUT_TRY_STATUS(fill(worker, batch, slot, index, usable));
  if (usable) return {};
  const BadSample bad = worker.report.bad.empty() ? BadSample{} : worker.report.bad.back();
  if (options_.policy == Policy::kStrict) return unusable(bad);
  ++worker.report.replaced;
  SampleRandom random(options_.seed, batch.epoch, index, Purpose::kReplace);
  for (int attempt = 0; attempt < kReplacements; ++attempt) {
    FLATOUT_TRY_STATUS(fill(worker, batch, slot, random.below(order_.count()), usable));
    if (usable) return {};
  }
  return Error{Code::kBadInput,
               fmt::format("nothing can be read in place of {}: {} others are bad, too",
                           escape_terminal(bad.file), kReplacements),
               "flatout feed verify tells which files are bad"};
}

Status Loader::fill(Worker& worker, Batch& batch, int slot, uint64_t index, bool& usable) {
  const StageClock clock;
  Renderer& renderer = worker.renderer;
  const Nanos resize_before = renderer.resize_time();
  FLATOUT_TRY(Verdict verdict, source_->read(index, worker.sample));
  const std::span<const uint8_t> picture = worker.sample.picture;
  const Nanos read = clock.wall();
  const int64_t of_late = read_ns_.load(std::memory_order_relaxed);
  read_ns_.store(of_late + (read.count() - of_late) / 8, std::memory_order_relaxed);
  const size_t at = static_cast<size_t>(slot);
  usable = false;
  if (verdict.ok()) verdict = renderer.open(picture, options_.orient);
  if (verdict.ok()) {
    SampleRandom random(options_.seed, batch.epoch, index, Purpose::kAugment);
    const View view = choose_view(options_.augment, renderer.size(), random);
    Target target{
        nullptr,   options_.type, options_.layout, options_.augment.width, options_.augment.height,
        normalize_};
    target.data = static_cast<uint8_t*>(batch.data) + at * target.bytes();
    Decoding how;
    how.lenient = options_.policy == Policy::kLenient;
    const bool indexed = index_ != nullptr && can_be_indexed(picture);
    const uint32_t mark = indexed ? fingerprint(picture) : 0;
    const SeekIndex::Found known = indexed ? index_->find(index, mark) : SeekIndex::Found{};
    how.checkpoints = known.checkpoints;
    if (known.wanted) how.found = &worker.found;
    verdict = renderer.render(view, options_.mode, target, how);
    if (known.wanted && verdict.ok()) index_->put(index, mark, worker.found);
    usable = verdict.ok() || (how.lenient && renderer.complete());
    batch.views[at] = {view.box.x, view.box.y, view.box.width, view.box.height, view.flip};
  }
  batch.labels[at] = worker.sample.label;
  batch.indices[at] = static_cast<int64_t>(index);
  ++worker.report.outcomes[static_cast<size_t>(verdict.outcome)];
  if (!verdict.ok()) worker.report.bad.push_back({source_->name(index), std::move(verdict)});
  clock.divide(read, renderer.resize_time() - resize_before, worker.report);
  return {};
}

// The one that was made with the data, or the one that was asked for; what is not there yet has to
// be writable now, not only after an epoch.
Status Loader::open_index() {
  if (options_.index == "off") return {};
  const bool in_file = options_.index != "memory";
  const std::string path = in_file ? options_.index : source_->seek_index();
  if (!path.empty()) {
    auto loaded = SeekIndex::load(path, source_->count(), options_.index_bytes);
    if (loaded.ok()) {
      index_ = std::move(*loaded);
      return {};
    }
    if (loaded.error().code != Code::kNotFound) return loaded.error();
  }
  index_ = std::make_unique<SeekIndex>(source_->count(), options_.index_bytes);
  return in_file ? index_->save(path) : Status();
}

Status Loader::save_index() {
  const bool in_file = options_.index != "memory" && options_.index != "off";
  if (!in_file || !index_->take_changed()) return {};
  return index_->save(options_.index);
}

bool Loader::wait(Nanos most) {
  std::unique_lock lock(mutex_);
  return ready_.wait_for(lock, most, [this] { return front_is_done(); });
}

bool Loader::front_is_done() const {
  if (flight_.empty()) return false;
  const InFlight& front = *flight_.front();
  return front.batch->epoch > place_.epoch || front.done == front.batch->count;
}

Result<std::shared_ptr<Batch>> Loader::next() {
  if (::getpid() != process_)
    return Error{Code::kUnsupported,
                 "a loader cannot be used in a process forked from the one that opened it",
                 "open it in the process that uses it; it needs no worker processes"};
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return front_is_done(); });
  if (flight_.front()->batch->epoch > place_.epoch) {
    place_ = {place_.epoch + 1, 0};
    lock.unlock();
    FLATOUT_TRY_STATUS(save_index());
    return std::shared_ptr<Batch>();
  }
  const std::unique_ptr<InFlight> flight = std::move(flight_.front());
  flight_.pop_front();
  place_ = flight->batch->after;
  lock.unlock();
  wanted_.notify_all();
  if (!flight->failure.ok()) return flight->failure.error();
  return flight->batch;
}

Place Loader::place() const {
  const std::lock_guard lock(mutex_);
  if (place_.position >= order_.count()) return {place_.epoch + 1, 0};
  return place_;
}

Status Loader::seek(Place place) {
  if (place.position > order_.count())
    return Error{
        Code::kBadInput,
        fmt::format("the state is {} samples into an epoch of {}", place.position, order_.count()),
        "it was saved with another data set"};
  stop();
  start(place);
  return {};
}

Report Loader::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

}  // namespace flatout::feed
