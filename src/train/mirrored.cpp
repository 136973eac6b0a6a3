#include "train/mirrored.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <thread>

namespace flatout::train {
namespace {

// Gradients that are sent together: few enough to begin early, enough to be worth a message.
constexpr size_t kBucket = 1 << 16;

}  // namespace

/// Replicas lay their values down; the last to come fetches those of the other ranks.
class Mirrored::Meeting : public Exchange {
 public:
  explicit Meeting(int replicas) : replicas_(replicas) {}

  void join(Ranks* ranks) { ranks_ = ranks; }
  int first_part() const { return ranks_ != nullptr ? ranks_->rank() * replicas_ : 0; }
  int parts() const override { return ranks_ != nullptr ? ranks_->size() * replicas_ : replicas_; }

  Status gather(int part, const double* mine, size_t count, double* all) override {
    std::unique_lock lock(mutex_);
    own_.resize(count * static_cast<size_t>(replicas_));
    std::copy(mine, mine + count,
              own_.begin() + static_cast<ptrdiff_t>(count) * (part - first_part()));
    const uint64_t round = round_;
    if (++here_ == replicas_) {
      all_.resize(count * static_cast<size_t>(parts()));
      if (ranks_ != nullptr) {
        status_ = ranks_->gather(own_.data(), own_.size(), all_.data());
      } else {
        all_ = own_;
      }
      here_ = 0;
      ++round_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return round_ != round; });
    }
    std::copy(all_.begin(), all_.end(), all);
    return status_;
  }

 private:
  int replicas_;
  Ranks* ranks_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  int here_ = 0;
  uint64_t round_ = 0;
  std::vector<double> own_, all_;
  Status status_;
};

class Mirrored::Messenger {
 public:
  explicit Messenger(Mirrored& learner) : learner_(learner), thread_([this] { serve(); }) {}
  ~Messenger() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void hand_over(size_t first, size_t last) {
    {
      const std::lock_guard lock(mutex_);
      buckets_.push_back({first, last});
    }
    changed_.notify_all();
  }
  /// Waits until all are averaged.
  Status wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return buckets_.empty(); });
    return status_;
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || !buckets_.empty(); });
      if (stop_) return;
      const auto [first, last] = buckets_.front();
      if (status_.ok()) {
        lock.unlock();
        Status status = learner_.average(first, last, nullptr);
        lock.lock();
        status_ = std::move(status);
      }
      buckets_.pop_front();
      changed_.notify_all();
    }
  }

  Mirrored& learner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<size_t, size_t>> buckets_;  // the first is under way
  bool stop_ = false;
  Status status_;
  std::thread thread_;
};

Mirrored::Mirrored(const MirroredOptions& options) : options_(options) {}
Mirrored::~Mirrored() = default;

Result<std::unique_ptr<Mirrored>> Mirrored::make(const MirroredOptions& options) {
  FLATOUT_TRY_STATUS(options.optimizer.check());
  FLATOUT_CHECK(options.replicas > 0 && options.batch % options.replicas == 0);
  std::unique_ptr<Mirrored> out(new Mirrored(options));
  const int threads = std::max(options.threads / options.replicas, 1);
  for (int r = 0; r < options.replicas; ++r) {
    Replica replica;
    const std::string name = options.replicas > 1 ? fmt::format("device {}", r) : "the device";
    replica.device = std::make_unique<Device>(name, options.device_bytes, threads, options.spin);
    FLATOUT_TRY(replica.model,
                Model<float>::make(options.model, options.classes, options.batch / options.replicas,
                                   options.seed, *replica.device));
    FLATOUT_TRY(
        replica.optimizer,
        Optimizer::make(options.optimizer, replica.model->plan().values().size(), *replica.device));
    out->replicas_.push_back(std::move(replica));
  }
  out->team_ = std::make_unique<Pool>(options.replicas, options.spin);
  out->meeting_ = std::make_unique<Meeting>(options.replicas);
  return out;
}

void Mirrored::join(Ranks* ranks) {
  ranks_ = ranks;
  meeting_->join(ranks);
  if (!options_.sync_batch_norm) messenger_ = std::make_unique<Messenger>(*this);
}

__attribute__((noinline)) Result<Score> Mirrored::forward(const Batch& batch) {
  const int share = batch.count() / count();
  FLATOUT_CHECK(share * count() == batch.count());
  const size_t pixels = batch.x.size() / batch.labels.size();
  Exchange* exchange = options_.sync_batch_norm ? meeting_.get() : nullptr;
  std::vector<Status> statuses(replicas_.size());
  std::vector<Score> scores(replicas_.size());
  team_->run(count(), [&](int r) {
    const auto at = static_cast<size_t>(r);
    const size_t first = at * static_cast<size_t>(share);
    const auto score =
        replicas_[at].model->forward(batch.x.data() + first * pixels, batch.labels.data() + first,
                                     share, true, exchange, meeting_->first_part() + r);
    if (score.ok()) {
      scores[at] = *score;
    } else {
      statuses[at] = score.error();
    }
  });
  Score sum;
  for (size_t r = 0; r < replicas_.size(); ++r) {
    FLATOUT_TRY_STATUS(statuses[r]);
    sum.loss += scores[r].loss / count();
    sum.right += scores[r].right;
  }
  return sum;
}

__attribute__((noinline)) Status Mirrored::backward(const Batch&) {
  handed_over_ = replicas_[0].model->plan().gradients().size();
  ready_.assign(replicas_.size(), handed_over_);
  std::vector<Status> statuses(replicas_.size());
  team_->run(count(), [&](int r) {
    const auto at = static_cast<size_t>(r);
    std::function<void(size_t)> ready;
    if (messenger_ != nullptr) ready = [this, at](size_t first) { note_ready(at, first); };
    statuses[at] = replicas_[at].model->backward(ready);
  });
  for (const Status& status : statuses) FLATOUT_TRY_STATUS(status);
  return {};
}

// Where the slowest replica is goes down by one layer at a time, so buckets end at the same places
// in all ranks.
void Mirrored::note_ready(size_t replica, size_t first) {
  const std::lock_guard lock(ready_mutex_);
  ready_[replica] = first;
  const size_t final_from = *std::max_element(ready_.begin(), ready_.end());
  if (handed_over_ - final_from < (final_from == 0 ? 1 : kBucket)) return;
  messenger_->hand_over(final_from, handed_over_);
  handed_over_ = final_from;
}

// Gradients [first, last) of all replicas become their mean, and that of all ranks. `team`: a
// thread for each replica, or null.
Status Mirrored::average(size_t first, size_t last, Pool* team) {
  const size_t replicas = replicas_.size();
  const auto gradients = [&](size_t r) {
    return replicas_[r].model->plan().gradients().subspan(first, last - first);
  };
  const auto average_slice = [&](int part) {
    const size_t size = last - first;
    const size_t parts = team != nullptr ? replicas : 1;
    const size_t begin = size * static_cast<size_t>(part) / parts;
    const size_t end = size * (static_cast<size_t>(part) + 1) / parts;
    for (size_t i = begin; i < end; ++i) {
      float sum = 0;
      for (size_t r = 0; r < replicas; ++r) sum += gradients(r)[i];
      sum /= static_cast<float>(replicas);
      for (size_t r = 0; r < replicas; ++r) gradients(r)[i] = sum;
    }
  };
  if (replicas > 1) {
    if (team != nullptr) {
      team->run(count(), average_slice);
    } else {
      average_slice(0);
    }
  }
  if (ranks_ == nullptr) return {};
  FLATOUT_TRY_STATUS(ranks_->average(gradients(0)));
  for (size_t r = 1; r < replicas; ++r) {
    std::copy(gradients(0).begin(), gradients(0).end(), gradients(r).begin());
  }
  return {};
}

Status Mirrored::exchange(Score* score, int* signal) {
  if (messenger_ != nullptr) {
    FLATOUT_TRY_STATUS(messenger_->wait());
  } else {
    FLATOUT_TRY_STATUS(average(0, replicas_[0].model->plan().gradients().size(), team_.get()));
  }
  if (ranks_ == nullptr) return {};
  const double mine[3] = {score->loss, static_cast<double>(score->right),
                          static_cast<double>(*signal)};
  std::vector<double> all(3 * static_cast<size_t>(ranks_->size()));
  FLATOUT_TRY_STATUS(ranks_->gather(mine, 3, all.data()));
  *score = {};
  for (size_t r = 0; r < all.size(); r += 3) {
    score->loss += all[r] / ranks_->size();
    score->right += static_cast<int>(all[r + 1]);
    *signal = std::max(*signal, static_cast<int>(all[r + 2]));
  }
  return {};
}

__attribute__((noinline)) void Mirrored::update(int64_t step) {
  team_->run(count(), [&](int r) {
    Replica& replica = replicas_[static_cast<size_t>(r)];
    const MemoryPlan<float>& plan = replica.model->plan();
    replica.optimizer->update(plan.values(), plan.gradients(), step, replica.device->pool());
  });
}

Result<Score> Mirrored::evaluate(const Batch& batch) {
  const size_t pixels = batch.x.size() / batch.labels.size();
  Model<float>& model = *replicas_[0].model;
  Score sum;
  for (int first = 0; first < batch.count();) {
    const int n = std::min(model.plan().batch(), batch.count() - first);
    FLATOUT_TRY(const Score score,
                model.forward(batch.x.data() + static_cast<size_t>(first) * pixels,
                              batch.labels.data() + first, n, false, nullptr, 0));
    sum.loss += score.loss * n / batch.count();
    sum.right += score.right;
    first += n;
  }
  return sum;
}

std::vector<Tensor> Mirrored::state() { return state_of(replicas_[0]); }

std::vector<Tensor> Mirrored::state_of(const Replica& replica) {
  const MemoryPlan<float>& plan = replica.model->plan();
  std::vector<Tensor> out;
  for (const auto& p : plan.parameters()) out.push_back({p.name, p.shape, p.values});
  for (const auto& p : plan.statistics()) out.push_back({p.name, p.shape, p.values});
  for (const OptimizerState& state : replica.optimizer->state()) {
    size_t at = 0;
    for (const auto& p : plan.parameters()) {
      out.push_back({fmt::format("optimizer.{}.{}", state.name, p.name), p.shape,
                     state.values.subspan(at, p.values.size())});
      at += p.values.size();
    }
  }
  return out;
}

void Mirrored::synchronize() {
  const std::vector<Tensor> first = state();
  for (size_t r = 1; r < replicas_.size(); ++r) {
    const std::vector<Tensor> other = state_of(replicas_[r]);
    for (size_t i = 0; i < first.size(); ++i) {
      std::copy(first[i].values.begin(), first[i].values.end(), other[i].values.begin());
    }
  }
}

uint64_t Mirrored::device_bytes() const {
  uint64_t sum = 0;
  for (const Replica& replica : replicas_) sum += replica.device->allocated();
  return sum;
}

}  // namespace flatout::train
