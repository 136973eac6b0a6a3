#include "nn/cuda_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace flatout::nn::cuda {
namespace {

constexpr Device kLarge = {132, 233472};  // an H100
constexpr Device kSmall = {2, 40000};

TEST(CudaPlan, CoversEveryValueOnceWhateverTheShape) {
  for (const Device& device : {kLarge, kSmall}) {
    for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      for (const int64_t n : {1, 3, 64}) {
        for (const int64_t c : {1, 3, 8, 33, 64, 2048}) {
          for (const int64_t side : {1, 7, 8, 14, 56}) {
            for (const Type type : {Type::kF32, Type::kBf16}) {
              for (const bool aligned : {true, false}) {
                const Shape shape{n, c, side, side, layout, type, Type::kF32};
                SCOPED_TRACE(shape.text());
                const auto made = make_plan(shape, device, 1, aligned);
                ASSERT_TRUE(made.ok());
                const Plan& plan = *made;
                EXPECT_EQ(plan.stride * plan.outer, shape.elements());
                EXPECT_EQ(static_cast<size_t>(plan.mask_stride * plan.outer), mask_bytes(shape));
                EXPECT_GE(int64_t{plan.tiles} * plan.tile, c);
                EXPECT_LT((int64_t{plan.tiles} - 1) * plan.tile, c);
                EXPECT_LE(plan.tile, kMaxTile);
                EXPECT_GE(uint64_t{plan.share} * plan.members, plan.units);
                EXPECT_LT(uint64_t{plan.share} * (plan.members - 1), plan.units);  // none is empty
                EXPECT_EQ(kThreads % plan.columns, 0);
                EXPECT_EQ(plan.rows ? plan.columns * plan.wide % 8 : 0, 0);  // whole bytes of mask
                EXPECT_GE(uint64_t{plan.turns} * (kThreads / plan.columns),
                          std::min(plan.share, plan.units));
                EXPECT_LE(plan.kept, plan.turns);
                // All blocks find room at once.
                EXPECT_LE(plan.teams * plan.members,
                          device.multiprocessors * blocks_at_once(plan.rows));
                EXPECT_LE((plan.shared_bytes + 1024) * blocks_at_once(plan.rows),
                          device.shared_bytes);
                EXPECT_LE(plan.shared_bytes, plan.most_shared_bytes);
                EXPECT_LE(workspace_bytes(plan), workspace_bytes(device));
                if (plan.wide > 1) {
                  EXPECT_TRUE(aligned);
                  EXPECT_EQ((plan.rows ? c : plan.length) % plan.wide, 0);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(CudaPlan, FillsTheDevice) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    for (const int tensors : {1, 2}) {
      const auto plan =
          make_plan({128, 64, 56, 56, layout, Type::kBf16, Type::kF32}, kLarge, tensors, true);
      ASSERT_TRUE(plan.ok());
      EXPECT_GE(plan->teams * plan->members, 132 * blocks_at_once(plan->rows) * 9 / 10);
      EXPECT_GE(plan->kept * 5, plan->turns) << "shared memory is used";
    }
  }
}

TEST(CudaPlan, ReadsNoNarrowSegmentsOfRows) {
  for (const int64_t c : {64, 256, 2048}) {
    for (const Type type : {Type::kF32, Type::kBf16}) {
      for (const int tensors : {1, 2}) {
        const auto plan =
            make_plan({64, c, 28, 28, Layout::kNhwc, type, Type::kF32}, kLarge, tensors, true);
        ASSERT_TRUE(plan.ok());
        EXPECT_GE(static_cast<size_t>(plan->tile) * size_of(type), 64U) << c;
      }
    }
  }
}

TEST(CudaPlan, DividesWithoutDividing) {
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) {
    const auto by = std::max(uint32_t{1}, static_cast<uint32_t>(random() >> (1 + random() % 31)));
    const auto n = static_cast<uint32_t>(random() >> 1);
    const Divisor divisor = divisor_of(by);
    const auto high = static_cast<uint32_t>((uint64_t{n} * divisor.factor) >> 32);
    ASSERT_EQ((high + n) >> divisor.shift, n / by) << n << " / " << by;
  }
}

TEST(CudaPlan, RefusesWhatTheKernelsDoNotTake) {
  EXPECT_FALSE(
      make_plan({2, 3, 4, 4, Layout::kNchw, Type::kF64, Type::kF32}, kLarge, 1, true).ok());
  EXPECT_FALSE(
      make_plan({1 << 20, 3, 256, 256, Layout::kNchw, Type::kF32, Type::kF32}, kLarge, 1, true)
          .ok());
}

}  // namespace
}  // namespace flatout::nn::cuda
