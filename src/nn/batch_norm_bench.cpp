// Forward, and forward and backward with add and ReLU, in buffers that stay; bytes per second are
// of the least traffic: each tensor read or written once. BM_Copy, BM_StreamedCopy and BM_Read are
// what the machine gives to as many threads: bench/nn/bandwidth.py holds the rest against them.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "base/half.h"
#include "nn/batch_norm.h"
#include "nn/kernels.h"
#include "nn/parallel.h"

namespace flatout::nn {
namespace {

struct Free {
  void operator()(void* data) const { std::free(data); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

// Of whole lines, at the beginning of one, as frameworks' tensors are.
Memory memory(size_t bytes) {
  const size_t whole = (bytes + kStreamBytes - 1) / kStreamBytes * kStreamBytes;
  return Memory(static_cast<uint8_t*>(std::aligned_alloc(kStreamBytes, whole)));
}

struct Buffers {
  explicit Buffers(const Shape& s)
      : shape(s),
        x(filled()),
        residual(filled()),
        y(filled()),
        dy(filled()),
        dx(filled()),
        d_residual(filled()),
        mask(mask_bytes(s)),
        gamma(static_cast<size_t>(s.c), 1.0F),
        beta(gamma),
        mean(gamma.size()),
        inverse_std(gamma.size()) {}

  size_t bytes() const { return static_cast<size_t>(shape.elements()) * size_of(shape.type); }

  Memory filled() const {
    Memory out = memory(bytes());
    for (int64_t i = 0; i < shape.elements(); ++i) {
      const auto value = static_cast<float>(i * 2654435761U % 1000) / 500 - 1;
      if (shape.type == Type::kF32) {
        reinterpret_cast<float*>(out.get())[i] = value;
      } else {
        reinterpret_cast<uint16_t*>(out.get())[i] =
            shape.type == Type::kBf16 ? to_bf16(value) : to_f16(value);
      }
    }
    return out;
  }

  Forward forward(bool add_relu) {
    return {x.get(), add_relu ? residual.get() : nullptr, gamma.data(), beta.data(), 1e-5, add_relu,
            y.get(), add_relu ? mask.data() : nullptr};
  }
  Statistics statistics() { return {mean.data(), inverse_std.data()}; }

  Shape shape;
  Memory x, residual, y, dy, dx, d_residual;
  std::vector<uint8_t> mask;
  std::vector<float> gamma, beta;
  std::vector<double> mean, inverse_std;
};

Shape shape_of(const benchmark::State& state) {
  Shape shape{32, 64, 56, 56};
  if (state.range(0) == 6) shape = {32, 128, 20, 20};
  if (state.range(0) == 3) shape = {32, 512, 7, 7};
  shape.layout = state.range(1) == 0 ? Layout::kNchw : Layout::kNhwc;
  shape.type = static_cast<Type>(state.range(2));
  return shape;
}

Threads threads_of(const benchmark::State& state) { return {static_cast<int>(state.range(3))}; }

void set_bytes(benchmark::State& state, size_t bytes, int tensors) {
  state.SetBytesProcessed(state.iterations() * tensors * static_cast<int64_t>(bytes));
}

void BM_Forward(benchmark::State& state) {
  Buffers b(shape_of(state));
  while (state.KeepRunning()) {
    benchmark::DoNotOptimize(
        batch_norm_training(b.shape, b.forward(false), b.statistics(), {}, threads_of(state)));
  }
  set_bytes(state, b.bytes(), 2);
}

void BM_AddReluForward(benchmark::State& state) {
  Buffers b(shape_of(state));
  while (state.KeepRunning()) {
    benchmark::DoNotOptimize(
        batch_norm_training(b.shape, b.forward(true), b.statistics(), {}, threads_of(state)));
  }
  set_bytes(state, b.bytes(), 3);
}

void BM_AddReluBackward(benchmark::State& state) {
  Buffers b(shape_of(state));
  benchmark::DoNotOptimize(batch_norm_training(b.shape, b.forward(true), b.statistics(), {}, {}));
  Backward backward;
  backward.x = b.x.get();
  backward.dy = b.dy.get();
  backward.gamma = b.gamma.data();
  backward.mask = b.mask.data();
  backward.mean = b.mean.data();
  backward.inverse_std = b.inverse_std.data();
  backward.dx = b.dx.get();
  backward.d_residual = b.d_residual.get();
  while (state.KeepRunning()) {
    benchmark::DoNotOptimize(batch_norm_backward(b.shape, backward, threads_of(state)));
  }
  set_bytes(state, b.bytes(), 4);
}

// What is left of a picture in a network's last stages: as many channels as values, or planes
// shorter than a vector. range: images, channels, side, layout, type, and which call.
enum Call { kTraining, kGradients, kInference };
void BM_Small(benchmark::State& state) {
  Buffers b({state.range(0), state.range(1), state.range(2), state.range(2),
             static_cast<Layout>(state.range(3)), static_cast<Type>(state.range(4))});
  std::vector<float> mean(b.gamma.size()), variance(b.gamma), d_gamma(b.gamma), d_beta(b.gamma);
  const Running running{mean.data(), variance.data()};
  benchmark::DoNotOptimize(
      batch_norm_training(b.shape, b.forward(false), b.statistics(), running, {}));
  Backward backward;
  backward.x = b.x.get();
  backward.dy = b.dy.get();
  backward.gamma = b.gamma.data();
  backward.mean = b.mean.data();
  backward.inverse_std = b.inverse_std.data();
  backward.dx = b.dx.get();
  backward.dgamma = d_gamma.data();
  backward.dbeta = d_beta.data();
  const int64_t call = state.range(5);
  while (state.KeepRunning()) {
    benchmark::DoNotOptimize(
        call == kTraining
            ? batch_norm_training(b.shape, b.forward(false), b.statistics(), running, {})
        : call == kGradients
            ? batch_norm_backward(b.shape, backward, {})
            : batch_norm_inference(b.shape, b.forward(false), mean.data(), variance.data(), {}));
  }
}

// Tensors of the size that range(0) names, cut into parts that threads take.
template <class Part>
void by_parts(benchmark::State& state, int tensors, const Part& part) {
  constexpr int64_t kParts = 16;
  const Shape shape = shape_of(state);
  const size_t bytes = static_cast<size_t>(shape.elements()) * size_of(shape.type);
  const size_t each = bytes / kParts / kStreamBytes * kStreamBytes;
  const Memory from = memory(bytes), to = memory(bytes);
  std::memset(from.get(), 1, bytes);
  std::memset(to.get(), 2, bytes);
  while (state.KeepRunning()) {
    parallel_for(threads_of(state), kParts, [&](int64_t i) {
      const auto at = static_cast<size_t>(i) * each;
      part(from.get() + at, to.get() + at, each);
    });
    benchmark::ClobberMemory();
  }
  set_bytes(state, each * kParts, tensors);
}

void BM_Copy(benchmark::State& state) {
  by_parts(state, 2,
           [](const uint8_t* from, uint8_t* to, size_t bytes) { std::memcpy(to, from, bytes); });
}

#if defined(__x86_64__)
void BM_StreamedCopy(benchmark::State& state) {
  by_parts(state, 2, [](const uint8_t* from, uint8_t* to, size_t bytes) {
    for (size_t i = 0; i < bytes; i += sizeof(__m128i)) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
    _mm_sfence();
  });
}

void BM_Read(benchmark::State& state) {
  by_parts(state, 1, [](const uint8_t* from, uint8_t* /*to*/, size_t bytes) {
    __m128i sums[4] = {};  // several, so that none waits for itself
    for (size_t i = 0; i < bytes; i += sizeof(sums)) {
#pragma GCC unroll 4  // else the sums stay in memory
      for (size_t k = 0; k < 4; ++k) {
        const auto* at = reinterpret_cast<const __m128i*>(from + i) + k;
        sums[k] = _mm_add_epi64(sums[k], _mm_load_si128(at));
      }
    }
    benchmark::DoNotOptimize(sums);
  });
}
#endif

void cases(benchmark::internal::Benchmark* bench, const std::vector<int64_t>& layouts,
           const std::vector<int64_t>& types) {
  bench->ArgNames({"MB", "NHWC", "type", "threads"})
      ->Unit(benchmark::kMillisecond)
      ->MeasureProcessCPUTime()
      ->UseRealTime()
      ->ArgsProduct({{25, 6, 3}, layouts, types, {1, 2}});
}

void each_case(benchmark::internal::Benchmark* bench) {
  cases(bench, {0, 1}, {int64_t(Type::kF32), int64_t(Type::kBf16), int64_t(Type::kF16)});
}
// Bytes are bytes: the size of an element and the number of threads are all that counts.
void each_size(benchmark::internal::Benchmark* bench) {
  cases(bench, {0}, {int64_t(Type::kF32), int64_t(Type::kBf16)});
}

void each_small_case(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"N", "C", "side", "NHWC", "type", "call"})->Unit(benchmark::kMicrosecond);
  for (const auto& [n, c, side] : {std::array<int64_t, 3>{8, 2048, 1}, {8, 512, 2}, {32, 512, 4}}) {
    for (const int64_t layout : {0, 1}) {
      for (const Type type : {Type::kF32, Type::kBf16}) {
        for (const Call call : {kTraining, kGradients, kInference}) {
          bench->Args({n, c, side, layout, int64_t(type), call});
        }
      }
    }
  }
}

BENCHMARK(BM_Copy)->Apply(each_size);
#if defined(__x86_64__)
BENCHMARK(BM_StreamedCopy)->Apply(each_size);
BENCHMARK(BM_Read)->Apply(each_size);
#endif
BENCHMARK(BM_Forward)->Apply(each_case);
BENCHMARK(BM_AddReluForward)->Apply(each_case);
BENCHMARK(BM_AddReluBackward)->Apply(each_case);
BENCHMARK(BM_Small)->Apply(each_small_case);

}  // namespace
}  // namespace flatout::nn
