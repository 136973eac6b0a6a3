// Mirrored data parallel: a replica of the model on each of several logical devices. Each takes its
// share of the batch, gradients are averaged in the order of the replicas, and then of the ranks,
// and every replica makes the same update.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "train/learner.h"
#include "train/model.h"
#include "train/optimizer.h"
#include "train/ranks.h"

namespace flatout::train {

struct MirroredOptions {
  std::string model = "lenet";
  int classes = 10;
  int batch = 32;  // of this rank; a multiple of `replicas`
  int replicas = 1;
  int threads = 1;  // that compute, of all replicas together
  bool spin = false;
  uint64_t device_bytes = 0;  // limit of each device; 0: the machine's memory
  bool sync_batch_norm = false;
  uint64_t seed = 1;
  OptimizerOptions optimizer;
};

class Mirrored : public Learner {
 public:
  /// Errors: kBadInput, kFull.
  static Result<std::unique_ptr<Mirrored>> make(const MirroredOptions& options);
  ~Mirrored() override;

  /// From now on gradients are averaged with other ranks', which hold the same parameters: bucket
  /// after bucket while backward goes on, but with synchronised batch norm behind it.
  void join(Ranks* ranks);

  Result<Score> forward(const Batch& batch) override;
  Status backward(const Batch& batch) override;
  Status exchange(Score* score, int* signal) override;
  void update(int64_t step) override;
  Result<Score> evaluate(const Batch& batch) override;
  std::vector<Tensor> state() override;
  void synchronize() override;
  Pool& pool() override { return replicas_[0].device->pool(); }
  uint64_t device_bytes() const override;

 private:
  struct Replica {
    std::unique_ptr<Device> device;
    std::unique_ptr<Model<float>> model;
    std::unique_ptr<Optimizer> optimizer;
  };
  class Meeting;    // of the replicas, for batch norm
  class Messenger;  // a thread that averages gradients while backward goes on

  explicit Mirrored(const MirroredOptions& options);
  int count() const { return static_cast<int>(replicas_.size()); }
  static std::vector<Tensor> state_of(const Replica& replica);
  Status average(size_t first, size_t last, Pool* team);
  void note_ready(size_t replica, size_t first);

  MirroredOptions options_;
  std::vector<Replica> replicas_;
  std::unique_ptr<Pool> team_;  // a thread for each replica
  std::unique_ptr<Meeting> meeting_;
  Ranks* ranks_ = nullptr;
  std::unique_ptr<Messenger> messenger_;  // null: one rank, or batch norm that needs the ranks, too
  std::mutex ready_mutex_;
  std::vector<size_t> ready_;  // of each replica: gradients from here on are final
  size_t handed_over_ = 0;     // to the messenger, from here on
};

}  // namespace flatout::train
