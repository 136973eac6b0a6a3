#include "devmem/batch.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "devmem/policy.h"
#include "devmem/replay.h"

namespace flatout::devmem {
namespace {

constexpr Bytes kMiB = 1 << 20;

// A small training job: weights and a moment for each, and in each step activations by the batch,
// of which the sizes are no multiple of anything, a workspace that does not grow, and gradients.
Trace job(uint64_t batch, bool marks = true, bool odd_step = false) {
  TraceBuilder out("job");
  uint64_t key = 0;
  const Bytes weights[] = {9 * kMiB, 30 * kMiB + 700, 3 * kMiB};
  for (const Bytes w : weights) {
    out.allocate(key++, w, 0);
    out.allocate(key++, w, 0);
  }
  for (int step = 0; step < 6; ++step) {
    if (marks) out.mark();
    std::vector<uint64_t> live;
    for (int layer = 0; layer < 5; ++layer) {
      const Bytes sample = 300'000 + 77'777 * static_cast<Bytes>(layer);
      out.allocate(key, sample * batch, 0);
      live.push_back(key++);
      out.allocate(key, 6 * kMiB, 0);
      out.free(key++);
    }
    if (odd_step && step == 3) out.allocate(key++, 5000, 0);
    for (const Bytes w : weights) {
      out.allocate(key, w, 0);
      out.free(live.back());
      live.back() = key++;
    }
    for (const uint64_t block : live) out.free(block);
  }
  return out.take();
}

// By trying: what the model must predict.
uint64_t largest_by_trying(std::string_view policy, Bytes card) {
  uint64_t batch = 1;
  while (!replay(job(batch + 1), policy, {.card = card}).failed) ++batch;
  return batch;
}

TEST(Batch, TwoRunsPredictTheLargestOneExactlyUnderEachPolicy) {
  const auto model = BatchModel::make({8, job(8)}, {4, job(4)});
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->basis(), BatchBasis::kEachRequest);
  EXPECT_EQ(model->peak_live(64), job(64).peak_live);
  for (const Bytes card : {Bytes{200 * kMiB}, Bytes{333 * kMiB}}) {
    for (const std::string_view policy : policy_names()) {
      EXPECT_EQ(model->largest(policy, card), largest_by_trying(policy, card))
          << policy << " on " << card;
    }
  }
}

TEST(Batch, OneRunPromisesNoMoreThanFits) {
  for (const bool marks : {true, false}) {
    const BatchModel model({8, job(8, marks)});
    EXPECT_EQ(model.basis(), BatchBasis::kOneRun);
    const auto largest = model.largest("torch", 333 * kMiB);
    ASSERT_TRUE(largest);
    EXPECT_LE(*largest, largest_by_trying("torch", 333 * kMiB));
    EXPECT_GE(*largest, 3 * 8u) << "weights are no part of what grows";
  }
}

TEST(Batch, RunsThatDidOtherThingsAreJudgedByTheirPeaks) {
  // Large enough that activations make the peak, as in the batch that is asked for: with the 4 and
  // 16 samples of smaller ones it lies among the gradients, and the line is too flat.
  const auto model = BatchModel::make({32, job(32)}, {64, job(64, true, true)});
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->basis(), BatchBasis::kPeaks);
  const auto largest = model->largest("arena", 333 * kMiB);
  ASSERT_TRUE(largest);
  const auto truth = static_cast<double>(largest_by_trying("arena", 333 * kMiB));
  EXPECT_NEAR(static_cast<double>(*largest), truth, 0.1 * truth);
  EXPECT_LE(model->surely("arena", 333 * kMiB), largest_by_trying("arena", 333 * kMiB));
}

TEST(Batch, WhatSurelyFitsDoesWhereALineThroughSmallBatchesIsTooFlat) {
  const auto model = BatchModel::make({1, job(1)}, {4, job(4, true, true)});
  ASSERT_TRUE(model.ok());
  for (const std::string_view policy : {"torch", "arena"}) {
    const uint64_t truth = largest_by_trying(policy, 333 * kMiB);
    const auto surely = model->surely(policy, 333 * kMiB),
               largest = model->largest(policy, 333 * kMiB);
    ASSERT_TRUE(surely) << policy;
    EXPECT_LE(*surely, truth) << policy;
    EXPECT_GE(*surely, 8u) << policy;
    EXPECT_TRUE(largest) << "what is live grows, so there is a bound: " << policy;
  }
  EXPECT_NE(batch_text(largest_batches(*model, 333 * kMiB, 0, {1, 4})).find("at least"),
            std::string::npos);
}

TEST(Batch, WhereNoneFitsOrNothingGrowsItSaysSo) {
  const auto model = BatchModel::make({8, job(8)}, {4, job(4)});
  EXPECT_EQ(model->largest("torch", 64 * kMiB), 0u);
  const auto same = BatchModel::make({8, job(8)}, {16, job(8)});
  EXPECT_EQ(same->largest("torch", 333 * kMiB), std::nullopt);
  const BatchAnswer answer = largest_batches(*same, 333 * kMiB, 0, {8, 16});
  EXPECT_EQ(answer.per_sample, 0u);
  EXPECT_NE(batch_text(answer).find("no bound"), std::string::npos);
  EXPECT_TRUE(batch_json(answer)["policies"][0]["largest_batch"].is_null());
  EXPECT_FALSE(BatchModel::make({8, job(8)}, {8, job(8)}).ok());
  const auto exchanged = BatchModel::make({16, job(8)}, {8, job(16)});
  ASSERT_FALSE(exchanged.ok());
  EXPECT_TRUE(exchanged.error().message.starts_with("the run of batch 8 holds more"))
      << "not: no bound";
}

TEST(Batch, FixedAndGrowingBytesAreToldApart) {
  const auto model = BatchModel::make({8, job(8)}, {16, job(16)});
  const BatchAnswer answer = largest_batches(*model, 1024 * kMiB, 300 * kMiB, {8, 16});
  // The peak is where the second gradient is there and the last layer's activation is not.
  EXPECT_NEAR(static_cast<double>(answer.per_sample), 4 * 300'000 + 6 * 77'777, 1);
  EXPECT_NEAR(static_cast<double>(answer.fixed), 123.0 * kMiB, 5000);
  for (const BatchAnswer::Row& row : answer.rows)
    EXPECT_EQ(row.largest, largest_by_trying(row.policy, 724 * kMiB)) << row.policy;
}

}  // namespace
}  // namespace flatout::devmem
