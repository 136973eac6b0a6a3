#include "nn/cuda_plan.h"

#include <gtest/gtest.h>

namespace flatout::nn::cuda {
namespace {

TEST(CudaPlan, CoversEveryValueOnceWhateverTheShape) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    for (const int64_t n : {1, 3, 64}) {
      for (const int64_t c : {1, 3, 8, 33, 64, 2048}) {
        for (const int64_t side : {1, 7, 8, 56}) {
          const Shape shape{n, c, side, side, layout, Type::kBf16, Type::kF32};
          SCOPED_TRACE(shape.text());
          const auto plan = make_plan(shape, 132);
          ASSERT_TRUE(plan.ok());
          EXPECT_EQ(plan->stride * plan->outer, shape.elements());
          EXPECT_EQ(static_cast<size_t>(plan->mask_stride * plan->outer), mask_bytes(shape));
          EXPECT_GE(int64_t{plan->tiles} * plan->tile, c);
          EXPECT_LT((int64_t{plan->tiles} - 1) * plan->tile, c);
          EXPECT_GE(plan->per_split * plan->splits, plan->units);
          EXPECT_LT(plan->per_split * (plan->splits - 1), plan->units);  // none is empty
          EXPECT_EQ(kThreads % plan->columns, 0);
          EXPECT_GE(plan->columns * kWide, plan->rows ? std::min<int64_t>(c, 256) : 1);
        }
      }
    }
  }
}

TEST(CudaPlan, FillsTheDeviceWhereThereIsEnoughToDo) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    const auto plan = make_plan({128, 64, 56, 56, layout, Type::kF32, Type::kF32}, 132);
    ASSERT_TRUE(plan.ok());
    EXPECT_GE(plan->tiles * plan->splits, 8 * 132);
  }
}

TEST(CudaPlan, RefusesWhatTheKernelsDoNotTake) {
  EXPECT_FALSE(make_plan({2, 3, 4, 4, Layout::kNchw, Type::kF64, Type::kF32}, 132).ok());
  EXPECT_FALSE(make_plan({1 << 20, 3, 256, 256, Layout::kNchw, Type::kF32, Type::kF32}, 132).ok());
}

}  // namespace
}  // namespace flatout::nn::cuda
