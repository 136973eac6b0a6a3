// In place of nn/cuda_device.h: the kernels of nn/cuda_kernels.h as plain C++, for a machine
// without a card. Every thread of a launch is a fiber; they take turns, in fixed order, wherever
// they wait for each other. What this cannot show: races within a warp, and speed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __global__
#define __global__

namespace flatout::nn::cuda {

using std::isfinite;

constexpr int kLanes = 32;

/// Where threads wait until all of them have come.
struct Meeting {
  unsigned expected = 0;
  unsigned come = 0;
  unsigned times = 0;
};

struct WarpState {
  Meeting meeting;
  unsigned shuffles[kLanes] = {};
  unsigned char values[2][kLanes][sizeof(double)] = {};  // of this exchange, and the one before
};

struct BlockState {
  std::vector<unsigned char> shared;
  Meeting meeting;
  std::vector<WarpState> warps;
};

struct Fiber {
  ucontext_t context;
  std::vector<unsigned char> stack;
  BlockState* block = nullptr;
  uint3 thread_index{};
  uint3 block_index{};
  bool done = false;
};

/// The threads of some blocks of a launch.
class Fibers {
 public:
  static Fibers*& current() {
    static Fibers* fibers = nullptr;
    return fibers;
  }

  void run(unsigned first, unsigned blocks, unsigned threads, size_t shared_bytes,
           std::function<void()> kernel) {
    kernel_ = std::move(kernel);
    std::vector<BlockState> states(blocks);
    std::vector<Fiber> fibers(size_t{blocks} * threads);
    current() = this;
    for (unsigned b = 0; b < blocks; ++b) {
      // Neither zeros nor what the last launch left there.
      states[b].shared.assign(shared_bytes + 16, 0xA5);
      states[b].meeting.expected = threads;
      states[b].warps.resize(threads / kLanes);
      for (WarpState& warp : states[b].warps) warp.meeting.expected = kLanes;
      for (unsigned t = 0; t < threads; ++t) {
        Fiber& fiber = fibers[size_t{b} * threads + t];
        fiber.block = &states[b];
        fiber.thread_index = {t, 0, 0};
        fiber.block_index = {first + b, 0, 0};
        prepare(&fiber);
      }
    }
    for (bool left = true; left;) {
      left = false;
      for (Fiber& fiber : fibers) {
        if (fiber.done) continue;
        running_ = &fiber;
        ::swapcontext(&scheduler_, &fiber.context);
        left = left || !fiber.done;
      }
    }
    current() = nullptr;
  }

  Fiber& running() { return *running_; }

  void yield() { ::swapcontext(&running_->context, &scheduler_); }

  void meet(Meeting* meeting) {
    const unsigned time = meeting->times;
    if (++meeting->come == meeting->expected) {
      meeting->come = 0;
      ++meeting->times;
      return;
    }
    while (meeting->times == time) yield();
  }

  // The values of the caller's warp by lane, each of sizeof(double) bytes.
  template <class T>
  auto exchange(T value) -> const unsigned char (&)[kLanes][sizeof(double)] {
    const unsigned lane = running_->thread_index.x % kLanes;
    WarpState& warp = running_->block->warps[running_->thread_index.x / kLanes];
    auto& values = warp.values[warp.shuffles[lane]++ % 2];
    std::memcpy(values[lane], &value, sizeof(T));
    meet(&warp.meeting);
    return values;
  }

 private:
  void prepare(Fiber* fiber) {
    fiber->stack.resize(size_t{48} << 10);
    ::getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.data();
    fiber->context.uc_stack.ss_size = fiber->stack.size();
    fiber->context.uc_link = &scheduler_;
    ::makecontext(&fiber->context, &Fibers::enter, 0);
  }

  static void enter() {
    current()->kernel_();
    current()->running_->done = true;
  }

  std::function<void()> kernel_;
  ucontext_t scheduler_{};
  Fiber* running_ = nullptr;
};

#define threadIdx (Fibers::current()->running().thread_index)
#define blockIdx (Fibers::current()->running().block_index)

inline void __syncthreads() {
  Fibers::current()->meet(&Fibers::current()->running().block->meeting);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int by) {
  const auto& values = Fibers::current()->exchange(value);
  std::memcpy(&value, values[threadIdx.x % kLanes ^ static_cast<unsigned>(by)], sizeof(T));
  return value;
}

template <class T>
T __shfl_sync(unsigned, T value, int from) {
  const auto& values = Fibers::current()->exchange(value);
  std::memcpy(&value, values[from], sizeof(T));
  return value;
}

inline unsigned __ballot_sync(unsigned, bool is) {
  const auto& values = Fibers::current()->exchange(is);
  unsigned all = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) all |= unsigned{values[lane][0]} << lane;
  return all;
}

inline unsigned char* dynamic_shared() {
  auto at = reinterpret_cast<uintptr_t>(Fibers::current()->running().block->shared.data());
  return reinterpret_cast<unsigned char*>((at + 15) / 16 * 16);
}

struct Letter {
  double2 value;
  uint32_t number, unused[3];
};

inline void send(Letter* to, double2 value, uint32_t number) { *to = {value, number, {}}; }

inline double2 receive(const Letter* from, uint32_t number) {
  while (from->number != number) Fibers::current()->yield();
  return from->value;
}

template <class Raw>
void store_at_once(Raw* to, const Raw& raw) {
  *to = raw;
}

struct Launch {
  unsigned blocks = 0;
  unsigned threads = 0;
  size_t shared_bytes = 0;
  size_t most_shared_bytes = 0;
  bool together = false;
  void* stream = nullptr;
};

// Blocks that do not wait for each other run one by one here.
template <auto kernel, class... Arguments>
cudaError_t queue(const Launch& launch, Arguments... arguments) {
  static_assert(std::is_same_v<decltype(kernel), void (*)(Arguments...)>);
  const unsigned at_once = launch.together ? launch.blocks : 1;
  for (unsigned first = 0; first < launch.blocks; first += at_once) {
    Fibers().run(first, at_once, launch.threads, launch.shared_bytes,
                 [&] { kernel(arguments...); });
  }
  return cudaSuccess;
}

}  // namespace flatout::nn::cuda
