// Memory that streams take and give back: pools wherever they are, frees that wait for work, and
// captures.
#include <string.h>

#include <array>
#include <string>

#include "devlimit/testing/limited.h"

namespace flatout::devlimit {
namespace {

constexpr int kHost = 2, kHostNuma = 3, kPinned = 1, kManaged = 2;
constexpr std::array kKinds = {"", "_ptsz"};  // of default streams

class Streams : public Devlimit {
 protected:
  void SetUp() override {
    Devlimit::SetUp();
    ASSERT_EQ(cuda("cuStreamCreate", &stream_, 0u), CUDA_SUCCESS);
  }
  static CUresult allocate_from(Opaque pool, size_t bytes, Opaque stream,
                                CUdeviceptr* address = nullptr) {
    CUdeviceptr unused = 0;
    return cuda("cuMemAllocFromPoolAsync", address != nullptr ? address : &unused, bytes, pool,
                stream);
  }
  static void launch(Opaque stream) { cuda("fakeLaunch", stream); }
  static void finish(Opaque stream) { cuda("fakeFinish", stream); }
  static int events() { return cuda("fakeEvents"); }
  Opaque stream_ = nullptr;  // of device 0
};

TEST_F(Streams, APoolCountsForItsOwnDeviceWhateverTheStreams) {
  Opaque second = nullptr;
  ASSERT_EQ(cuda("cuDevicePrimaryCtxRetain", &second, CUdevice{1}), CUDA_SUCCESS);
  CUmemLocation on_second = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  for (const char* name : {"cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool"}) {
    Opaque pool = nullptr;
    ASSERT_EQ(cuda(name, &pool, CUdevice{1}), CUDA_SUCCESS);
    EXPECT_EQ(allocate_from(pool, 600 * kMiB, stream_), kFull) << name;
  }
  for (const char* name : {"cuMemGetDefaultMemPool", "cuMemGetMemPool"}) {
    Opaque pool = nullptr;
    ASSERT_EQ(cuda(name, &pool, &on_second, kPinned), CUDA_SUCCESS);
    EXPECT_EQ(allocate_from(pool, 600 * kMiB, stream_), kFull) << name;
    EXPECT_EQ(allocate_from(pool, 60 * kMiB, stream_), CUDA_SUCCESS) << name;
  }
  EXPECT_EQ(charged(1), taken(1));
  EXPECT_EQ(taken(1), fake::kContextBytes + 128 * kMiB);
  EXPECT_EQ(room(), kLimit - fake::kContextBytes) << "the stream's device has nothing of it";
}

TEST_F(Streams, APoolOfTheHostIsNotTheCardsHoweverItWasFound) {
  for (const int place : {kHost, kHostNuma}) {
    CUmemLocation location = {place, 0};
    for (const char* name : {"cuMemGetDefaultMemPool", "cuMemGetMemPool"}) {
      Opaque pool = nullptr;
      ASSERT_EQ(cuda(name, &pool, &location, kPinned), CUDA_SUCCESS);
      EXPECT_EQ(allocate_from(pool, 4 * kLimit, stream_), CUDA_SUCCESS) << name;
    }
  }
  EXPECT_EQ(room(), kLimit - fake::kContextBytes);
}

TEST_F(Streams, AManagedPoolCountsWhereverItsPagesAre) {
  CUmemPoolProps props = pool_on(kHost);
  props.allocType = kManaged;
  Opaque pool = nullptr;
  ASSERT_EQ(cuda("cuMemPoolCreate", &pool, &props), CUDA_SUCCESS);
  EXPECT_EQ(allocate_from(pool, 4 * kLimit, stream_), kFull);
}

TEST_F(Streams, PlainMemoryIsChargedUntilTheStreamGetsToItsFree) {
  for (const std::string kind : kKinds) {
    for (Opaque const stream : {stream_, Opaque{nullptr}}) {
      CUdeviceptr address = 0, next = 0;
      ASSERT_EQ(allocate(&address, 600 * kMiB), CUDA_SUCCESS);
      launch(stream);
      ASSERT_EQ(cuda(("cuMemFreeAsync" + kind).c_str(), address, stream), CUDA_SUCCESS);
      EXPECT_EQ(taken(), fake::kContextBytes + 600 * kMiB);
      EXPECT_EQ(allocate(&next, 600 * kMiB), kFull) << "the card has it still";
      EXPECT_EQ(room(), kLimit - taken());
      finish(stream);
      EXPECT_EQ(room(), kLimit - fake::kContextBytes);
      ASSERT_EQ(allocate(&next, 600 * kMiB), CUDA_SUCCESS);
      ASSERT_EQ(cuda(("cuMemFreeAsync" + kind).c_str(), next, stream), CUDA_SUCCESS);
      EXPECT_EQ(room(), kLimit - fake::kContextBytes) << "nothing was under way";
    }
  }
  EXPECT_EQ(events(), 0);
}

TEST_F(Streams, ShortOfMemoryEveryStreamThatIsDoneIsFound) {
  Opaque slow = nullptr;
  ASSERT_EQ(cuda("cuStreamCreate", &slow, 0u), CUDA_SUCCESS);
  CUdeviceptr first = 0, second = 0, next = 0;
  ASSERT_EQ(allocate(&first, 400 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(allocate(&second, 400 * kMiB), CUDA_SUCCESS);
  launch(slow);
  launch(stream_);
  ASSERT_EQ(cuda("cuMemFreeAsync", first, slow), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemFreeAsync", second, stream_), CUDA_SUCCESS);
  finish(stream_);  // not the first that was freed
  EXPECT_EQ(allocate(&next, 600 * kMiB), kFull);
  EXPECT_EQ(allocate(&next, 500 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cuda("cuMemFreeAsync", CUdeviceptr{0x1234}, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(events(), 1);
}

TEST_F(Streams, WhatWaitsToBeFreedGoesWithItsContext) {
  Opaque context = nullptr, stream = nullptr;
  CUdeviceptr address = 0;
  const uint64_t before = room();
  ASSERT_EQ(cuda("cuCtxCreate_v2", &context, 0u, CUdevice{0}), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuStreamCreate", &stream, 0u), CUDA_SUCCESS);
  ASSERT_EQ(allocate(&address, 600 * kMiB), CUDA_SUCCESS);
  launch(stream);
  ASSERT_EQ(cuda("cuMemFreeAsync", address, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuCtxDestroy_v2", context), CUDA_SUCCESS);
  EXPECT_EQ(taken(), fake::kContextBytes);
  EXPECT_EQ(room(), before);
  ASSERT_EQ(allocate(&address, 600 * kMiB), CUDA_SUCCESS);
  launch(stream_);
  ASSERT_EQ(cuda("cuMemFreeAsync", address, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuDevicePrimaryCtxReset_v2", CUdevice{0}), CUDA_SUCCESS);
  EXPECT_EQ(taken(), 0u);
  EXPECT_EQ(charged(), 0u);
}

TEST_F(Streams, ADestroyedPoolIsChargedUntilTheStreamGetsToItsLastFree) {
  const CUmemPoolProps props = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
  Opaque pool = nullptr;
  CUdeviceptr block = 0, next = 0;
  ASSERT_EQ(cuda("cuMemPoolCreate", &pool, &props), CUDA_SUCCESS);
  ASSERT_EQ(allocate_from(pool, 600 * kMiB, stream_, &block), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemPoolDestroy", pool), CUDA_SUCCESS);
  launch(stream_);
  ASSERT_EQ(cuda("cuMemFreeAsync", block, stream_), CUDA_SUCCESS);
  EXPECT_EQ(allocate(&next, 600 * kMiB), kFull);
  finish(stream_);
  EXPECT_EQ(allocate(&next, 600 * kMiB), CUDA_SUCCESS);
}

// To ask about an event may spoil a capture of the same thread.
TEST_F(Streams, ACaptureOfTheThreadIsNotDisturbed) {
  Opaque captured = nullptr, graph = nullptr;
  CUdeviceptr address = 0;
  ASSERT_EQ(cuda("cuStreamCreate", &captured, 0u), CUDA_SUCCESS);
  ASSERT_EQ(allocate(&address, 600 * kMiB), CUDA_SUCCESS);
  launch(stream_);
  ASSERT_EQ(cuda("cuStreamBeginCapture_v2", captured, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemFreeAsync", address, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuda("cuMemAllocAsync", &address, size_t{600 * kMiB}, stream_), kFull);
  EXPECT_EQ(cuda("cuStreamEndCapture", captured, &graph), CUDA_SUCCESS);
}

TEST_F(Streams, ACapturedStreamOfTheThreadIsNoticed) {
  Opaque graph = nullptr, made = nullptr;
  Opaque const none = nullptr;
  CUdeviceptr address = 0;
  Opaque pool = nullptr;
  ASSERT_EQ(cuda("cuDeviceGetDefaultMemPool", &pool, CUdevice{0}), CUDA_SUCCESS);
  const uint64_t before = room();
  ASSERT_EQ(cuda("cuStreamBeginCapture_v2_ptsz", none, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemAllocAsync_ptsz", &address, size_t{200 * kMiB}, none), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemAllocFromPoolAsync_ptsz", &address, size_t{200 * kMiB}, pool, none),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda("cuMemAllocAsync", &address, size_t{30 * kMiB}, none), CUDA_SUCCESS)
      << "the legacy stream is another";
  ASSERT_EQ(cuda("cuStreamEndCapture_ptsz", none, &graph), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - 32 * kMiB) << "a node takes nothing before it runs";
  ASSERT_EQ(cuda("cuGraphInstantiateWithFlags", &made, graph, 0ull), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuGraphLaunch", made, stream_), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - 432 * kMiB);
}

TEST_F(Streams, ANodeThatAllocatesOnTheHostIsNotTheCards) {
  CUmemLocation location = {kHost, 0};
  Opaque pool = nullptr, graph = nullptr, node = nullptr, made = nullptr;
  const Opaque* const none = nullptr;
  ASSERT_EQ(cuda("cuMemGetDefaultMemPool", &pool, &location, kPinned), CUDA_SUCCESS);
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps = pool_on(kHost);
  params.bytesize = 4 * kLimit;
  ASSERT_EQ(cuda("cuGraphCreate", &graph, 0u), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuGraphAddMemAllocNode", &node, graph, none, size_t{0}, &params), CUDA_SUCCESS);
  EXPECT_EQ(cuda("cuGraphInstantiateWithFlags", &made, graph, 0ull), CUDA_SUCCESS);
}

}  // namespace
}  // namespace flatout::devlimit
