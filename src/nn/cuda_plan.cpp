#include "nn/cuda_plan.h"

#include <algorithm>
#include <bit>

namespace flatout::nn::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kBits = 8;             // of a byte of mask
constexpr size_t kLetterBytes = 32;  // cuda_device.h
constexpr int64_t kReserved = 1024;  // bytes of shared memory a block that the device keeps

// What a plan costs, roughly, in microseconds. Fitted to an H200's times of 14 plans (NCHW) or 42
// (NHWC) for forward and backward of 8 shapes each (bench/results/nn_cuda_sweep_h200.txt): of these
// the cheapest by this model took 0.6 % longer than the fastest on average, 5.6 % at most.
constexpr double kBytesPerMicrosecond = 3e6;
constexpr double kMeeting = 3.5, kPerMember = 0.025, kAlone = 0.8;  // a round's end
// Reading once more costs less than the first time, where the device's cache has it.
constexpr double kAgainFromCache = 0.25, kAgain = 0.7;
constexpr double kCacheBytes = 18e6;

int64_t over(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The widest load that suits each plane or row, if all begin where they may.
int values_at_once(int64_t length, Type type, bool aligned) {
  if (!aligned) return 1;
  const int widest = type == Type::kF32 ? 4 : 8;
  if (length % widest == 0) return widest;
  return length % 4 == 0 ? 4 : 1;
}

size_t slot_bytes(const Plan& plan, const Shape& shape, int tensors) {
  return static_cast<size_t>(kThreads * plan.wide * tensors) * size_of(shape.type);
}

// Fills in what depends on columns and members.
void divide(const Shape& shape, const Device& device, int tensors, Plan* plan) {
  const int blocks = device.multiprocessors * blocks_at_once(plan->rows);
  plan->tile = plan->rows ? plan->columns * plan->wide : 1;
  plan->tiles = static_cast<int>(over(plan->channels, plan->tile));
  // Whole warps, so that lanes of one byte of mask stay together.
  plan->share = static_cast<uint32_t>(over(over(plan->units, plan->members), kWarp) * kWarp);
  plan->members = static_cast<int>(over(plan->units, plan->share));
  plan->teams = std::min(plan->tiles, blocks / plan->members);
  const int at_once = kThreads / plan->columns;
  plan->turns = static_cast<uint32_t>(over(std::min(plan->share, plan->units), at_once));
  const int64_t most =
      static_cast<int64_t>(device.shared_bytes) / blocks_at_once(plan->rows) - kReserved;
  const int64_t room = most - static_cast<int64_t>(scratch_bytes(*plan));
  const auto slot = static_cast<int64_t>(slot_bytes(*plan, shape, tensors));
  plan->kept = static_cast<uint32_t>(std::clamp<int64_t>(room / slot, 0, plan->turns));
  plan->shared_bytes = scratch_bytes(*plan) + plan->kept * static_cast<size_t>(slot);
  plan->most_shared_bytes = static_cast<size_t>(most);
}

double cost(const Shape& shape, const Device& device, int tensors, const Plan& plan) {
  const int at_once = blocks_at_once(plan.rows);
  const double bandwidth = kBytesPerMicrosecond / (device.multiprocessors * at_once);  // a block's
  const auto slot = static_cast<double>(slot_bytes(plan, shape, tensors));
  const double moved = plan.turns * slot, again = (plan.turns - plan.kept) * slot;
  // Of all tiles that are worked on at a time, what no block keeps.
  const double outside = again * plan.teams * plan.members;
  const double from_cache = outside > kCacheBytes ? kCacheBytes / outside : 1;
  const double again_costs = kAgain + (kAgainFromCache - kAgain) * from_cache;
  // Segments of rows: the narrower, the more of what memory delivers at once is not asked for.
  const size_t segment = static_cast<size_t>(plan.tile) * size_of(shape.type);
  const double narrow = !plan.rows || plan.tiles == 1 || segment >= 128 ? 1
                        : segment >= 64                                 ? 1.3
                                                                        : 1.8;
  const double rounds = static_cast<double>(over(plan.tiles, plan.teams));
  const double meeting = plan.members > 1 ? kMeeting + kPerMember * plan.members : kAlone;
  return rounds * ((2 * moved + again_costs * again) * narrow / bandwidth + meeting);
}

}  // namespace

Divisor divisor_of(uint32_t value) {
  const auto shift = static_cast<uint32_t>(std::bit_width(value - 1));
  const uint64_t factor = ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - value)) / value + 1;
  return {value, static_cast<uint32_t>(factor), shift};
}

Result<Plan> make_plan(const Shape& shape, const Device& device, int tensors, bool aligned,
                       const Choice& choice) {
  if (shape.type == Type::kF64 || shape.parameters == Type::kF64) {
    return Error{Code::kUnsupported, "batch norm of x " + shape.text() + ": no f64 on CUDA", ""};
  }
  const int64_t plane = shape.h * shape.w;
  Plan plan;
  // As on the CPU (nn/geometry.cpp), so that masks are the same.
  plan.rows = shape.c > 1 && (shape.layout == Layout::kNhwc || plane == 1);
  plan.channels = shape.c;
  plan.outer = plan.rows ? shape.n * plane : plane == 1 ? 1 : shape.n;
  plan.length = plan.rows ? 1 : plane == 1 ? shape.n : plane;
  plan.stride = plan.channels * plan.length;
  const int64_t line = plan.rows ? shape.c : plan.length;
  const int64_t groups = over(line, kBits);
  plan.mask_stride = plan.rows ? groups : shape.c * groups;
  plan.wide = values_at_once(line, shape.type, aligned);
  const int64_t lanes = groups * (kBits / plan.wide);
  const int64_t units = plan.rows ? plan.outer : plan.outer * lanes;
  if (units >= int64_t{1} << 31 || lanes >= int64_t{1} << 31 || shape.c >= int64_t{1} << 31) {
    return Error{Code::kUnsupported, "batch norm of x " + shape.text() + ": too large for CUDA",
                 ""};
  }
  plan.groups = static_cast<uint32_t>(groups);
  plan.lanes = divisor_of(static_cast<uint32_t>(lanes));
  plan.units = static_cast<uint32_t>(units);

  const int blocks = device.multiprocessors * blocks_at_once(plan.rows);
  const auto lane_bytes = static_cast<int>(plan.wide * size_of(shape.type));
  Plan best;
  double best_cost = 0;
  const auto consider = [&](int members) {
    plan.members = choice.members > 0 ? std::min(choice.members, blocks) : members;
    divide(shape, device, tensors, &plan);
    const double costs = cost(shape, device, tensors, plan);
    if (best.tiles > 0 && costs >= best_cost) return;
    best = plan;
    best_cost = costs;
  };
  for (int bytes = 128; bytes >= 32; bytes /= 2) {
    if (choice.tile_bytes > 0) bytes = choice.tile_bytes;
    if (plan.rows) {
      // Lanes of one byte of mask at least, a warp at most; no more than there are channels.
      const int fewest = kBits / plan.wide;
      const int64_t all = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(lanes)));
      const int most = std::min(kWarp, kMaxTile / plan.wide);
      plan.columns =
          std::clamp(static_cast<int>(std::min<int64_t>(bytes / lane_bytes, all)), fewest, most);
    }
    for (int members = 1; members <= blocks; members += std::max(1, members / 4)) consider(members);
    for (int teams = 1; teams <= 16 && teams <= blocks; ++teams) consider(blocks / teams);
    if (!plan.rows || choice.tile_bytes > 0) break;
  }
  return best;
}

size_t scratch_bytes(const Plan& plan) {
  const auto tile = static_cast<size_t>(plan.tile);
  const size_t bytes = tile * (3 * kWarps + 2) * sizeof(double) + tile * 4 * sizeof(float);
  return (bytes + 15) / 16 * 16;
}

size_t workspace_bytes(const Plan& plan) {
  if (plan.members == 1) return 0;
  // One from each member for each channel, and the answer; of this tile and of the one before.
  return static_cast<size_t>(plan.teams) * 2 * static_cast<size_t>(plan.members + 1) *
         static_cast<size_t>(plan.tile) * kLetterBytes;
}

size_t workspace_bytes(const Device& device) {
  const auto most = [&](bool rows, int tile) {
    // Of teams of two members.
    const auto blocks = static_cast<size_t>(device.multiprocessors) * blocks_at_once(rows);
    return blocks * 3 * static_cast<size_t>(tile) * kLetterBytes;
  };
  return std::max(most(false, 1), most(true, kMaxTile));
}

}  // namespace flatout::nn::cuda
