// The CUDA kernels against the CPU's: on a card (label gpu), and as plain C++ (testing/on_host).
#include "nn/cuda_batch_norm.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "nn/testing/reference.h"

namespace flatout::nn {
namespace {

using testing::Tensor;

/// Device memory with a copy of `bytes` bytes, which come back with read(). It begins `offset`
/// bytes behind where device memory usually does.
class OnDevice {
 public:
  OnDevice(const void* data, size_t bytes, size_t offset = 0) : bytes_(bytes), offset_(offset) {
    EXPECT_EQ(cudaMalloc(&pointer_, bytes + offset), cudaSuccess);
    if (data != nullptr) {
      EXPECT_EQ(cudaMemcpy(as<void>(), data, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    }
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(pointer_); }

  template <class T>
  T* as() {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(pointer_) + offset_);
  }
  void read(void* to) {
    EXPECT_EQ(cudaMemcpy(to, as<void>(), bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
  }

 private:
  void* pointer_ = nullptr;
  size_t bytes_;
  size_t offset_;
};

class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no CUDA device";
  }
};

double allowed(Type type) {
  return type == Type::kF32 ? 4e-6 : type == Type::kBf16 ? 1.0 / 64 : 1.0 / 512;
}

void expect_close(const Tensor& got, const Tensor& want, double tolerance, const char* what) {
  for (int64_t i = 0; i < want.count(); ++i) {
    ASSERT_NEAR(got.get(i), want.get(i), tolerance * std::max(1.0, std::abs(want.get(i))))
        << what << "[" << i << "]";
  }
}

size_t bytes_of(const Tensor& tensor, Type type) {
  return static_cast<size_t>(tensor.count()) * size_of(type);
}

// A step of training, and inference with the running statistics that it leaves.
void compare(const Shape& shape, bool add, bool relu, double mean, size_t offset = 0,
             int spare = 0) {
  std::mt19937_64 random(7);
  const auto channels = static_cast<size_t>(shape.c);
  const auto tensor = [&] { return Tensor(shape.elements(), shape.type); };
  const auto parameter = [&] { return Tensor(shape.c, shape.parameters); };
  Tensor x = tensor(), residual = tensor(), dy = tensor();
  Tensor y = tensor(), dx = tensor(), d_residual = tensor();
  Tensor gamma = parameter(), beta = parameter(), dgamma = parameter(), dbeta = parameter();
  Tensor running_mean = parameter(), running_variance = parameter();
  x.fill(random, mean, 1);
  residual.fill(random, 0, 1);
  dy.fill(random, 0, 1);
  gamma.fill(random, 1, 0.3);
  beta.fill(random, 0, 0.3);
  std::vector<uint8_t> mask(mask_bytes(shape));
  std::vector<double> saved_mean(channels), inverse_std(channels);

  const size_t bytes = bytes_of(x, shape.type);
  OnDevice g_x(x.data(), bytes, offset), g_residual(residual.data(), bytes, offset);
  OnDevice g_dy(dy.data(), bytes, offset), g_y(nullptr, bytes, offset);
  OnDevice g_dx(nullptr, bytes, offset), g_d_residual(nullptr, bytes, offset);
  const size_t parameter_bytes = bytes_of(gamma, shape.parameters);
  OnDevice g_gamma(gamma.data(), parameter_bytes), g_beta(beta.data(), parameter_bytes);
  OnDevice g_dgamma(nullptr, parameter_bytes), g_dbeta(nullptr, parameter_bytes);
  OnDevice g_running_mean(running_mean.data(), parameter_bytes);
  OnDevice g_running_variance(running_variance.data(), parameter_bytes);
  OnDevice g_mask(nullptr, mask.size()), g_mean(nullptr, channels * 8),
      g_inverse_std(nullptr, channels * 8);
  const auto needed = cuda::workspace_bytes();
  ASSERT_TRUE(needed.ok()) << needed.error().message;
  OnDevice workspace(nullptr, *needed);
  const cuda::Queue queue{-1, spare, nullptr, workspace.as<void>(), *needed, {}};

  const Forward forward{
      x.data(), add ? residual.data() : nullptr, gamma.data(), beta.data(), 1e-5, relu,
      y.data(), relu ? mask.data() : nullptr};
  Forward g_forward = forward;
  g_forward.x = g_x.as<void>();
  g_forward.residual = add ? g_residual.as<void>() : nullptr;
  g_forward.gamma = g_gamma.as<void>();
  g_forward.beta = g_beta.as<void>();
  g_forward.y = g_y.as<void>();
  g_forward.mask = relu ? g_mask.as<uint8_t>() : nullptr;
  ASSERT_TRUE(batch_norm_training(shape, forward, {saved_mean.data(), inverse_std.data()},
                                  {running_mean.data(), running_variance.data()}, {})
                  .ok());
  const Status trained =
      cuda::batch_norm_training(shape, g_forward, {g_mean.as<double>(), g_inverse_std.as<double>()},
                                {g_running_mean.as<void>(), g_running_variance.as<void>()}, queue);
  ASSERT_TRUE(trained.ok()) << trained.error().message;

  Tensor got(shape.elements(), shape.type), got_parameter(shape.c, shape.parameters);
  g_y.read(got.data());
  expect_close(got, y, allowed(shape.type), "y");
  const double kept = shape.parameters == Type::kF32 ? 1e-6 : 1.0 / 256;
  g_running_mean.read(got_parameter.data());
  expect_close(got_parameter, running_mean, kept, "running mean");
  g_running_variance.read(got_parameter.data());
  expect_close(got_parameter, running_variance, kept, "running variance");

  // The device's own mask: where rounding decides a sign, both are right.
  g_mask.read(mask.data());
  Backward backward{x.data(),
                    dy.data(),
                    gamma.data(),
                    relu ? mask.data() : nullptr,
                    saved_mean.data(),
                    inverse_std.data(),
                    true,
                    dx.data(),
                    add ? d_residual.data() : nullptr,
                    dgamma.data(),
                    dbeta.data()};
  Backward g_backward = backward;
  g_backward.x = g_x.as<void>();
  g_backward.dy = g_dy.as<void>();
  g_backward.gamma = g_gamma.as<void>();
  g_backward.mask = relu ? g_mask.as<uint8_t>() : nullptr;
  g_backward.mean = g_mean.as<double>();
  g_backward.inverse_std = g_inverse_std.as<double>();
  g_backward.dx = g_dx.as<void>();
  g_backward.d_residual = add ? g_d_residual.as<void>() : nullptr;
  g_backward.dgamma = g_dgamma.as<void>();
  g_backward.dbeta = g_dbeta.as<void>();
  const double sums = std::max(kept, 1e-5 * std::sqrt(static_cast<double>(shape.per_channel())));
  for (const bool of_batch : {true, false}) {
    backward.batch_statistics = g_backward.batch_statistics = of_batch;
    ASSERT_TRUE(batch_norm_backward(shape, backward, {}).ok());
    ASSERT_TRUE(cuda::batch_norm_backward(shape, g_backward, queue).ok());
    g_dx.read(got.data());
    expect_close(got, dx, allowed(shape.type), "dx");
    if (add) {
      g_d_residual.read(got.data());
      expect_close(got, d_residual, 0, "d_residual");
    }
    g_dgamma.read(got_parameter.data());
    expect_close(got_parameter, dgamma, sums, "dgamma");
    g_dbeta.read(got_parameter.data());
    expect_close(got_parameter, dbeta, sums, "dbeta");
  }

  // Both from the CPU's, which may differ in the last digit.
  OnDevice statistics_mean(running_mean.data(), parameter_bytes);
  OnDevice statistics_variance(running_variance.data(), parameter_bytes);
  ASSERT_TRUE(
      batch_norm_inference(shape, forward, running_mean.data(), running_variance.data(), {}).ok());
  ASSERT_TRUE(cuda::batch_norm_inference(shape, g_forward, statistics_mean.as<void>(),
                                         statistics_variance.as<void>(), {})
                  .ok());
  g_y.read(got.data());
  expect_close(got, y, allowed(shape.type), "y of inference");
}

TEST_F(OnCuda, GivesWhatTheCpuGives) {
  std::vector<std::array<int64_t, 4>> sizes = {{2, 3, 5, 7},  {4, 16, 8, 8},  {9, 1, 1, 1},
                                               {5, 17, 1, 1}, {2, 130, 6, 6}, {2, 3, 50, 50}};
  // As plain C++ these take long.
  if (std::getenv("FLATOUT_TEST_DEVICE") == nullptr) {
    sizes.push_back({8, 300, 14, 14});
    sizes.push_back({32, 64, 56, 56});
  }
  for (const auto& [n, c, h, w] : sizes) {
    for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      for (const Type type : {Type::kF32, Type::kBf16, Type::kF16}) {
        for (const int what : {0, 3}) {
          const Shape shape{n, c, h, w, layout, type, Type::kF32};
          SCOPED_TRACE(shape.text());
          compare(shape, (what & 1) != 0, (what & 2) != 0, 0.5);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(OnCuda, TakesBuffersThatBeginAnywhere) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    compare({3, 24, 8, 8, layout, Type::kF32, Type::kF32}, true, true, 0.5, 4);
    compare({3, 24, 8, 8, layout, Type::kBf16, Type::kF32}, true, true, 0.5, 2);
  }
}

TEST_F(OnCuda, LeavesMultiprocessorsToOthers) {
  for (const int spare : {1, 1000}) {  // one is taken at least
    compare({3, 24, 8, 8, Layout::kNhwc, Type::kF32, Type::kF32}, true, true, 0.5, 0, spare);
  }
}

TEST_F(OnCuda, TakesParametersOfOtherTypes) {
  for (const Type parameters : {Type::kBf16, Type::kF16}) {
    compare({3, 24, 8, 8, Layout::kNchw, Type::kBf16, parameters}, true, true, 0.5);
  }
}

TEST_F(OnCuda, LosesNoDigitsOfALargeMean) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    compare({8, 24, 30, 30, layout, Type::kF32, Type::kF32}, false, false, 1e4);
  }
}

TEST_F(OnCuda, NamesWhatIsWrong) {
  const Shape shape{2, 3, 4, 4, Layout::kNchw, Type::kF32, Type::kF32};
  float value = 0;
  double statistic = 0;
  Forward forward;
  forward.x = forward.y = &value;
  const Status status = cuda::batch_norm_training(shape, forward, {&statistic, &statistic}, {}, {});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("the workspace has 0 bytes"), std::string::npos);
}

}  // namespace
}  // namespace flatout::nn
