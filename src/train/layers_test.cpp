// Every layer against what it is defined as: convolution against plain loops, gradients against
// central differences in f64.
#include "train/layers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "train/kernels.h"
#include "train/model.h"

namespace flatout::train {
namespace {

template <class T>
std::vector<T> random_values(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<T> out(count);
  for (T& value : out) value = static_cast<T>(random.range(-1, 1));
  return out;
}

template <class T>
T dot(const std::vector<T>& a, const std::vector<T>& b) {
  T sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// A layer with all it needs, for batches of `n`.
template <class T>
struct Bench {
  explicit Bench(int n, int threads = 2) : device("the device", 0, threads), plan(n) {
    pass.n = n;
    pass.device = &device;
    pass.plan = &plan;
  }
  template <class L, class... Arguments>
  Layer<T>& make(Arguments&&... arguments) {
    layer = std::make_unique<L>(std::forward<Arguments>(arguments)...);
    EXPECT_TRUE(plan.provide(device, 5).ok());
    return *layer;
  }
  std::vector<T> forward(const std::vector<T>& x) {
    std::vector<T> y(static_cast<size_t>(pass.n) * layer->out().count());
    EXPECT_TRUE(layer->forward(pass, x.data(), y.data()).ok());
    return y;
  }

  Device device;
  MemoryPlan<T> plan;
  Pass<T> pass;
  std::unique_ptr<Layer<T>> layer;
};

/// d(sum of y * seeds) / d(every input and parameter) against central differences.
void check_gradients(Bench<double>& bench) {
  Layer<double>& layer = *bench.layer;
  const auto n = static_cast<size_t>(bench.pass.n);
  // Parameters that are constants at first are moved, so that nothing is 0 or 1 by chance.
  const auto moved = random_values<double>(bench.plan.values().size(), 7);
  for (size_t i = 0; i < moved.size(); ++i) bench.plan.values()[i] += 0.1 * moved[i];
  auto x = random_values<double>(n * layer.in().count(), 1);
  const auto seeds = random_values<double>(n * layer.out().count(), 2);
  const std::vector<double> y = bench.forward(x);
  std::vector<double> dy = seeds;
  std::vector<double> dx(x.size());
  ASSERT_TRUE(layer.backward(bench.pass, x.data(), y.data(), dy.data(), dx.data()).ok());
  const std::vector<double> d_values(bench.plan.gradients().begin(), bench.plan.gradients().end());

  const auto check = [&](double& value, double gradient, const char* what, size_t i) {
    constexpr double kStep = 1e-5;
    const double before = value;
    value = before + kStep;
    const double above = dot(bench.forward(x), seeds);
    value = before - kStep;
    const double below = dot(bench.forward(x), seeds);
    value = before;
    const double numeric = (above - below) / (2 * kStep);
    EXPECT_NEAR(gradient, numeric, 1e-6 * std::max(1.0, std::fabs(numeric))) << what << i;
  };
  // About a hundred of each, evenly spread.
  for (size_t i = 0; i < x.size(); i += x.size() / 100 + 1) check(x[i], dx[i], "input ", i);
  const std::span<double> values = bench.plan.values();
  for (size_t i = 0; i < values.size(); i += values.size() / 100 + 1) {
    check(values[i], d_values[i], "parameter ", i);
  }
}

struct Case {
  Dims in;
  ConvolutionShape shape;
};
const Case kCases[] = {
    {{3, 9, 9}, {5, 3, 1, 1, true}},    {{2, 8, 8}, {4, 3, 2, 1, false}},
    {{4, 7, 5}, {20, 3, 2, 1, true}},   {{1, 12, 12}, {6, 5, 1, 2, true}},
    {{6, 10, 10}, {16, 5, 1, 0, true}}, {{16, 16, 16}, {16, 3, 1, 1, false}},
    {{17, 8, 8}, {33, 3, 1, 1, false}}, {{3, 6, 6}, {7, 1, 1, 0, true}},
};

template <class T>
std::vector<T> plain_convolution(const Case& c, Dims out, const std::vector<T>& x, int n,
                                 std::span<const T> weight, std::span<const T> bias) {
  std::vector<T> y;
  const int side = c.shape.side;
  for (int i = 0; i < n; ++i) {
    for (int o = 0; o < out.channels; ++o) {
      for (int v = 0; v < out.height; ++v) {
        for (int u = 0; u < out.width; ++u) {
          T sum = bias.empty() ? T{0} : bias[static_cast<size_t>(o)];
          for (int k = 0; k < c.in.channels * side * side; ++k) {
            const int row = v * c.shape.stride + k / side % side - c.shape.padding;
            const int column = u * c.shape.stride + k % side - c.shape.padding;
            if (row < 0 || row >= c.in.height || column < 0 || column >= c.in.width) continue;
            const int plane = i * c.in.channels + k / (side * side);
            const int tap = o * c.in.channels * side * side + k;
            const int pixel = (plane * c.in.height + row) * c.in.width + column;
            sum += weight[static_cast<size_t>(tap)] * x[static_cast<size_t>(pixel)];
          }
          y.push_back(sum);
        }
      }
    }
  }
  return y;
}

class ConvolutionCases : public ::testing::TestWithParam<Case> {};

TEST_P(ConvolutionCases, AreWhatTheLoopsSay) {
  const Case& c = GetParam();
  for (const bool simd : {true, false}) {
    use_simd(simd);
    Bench<float> bench(3);
    bench.make<Convolution<float>>(bench.plan, "conv", c.in, c.shape);
    const auto x = random_values<float>(3 * c.in.count(), 1);
    std::span<const float> bias;
    if (c.shape.bias) {
      const auto& values = bench.plan.parameters()[1].values;
      for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * static_cast<float>(i);
      bias = values;
    }
    const auto y = bench.forward(x);
    const auto plain = plain_convolution<float>(c, bench.layer->out(), x, 3,
                                                bench.plan.parameters()[0].values, bias);
    ASSERT_EQ(y.size(), plain.size());
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], plain[i], 2e-5) << i;
  }
  use_simd(true);
}

TEST_P(ConvolutionCases, HaveTheGradientsOfFiniteDifferences) {
  const Case& c = GetParam();
  Bench<double> bench(3);
  bench.make<Convolution<double>>(bench.plan, "conv", c.in, c.shape);
  check_gradients(bench);
}

TEST_P(ConvolutionCases, HaveTheGradientsOfF64InF32) {
  const Case& c = GetParam();
  std::vector<std::vector<double>> gradients;
  std::vector<std::vector<double>> inputs;
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    Bench<T> bench(5);
    bench.template make<Convolution<T>>(bench.plan, "conv", c.in, c.shape);
    const auto x = random_values<T>(5 * c.in.count(), 1);
    const auto y = bench.forward(x);
    auto dy = random_values<T>(y.size(), 2);
    std::vector<T> dx(x.size());
    ASSERT_TRUE(bench.layer->backward(bench.pass, x.data(), y.data(), dy.data(), dx.data()).ok());
    gradients.emplace_back(bench.plan.gradients().begin(), bench.plan.gradients().end());
    inputs.emplace_back(dx.begin(), dx.end());
  };
  run(0.0F);
  run(0.0);
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    ASSERT_NEAR(gradients[0][i], gradients[1][i], 2e-4) << i;
  }
  for (size_t i = 0; i < inputs[0].size(); ++i) ASSERT_NEAR(inputs[0][i], inputs[1][i], 2e-5) << i;
}

INSTANTIATE_TEST_SUITE_P(Layers, ConvolutionCases, ::testing::ValuesIn(kCases));

// A NaN is to be seen in the loss, not to vanish on its way.
TEST(Layers, ReluAndMaxPoolLetNansThrough) {
  const float nan = std::nanf("");
  for (int at = 0; at < 4; ++at) {
    std::vector<float> x = {1, -2, 3, -4};
    x[static_cast<size_t>(at)] = nan;
    Bench<float> relu(1);
    relu.make<Relu<float>>(Dims{1, 2, 2});
    const std::vector<float> y = relu.forward(x);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(std::isnan(y[static_cast<size_t>(i)]), i == at);
    Bench<float> pool(1);
    pool.make<MaxPool<float>>(pool.plan, Dims{1, 2, 2});
    EXPECT_TRUE(std::isnan(pool.forward(x)[0])) << at;
  }
}

TEST(Layers, HaveTheGradientsOfFiniteDifferences) {
  {
    SCOPED_TRACE("dense");
    Bench<double> bench(5);
    bench.make<Dense<double>>(bench.plan, "fc", Dims{3, 4, 2}, 21);
    check_gradients(bench);
  }
  {
    SCOPED_TRACE("relu");
    Bench<double> bench(4);
    bench.make<Relu<double>>(Dims{3, 5, 5});
    check_gradients(bench);
  }
  {
    SCOPED_TRACE("max pool");
    Bench<double> bench(4);
    bench.make<MaxPool<double>>(bench.plan, Dims{3, 7, 6});
    check_gradients(bench);
  }
  {
    SCOPED_TRACE("global average pool");
    Bench<double> bench(4);
    bench.make<GlobalAveragePool<double>>(Dims{5, 3, 4});
    check_gradients(bench);
  }
  {
    SCOPED_TRACE("batch norm, ReLU");
    Bench<double> bench(4);
    bench.make<BatchNormRelu<double>>(bench.plan, "bn", Dims{5, 3, 4});
    check_gradients(bench);
  }
  {
    SCOPED_TRACE("residual block");
    Bench<double> bench(3);
    bench.make<ResidualBlock<double>>(bench.plan, "block", Dims{6, 5, 5}, 6, 1);
    check_gradients(bench);
  }
  {
    SCOPED_TRACE("residual block that shrinks");
    Bench<double> bench(3);
    bench.make<ResidualBlock<double>>(bench.plan, "block", Dims{4, 6, 6}, 8, 2);
    check_gradients(bench);
  }
}

TEST(Layers, TheLossHasTheGradientOfFiniteDifferences) {
  auto logits = random_values<double>(15, 1);
  const int labels[] = {4, 0, 2};
  std::vector<double> d(logits.size());
  std::vector<double> unused(logits.size());
  softmax_cross_entropy(logits.data(), labels, 3, 5, d.data());
  for (size_t i = 0; i < logits.size(); ++i) {
    constexpr double kStep = 1e-6;
    logits[i] += kStep;
    const double above = softmax_cross_entropy(logits.data(), labels, 3, 5, unused.data()).loss;
    logits[i] -= 2 * kStep;
    const double below = softmax_cross_entropy(logits.data(), labels, 3, 5, unused.data()).loss;
    logits[i] += kStep;
    EXPECT_NEAR(d[i], (above - below) / (2 * kStep), 1e-8);
  }
}

TEST(Layers, TheLossOfHugeLogitsIsFinite) {
  const float logits[] = {1e4F, -1e4F};
  const int label = 1;
  float d[2];
  EXPECT_NEAR(softmax_cross_entropy(logits, &label, 1, 2, d).loss, 2e4, 1e-3);
  EXPECT_EQ(d[0], 1);
}

TEST(Models, DoNotDependOnTheNumberOfThreads) {
  for (const char* name : {"lenet", "resnet20"}) {
    const ModelInfo& info = *find_model(name);
    const auto x = random_values<float>(
        size_t{18} * static_cast<size_t>(info.channels * info.side * info.side), 1);
    const std::vector<int> labels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7};
    std::vector<std::vector<float>> gradients;
    for (const int threads : {1, 3}) {
      Device device("the device", 0, threads);
      const auto model = Model<float>::make(name, 10, 18, 1, device);
      ASSERT_TRUE(model.ok());
      ASSERT_TRUE((*model)->forward(x.data(), labels.data(), 18, true, nullptr, 0).ok());
      ASSERT_TRUE((*model)->backward(nullptr).ok());
      const auto g = (*model)->plan().gradients();
      gradients.emplace_back(g.begin(), g.end());
    }
    EXPECT_EQ(gradients[0], gradients[1]) << name;
  }
}

TEST(Models, HaveTheNumbersOfParametersThatThePapersGive) {
  Device device("the device", 0, 1);
  const auto lenet = Model<float>::make("lenet", 10, 1, 1, device);
  ASSERT_TRUE(lenet.ok());
  EXPECT_EQ((*lenet)->plan().values().size(), 61706u);
  const auto resnet = Model<float>::make("resnet20", 10, 1, 1, device);
  ASSERT_TRUE(resnet.ok());
  EXPECT_EQ((*resnet)->plan().values().size(), 269722u);
}

TEST(Models, TellWhichGradientsAreFinalFromTheLastToTheFirst) {
  Device device("the device", 0, 1);
  const auto model = Model<float>::make("lenet", 10, 2, 1, device);
  ASSERT_TRUE(model.ok());
  const auto x = random_values<float>(size_t{2} * 28 * 28, 1);
  const int labels[] = {1, 2};
  ASSERT_TRUE((*model)->forward(x.data(), labels, 2, true, nullptr, 0).ok());
  std::vector<size_t> seen;
  std::vector<float> then;  // the last layer's, as they were at the first call
  const auto gradients = (*model)->plan().gradients();
  ASSERT_TRUE((*model)
                  ->backward([&](size_t first) {
                    if (seen.empty()) then.assign(gradients.begin() + 60856, gradients.end());
                    seen.push_back(first);
                  })
                  .ok());
  EXPECT_EQ(seen.front(), 60856u);
  EXPECT_EQ(seen.back(), 0u);
  EXPECT_TRUE(std::is_sorted(seen.rbegin(), seen.rend()));
  EXPECT_TRUE(std::equal(then.begin(), then.end(), gradients.begin() + 60856));
}

TEST(Models, SayWhatTheyNeedOfADeviceThatIsTooSmall) {
  Device device("device 3", 8 << 20, 1);
  const auto model = Model<float>::make("resnet20", 10, 64, 1, device);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, Code::kFull);
  EXPECT_NE(model.error().message.find("device 3"), std::string::npos);
  EXPECT_NE(model.error().message.find("8.00 MiB"), std::string::npos) << model.error().message;
}

}  // namespace
}  // namespace flatout::train
