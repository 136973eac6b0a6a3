#include "train/mirrored.h"

#include <gtest/gtest.h>

#include <cmath>

namespace flatout::train {
namespace {

Batch random_batch(const char* model, int count) {
  const ModelInfo& info = *find_model(model);
  Random random(3);
  Batch batch;
  for (int i = 0; i < count; ++i) batch.labels.push_back(static_cast<int>(random.below(10)));
  batch.x.resize(static_cast<size_t>(count) *
                 static_cast<size_t>(info.channels * info.side * info.side));
  for (float& value : batch.x) value = random.range(-1, 1);
  return batch;
}

std::unique_ptr<Mirrored> make(const char* model, int replicas, bool sync) {
  MirroredOptions options;
  options.model = model;
  options.batch = 16;
  options.replicas = replicas;
  options.threads = 2;
  options.sync_batch_norm = sync;
  return std::move(Mirrored::make(options)).value();
}

/// The losses of a few steps.
std::vector<double> train(Mirrored& learner, const Batch& batch, int steps) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    auto score = learner.forward(batch);
    EXPECT_TRUE(score.ok());
    EXPECT_TRUE(learner.backward(batch).ok());
    int signal = 0;
    EXPECT_TRUE(learner.exchange(&*score, &signal).ok());
    learner.update(step);
    losses.push_back(score->loss);
  }
  return losses;
}

double difference(Mirrored& a, Mirrored& b, std::string_view part) {
  const auto left = a.state();
  const auto right = b.state();
  double most = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i].name.find(part) == std::string::npos) continue;
    for (size_t k = 0; k < left[i].values.size(); ++k) {
      most = std::max(most, std::fabs(double{left[i].values[k]} - double{right[i].values[k]}));
    }
  }
  return most;
}

TEST(Mirrored, EqualsOneDeviceOnTheJointBatch) {
  const Batch batch = random_batch("lenet", 16);
  const auto one = make("lenet", 1, false);
  const auto four = make("lenet", 4, false);
  const auto a = train(*one, batch, 5);
  const auto b = train(*four, batch, 5);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5 * a[i]);
  EXPECT_LT(difference(*one, *four, "weight"), 1e-5);
}

TEST(Mirrored, EqualsOneDeviceWithBatchNormWhereThatIsSynchronised) {
  const Batch batch = random_batch("resnet20", 16);
  const auto one = make("resnet20", 1, false);
  const auto two = make("resnet20", 2, true);
  const auto apart = make("resnet20", 2, false);
  const auto a = train(*one, batch, 3);
  const auto b = train(*two, batch, 3);
  const auto c = train(*apart, batch, 3);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4 * a[i]);
  EXPECT_LT(difference(*one, *two, "running"), 1e-4);
  // Without it each half has statistics of its own, which is another computation.
  EXPECT_GT(std::fabs(a[0] - c[0]), 1e-3);
}

TEST(Mirrored, GivesTheSameBitsEachTime) {
  const Batch batch = random_batch("resnet20", 16);
  std::vector<std::vector<double>> losses;
  for (int round = 0; round < 2; ++round) {
    const auto learner = make("resnet20", 2, true);
    losses.push_back(train(*learner, batch, 2));
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(Mirrored, GoesOnFromItsState) {
  const Batch batch = random_batch("lenet", 16);
  const auto straight = make("lenet", 2, false);
  train(*straight, batch, 4);
  const auto first = make("lenet", 2, false);
  train(*first, batch, 2);
  const auto second = make("lenet", 2, false);
  const auto from = first->state();
  const auto to = second->state();
  for (size_t i = 0; i < from.size(); ++i) {
    std::copy(from[i].values.begin(), from[i].values.end(), to[i].values.begin());
  }
  second->synchronize();
  train(*second, batch, 2);
  EXPECT_EQ(difference(*straight, *second, ""), 0);
}

TEST(Mirrored, RefusesAnOptimizerItDoesNotHave) {
  MirroredOptions options;
  options.optimizer.name = "lion";
  EXPECT_EQ(Mirrored::make(options).error().code, Code::kBadInput);
}

}  // namespace
}  // namespace flatout::train
