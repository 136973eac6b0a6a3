// The causes that the trainer can be given. Each is real: the work, wait or failure that the
// finding of that name describes, in a function of its own that a stack shows.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/learner.h"
#include "train/loader.h"
#include "train/pool.h"
#include "train/train.h"

namespace flatout::train {

enum class Cause {
  kNone,
  kDecodeCpu,
  kTooFewWorkers,
  kSmallFiles,
  kRandomSeek,
  kCollate,
  kWorkerSkew,
  kNoisyNeighbour,
  kOversubscribed,
  kAffinity,
  kProcessChurn,
  kPageFaults,
  kLeak,
  kAllocator,
  kCheckpoint,
  kLogging,
  kIdleWait,
  kHang,
  kSignal,
  kException,
};

struct CauseInfo {
  Cause cause;
  std::string_view id;    // of the finding
  std::string_view text;  // what is done
};
const std::vector<CauseInfo>& causes();
/// Several at once.
class Causes {
 public:
  Causes() = default;
  Causes(std::initializer_list<Cause> causes) {
    for (const Cause c : causes) add(c);
  }
  void add(Cause cause) {
    if (cause != Cause::kNone) bits_ |= bit(cause);
  }
  bool has(Cause cause) const { return (bits_ & bit(cause)) != 0; }
  bool none() const { return bits_ == 0; }

 private:
  static uint32_t bit(Cause cause) { return uint32_t{1} << static_cast<uint32_t>(cause); }
  uint32_t bits_ = 0;
};
/// Errors: kBadInput: an unknown one, naming what is known; two that each need the data set to be
/// theirs.
Result<Causes> parse_causes(const std::vector<std::string>& ids);

/// How the trainer is set up under these causes.
struct Plan {
  int threads = 1;
  int loaders = 2;
  bool spin = false;
  Collate collate = Collate::kOnce;
};
Plan make_plan(const Causes& causes, const TrainOptions& options, int cores);

/// The data set under these causes; `folder` is made when files are needed.
Result<std::unique_ptr<Source>> make_source(const Causes& causes, const TrainOptions& options,
                                            int cores, std::unique_ptr<TemporaryFolder>& folder);

/// What causes do while training goes on.
class Injection {
 public:
  /// Errors: a cause cannot be had here (its message says why).
  static Result<std::unique_ptr<Injection>> make(const Causes& causes, const TrainOptions& options,
                                                 std::unique_ptr<TemporaryFolder>& folder);
  ~Injection();

  void in_forward(Pool& pool);                                     // inside the forward phase
  void after_step(int64_t step, const Batch& batch, double loss);  // before the step's end
  void before_batch(int64_t batch);                                // in a loader thread

 private:
  explicit Injection(const Causes& causes);
  Status start(Cause cause, const TrainOptions& options, std::unique_ptr<TemporaryFolder>& folder);
  Status open_files(const std::string& folder);

  struct Acknowledger;
  Causes causes_;
  std::vector<std::vector<float>> kept_;
  std::unique_ptr<Acknowledger> acknowledger_;
  std::string checkpoint_;
  int log_ = -1;
};

/// Thrown by crash.exception; says where.
struct TrainError {
  std::string message;
  const char* file;
  int line;
  const char* function;
};
/// Reports an uncaught TrainError through flatout/marker.h and standard error, then aborts.
void install_terminate_handler();

/// `count` busy processes until the caller is ended or `seconds` have passed.
int run_neighbours(int count, double seconds);
/// Whether such run on this machine, started by this user.
bool neighbours_are_running();

}  // namespace flatout::train
