// Every path against the definition in f64: instruction sets, layouts, types, shapes whose sizes
// are no multiple of anything.
#include "nn/batch_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "nn/kernels.h"
#include "nn/testing/reference.h"

namespace flatout::nn {
namespace {

using testing::each;
using testing::Expected;
using testing::expected;
using testing::Inputs;
using testing::Tensor;

constexpr double kEpsilon = 1e-5;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Half a unit in the last place of results around 1, and some for the arithmetic before it.
double tolerance(Type type) {
  switch (type) {
    case Type::kF32:
      return 2e-6;
    case Type::kBf16:
      return 1.0 / 128;
    case Type::kF16:
      return 1.0 / 1024;
    case Type::kF64:
      break;
  }
  return 1e-13;
}

std::vector<Isa> isas() {
  std::vector<Isa> out;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (has_isa(isa)) out.push_back(isa);
  }
  return out;
}

// One forward and backward with all that it needs and gives.
struct Step {
  Step(const Shape& s, uint64_t seed, double mean = 0.5, double deviation = 2)
      : shape(s),
        x(s.elements(), s.type),
        residual(s.elements(), s.type),
        dy(s.elements(), s.type),
        gamma(s.c, s.parameters),
        beta(s.c, s.parameters),
        y(s.elements(), s.type),
        dx(s.elements(), s.type),
        d_residual(s.elements(), s.type),
        dgamma(s.c, s.parameters),
        dbeta(s.c, s.parameters),
        running_mean(s.c, s.parameters),
        running_variance(s.c, s.parameters),
        mask(mask_bytes(s), 0xAA),
        saved_mean(static_cast<size_t>(s.c)),
        saved_inverse_std(static_cast<size_t>(s.c)) {
    std::mt19937_64 random(seed);
    x.fill(random, mean, deviation);
    residual.fill(random, 0, 1);
    dy.fill(random, 0.1, 1);
    gamma.fill(random, 1, 0.5);
    beta.fill(random, 0, 0.5);
    for (int64_t c = 0; c < s.c; ++c) running_variance.set(c, 1);
  }

  Forward forward(bool add, bool relu) {
    return {x.data(), add ? residual.data() : nullptr, gamma.data(), beta.data(), kEpsilon, relu,
            y.data(), relu ? mask.data() : nullptr};
  }
  Backward backward(bool add, bool relu) {
    return {x.data(),
            dy.data(),
            gamma.data(),
            relu ? mask.data() : nullptr,
            saved_mean.data(),
            saved_inverse_std.data(),
            true,
            dx.data(),
            add ? d_residual.data() : nullptr,
            dgamma.data(),
            dbeta.data()};
  }
  Statistics statistics() { return {saved_mean.data(), saved_inverse_std.data()}; }
  Running running() { return {running_mean.data(), running_variance.data(), 0.1, true}; }
  Inputs inputs(bool add, bool relu) const {
    return {&x, add ? &residual : nullptr, &gamma, &beta, &dy, relu, kEpsilon};
  }

  void run(bool add, bool relu, const Threads& threads = {}) {
    const Status trained =
        batch_norm_training(shape, forward(add, relu), statistics(), running(), threads);
    ASSERT_TRUE(trained.ok()) << trained.error().message;
    const Status back = batch_norm_backward(shape, backward(add, relu), threads);
    ASSERT_TRUE(back.ok()) << back.error().message;
  }

  Shape shape;
  Tensor x, residual, dy, gamma, beta, y, dx, d_residual, dgamma, dbeta, running_mean,
      running_variance;
  std::vector<uint8_t> mask;
  std::vector<double> saved_mean, saved_inverse_std;
};

// Differences count in units of the type's step, and of the size of what was added up.
void expect_close(const Tensor& got, const std::vector<double>& want, double allowed,
                  const char* what) {
  ASSERT_EQ(static_cast<size_t>(got.count()), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const double value = got.get(static_cast<int64_t>(i));
    ASSERT_LE(std::abs(value - want[i]), allowed * std::max(1.0, std::abs(want[i])))
        << what << "[" << i << "] is " << value << ", not " << want[i];
  }
}

std::vector<double> relu_of(std::vector<double> z, bool relu) {
  if (relu) {
    for (double& value : z) value = std::max(value, 0.0);
  }
  return z;
}

void expect_as_defined(const Shape& shape, bool add, bool relu) {
  Step step(shape, 7);
  const double allowed = tolerance(shape.type);
  if (relu) {  // where z is so near to zero that rounding decides its sign, dz is zero in any case
    const Expected forward = expected(shape, step.inputs(add, relu));
    for (int64_t i = 0; i < shape.elements(); ++i) {
      if (std::abs(forward.z[size_t(i)]) < 4 * allowed) step.dy.set(i, 0);
    }
  }
  const Expected want = expected(shape, step.inputs(add, relu));
  step.run(add, relu);
  if (::testing::Test::HasFatalFailure()) return;

  const double count = static_cast<double>(shape.per_channel());
  for (int64_t c = 0; c < shape.c; ++c) {
    const auto i = static_cast<size_t>(c);
    EXPECT_NEAR(step.saved_mean[i], want.mean[i], 1e-6);
    EXPECT_NEAR(step.saved_inverse_std[i] * std::sqrt(want.variance[i] + kEpsilon), 1, 1e-6);
    const double parameter = tolerance(shape.parameters);
    EXPECT_NEAR(step.running_mean.get(c), 0.1 * want.mean[i], parameter);
    EXPECT_NEAR(step.running_variance.get(c), 0.9 + 0.1 * want.variance[i] * count / (count - 1),
                4 * parameter);
  }
  expect_close(step.y, relu_of(want.z, relu), allowed, "y");
  if (add) expect_close(step.d_residual, want.dz, allowed, "d_residual");
  expect_close(step.dx, want.dx, 2 * allowed, "dx");
  const double sums = std::max(tolerance(shape.parameters), 1e-6) * std::sqrt(count);
  expect_close(step.dgamma, want.dgamma, sums, "dgamma");
  expect_close(step.dbeta, want.dbeta, sums, "dbeta");
}

class EveryIsa : public ::testing::Test {
 protected:
  ~EveryIsa() override { set_isa(before_); }

 private:
  Isa before_ = used_isa();
};

TEST_F(EveryIsa, GivesWhatTheDefinitionSays) {
  const std::vector<Shape> shapes = {
      {2, 3, 5, 7},  {4, 16, 8, 8},  {1, 1, 4, 4},  {9, 1, 1, 1},   {5, 17, 1, 1},
      {3, 41, 7, 7}, {2, 64, 5, 4},  {40, 8, 3, 1}, {33, 2, 31, 9}, {2, 1, 17, 9},
      {37, 5, 4, 4}, {5, 135, 2, 4}, {6, 9, 29, 1}, {9, 33, 2, 1},  // short planes
  };
  for (const Isa isa : isas()) {
    set_isa(isa);
    for (Shape shape : shapes) {
      for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
        for (const Type type : {Type::kF32, Type::kBf16, Type::kF16, Type::kF64}) {
          shape.layout = layout;
          shape.type = type;
          shape.parameters = type == Type::kF64 ? Type::kF64 : Type::kF32;
          for (const int what : {0, 1, 2, 3}) {
            SCOPED_TRACE(shape.text() + " " + std::string(isa_name(isa)) +
                         ((what & 1) != 0 ? " +add" : "") + ((what & 2) != 0 ? " +ReLU" : ""));
            expect_as_defined(shape, (what & 1) != 0, (what & 2) != 0);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// More than one chunk of rows of an odd number of channels.
TEST_F(EveryIsa, TakesWideRows) {
  for (const Isa isa : isas()) {
    SCOPED_TRACE(isa_name(isa));
    set_isa(isa);
    expect_as_defined({2, 265, 17, 17, Layout::kNhwc, Type::kF32, Type::kF32}, true, true);
  }
}

TEST_F(EveryIsa, TakesParametersOfTheTypeOfTheData) {
  for (const Isa isa : isas()) {
    set_isa(isa);
    for (const Type type : {Type::kBf16, Type::kF16}) {
      expect_as_defined({4, 24, 6, 6, Layout::kNhwc, type, type}, true, true);
      expect_as_defined({4, 24, 6, 6, Layout::kNchw, type, type}, true, true);
    }
  }
}

// Large enough to be stored past the caches, which plain C++ never does. Where rounding decides a
// sign, one mask is as good as the other: backward gets that of plain C++.
TEST_F(EveryIsa, StreamsWhatIsLarge) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    for (const Type type : {Type::kF32, Type::kBf16}) {
      for (Shape shape : {Shape{3, type == Type::kF32 ? 32 : 64, 112, 112},
                          Shape{type == Type::kF32 ? 64 : 128, 512, 4, 4}}) {
        shape.layout = layout;
        shape.type = type;
        set_isa(Isa::kPortable);
        Step plain(shape, 7);
        plain.run(true, true);
        for (const Isa isa : isas()) {
          SCOPED_TRACE(shape.text() + " " + std::string(isa_name(isa)));
          set_isa(isa);
          Step step(shape, 7);
          step.run(true, true);
          step.mask = plain.mask;
          ASSERT_TRUE(batch_norm_backward(shape, step.backward(true, true), {}).ok());
          for (int64_t i = 0; i < shape.elements(); ++i) {
            const double y = plain.y.get(i), dx = plain.dx.get(i);
            ASSERT_NEAR(step.y.get(i), y, tolerance(type) * std::max(1.0, std::abs(y)));
            ASSERT_NEAR(step.dx.get(i), dx, tolerance(type) * std::max(1.0, std::abs(dx)));
            ASSERT_EQ(step.d_residual.get(i), plain.d_residual.get(i));
          }
        }
      }
    }
  }
}

TEST_F(EveryIsa, LosesNoDigitsOfALargeMean) {
  for (const Isa isa : isas()) {
    set_isa(isa);
    for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      for (const Shape& shape : {Shape{8, 24, 30, 30, layout, Type::kF32, Type::kF32},
                                 Shape{450, 24, 4, 4, layout, Type::kF32, Type::kF32}}) {
        Step step(shape, 3, 1e4, 1);
        const Expected want = expected(shape, step.inputs(false, false));
        step.run(false, false);
        expect_close(step.y, want.z, 1e-6, "y");
        expect_close(step.dx, want.dx, 1e-6, "dx");
        for (size_t c = 0; c < 24; ++c) {
          EXPECT_NEAR(step.saved_inverse_std[c] * std::sqrt(want.variance[c] + kEpsilon), 1, 1e-7);
        }
      }
    }
  }
}

TEST_F(EveryIsa, LosesNoDigitsWhereTheFirstValuesAreFarFromTheRest) {
  for (const Isa isa : isas()) {
    set_isa(isa);
    for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      const Shape shape{64, 5, 32, 32, layout, Type::kF32, Type::kF32};
      Step step(shape, 3, 1e4, 1e-2);
      for (int64_t c = 0; c < shape.c; ++c) {
        for (int64_t j = 0; j < 16; ++j) {
          step.x.set(layout == Layout::kNchw ? c * 1024 + j : j * shape.c + c, 9990);
        }
      }
      const Expected want = expected(shape, step.inputs(false, false));
      step.run(false, false);
      for (size_t c = 0; c < 5; ++c) {
        EXPECT_NEAR(step.saved_inverse_std[c] * std::sqrt(want.variance[c] + kEpsilon), 1, 1e-7);
      }
    }
  }
}

TEST(BatchNorm, AConstantChannelHasNoVariance) {
  const Shape shape{3, 2, 8, 8, Layout::kNchw, Type::kF32, Type::kF32};
  Step step(shape, 1);
  for (int64_t i = 0; i < shape.elements(); ++i) step.x.set(i, 0.1F);
  step.run(false, false);
  EXPECT_EQ(step.saved_mean[0], static_cast<double>(0.1F));
  EXPECT_EQ(step.saved_inverse_std[1], 1 / std::sqrt(kEpsilon));
  EXPECT_EQ(step.y.get(5), step.beta.get(0));
}

TEST(BatchNorm, SquaresBeyondTheRangeOfFloatsDoNotOverflow) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    const Shape shape{2, 3, 4, 4, layout, Type::kF32, Type::kF32};
    Step step(shape, 1, 0, 1e25);
    const Expected want = expected(shape, step.inputs(false, false));
    step.run(false, false);
    expect_close(step.y, want.z, 2e-6, "y");
  }
}

TEST(BatchNorm, NonFiniteValuesSpreadOverTheirChannelAndNoFurther) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    for (const double value : {kInfinity, -kInfinity, std::nan("")}) {
      for (const int64_t images : {2, 5}) {
        const Shape shape{images, 3, 4, 4, layout, Type::kF32, Type::kF32};
        Step step(shape, 1);
        const int64_t at = layout == Layout::kNchw ? 16 + 5 : 5 * 3 + 1;  // of channel 1
        step.x.set(at, value);
        step.run(false, true);
        each(shape, [&](int64_t c, int64_t i) {
          EXPECT_EQ(std::isnan(step.y.get(i)), c == 1);
          EXPECT_EQ(std::isnan(step.dx.get(i)), c == 1);
        });
        EXPECT_TRUE(std::isnan(value) ? std::isnan(step.running_mean.get(1))
                                      : step.running_mean.get(1) == value);
        EXPECT_TRUE(std::isnan(step.running_variance.get(1)));
        EXPECT_TRUE(std::isfinite(step.running_variance.get(0)));
        EXPECT_TRUE(std::isfinite(step.running_variance.get(2)));
      }
    }
  }
}

bool same_bits(const Tensor& a, const Tensor& b, Type type) {
  return std::memcmp(a.data(), b.data(), static_cast<size_t>(a.count()) * size_of(type)) == 0;
}

TEST(BatchNorm, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    for (const int64_t channels : {1, 2, 3, 70}) {
      for (const Shape& shape : {Shape{17, channels, 21, 11, layout, Type::kF32, Type::kF32},
                                 Shape{70, 10 * channels, 4, 2, layout, Type::kF32, Type::kF32}}) {
        Step one(shape, 5);
        one.run(true, true);
        for (const int threads : {2, 3, 8}) {
          SCOPED_TRACE(shape.text() + " by " + std::to_string(threads));
          Step many(shape, 5);
          many.run(true, true, {threads});
          EXPECT_TRUE(same_bits(one.y, many.y, shape.type));
          EXPECT_TRUE(same_bits(one.dx, many.dx, shape.type));
          EXPECT_TRUE(same_bits(one.dgamma, many.dgamma, shape.type));
          EXPECT_EQ(one.saved_inverse_std, many.saved_inverse_std);
          EXPECT_EQ(one.mask, many.mask);
        }
      }
    }
  }
}

int most_threads = 0;
void count_threads(int count, void (*task)(void*), void* data) {
  most_threads = std::max(most_threads, count);
  task(data);
}

TEST(BatchNorm, WakesNoMoreThreadsThanThereIsWorkFor) {
  const auto woken = [](const Shape& shape) {
    most_threads = 0;
    Step(shape, 5).run(false, false, {8, &count_threads});
    return most_threads;
  };
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    EXPECT_EQ(woken({1, 512, 4, 4, layout, Type::kF32, Type::kF32}), 0);
    EXPECT_EQ(woken({8, 64, 16, 16, layout, Type::kF32, Type::kF32}), 4);
    EXPECT_EQ(woken({16, 64, 32, 32, layout, Type::kF32, Type::kF32}), 8);
  }
}

TEST(BatchNorm, WorksInPlace) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    const Shape shape{4, 9, 130, 130, layout, Type::kF32, Type::kF32};
    Step apart(shape, 5), in_place(shape, 5);
    apart.run(true, true);
    Forward forward = in_place.forward(true, true);
    forward.y = in_place.residual.data();
    ASSERT_TRUE(
        batch_norm_training(shape, forward, in_place.statistics(), in_place.running(), {}).ok());
    EXPECT_TRUE(same_bits(in_place.residual, apart.y, shape.type));
    Backward backward = in_place.backward(true, true);
    backward.dx = in_place.dy.data();
    ASSERT_TRUE(batch_norm_backward(shape, backward, {}).ok());
    EXPECT_TRUE(same_bits(in_place.dy, apart.dx, shape.type));
    EXPECT_TRUE(same_bits(in_place.d_residual, apart.d_residual, shape.type));
    Step over(shape, 5);
    over.run(true, true);
    backward = over.backward(true, true);
    backward.d_residual = over.dy.data();
    ASSERT_TRUE(batch_norm_backward(shape, backward, {}).ok());
    EXPECT_TRUE(same_bits(over.dy, apart.d_residual, shape.type));
    EXPECT_TRUE(same_bits(over.dx, apart.dx, shape.type));
  }
}

TEST(BatchNorm, InferenceUsesTheRunningStatistics) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    const Shape shape{1, 21, 9, 5, layout, Type::kF32, Type::kF32};
    Step step(shape, 11);
    std::mt19937_64 random(1);
    step.running_mean.fill(random, 0, 1);
    for (int64_t c = 0; c < shape.c; ++c) step.running_variance.set(c, 0.5 + 0.1 * c);
    ASSERT_TRUE(batch_norm_inference(shape, step.forward(true, true), step.running_mean.data(),
                                     step.running_variance.data(), {2})
                    .ok());
    each(shape, [&](int64_t c, int64_t i) {
      const double z = step.gamma.get(c) * (step.x.get(i) - step.running_mean.get(c)) /
                           std::sqrt(step.running_variance.get(c) + kEpsilon) +
                       step.beta.get(c) + step.residual.get(i);
      ASSERT_NEAR(step.y.get(i), std::max(z, 0.0), 1e-5);
    });
  }
}

TEST(BatchNorm, BackwardThroughConstantStatisticsScalesOnly) {
  const Shape shape{2, 5, 3, 3, Layout::kNhwc, Type::kF32, Type::kF32};
  Step step(shape, 2);
  step.run(false, false);
  Backward backward = step.backward(true, false);
  backward.batch_statistics = false;
  ASSERT_TRUE(batch_norm_backward(shape, backward, {}).ok());
  EXPECT_TRUE(std::memcmp(step.d_residual.data(), step.dy.data(), 90 * sizeof(float)) == 0);
  const Expected want = expected(shape, step.inputs(false, false));
  each(shape, [&](int64_t c, int64_t i) {
    ASSERT_NEAR(step.dx.get(i),
                step.dy.get(i) * step.gamma.get(c) * step.saved_inverse_std[size_t(c)], 1e-6);
  });
  expect_close(step.dgamma, want.dgamma, 1e-5, "dgamma");
}

// Three replicas with parts of different sizes give what one does with the whole batch.
TEST(BatchNorm, ReplicasInStagesEqualTheJointBatch) {
  const int64_t channels = 12, area = 36;
  const Shape whole{9, channels, 6, 6, Layout::kNchw, Type::kF32, Type::kF32};
  Step joint(whole, 4, 100, 3);
  joint.run(true, true);

  const std::vector<int64_t> sizes = {4, 3, 2};
  std::vector<Step> replicas;
  Moments total{0, nullptr, nullptr};
  std::vector<double> mean(size_t(channels), 0), m2(size_t(channels), 0);
  total.mean = mean.data();
  total.m2 = m2.data();
  int64_t begin = 0;
  for (const int64_t n : sizes) {
    Shape part = whole;
    part.n = n;
    Step& replica = replicas.emplace_back(part, 4);
    for (int64_t i = 0; i < part.elements(); ++i) {
      replica.x.set(i, joint.x.get(begin * channels * area + i));
      replica.residual.set(i, joint.residual.get(begin * channels * area + i));
      replica.dy.set(i, joint.dy.get(begin * channels * area + i));
    }
    for (int64_t c = 0; c < channels; ++c) {
      replica.gamma.set(c, joint.gamma.get(c));
      replica.beta.set(c, joint.beta.get(c));
    }
    begin += n;
    std::vector<double> own_mean(size_t(channels), 0), own_m2(size_t(channels), 0);
    Moments own{0, own_mean.data(), own_m2.data()};
    ASSERT_TRUE(batch_norm_moments(part, replica.x.data(), {}, &own).ok());
    combine(channels, own, &total);
  }
  EXPECT_EQ(total.count, 9.0 * 36);

  std::vector<double> dz(size_t(channels), 0), dot(size_t(channels), 0);
  for (Step& replica : replicas) {
    ASSERT_TRUE(
        batch_norm_finish(replica.shape, total, kEpsilon, replica.statistics(), replica.running())
            .ok());
    ASSERT_TRUE(
        batch_norm_apply(replica.shape, replica.forward(true, true), replica.statistics(), {})
            .ok());
    std::vector<double> own_dz(size_t(channels), 0), own_dot(size_t(channels), 0);
    ASSERT_TRUE(batch_norm_backward_sums(replica.shape, replica.backward(true, true), {},
                                         {own_dz.data(), own_dot.data()})
                    .ok());
    for (size_t c = 0; c < size_t(channels); ++c) {
      dz[c] += own_dz[c];
      dot[c] += own_dot[c];
    }
  }
  begin = 0;
  for (Step& replica : replicas) {
    ASSERT_TRUE(batch_norm_backward_apply(replica.shape, replica.backward(true, true),
                                          {dz.data(), dot.data()}, total.count, {})
                    .ok());
    const int64_t first = begin * channels * area;
    for (int64_t i = 0; i < replica.shape.elements(); ++i) {
      ASSERT_NEAR(replica.y.get(i), joint.y.get(first + i), 1e-6);
      ASSERT_NEAR(replica.dx.get(i), joint.dx.get(first + i), 1e-6);
      ASSERT_EQ(replica.d_residual.get(i), joint.d_residual.get(first + i));
    }
    for (int64_t c = 0; c < channels; ++c) {
      EXPECT_NEAR(replica.running_variance.get(c), joint.running_variance.get(c), 1e-6);
      EXPECT_NEAR(replica.dgamma.get(c), joint.dgamma.get(c), 1e-4);
    }
    begin += replica.shape.n;
  }
}

TEST(BatchNorm, BadInputIsNamedWithItsShape) {
  const Shape good{2, 3, 4, 5, Layout::kNhwc, Type::kF16, Type::kF32};
  const auto message = [](const Shape& shape, const std::function<void(Forward&)>& spoil,
                          int threads = 1) {
    Step step(Shape{2, 3, 4, 5, Layout::kNhwc, Type::kF16, Type::kF32}, 1);
    Forward forward = step.forward(true, true);
    spoil(forward);
    const Status status =
        batch_norm_training(shape, forward, step.statistics(), step.running(), {threads});
    return status.ok() ? "" : status.error().message;
  };
  const auto nothing = [](Forward&) {};
  const std::string start = "batch norm of x [2, 4, 5, 3] NHWC f16: ";
  EXPECT_EQ(message(good, nothing), "");
  EXPECT_EQ(message(good, [](Forward& f) { f.x = nullptr; }), start + "x is null");
  EXPECT_EQ(message(good, [](Forward& f) { f.y = nullptr; }), start + "y is null");
  EXPECT_EQ(message(good, [](Forward& f) { f.relu = false; }), start + "a mask without relu");
  EXPECT_EQ(message(good, nothing, 0), start + "threads is 0; at least 1 is needed");
  Shape shape = good;
  shape.n = 0;
  EXPECT_EQ(message(shape, nothing), "batch norm of x [0, 4, 5, 3] NHWC f16: it has no elements");
  shape.n = -2;
  EXPECT_EQ(message(shape, nothing), "batch norm of x [-2, 4, 5, 3] NHWC f16: a size is negative");
  shape.n = int64_t{1} << 45;
  EXPECT_NE(message(shape, nothing).find("more elements than memory can hold"), std::string::npos);
  EXPECT_EQ(
      message({1, 3, 1, 1, Layout::kNchw, Type::kF32, Type::kF32}, nothing),
      "batch norm of x [1, 3, 1, 1] NCHW f32: training needs more than one value per channel, "
      "there is 1");
}

}  // namespace
}  // namespace flatout::nn
