// What NVML says of this process against what is charged, with other threads in between.
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "devlimit/testing/limited.h"

namespace {
std::atomic<int64_t> g_later{0};  // seconds
}  // namespace

// In place of the C library's: the interposer looks once a second, and no test waits for that.
extern "C" int clock_gettime(clockid_t clock, timespec* out) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, out));
  if (clock != CLOCK_REALTIME) out->tv_sec += g_later;
  return result;
}

namespace flatout::devlimit {
namespace {

class Measure : public Devlimit {
 protected:
  void TearDown() override {
    while_listing(nullptr);
    Devlimit::TearDown();
  }
  static void a_second_later() { ++g_later; }
  static void while_listing(void (*call)(int)) { call_in(nvml_library(), "fakeListing", call); }
  /// A request of any size is when the interposer looks.
  static void look() {
    a_second_later();
    CUdeviceptr address = 0;
    ASSERT_EQ(allocate(&address, 1), CUDA_SUCCESS);
    ASSERT_EQ(free_it(address), CUDA_SUCCESS);
  }
  static CUresult load_module(Opaque* module) {
    const void* const image = "// .version 8.0";
    return cuda("cuModuleLoadData", module, image);
  }
};

// NVML lists no process without a context.
TEST_F(Measure, TheLastContextIsGivenBack) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(charged(), fake::kContextBytes);
    ASSERT_EQ(cuda("cuDevicePrimaryCtxRelease_v2", CUdevice{0}), CUDA_SUCCESS);
    ASSERT_EQ(taken(), 0u);
    EXPECT_EQ(charged(), 0u);
    ASSERT_EQ(cuda("cuDevicePrimaryCtxRetain", &context_, CUdevice{0}), CUDA_SUCCESS);
  }
}

// Another thread has memory while NVML counts, and neither before nor after.
CUdeviceptr g_passing = 0;
Opaque g_context = nullptr;
void pass_by(int stage) {
  std::thread([&] {
    cuda("cuCtxSetCurrent", g_context);
    const size_t bytes = 400 * kMiB;
    if (stage == 0) cuda("cuMemAlloc_v2", &g_passing, bytes);
    if (stage == 1) cuda("cuMemFree_v2", g_passing);
  }).join();
}

TEST_F(Measure, MemoryThatAnotherThreadHasForAWhileIsNoOverhead) {
  g_context = context_;
  while_listing(pass_by);
  look();
  EXPECT_NE(g_passing, 0u) << "there was a look";
  EXPECT_EQ(charged(), taken());
  Opaque module = nullptr;
  ASSERT_EQ(load_module(&module), CUDA_SUCCESS);
  while_listing(nullptr);
  EXPECT_LE(charged(), taken() + 2 * kMiB) << "what a module was guessed to take, at most";
  look();
  EXPECT_EQ(charged(), taken());
}

// As a driver that frees later than it says.
void linger(int stage) {
  if (stage == 0) {
    fake::card().take(0, 400 * kMiB);
  } else {
    fake::card().give(0, 400 * kMiB);
  }
}

TEST_F(Measure, WhatALookChargedIsGivenBackWhenItIsGone) {
  while_listing(linger);
  look();
  EXPECT_EQ(charged(), taken() + 400 * kMiB);
  while_listing(nullptr);
  look();
  EXPECT_EQ(charged(), taken());
}

// Memory of another process is charged and not in NVML's figure of this one: the context's share
// must not be taken for gone.
TEST_F(Measure, ALookDoesNotGiveBackWhatAContextTakes) {
  CUipcMemHandle ipc = {};
  const size_t foreign = 600 * kMiB;
  memcpy(ipc.reserved, &foreign, sizeof foreign);
  CUdeviceptr address = 0;
  ASSERT_EQ(cuda("cuIpcOpenMemHandle_v2", &address, ipc, 1u), CUDA_SUCCESS);
  look();
  EXPECT_EQ(charged(), fake::kContextBytes + foreign);
}

// While another thread is in a call nothing can be told, but later.
TEST_F(Measure, WhatEndsAmongOtherCallsIsGivenBackByALaterLook) {
  g_context = context_;
  Opaque module = nullptr;
  ASSERT_EQ(load_module(&module), CUDA_SUCCESS);
  EXPECT_EQ(charged(), taken());
  while_listing(pass_by);
  ASSERT_EQ(cuda("cuModuleUnload", module), CUDA_SUCCESS);
  while_listing(nullptr);
  EXPECT_EQ(charged(), taken() + fake::kModuleBytes);
  look();
  EXPECT_EQ(charged(), taken());
}

}  // namespace
}  // namespace flatout::devlimit
