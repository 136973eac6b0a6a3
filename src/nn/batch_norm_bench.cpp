// Forward, and forward and backward with add and ReLU, in buffers that stay; bytes per second are
// of the least traffic: each tensor read or written once. BM_Copy is what the machine gives at
// best.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "nn/batch_norm.h"

namespace flatout::nn {
namespace {

struct Buffers {
  explicit Buffers(const Shape& s)
      : shape(s),
        x(size()),
        residual(size()),
        y(size()),
        dy(size()),
        dx(size()),
        d_residual(size()),
        mask(mask_bytes(s)),
        gamma(static_cast<size_t>(s.c), 1.0F),
        beta(gamma),
        mean(gamma.size()),
        inverse_std(gamma.size()) {
    for (size_t i = 0; i < size(); ++i) {
      x[i] = static_cast<float>(i * 2654435761U % 1000) / 500 - 1;
      residual[i] = dy[i] = x[i];
    }
  }
  size_t size() const { return static_cast<size_t>(shape.elements()); }
  size_t bytes() const { return size() * sizeof(float); }

  Shape shape;
  std::vector<float> x, residual, y, dy, dx, d_residual;
  std::vector<uint8_t> mask;
  std::vector<float> gamma, beta;
  std::vector<double> mean, inverse_std;
};

Shape shape_of(const benchmark::State& state) {
  const Layout layout = state.range(1) == 0 ? Layout::kNchw : Layout::kNhwc;
  if (state.range(0) == 25) return {32, 64, 56, 56, layout, Type::kF32, Type::kF32};
  return {32, 128, 20, 20, layout, Type::kF32, Type::kF32};
}

void BM_Copy(benchmark::State& state) {
  Buffers b(shape_of(state));
  for (auto _ : state) {
    std::memcpy(b.y.data(), b.x.data(), b.bytes());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 2 * static_cast<int64_t>(b.bytes()));
}

void BM_Forward(benchmark::State& state) {
  Buffers b(shape_of(state));
  const Forward forward{b.x.data(), nullptr, b.gamma.data(), b.beta.data(),
                        1e-5,       false,   b.y.data(),     nullptr};
  for (auto _ : state) {
    benchmark::DoNotOptimize(batch_norm_training(b.shape, forward,
                                                 {b.mean.data(), b.inverse_std.data()}, {},
                                                 {static_cast<int>(state.range(2))}));
  }
  state.SetBytesProcessed(state.iterations() * 2 * static_cast<int64_t>(b.bytes()));
}

void BM_AddReluForward(benchmark::State& state) {
  Buffers b(shape_of(state));
  const Forward forward{b.x.data(), b.residual.data(), b.gamma.data(), b.beta.data(), 1e-5,
                        true,       b.y.data(),        b.mask.data()};
  for (auto _ : state) {
    benchmark::DoNotOptimize(batch_norm_training(b.shape, forward,
                                                 {b.mean.data(), b.inverse_std.data()}, {},
                                                 {static_cast<int>(state.range(2))}));
  }
  state.SetBytesProcessed(state.iterations() * 3 * static_cast<int64_t>(b.bytes()));
}

void BM_AddReluBackward(benchmark::State& state) {
  Buffers b(shape_of(state));
  std::fill(b.inverse_std.begin(), b.inverse_std.end(), 1.0);
  Backward backward;
  backward.x = b.x.data();
  backward.dy = b.dy.data();
  backward.gamma = b.gamma.data();
  backward.mask = b.mask.data();
  backward.mean = b.mean.data();
  backward.inverse_std = b.inverse_std.data();
  backward.dx = b.dx.data();
  backward.d_residual = b.d_residual.data();
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        batch_norm_backward(b.shape, backward, {static_cast<int>(state.range(2))}));
  }
  state.SetBytesProcessed(state.iterations() * 4 * static_cast<int64_t>(b.bytes()));
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"MB", "NHWC", "threads"})
      ->Unit(benchmark::kMillisecond)
      ->MeasureProcessCPUTime();
  for (const int size : {25, 6}) {
    for (const int layout : {0, 1}) {
      for (const int threads : {1, 2}) bench->Args({size, layout, threads});
    }
  }
}

BENCHMARK(BM_Copy)
    ->ArgNames({"MB", "NHWC"})
    ->Args({25, 0})
    ->Args({6, 0})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Forward)->Apply(sizes);
BENCHMARK(BM_AddReluForward)->Apply(sizes);
BENCHMARK(BM_AddReluBackward)->Apply(sizes);

}  // namespace
}  // namespace flatout::nn
