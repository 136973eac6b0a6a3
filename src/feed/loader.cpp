#include "feed/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "base/cpu_time.h"
#include "base/processors.h"
#include "base/text.h"
#include "feed/start_thread.h"
#include "flatout/marker.h"

namespace flatout::feed {
namespace {

constexpr size_t kBadKept = 100;
// A read from the page cache takes some 20 us; one that takes this long waits for storage, and is
// better begun ahead.
constexpr int64_t kSlowReadNs = 1'000'000;
constexpr int kAsideShare = 16;    // of a batch that is copied at most, since it was made aside
constexpr int kReplacements = 64;  // tried before a batch fails: more than a broken data set needs

// The thread's CPU time since the start, divided as wall time was: reading that clock at each
// stage would cost more than the stages' ends.
class StageClock {
 public:
  StageClock() : cpu_(thread_cpu()), wall_(MonotonicClock::now()) {}
  Nanos wall() const { return MonotonicClock::now() - wall_; }
  void divide(Nanos read, const Renderer::Spent& spent, Report& into) const {
    const double cpu = static_cast<double>((thread_cpu() - cpu_).count());
    const double all = std::max(1.0, static_cast<double>(wall().count()));
    Nanos rest = nanos(cpu);
    const auto add = [&](Nanos part, Nanos& to) {
      const Nanos its = nanos(cpu * static_cast<double>(part.count()) / all);
      to += its;
      rest -= its;
    };
    add(read, into.read);
    add(spent.resize, into.resize);
    add(spent.finish, into.finish);
    into.decode += rest;
  }

 private:
  Nanos cpu_;
  TimePoint wall_;
};

Error unusable(const BadSample& bad) {
  return {
      Code::kBadInput,
      fmt::format("{}: {} ({})", escape_terminal(bad.file), outcome_name(bad.verdict.outcome),
                  escape_terminal(bad.verdict.detail)),
      "mend or remove the file, or let other samples take the place of bad ones: on_bad='skip'"};
}

Error empty_classes(const std::vector<std::string>& names) {
  std::string some;
  for (size_t i = 0; i < names.size() && i < 5; ++i)
    some += (i == 0 ? "" : ", ") + escape_terminal(names[i]);
  if (names.size() > 5) some += fmt::format(" and {} more", names.size() - 5);
  return {Code::kBadInput,
          fmt::format("there is no picture in the class folder{} {}", names.size() > 1 ? "s" : "",
                      some),
          "remove what is no class; allow_empty=True makes it one without samples, as with "
          "torchvision's ImageFolder"};
}

Error forked() {
  return {Code::kUnsupported,
          "a loader cannot be used in a process forked from the one that opened it",
          "open it in the process that uses it; it needs no worker processes"};
}

Error no_threads() {
  return {Code::kFull, "the system allows no more threads",
          "raise `ulimit -u`, or the container's limit of processes"};
}

// Only JPEG has scans to be indexed.
bool can_be_indexed(std::span<const uint8_t> picture) {
  return picture.size() > 2 && picture[0] == 0xFF && picture[1] == 0xD8;
}

}  // namespace

struct Loader::InFlight {
  std::shared_ptr<Batch> batch;
  Shard shard;
  int assigned = 0;
  int done = 0;
  int failed_slot = -1;
  Tally tally;
  bool dropped = false;  // by seek(), or for want of memory: nobody waits for its samples
  Status failure;
};

struct Loader::Worker {
  explicit Worker(const Limits& limits) : renderer(limits) {}
  Renderer renderer;
  Sample sample;
  std::vector<Checkpoint> found;  // in the picture at hand
  Nanos read_wall{0}, rest_wall{0};
  Tally tally;   // of the sample at hand; added to its batch's under the lock,
  Report spent;  // and what it took to the loader's
  std::vector<uint8_t> scratch;
  std::vector<uint8_t> aside;  // a sample whose batch has no memory yet

  // For the timeline: a slice for each time that this thread alone has made as many samples as a
  // batch holds. So slices side by side tell what all threads make together, though each batch is
  // made by several of them. One is cut short where the thread waits for room.
  uint64_t slice_begin = 0;
  int made = 0;
  void begin_sample() {
    if (made == 0) slice_begin = flatout_now();
  }
  void end_slice(int batch) {
    if (made > 0) flatout_slice_values(FLATOUT_FETCH, nullptr, slice_begin, batch, -1);
    made = 0;
  }
  void end_sample(int batch) {
    if (++made == batch) end_slice(batch);
  }
};

Result<std::unique_ptr<Loader>> Loader::open(std::unique_ptr<Source> source,
                                             const LoaderOptions& options, SampleStage stage) {
  FLATOUT_TRY_STATUS(options.check());
  std::unique_ptr<Loader> loader(new Loader(std::move(source), options, std::move(stage)));
  if (loader->batches_per_epoch() == 0)
    return Error{Code::kBadInput,
                 fmt::format("{} samples do not fill a batch of {}", loader->source_->count(),
                             options.batch),
                 "a smaller batch, or drop_last=False"};
  const std::vector<std::string> empty = loader->source_->empty_classes();
  if (!empty.empty() && !options.allow_empty) return empty_classes(empty);
  const std::vector<BadSample>& damage = loader->source_->damage();
  if (!damage.empty() && options.policy == Policy::kStrict) return unusable(damage[0]);
  loader->report_.bad.assign(damage.begin(), damage.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                  damage.size(), kBadKept)));
  FLATOUT_TRY_STATUS(loader->open_index());
  FLATOUT_TRY_STATUS(loader->start());
  return loader;
}

Loader::Loader(std::unique_ptr<Source> source, const LoaderOptions& options, SampleStage stage)
    : source_(std::move(source)),
      stage_(std::move(stage)),
      options_(options),
      order_(source_->count(), options.seed, options.shuffle, options.window),
      normalize_(Normalize::from_mean_std(options.mean, options.std)),
      pool_(std::make_shared<BatchPool>(target().bytes() * static_cast<size_t>(options.batch))),
      mutex_(pool_->mutex),
      ahead_(*source_),
      tuner_(static_cast<int>(allowed_processors())) {
  pool_->limit = static_cast<size_t>(options.prefetch);
}

Loader::~Loader() { stop(); }

Target Loader::target() const {
  return {
      nullptr,   options_.type, options_.layout, options_.augment.width, options_.augment.height,
      normalize_};
}

Status Loader::start() {
  const std::lock_guard lock(mutex_);
  stop_ = false;
  enter({});
  const int wanted = options_.threads > 0 ? options_.threads : tuner_.threads();
  for (active_ = 0; active_ < wanted && add_thread();) ++active_;  // or as many as there can be
  return active_ > 0 ? Status() : no_threads();
}

// Under the lock.
void Loader::enter(Place place) {
  enter_ = place;
  opened_ = 0;
  announced_ = 0;
  place_ = place;
  asked_ = {};
}

// Under the lock.
bool Loader::add_thread() {
  return start_thread(threads_, "flatout-feed",
                      [this, number = static_cast<int>(threads_.size())] { work(number); });
}

void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;  // from now on no thread is added
  }
  pool_->wanted.notify_all();
  for (std::thread& thread : threads_) thread.join();
  ahead_.stop();
  threads_.clear();
  flight_.clear();
}

size_t Loader::batch_bytes() const { return pool_->bytes; }

Status Loader::lend(void* memory) {
  if (memory == nullptr || reinterpret_cast<uintptr_t>(memory) % BatchPool::kAlignment != 0)
    return Error{Code::kBadInput, "memory for a batch has to be aligned to 64 bytes",
                 "take it from aligned_alloc(), posix_memalign() or cudaHostAlloc()"};
  if (!is_of_this_process()) return forked();
  std::vector<void*> unused;
  {
    const std::lock_guard lock(mutex_);
    pool_->lent.push_back(memory);
    pool_->only_lent = true;
    unused.swap(pool_->free);
  }
  for (void* own : unused) std::free(own);
  return {};
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
    announced_ = 0;
  }
  auto flight = std::make_shared<InFlight>();
  flight->shard = shard(enter_.position);
  flight->batch = BatchPool::open(pool_, options_.batch);
  Batch& batch = *flight->batch;
  const uint64_t each = static_cast<uint64_t>(options_.batch);
  batch.epoch = enter_.epoch;
  batch.first = opened_ * each;
  batch.count = static_cast<int>(std::min(each, flight->shard.size() - batch.first));
  const uint64_t taken = enter_.position + (batch.first + each) * options_.ranks;
  batch.after = {enter_.epoch, std::min(taken, order_.count())};
  ++opened_;
  flight_.push_back(std::move(flight));
  provide();
  if (read_ns_.load(std::memory_order_relaxed) > kSlowReadNs) announce(*flight_.back());
}

// Whether one more batch may be begun. One of them may be without memory: the threads make a sample
// each for it, so that none of them waits for the last samples of the batch before. Under the lock.
bool Loader::may_open() const {
  return flight_.empty() || (flight_.back()->batch->data != nullptr &&
                             flight_.size() <= static_cast<size_t>(options_.prefetch));
}

// The next batch is waited for from now on. As many as the program keeps now, it will keep while
// the next ones are made: so many have memory that one of them is made ahead, and `prefetch` at
// least; one more where many threads would make their samples aside. Under the lock.
void Loader::ask() {
  if (asked_ == TimePoint()) {
    asked_ = MonotonicClock::now();
    const auto made = static_cast<size_t>(std::count_if(
        flight_.begin(), flight_.end(), [](const auto& f) { return f->batch->data != nullptr; }));
    const size_t kept = pool_->used - std::min(pool_->used, made);
    const auto ahead = static_cast<size_t>(options_.prefetch);
    pool_->limit = std::max(ahead, kept + std::max<size_t>(ahead - 1, 1));
    if (active_ * kAsideShare > options_.batch) ++pool_->limit;
  }
  provide();
}

// Gives the last batch memory if it has none and may have it. Under the lock.
void Loader::provide() {
  if (flight_.empty() || flight_.back()->batch->data != nullptr || flight_.back()->dropped) return;
  InFlight& flight = *flight_.back();
  const bool waited_for = asked_ != TimePoint() && flight_.size() == 1;
  if (!waited_for && pool_->used >= pool_->limit) return;
  if (!pool_->provide(*flight.batch)) {
    flight.failure = Error{Code::kFull, "no memory for a batch", "a smaller batch or size"};
    flight.dropped = true;
    flight.assigned = flight.done = flight.batch->count;
    ready_.notify_all();
  }
  pool_->wanted.notify_all();
}

// Has what follows brought in. Under the lock.
void Loader::announce(const InFlight& flight) {
  const Batch& batch = *flight.batch;
  std::vector<uint64_t> samples;
  const uint64_t each = static_cast<uint64_t>(options_.batch);
  if (order_.window().samples > 0 && options_.shuffle && options_.ranks == 1) {
    // In the order of storage, up to a window ahead of the batch's end.
    const uint64_t wide = order_.window().samples;
    const uint64_t begin = flight.shard.position(batch.first);
    const uint64_t end = std::min(order_.count(), begin + each + wide);
    announced_ = std::max(announced_, begin / wide * wide);
    for (; announced_ < end; ++announced_)
      samples.push_back(order_.stream(batch.epoch, announced_));
  } else {
    // This batch and those behind it that are made ahead.
    const uint64_t ahead = each * static_cast<uint64_t>(options_.prefetch);
    const uint64_t end = std::min(flight.shard.size(), batch.first + each + ahead);
    announced_ = std::max(announced_, batch.first);
    for (; announced_ < end; ++announced_)
      samples.push_back(order_.index(batch.epoch, flight.shard.position(announced_)));
  }
  ahead_.want(samples);
}

// Under the lock.
bool Loader::has_work(int number) const {
  if (number >= active_) return false;
  return may_open() || flight_.back()->assigned < flight_.back()->batch->count;
}

void Loader::work(int number) {
  Worker worker(options_.limits);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!stop_ && !has_work(number)) {
      worker.end_slice(options_.batch);
      const TimePoint begin = MonotonicClock::now();
      pool_->wanted.wait(lock, [&] {
        provide();
        return stop_ || has_work(number);
      });
      if (number < active_) report_.held_up += MonotonicClock::now() - begin;
    }
    if (stop_) return;
    if (flight_.empty() || flight_.back()->assigned >= flight_.back()->batch->count) open_batch();
    std::shared_ptr<InFlight> held = flight_.back();  // seek() may drop it meanwhile
    InFlight& flight = *held;
    if (flight.dropped) continue;  // there was no memory for it
    const int slot = flight.assigned++;
    Batch& batch = *flight.batch;
    const uint64_t position = flight.shard.position(batch.first + static_cast<uint64_t>(slot));
    const size_t bytes = target().bytes(), at = static_cast<size_t>(slot) * bytes;
    const bool aside = batch.data == nullptr;
    void* const into = aside ? nullptr : static_cast<uint8_t*>(batch.data) + at;
    lock.unlock();
    worker.begin_sample();
    if (aside) worker.aside.resize(bytes);
    const Status status =
        make_sample(worker, batch, slot, position, aside ? worker.aside.data() : into);
    worker.end_sample(options_.batch);
    lock.lock();
    if ((aside && !put(worker, flight, at, lock)) || flight.dropped) {
      account(worker, flight);
      lock.unlock();
      held.reset();  // takes the lock if nobody else has it
      lock.lock();
      continue;
    }
    if (!status.ok() && (flight.failed_slot < 0 || slot < flight.failed_slot)) {
      flight.failure = status;
      flight.failed_slot = slot;
    }
    if (flight.done + 1 == batch.count && options_.mix.any() && flight.failure.ok()) {
      lock.unlock();  // nobody else works at this batch any more
      mix(worker, flight);
      lock.lock();
    }
    account(worker, flight);
    if (++flight.done == batch.count) ready_.notify_all();
  }
}

// Copies the sample that was made aside to its place as soon as there is memory; false if it is not
// waited for any more. Under the lock, which is let go of meanwhile.
bool Loader::put(Worker& worker, const InFlight& flight, size_t at,
                 std::unique_lock<std::mutex>& lock) {
  const auto settled = [&] {
    provide();
    return stop_ || flight.dropped || flight.batch->data != nullptr;
  };
  if (!settled()) {
    worker.end_slice(options_.batch);
    const TimePoint begin = MonotonicClock::now();
    pool_->wanted.wait(lock, settled);
    report_.held_up += MonotonicClock::now() - begin;
  }
  if (stop_ || flight.dropped) return false;
  lock.unlock();
  std::memcpy(static_cast<uint8_t*>(flight.batch->data) + at, worker.aside.data(),
              worker.aside.size());
  lock.lock();
  return true;
}

void Tally::add(Tally&& other) {
  samples += other.samples;
  replaced += other.replaced;
  for (size_t i = 0; i < kOutcomes; ++i) outcomes[i] += other.outcomes[i];
  for (BadSample& each : other.bad) {
    if (bad.size() == kBadKept) return;
    const auto same = [&](const BadSample& known) { return known.file == each.file; };
    if (std::none_of(bad.begin(), bad.end(), same)) bad.push_back(std::move(each));
  }
}

// Under the lock.
void Loader::account(Worker& worker, InFlight& flight) {
  report_.made += worker.tally.samples;
  report_.read += worker.spent.read;
  report_.decode += worker.spent.decode;
  report_.resize += worker.spent.resize;
  report_.finish += worker.spent.finish;
  flight.tally.add(std::move(worker.tally));
  worker.tally = {};
  worker.spent = {};
  tuner_.took(worker.read_wall, worker.rest_wall);
  worker.read_wall = worker.rest_wall = {};
  if (options_.threads > 0 || stop_ || tuner_.threads() == active_) return;
  active_ = tuner_.threads();
  while (threads_.size() < static_cast<size_t>(active_)) {
    if (!add_thread()) active_ = static_cast<int>(threads_.size());
  }
  pool_->wanted.notify_all();
}

// Mixes a batch whose samples are all there.
void Loader::mix(Worker& worker, InFlight& flight) {
  const Nanos begin = thread_cpu();
  Batch& batch = *flight.batch;
  SampleRandom random(options_.seed, batch.epoch, flight.shard.position(batch.first),
                      Purpose::kMix);
  batch.mix = choose_mix(options_.mix, options_.augment.width, options_.augment.height, random);
  mix_batch(batch.mix, target(), batch.data, batch.count, worker.scratch);
  for (size_t i = 0; i < static_cast<size_t>(batch.count); ++i)
    batch.partners[i] = batch.labels[i > 0 ? i - 1 : static_cast<size_t>(batch.count) - 1];
  worker.spent.finish += thread_cpu() - begin;
}

Status Loader::make_sample(Worker& worker, Batch& batch, int slot, uint64_t position, void* into) {
  const uint64_t index = order_.index(batch.epoch, position);
  Tally& tally = worker.tally;
  ++tally.samples;
  bool usable = false;
  FLATOUT_TRY(Verdict verdict, fill(worker, batch, slot, index, into, usable));
  ++tally.outcomes[static_cast<size_t>(verdict.outcome)];
  if (!verdict.ok()) tally.bad.push_back({source_->name(index), std::move(verdict)});
  if (usable) return {};
  if (options_.policy == Policy::kStrict) return unusable(tally.bad[0]);
  ++tally.replaced;
  SampleRandom random(options_.seed, batch.epoch, index, Purpose::kReplace);
  std::set<uint64_t> others;  // the same one may be drawn again
  for (int attempt = 0; attempt < kReplacements; ++attempt) {
    // One that is bad itself is told in its own place.
    const uint64_t other = random.below(order_.count());
    FLATOUT_TRY_STATUS(fill(worker, batch, slot, other, into, usable));
    if (usable) return {};
    if (other != index) others.insert(other);
  }
  return Error{
      Code::kBadInput,
      fmt::format("nothing can be read in place of {} ({}: {}): {} of {} others were "
                  "tried, and are bad, too",
                  escape_terminal(tally.bad[0].file), outcome_name(tally.bad[0].verdict.outcome),
                  escape_terminal(tally.bad[0].verdict.detail), others.size(), order_.count() - 1),
      "flatout feed verify tells which files are bad"};
}

// The sample of that index, for the slot; usable where it may stay there.
Result<Verdict> Loader::fill(Worker& worker, Batch& batch, int slot, uint64_t index, void* into,
                             bool& usable) {
  const StageClock clock;
  Renderer& renderer = worker.renderer;
  const Renderer::Spent before = renderer.spent();
  auto read_as = source_->read(index, worker.sample);
  if (!read_as.ok()) read_as = unreadable(read_as.error());
  FLATOUT_TRY(Verdict verdict, std::move(read_as));
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
    Target place = target();
    place.data = into;
    Decoding how;
    how.lenient = options_.policy == Policy::kLenient;
    const bool indexed = index_ != nullptr && can_be_indexed(picture);
    const uint32_t mark = indexed ? fingerprint(picture) : 0;
    const SeekIndex::Found known = indexed ? index_->find(index, mark) : SeekIndex::Found{};
    how.checkpoints = known.checkpoints;
    if (known.wanted) how.found = &worker.found;
    Status staged;
    PictureStage stage;
    if (stage_) {
      stage = [&](uint8_t* rgbx, int width, int height) {
        SampleRandom own(options_.seed, batch.epoch, index, Purpose::kStage);
        const uint64_t high = own.next();
        StageSample sample{rgbx,
                           width,
                           height,
                           worker.sample.label,
                           static_cast<int64_t>(index),
                           batch.epoch,
                           high << 32 | own.next()};
        staged = stage_(sample);
        worker.sample.label = sample.label;
      };
    }
    verdict = renderer.render(view, options_.mode, place, how, stage);
    if (!staged.ok())
      return Error{staged.error().code,
                   fmt::format("the stage failed at {}: {}", escape_terminal(source_->name(index)),
                               staged.error().message),
                   staged.error().hint};
    if (known.wanted && verdict.ok()) index_->put(index, mark, worker.found);
    usable = verdict.ok() || (how.lenient && renderer.complete());
    batch.views[at] = {view.box.x, view.box.y, view.box.width, view.box.height, view.flip};
  }
  batch.labels[at] = batch.partners[at] = worker.sample.label;
  batch.indices[at] = static_cast<int64_t>(index);
  clock.divide(read, renderer.spent() - before, worker.spent);
  worker.read_wall += read;
  worker.rest_wall += clock.wall() - read;
  return verdict;
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

bool Loader::is_of_this_process() const { return pool_->is_of_this_process(); }

bool Loader::wait(Nanos most) {
  if (!is_of_this_process()) return true;  // next() says so
  std::unique_lock lock(mutex_);
  ask();
  return ready_.wait_for(lock, most, [this] { return front_is_done(); });
}

// True, too, where nothing will ever be done.
bool Loader::front_is_done() const {
  if (flight_.empty()) return threads_.empty();
  const InFlight& front = *flight_.front();
  return front.batch->epoch > place_.epoch || front.done == front.batch->count;
}

Result<std::shared_ptr<Batch>> Loader::next() {
  if (!is_of_this_process()) return forked();
  std::unique_lock lock(mutex_);
  ask();
  ready_.wait(lock, [this] { return front_is_done(); });
  if (flight_.empty()) return no_threads();
  const TimePoint asked = std::exchange(asked_, TimePoint());
  report_.waited += MonotonicClock::now() - asked;
  if (flight_.front()->batch->epoch > place_.epoch) {
    place_ = {place_.epoch + 1, 0};
    lock.unlock();
    FLATOUT_TRY_STATUS(save_index());
    return std::shared_ptr<Batch>();
  }
  const std::shared_ptr<InFlight> flight = std::move(flight_.front());
  flight_.pop_front();
  place_ = flight->batch->after;
  report_.add(std::move(flight->tally));
  lock.unlock();
  pool_->wanted.notify_all();
  flatout_slice(FLATOUT_INPUT_WAIT, nullptr,
                static_cast<uint64_t>(asked.time_since_epoch().count()));
  if (!flight->failure.ok()) return flight->failure.error();
  flight->batch->given = true;
  return flight->batch;
}

// Where no batch is left of an epoch the next one begins: drop_last may leave samples, too.
Place Loader::onward(Place place) const {
  if (batches_of(shard(place.position), options_.batch) > 0) return place;
  return {place.epoch + 1, 0};
}

Place Loader::place() const {
  if (!is_of_this_process()) return {};
  const std::lock_guard lock(mutex_);
  return onward(place_);
}

Status Loader::seek(Place place) {
  if (place.position > order_.count())
    return Error{
        Code::kBadInput,
        fmt::format("the state is {} samples into an epoch of {}", place.position, order_.count()),
        "it was saved with another data set"};
  if (!is_of_this_process()) return forked();
  std::deque<std::shared_ptr<InFlight>> dropped;  // without the lock
  {
    // The threads go on: what one of them is at is finished, and dropped.
    const std::lock_guard lock(mutex_);
    ahead_.stop();
    for (const auto& flight : flight_) flight->dropped = true;
    dropped.swap(flight_);
    enter(onward(place));
  }
  pool_->wanted.notify_all();
  return {};
}

Report Loader::report() const {
  if (!is_of_this_process()) return {};
  const std::lock_guard lock(mutex_);
  Report out = report_;
  out.threads = active_;
  out.ahead = ahead_.state();
  return out;
}

}  // namespace flatout::feed
