// Windows of device time: sums and causes of idle times, on records made by hand. Times in us.
#include "agent/device_window.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace {

constexpr uint64_t kUs = 1000;

struct Idle {
  flatout_idle_cause cause;
  uint64_t begin, end;
};

class Recorded {
 public:
  explicit Recorded(uint64_t begin = 0) : window_(std::make_unique<device_window>()) {
    device_window_clear(window_.get(), begin * kUs);
  }
  /// An operation, and the call that launched it.
  Recorded& op(device_use use, uint64_t start, uint64_t end, uint64_t call_start, uint64_t call_end,
               call_use call = CALL_LAUNCH, float filled = 1, uint64_t bytes = 0) {
    ++correlation_;
    device_op o{};
    o.start = start * kUs;
    o.end = end * kUs;
    o.bytes = bytes;
    o.correlation = correlation_;
    o.filled = filled;
    o.use = static_cast<uint8_t>(use);
    device_window_add_op(window_.get(), &o);
    return this->call(call, call_start, call_end);
  }
  Recorded& pageable() {
    window_->op[window_->ops - 1].pageable = 1;
    return *this;
  }
  Recorded& call(call_use use, uint64_t start, uint64_t end, uint32_t thread = 1) {
    const device_call c{start * kUs, end * kUs, use == CALL_SYNC ? 0 : correlation_, thread,
                        static_cast<uint8_t>(use)};
    device_window_add_call(window_.get(), &c);
    return *this;
  }
  Recorded& launched_only(uint64_t start, uint64_t end) {
    ++correlation_;
    return call(CALL_LAUNCH, start, end);
  }
  Recorded& miss(uint64_t records) {
    device_window_miss(window_.get(), records);
    return *this;
  }
  uint64_t lacks() const { return device_window_lacks_kernels(window_.get()); }
  size_t read(uint64_t end) {
    idle.clear();
    return device_window_read(window_.get(), end * kUs, out, &Recorded::take, this);
  }
  uint64_t us(uint64_t ns) const { return ns / kUs; }

  flatout_device out[DEVICE_WINDOW_DEVICES]{};
  std::vector<Idle> idle;

 private:
  static void take(void* self, uint32_t, flatout_idle_cause cause, uint64_t begin, uint64_t end) {
    static_cast<Recorded*>(self)->idle.push_back({cause, begin / kUs, end / kUs});
  }
  std::unique_ptr<device_window> window_;
  uint32_t correlation_ = 0;
};

void expect_whole(const flatout_device& d) {
  uint64_t sum = d.busy;
  for (const uint64_t part : d.idle) sum += part;
  EXPECT_EQ(sum, d.end_ns - d.begin_ns);
}

TEST(DeviceWindow, CallsAreKnownByTheirNames) {
  EXPECT_EQ(call_use_of("cuLaunchKernel"), CALL_LAUNCH);
  EXPECT_EQ(call_use_of("cudaLaunchKernelExC"), CALL_LAUNCH);
  EXPECT_EQ(call_use_of("cudaGraphLaunch"), CALL_LAUNCH);
  EXPECT_EQ(call_use_of("cudaLaunchHostFunc"), CALL_NONE);
  EXPECT_EQ(call_use_of("cudaMemcpyAsync"), CALL_COPY);
  EXPECT_EQ(call_use_of("cuStreamSynchronize_ptsz"), CALL_SYNC);
  EXPECT_EQ(call_use_of("cuMemAlloc_v2"), CALL_ALLOCATE);
  EXPECT_EQ(call_use_of("cudaMallocAsync"), CALL_ALLOCATE);
  EXPECT_EQ(call_use_of("cuMemAllocFromPoolAsync_ptsz"), CALL_ALLOCATE);
  EXPECT_EQ(call_use_of("cuMemFree_v2"), CALL_NONE);
  EXPECT_EQ(call_use_of("cuMemAllocHost_v2"), CALL_NONE);  // pinned memory
  EXPECT_EQ(call_use_of("cudaMallocHost"), CALL_NONE);
  EXPECT_TRUE(call_blocks("cuMemcpyDtoH_v2"));
  EXPECT_FALSE(call_blocks("cudaMemcpyAsync"));
  EXPECT_EQ(device_use_of_kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), USE_COLLECTIVE);
  EXPECT_EQ(device_use_of_kernel("void cudnn::bn_fw_tr_1C11_kernel_NCHW"), USE_NORM);
  EXPECT_EQ(device_use_of_kernel(nullptr), USE_COMPUTE);
}

TEST(DeviceWindow, WhatRunsSideBySideIsBusyOnce) {
  Recorded r;
  r.op(USE_COMPUTE, 10, 110, 5, 9).op(USE_FROM_HOST, 60, 160, 9, 10, CALL_COPY, 1, 4096);
  r.op(USE_COLLECTIVE, 150, 200, 10, 11);
  ASSERT_EQ(r.read(200), 1u);
  const flatout_device& d = r.out[0];
  EXPECT_EQ(r.us(d.busy), 190u);
  EXPECT_EQ(r.us(d.compute), 100u);
  EXPECT_EQ(r.us(d.exposed_copies), 40u);
  EXPECT_EQ(r.us(d.exposed_communication), 50u);
  EXPECT_EQ(d.exposed_pageable, 0u);
  EXPECT_EQ(d.copy_bytes, 4096u);
  EXPECT_EQ(d.kernels, 2u);
  expect_whole(d);
}

TEST(DeviceWindow, PageableCopiesAreToldApart) {
  Recorded r;
  r.op(USE_FROM_HOST, 10, 60, 5, 60, CALL_COPY).pageable().op(USE_COMPUTE, 62, 100, 61, 62);
  ASSERT_EQ(r.read(100), 1u);
  EXPECT_EQ(r.us(r.out[0].exposed_pageable), 50u);
}

TEST(DeviceWindow, AShortWaitForALaunchIsLaunching) {
  Recorded r;
  for (uint64_t t = 0; t < 1000; t += 50) r.op(USE_COMPUTE, t + 40, t + 50, t + 5, t + 38);
  ASSERT_EQ(r.read(1000), 1u);
  EXPECT_EQ(r.us(r.out[0].idle[FLATOUT_IDLE_LAUNCH]), 19u * 40);
  EXPECT_EQ(r.out[0].launches, 20u);
  EXPECT_EQ(r.us(r.out[0].launch_sum), 20u * 33);
  EXPECT_TRUE(r.idle.empty());
  expect_whole(r.out[0]);
}

TEST(DeviceWindow, AQueueThatIsNeverEmptyHasOnlyItsOwnLatency) {
  Recorded r;
  for (uint64_t i = 0; i < 20; ++i) r.op(USE_COMPUTE, 100 + i * 50, 148 + i * 50, i * 2, i * 2 + 1);
  ASSERT_EQ(r.read(1098), 1u);
  EXPECT_EQ(r.us(r.out[0].idle[FLATOUT_IDLE_DEPENDENCY]), 19u * 2);
  EXPECT_EQ(r.out[0].idle[FLATOUT_IDLE_LAUNCH], 0u);
}

TEST(DeviceWindow, AHostThatWaitedFirstIsSync) {
  Recorded r;
  r.op(USE_COMPUTE, 10, 100, 5, 8).call(CALL_SYNC, 20, 102).op(USE_COMPUTE, 700, 800, 690, 695);
  ASSERT_EQ(r.read(800), 1u);
  EXPECT_EQ(r.us(r.out[0].idle[FLATOUT_IDLE_SYNC]), 600u);
  ASSERT_EQ(r.idle.size(), 1u);
  EXPECT_EQ(r.idle[0].cause, FLATOUT_IDLE_SYNC);
  EXPECT_EQ(r.idle[0].begin, 100u);
  EXPECT_EQ(r.idle[0].end, 700u);
}

TEST(DeviceWindow, AnotherThreadsWaitIsNotThisLaunchs) {
  Recorded r;
  r.op(USE_COMPUTE, 10, 100, 5, 8).call(CALL_SYNC, 20, 102, 2).op(USE_COMPUTE, 700, 800, 690, 695);
  ASSERT_EQ(r.read(800), 1u);
  EXPECT_EQ(r.out[0].idle[FLATOUT_IDLE_SYNC], 0u);
  EXPECT_EQ(r.us(r.out[0].idle[FLATOUT_IDLE_LAUNCH]), 600u);
}

TEST(DeviceWindow, DataThatGoesToTheHostAndBackIsARoundTripButALossIsNot) {
  for (const uint64_t bytes : {uint64_t{1} << 20, uint64_t{4}}) {
    Recorded r;
    r.op(USE_COMPUTE, 10, 100, 5, 8).op(USE_TO_HOST, 102, 150, 9, 152, CALL_COPY, 1, bytes);
    r.op(USE_FROM_HOST, 3000, 3050, 2990, 2995, CALL_COPY, 1, 1 << 20);
    ASSERT_EQ(r.read(3050), 1u);
    const auto cause = bytes > 4 ? FLATOUT_IDLE_ROUND_TRIP : FLATOUT_IDLE_SYNC;
    EXPECT_EQ(r.us(r.out[0].idle[cause]), 2850u);
  }
}

TEST(DeviceWindow, ALongWaitIsTheHosts) {
  Recorded r;
  r.op(USE_COMPUTE, 10, 100, 5, 8).op(USE_COMPUTE, 5000, 5100, 4990, 4995);
  ASSERT_EQ(r.read(9100), 1u);
  // Until the window's end, too: nothing was launched.
  EXPECT_EQ(r.us(r.out[0].idle[FLATOUT_IDLE_HOST]), 4900u + 4000u);
  EXPECT_EQ(r.idle.size(), 2u);
  expect_whole(r.out[0]);
}

TEST(DeviceWindow, WhatStillRunsEndsTheWindowBeforeIt) {
  Recorded r;
  r.op(USE_COMPUTE, 10, 100, 5, 8).launched_only(9, 12);
  ASSERT_EQ(r.read(9100), 1u);
  EXPECT_EQ(r.us(r.out[0].end_ns), 100u);
}

TEST(DeviceWindow, WhatRanBeforeTheWindowIsNotIdleness) {
  Recorded r(1000);
  r.op(USE_COMPUTE, 500, 990, 400, 401);  // of the window before
  r.op(USE_COMPUTE, 3000, 4000, 1100, 1101);
  ASSERT_EQ(r.read(4000), 1u);
  EXPECT_EQ(r.us(r.out[0].begin_ns), 3000u);
  EXPECT_EQ(r.out[0].kernels, 1u);
}

TEST(DeviceWindow, AWaitThatIsOverSaysThatTheDeviceIsKnown) {
  Recorded r(1000);
  r.call(CALL_SYNC, 900, 1500).op(USE_COMPUTE, 3000, 4000, 2900, 2901);
  ASSERT_EQ(r.read(4000), 1u);
  EXPECT_EQ(r.us(r.out[0].begin_ns), 1500u);
}

TEST(DeviceWindow, FilledIsWeightedByTime) {
  Recorded r;
  r.op(USE_COMPUTE, 0, 90, 0, 0, CALL_LAUNCH, 0.1F).op(USE_COMPUTE, 90, 100, 0, 0);
  ASSERT_EQ(r.read(100), 1u);
  EXPECT_NEAR(static_cast<double>(r.out[0].filled) / static_cast<double>(r.out[0].kernel_sum), 0.19,
              0.001);
}

TEST(DeviceWindow, AKernelFillsWhatItsBlocksLeaveNoRoomIn) {
  const device_size h100{132, 2048, 65536, 233472};
  const auto share = [&](uint64_t blocks, uint32_t threads, uint32_t registers, uint32_t shared) {
    const kernel_size kernel{blocks, threads, registers, shared};
    return device_share_of(&h100, &kernel);
  };
  EXPECT_EQ(share(132, 384, 168, 0), 1);       // no second block has registers
  EXPECT_EQ(share(132, 128, 32, 200'000), 1);  // nor shared memory
  EXPECT_NEAR(share(132, 128, 32, 0), 1.0 / 16, 1e-6);
  EXPECT_EQ(share(100'000, 256, 32, 0), 1);
  EXPECT_EQ(share(132, 4096, 255, 400'000), 1);  // what should not fit fits once
  const device_size unknown{};
  const kernel_size one{1, 32, 16, 0};
  EXPECT_EQ(device_share_of(&unknown, &one), 1);
}

TEST(DeviceWindow, SaysNothingWhereRecordsAreMissing) {
  Recorded r;
  r.op(USE_COMPUTE, 0, 10, 0, 0).op(USE_COMPUTE, 90, 100, 0, 0).miss(3);
  EXPECT_EQ(r.read(100), 0u);
}

TEST(DeviceWindow, KernelsThatLeaveNoRecordAreMissed) {
  for (const bool recorded : {true, false}) {
    Recorded r;
    for (uint64_t i = 0; i < 20; ++i) {
      if (recorded && i == 7) r.op(USE_COMPUTE, 10 * i + 2, 10 * i + 8, 10 * i, 10 * i + 1);
      r.launched_only(10 * i, 10 * i + 1);
    }
    EXPECT_EQ(r.lacks(), 0U) << "nothing that was launched later has ended";
    r.op(USE_TO_HOST, 300, 301, 290, 302, CALL_COPY);
    EXPECT_EQ(r.lacks() > 0, !recorded);
  }
  Recorded few;  // queued on another stream, behind a long one
  few.launched_only(0, 1).launched_only(1, 2).op(USE_TO_HOST, 300, 301, 290, 302, CALL_COPY);
  EXPECT_EQ(few.lacks(), 0U);
}

TEST(DeviceWindow, MoreThanItHoldsShortensIt) {
  Recorded r;
  for (uint64_t i = 0; i < DEVICE_WINDOW_OPS + 100; ++i)
    r.op(USE_COMPUTE, i * 10, i * 10 + 10, i, i);
  ASSERT_EQ(r.read(1'000'000), 1u);
  EXPECT_EQ(r.out[0].lost, 100u);
  EXPECT_EQ(r.us(r.out[0].end_ns), DEVICE_WINDOW_OPS * 10u);
  EXPECT_EQ(r.out[0].busy, r.out[0].end_ns - r.out[0].begin_ns);
}

TEST(DeviceWindow, NothingIsSaidOfADeviceThatDidNothing) {
  Recorded r;
  EXPECT_EQ(r.read(1000), 0u);
}

}  // namespace
