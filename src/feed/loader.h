// The pipeline: threads that read, decode, augment and write samples straight into batches, a few
// batches ahead of the one who takes them, across the end of an epoch too. Where storage is slow,
// what comes next is brought into the page cache meanwhile.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "feed/augment.h"
#include "feed/batch.h"
#include "feed/mix.h"
#include "feed/order.h"
#include "feed/read_ahead.h"
#include "feed/render.h"
#include "feed/seek_index.h"
#include "feed/source.h"
#include "feed/thread_tuner.h"

namespace flatout::feed {

/// What to do about a sample that cannot be used.
enum class Policy : uint8_t {
  kStrict,   // the batch fails and names the file
  kSkip,     // another sample takes its place, the same in every run; counted
  kLenient,  // what could be decoded is used, and counted; where nothing could, as kSkip
};

struct LoaderOptions {
  int batch = 64;
  int threads = 0;  // 0: one for each processor, and more while reads keep them waiting
  // Batches in memory, the one that the program keeps while it asks for the next among them; if it
  // keeps more, those come on top. At least one is made ahead.
  int prefetch = 2;
  uint64_t seed = 0;
  bool shuffle = true;
  Window window;  // of the shuffle; none: the whole epoch
  bool drop_last = false;
  uint32_t rank = 0;
  uint32_t ranks = 1;
  Policy policy = Policy::kSkip;
  Mode mode = Mode::kExact;
  Augment augment;
  MixOptions mix;
  Type type = Type::kF32;
  Layout layout = Layout::kNchw;
  float mean[3] = {0.485F, 0.456F, 0.406F};  // of ImageNet; for all types but u8
  float std[3] = {0.229F, 0.224F, 0.225F};
  bool orient = false;           // turn pictures as their EXIF data say
  bool allow_empty = false;      // class folders without pictures
  std::string index = "memory";  // the seek index: kept in memory; "off"; or the file to keep it in
  uint64_t index_bytes = 64 << 20;  // that it may take in memory
  Limits limits;

  /// Errors: kBadInput, naming the option.
  Status check() const;
};

/// A sample on its way: cut, resized and distorted, not normalised yet.
struct StageSample {
  uint8_t* rgbx = nullptr;  // [height, width, 4], the fourth byte means nothing
  int width = 0;
  int height = 0;
  int64_t label = 0;  // may be changed
  int64_t index = 0;  // in the source
  uint32_t epoch = 0;
  uint64_t random = 0;  // of (seed, epoch, index): for what the stage draws
};
/// A stage of one's own. Called by several threads at a time, once for each sample that is used. An
/// Error fails the batch.
using SampleStage = std::function<Status(StageSample&)>;

/// What became of samples: of each its own outcome, not that of what took its place.
struct Tally {
  uint64_t samples = 0;
  uint64_t replaced = 0;
  std::array<uint64_t, kOutcomes> outcomes{};
  std::vector<BadSample> bad;  // the first hundred, each once

  void add(Tally&& other);
};

struct Report : Tally {                            // of the batches that next() has given
  uint64_t made = 0;                               // samples, those of batches made ahead too
  Nanos read{0}, decode{0}, resize{0}, finish{0};  // CPU time of all threads
  Nanos waited{0};   // that next() waited for batches: the pipeline was too slow
  Nanos held_up{0};  // that threads waited for room: the pipeline was too fast
  int threads = 0;   // that decode, now
  ReadAhead::State ahead;

  /// Each stage's name and CPU time.
  std::array<std::pair<std::string_view, Nanos>, 4> stages() const {
    return {{{"read", read}, {"decode", decode}, {"resize", resize}, {"finish", finish}}};
  }
};

class Loader {
 public:
  static Result<std::unique_ptr<Loader>> open(std::unique_ptr<Source> source,
                                              const LoaderOptions& options, SampleStage stage = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch of the epoch; null once at its end, after which come those of the next epoch.
  /// Errors (kStrict, or nothing that could be used): the batch is lost, the next call goes on
  /// behind it.
  /// At the end of an epoch a seek index that is kept in a file is written there.
  Result<std::shared_ptr<Batch>> next();
  /// Waits at most so long; true once next() would not wait.
  bool wait(Nanos most);
  /// Memory for one of the batches to come, such as page-locked memory: batch_bytes(), aligned to
  /// 64 bytes. It has to live until next() has given it back as a batch's data or the loader is
  /// gone, and is not used again. Errors: kBadInput for memory that is not aligned.
  Status lend(void* memory);
  size_t batch_bytes() const;
  /// Where next() goes on; in a forked process nothing, as report().
  Place place() const;
  /// Goes there; what was made ahead is dropped.
  Status seek(Place place);
  /// Not one that was forked from it: there are no threads in that, and who held the lock is gone.
  bool is_of_this_process() const;

  uint64_t batches_per_epoch() const;
  const Source& source() const { return *source_; }
  const LoaderOptions& options() const { return options_; }
  Report report() const;

 private:
  struct InFlight;
  struct Worker;

  Loader(std::unique_ptr<Source> source, const LoaderOptions& options, SampleStage stage);
  Status start();
  void enter(Place place);
  Place onward(Place place) const;
  void stop();
  void work(int number);
  void open_batch();
  bool may_open() const;
  void ask();
  void provide();
  bool put(Worker& worker, const InFlight& flight, size_t at, std::unique_lock<std::mutex>& lock);
  bool add_thread();
  void announce(const InFlight& flight);
  bool has_work(int number) const;
  void account(Worker& worker, InFlight& flight);
  void mix(Worker& worker, InFlight& flight);
  Target target() const;
  bool front_is_done() const;
  Shard shard(uint64_t first) const;
  Status make_sample(Worker& worker, Batch& batch, int slot, uint64_t position, void* into);
  Result<Verdict> fill(Worker& worker, Batch& batch, int slot, uint64_t index, void* into,
                       bool& usable);
  Status open_index();
  Status save_index();

  std::unique_ptr<Source> source_;
  SampleStage stage_;
  std::unique_ptr<SeekIndex> index_;  // null: there is none
  LoaderOptions options_;
  Order order_;
  Normalize normalize_;
  const std::shared_ptr<BatchPool> pool_;

  std::mutex& mutex_;              // the pool's
  std::condition_variable ready_;  // by next(): a sample is done
  ReadAhead ahead_;
  uint64_t announced_ = 0;           // of the epoch, from where it was entered
  std::atomic<int64_t> read_ns_{0};  // what reading a sample takes of late
  std::deque<std::shared_ptr<InFlight>> flight_;
  Place enter_;          // where the epoch being opened was entered
  uint64_t opened_ = 0;  // batches of it that have been opened
  Place place_;          // of next()
  bool stop_ = false;
  std::vector<std::thread> threads_;
  int active_ = 0;  // of them; the others wait
  ThreadTuner tuner_;
  TimePoint asked_{};  // when the batch that next() will give was first waited for; or not yet
  Report report_;
};

}  // namespace flatout::feed
