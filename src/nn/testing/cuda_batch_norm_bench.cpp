// Times of the CUDA kernels alone, in microseconds, and the share of the device's copy bandwidth
// that they reach over the least traffic: each tensor moved once. Needs a card.
//
//   nn_cuda_bench [--sweep]      --sweep: also with other divisions than make_plan() chooses
//   nn_cuda_bench --list FILE    calls with add and ReLU, for a profiler and for other kernels in
//   turn:
//                                lines of f32|bf16 nchw|nhwc N C H W forward|backward MEMBERS
//                                TILE_BYTES (0 0: make_plan's)
//
// bench/nn/card.py compares with PyTorch and cuDNN.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "nn/cuda_batch_norm.h"

namespace {

using namespace flatout::nn;

constexpr int kSets = 3;  // of buffers: no call finds its own last one's in a cache
constexpr int kCalls = 15;
constexpr std::chrono::milliseconds kQueueing(3);  // in which the host queues the calls

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Device memory, filled with numbers about 1 whatever they are taken for.
class Buffer {
 public:
  explicit Buffer(size_t bytes) {
    must(cudaMalloc(&pointer_, bytes));
    static std::vector<uint16_t> values;
    static uint32_t state = 1;
    while (values.size() * 2 < bytes) {
      state = state * 1664525 + 1013904223;
      values.push_back(static_cast<uint16_t>(0x3F00 | (state >> 24)));
    }
    must(cudaMemcpy(pointer_, values.data(), bytes, cudaMemcpyHostToDevice));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(pointer_); }

  template <class T>
  T* as() const {
    return static_cast<T*>(pointer_);
  }

 private:
  void* pointer_ = nullptr;
};

// The median of calls with each set of buffers in turn, in microseconds. They are queued while the
// device waits, so that what the host does for a call is not in it.
template <class Call>
double time(const Call& call) {
  cudaEvent_t between[kCalls + 1];
  for (cudaEvent_t& event : between) must(cudaEventCreate(&event));
  call(0);  // loads its code, which waits for the device
  must(cudaLaunchHostFunc(
      nullptr, [](void*) { std::this_thread::sleep_for(kQueueing); }, nullptr));
  must(cudaEventRecord(between[0]));
  for (int i = 0; i < kCalls; ++i) {
    call(i % kSets);
    must(cudaEventRecord(between[i + 1]));
  }
  must(cudaDeviceSynchronize());
  std::vector<double> times;
  for (int i = 0; i < kCalls; ++i) {
    float ms = 0;
    must(cudaEventElapsedTime(&ms, between[i], between[i + 1]));
    times.push_back(ms * 1e3);
  }
  for (cudaEvent_t event : between) must(cudaEventDestroy(event));
  std::nth_element(times.begin(), times.begin() + kCalls / 2, times.end());
  return times[kCalls / 2];
}

struct Set {
  explicit Set(const Shape& shape)
      : x(shape.elements() * size_of(shape.type)),
        residual(shape.elements() * size_of(shape.type)),
        y(shape.elements() * size_of(shape.type)),
        d_residual(shape.elements() * size_of(shape.type)),
        mask(mask_bytes(shape)),
        mean(shape.c * 8),
        inverse_std(shape.c * 8),
        gamma(shape.c * 4) {}
  Buffer x, residual, y, d_residual, mask, mean, inverse_std, gamma;
};

void check(const flatout::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::exit(1);
}

void measure(const Shape& shape, bool sweep, const cuda::Choice* one = nullptr,
             bool one_backward = false) {
  std::vector<std::unique_ptr<Set>> sets;
  for (int i = 0; i < kSets; ++i) sets.push_back(std::make_unique<Set>(shape));
  const auto bytes =
      static_cast<double>(shape.elements()) * static_cast<double>(size_of(shape.type));
  const auto bits = static_cast<double>(mask_bytes(shape));
  const double copy = time([&](int i) {
    must(cudaMemcpyAsync(sets[i]->y.as<void>(), sets[i]->x.as<void>(), static_cast<size_t>(bytes),
                         cudaMemcpyDeviceToDevice, nullptr));
  });
  const double per_byte = copy / (2 * bytes);
  const size_t needed = *cuda::workspace_bytes();
  const Buffer workspace(needed);

  const auto forward = [&](int i, bool add, const cuda::Choice& choice) {
    const Set& s = *sets[i];
    check(cuda::batch_norm_training(
        shape,
        {s.x.as<void>(), add ? s.residual.as<void>() : nullptr, s.gamma.as<void>(), nullptr, 1e-5,
         add, s.y.as<void>(), add ? s.mask.as<uint8_t>() : nullptr},
        {s.mean.as<double>(), s.inverse_std.as<double>()}, {},
        {-1, 0, nullptr, workspace.as<void>(), needed, choice}));
  };
  const auto backward = [&](int i, bool add, const cuda::Choice& choice) {
    const Set& s = *sets[i];
    Backward b;
    b.x = s.x.as<void>();
    b.dy = s.residual.as<void>();
    b.gamma = s.gamma.as<void>();
    b.mask = add ? s.mask.as<uint8_t>() : nullptr;
    b.mean = s.mean.as<double>();
    b.inverse_std = s.inverse_std.as<double>();
    b.dx = s.y.as<void>();
    b.d_residual = add ? s.d_residual.as<void>() : nullptr;
    check(cuda::batch_norm_backward(shape, b,
                                    {-1, 0, nullptr, workspace.as<void>(), needed, choice}));
  };
  if (one != nullptr) {
    const double took =
        time([&](int i) { one_backward ? backward(i, true, *one) : forward(i, true, *one); });
    const double least = one_backward ? 4 * bytes + bits : 3 * bytes + bits;
    std::printf("%-30s %-8s %d/%d %8.1f us  share %.3f\n", shape.text().c_str(),
                one_backward ? "backward" : "forward", one->tile_bytes, one->members, took,
                least * per_byte / took);
    return;
  }
  const bool rows = shape.layout == Layout::kNhwc;
  for (const bool back : {false, true}) {
    for (const bool add : {false, true}) {
      const double least =
          back ? (add ? 4 * bytes + bits : 3 * bytes) : (add ? 3 * bytes + bits : 2 * bytes);
      const auto once = [&](const cuda::Choice& choice) {
        return time([&](int i) { back ? backward(i, add, choice) : forward(i, add, choice); });
      };
      const double took = once({});
      std::printf("%-30s %6.1f MB %-8s %-8s %8.1f us  share %.3f\n", shape.text().c_str(),
                  bytes / 1e6, back ? "backward" : "forward", add ? "add relu" : "plain", took,
                  least * per_byte / took);
      if (!sweep || !add) continue;
      std::printf("   ");
      for (const int tile : {32, 64, 128}) {
        if (!rows && tile != 128) continue;
        for (const int members : {1, 2, 4, 8, 12, 16, 24, 33, 44, 66, 88, 132, 264, 528}) {
          const double other = once({members, tile});
          std::printf(" %d/%d %.3f", tile, members, least * per_byte / other);
        }
      }
      std::printf("\n");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): a tool
  const bool sweep = argc > 1 && std::strcmp(argv[1], "--sweep") == 0;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "there is no CUDA device\n");
    return 77;
  }
  if (argc == 3 && std::strcmp(argv[1], "--list") == 0) {
    std::ifstream file(argv[2]);
    std::string type, layout, way;
    Shape shape;
    cuda::Choice choice;
    while (file >> type >> layout >> shape.n >> shape.c >> shape.h >> shape.w >> way >>
           choice.members >> choice.tile_bytes) {
      shape.type = type == "bf16" ? Type::kBf16 : Type::kF32;
      shape.layout = layout == "nhwc" ? Layout::kNhwc : Layout::kNchw;
      shape.parameters = Type::kF32;
      measure(shape, false, &choice, way == "backward");
    }
    return 0;
  }
  struct Case {
    int64_t n, c, h, w;
    Type type;
  };
  std::vector<Case> cases = {
      {32, 256, 56, 56, Type::kF32},  {32, 64, 112, 112, Type::kF32},
      {64, 256, 56, 56, Type::kBf16}, {64, 64, 112, 112, Type::kBf16},
      {64, 512, 28, 28, Type::kBf16}, {64, 1024, 14, 14, Type::kBf16},
      {64, 2048, 7, 7, Type::kBf16},  {64, 64, 56, 56, Type::kF32},
  };
  for (const Case& c : cases) {
    for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      measure({c.n, c.c, c.h, c.w, layout, c.type, Type::kF32}, sweep);
    }
  }
  return 0;
}
