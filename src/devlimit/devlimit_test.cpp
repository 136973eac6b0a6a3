// The interposer in front of a stand-in driver, each test in a process of its own with a limit of
// 1 GiB on device 0 and 512 MiB on device 1. What counts is what the stand-in card has handed out.
// Each hole that is known of another limiter (HAMi-core) has a test here.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "devlimit/testing/limited.h"

namespace flatout::devlimit {
namespace {

TEST_F(Devlimit, PlainMemoryStopsAtTheLimitToTheByteAndGoesOnAfterAFree) {
  CUdeviceptr first = 0, second = 0;
  const size_t rest = kLimit - taken();
  EXPECT_EQ(allocate(&first, rest + 1), kFull);
  ASSERT_EQ(allocate(&first, rest), CUDA_SUCCESS);
  EXPECT_EQ(taken(), kLimit);
  EXPECT_EQ(allocate(&second, 1), kFull);
  ASSERT_EQ(free_it(first), CUDA_SUCCESS);
  EXPECT_EQ(allocate(&second, rest), CUDA_SUCCESS);
}

TEST_F(Devlimit, EveryWayToTheFunctionIsLimited) {
  using Allocate = CUresult(CUdeviceptr*, size_t);
  using Lookup = CUresult(const char*, void**, int, uint64_t);
  using Lookup2 = CUresult(const char*, void**, int, uint64_t, int*);
  std::vector<void*> ways = {
      ::dlsym(cuda_library(), "cuMemAlloc_v2"), ::dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"),
      ::dlsym(RTLD_NEXT, "cuMemAlloc_v2"), ::dlsym(::dlopen(nullptr, RTLD_NOW), "cuMemAlloc_v2")};
  void* found = nullptr;
  const auto lookup = reinterpret_cast<Lookup*>(::dlsym(cuda_library(), "cuGetProcAddress"));
  ASSERT_EQ(lookup("cuMemAlloc", &found, 11030, 0), CUDA_SUCCESS);
  ways.push_back(found);
  auto lookup2 = reinterpret_cast<Lookup2*>(::dlsym(cuda_library(), "cuGetProcAddress_v2"));
  int status = 0;
  ASSERT_EQ(lookup2("cuMemAlloc", &found, 12000, 0, &status), CUDA_SUCCESS);
  ways.push_back(found);
  // The way that the CUDA runtime goes: the lookup function by itself, too.
  ASSERT_EQ(lookup2("cuGetProcAddress", &found, 12000, 0, &status), CUDA_SUCCESS);
  lookup2 = reinterpret_cast<Lookup2*>(found);
  ASSERT_EQ(lookup2("cuMemAlloc", &found, 13000, 0, &status), CUDA_SUCCESS);
  ways.push_back(found);
  for (size_t i = 0; i < ways.size(); ++i) {
    CUdeviceptr address = 0;
    ASSERT_NE(ways[i], nullptr) << i;
    const auto way = reinterpret_cast<Allocate*>(ways[i]);
    EXPECT_EQ(way(&address, kLimit), kFull) << i;
    ASSERT_EQ(way(&address, kMiB), CUDA_SUCCESS) << i;
    EXPECT_EQ(free_it(address), CUDA_SUCCESS);
  }
  ASSERT_EQ(lookup2("cuMemAllocAsync", &found, 13000, 2, &status), CUDA_SUCCESS);
  EXPECT_EQ(found, ::dlsym(cuda_library(), "cuMemAllocAsync_ptsz"));
  ASSERT_EQ(lookup2("cuCtxCreate", &found, 11040, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(found, ::dlsym(cuda_library(), "cuCtxCreate_v2")) << "this driver has no third version";
}

TEST_F(Devlimit, OtherLookupsAnswerAsWithoutIt) {
  EXPECT_EQ(::dlsym(RTLD_DEFAULT, "getpid"), reinterpret_cast<void*>(&::getpid));
  EXPECT_EQ(::dlsym(cuda_library(), "cuNoSuchFunction"), nullptr);
  EXPECT_NE(::dlerror(), nullptr);
  EXPECT_EQ(::dlsym(cuda_library(), "cuGraphicsMapResources"), nullptr);
  // Functions that a stand-in lacks are not invented.
  EXPECT_EQ(::dlsym(cuda_library(), "cuMemMapArrayAsync"), nullptr);
}

TEST_F(Devlimit, PitchedMemoryCountsOnceThoughTheDriverCallsItself) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  const uint64_t before = room();
  ASSERT_EQ(cuda("cuMemAllocPitch_v2", &address, &pitch, size_t{1000}, size_t{1000}, 4u),
            CUDA_SUCCESS);
  EXPECT_EQ(pitch, 1024u);
  EXPECT_EQ(room(), before - 1024000);
  EXPECT_EQ(cuda("cuMemAllocPitch_v2", &address, &pitch, size_t{1} << 20, size_t{1} << 10, 4u),
            kFull);
  ASSERT_EQ(free_it(address), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);
}

TEST_F(Devlimit, ManagedMemoryCounts) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuda("cuMemAllocManaged", &address, size_t{kLimit}, 1u), kFull);
  ASSERT_EQ(cuda("cuMemAllocManaged", &address, size_t{100 * kMiB}, 1u), CUDA_SUCCESS);
  EXPECT_EQ(taken(), fake::kContextBytes + 100 * kMiB);
  EXPECT_EQ(free_it(address), CUDA_SUCCESS);
}

TEST_F(Devlimit, FunctionsOf32BitAddressesAreNoWayAround) {
  unsigned address = 0;
  EXPECT_EQ(cuda("cuMemAlloc", &address, unsigned{kMiB}), CUDA_ERROR_NOT_SUPPORTED);
}

// To release the handle and keep the mapping is the usual way: HAMi-core uncharges at the release.
TEST_F(Devlimit, MemoryThatIsReleasedAndStillMappedStaysCharged) {
  const CUmemAllocationProp prop = on_device();
  const size_t bytes = 400 * kMiB;
  const uint64_t before = room();
  std::vector<CUdeviceptr> mapped;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr range = 0;
  ASSERT_EQ(cuda("cuMemAddressReserve", &range, bytes * 4, size_t{0}, CUdeviceptr{0}, 0ull),
            CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cuda("cuMemCreate", &handle, bytes, &prop, 0ull), CUDA_SUCCESS);
    ASSERT_EQ(cuda("cuMemMap", range + i * bytes, bytes, size_t{0}, handle, 0ull), CUDA_SUCCESS);
    ASSERT_EQ(cuda("cuMemRelease", handle), CUDA_SUCCESS);
  }
  EXPECT_EQ(room(), before - 2 * bytes);
  EXPECT_EQ(cuda("cuMemCreate", &handle, bytes, &prop, 0ull), kFull);
  // A handle from the mapping keeps the memory when the mapping goes.
  CUmemGenericAllocationHandle kept = 0;
  ASSERT_EQ(
      cuda("cuMemRetainAllocationHandle", &kept, reinterpret_cast<void*>(range + bytes + 4096)),
      CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemUnmap", range, 2 * bytes), CUDA_SUCCESS);  // both in one call
  EXPECT_EQ(room(), before - bytes);
  EXPECT_EQ(taken(), fake::kContextBytes + bytes);
  ASSERT_EQ(cuda("cuMemRelease", kept), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);
  EXPECT_EQ(cuda("cuMemUnmap", range, bytes), CUDA_ERROR_INVALID_VALUE) << "the driver's answer";
  EXPECT_EQ(cuda("cuMemRelease", kept), 400);
  EXPECT_EQ(room(), before);
}

TEST_F(Devlimit, OneHandleMappedTwiceCountsOnceAndManyMappingsGoInOneCall) {
  const CUmemAllocationProp prop = on_device();
  const size_t page = 2 * kMiB;
  const uint64_t before = room();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr range = 0;
  ASSERT_EQ(cuda("cuMemAddressReserve", &range, page * 100, size_t{0}, CUdeviceptr{0}, 0ull),
            CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemCreate", &handle, page, &prop, 0ull), CUDA_SUCCESS);
  for (size_t i = 0; i < 100; ++i)
    ASSERT_EQ(cuda("cuMemMap", range + i * page, page, size_t{0}, handle, 0ull), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - page);
  ASSERT_EQ(cuda("cuMemRelease", handle), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemUnmap", range, 99 * page), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - page);
  ASSERT_EQ(cuda("cuMemUnmap", range + 99 * page, page), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);
}

// HAMi-core lets cuMemAllocFromPoolAsync pass uncounted.
TEST_F(Devlimit, ExplicitPoolsCountWhatTheyReserve) {
  const CUmemPoolProps props = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
  Opaque pool = nullptr;
  const Opaque stream = nullptr;
  ASSERT_EQ(cuda("cuMemPoolCreate", &pool, &props), CUDA_SUCCESS);
  std::vector<CUdeviceptr> blocks;
  CUdeviceptr address = 0;
  while (cuda("cuMemAllocFromPoolAsync", &address, size_t{10 * kMiB}, pool, stream) == CUDA_SUCCESS)
    blocks.push_back(address);
  EXPECT_GE(blocks.size(), (960u - 32) / 10) << "a request may have the pool grow by 32 MiB";
  EXPECT_LE(taken(), kLimit);
  EXPECT_EQ(room(), kLimit - taken());
  for (const CUdeviceptr block : blocks)
    ASSERT_EQ(cuda("cuMemFreeAsync", block, stream), CUDA_SUCCESS);
  // The pool keeps it, so it stays charged, until somebody else needs it.
  EXPECT_LT(room(), 32 * kMiB);
  ASSERT_EQ(allocate(&address, 500 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(taken(), fake::kContextBytes + 500 * kMiB);
  ASSERT_EQ(cuda("cuMemPoolDestroy", pool), CUDA_SUCCESS);
  EXPECT_EQ(room(), kLimit - taken());
}

// What a pool has idle may lie in pieces: a card's grows by up to the whole request all the same.
TEST_F(Devlimit, APoolThatGrowsThoughItHasRoomStaysWithin) {
  const CUmemPoolProps props = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
  Opaque pool = nullptr;
  const Opaque stream = nullptr;
  ASSERT_EQ(cuda("cuMemPoolCreate", &pool, &props), CUDA_SUCCESS);
  CUdeviceptr held = 0, other = 0, address = 0;
  ASSERT_EQ(cuda("cuMemAllocFromPoolAsync", &held, size_t{300 * kMiB}, pool, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemAllocFromPoolAsync", &other, size_t{150 * kMiB}, pool, stream),
            CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemFreeAsync", held, stream), CUDA_SUCCESS);
  ASSERT_EQ(allocate(&address, 350 * kMiB), CUDA_SUCCESS);
  const uint64_t before = taken();
  ASSERT_GT(before + 224 * kMiB, kLimit);
  EXPECT_EQ(cuda("cuMemAllocFromPoolAsync", &held, size_t{200 * kMiB}, pool, stream), CUDA_SUCCESS)
      << "once what is idle is given back there is room";
  EXPECT_LE(fake::card().peak[0], kLimit);
}

TEST_F(Devlimit, ADestroyedPoolIsChargedUntilItsLastBlockIsFree) {
  const CUmemPoolProps props = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
  Opaque pool = nullptr;
  const Opaque stream = nullptr;
  CUdeviceptr address = 0;
  const uint64_t before = room();
  ASSERT_EQ(cuda("cuMemPoolCreate", &pool, &props), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemAllocFromPoolAsync", &address, size_t{40 * kMiB}, pool, stream),
            CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemPoolDestroy", pool), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - 64 * kMiB);
  ASSERT_EQ(free_it(address), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);
  EXPECT_EQ(taken(), fake::kContextBytes);
}

TEST_F(Devlimit, StreamOrderedMemoryOfTheDefaultPoolCounts) {
  CUdeviceptr address = 0;
  Opaque stream = nullptr, pool = nullptr;
  ASSERT_EQ(cuda("cuStreamCreate", &stream, 0u), CUDA_SUCCESS);
  EXPECT_EQ(cuda("cuMemAllocAsync", &address, size_t{kLimit}, stream), kFull);
  for (const char* name : {"cuMemAllocAsync", "cuMemAllocAsync_ptsz"}) {
    ASSERT_EQ(cuda(name, &address, size_t{800 * kMiB}, stream), CUDA_SUCCESS) << name;
    EXPECT_EQ(cuda(name, &address, size_t{800 * kMiB}, stream), kFull) << name;
    ASSERT_EQ(cuda("cuMemFreeAsync", address, stream), CUDA_SUCCESS);
  }
  ASSERT_EQ(cuda("cuDeviceGetDefaultMemPool", &pool, CUdevice{0}), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemPoolTrimTo", pool, size_t{0}), CUDA_SUCCESS);
  EXPECT_EQ(room(), kLimit - fake::kContextBytes);
}

TEST_F(Devlimit, AHostPoolIsNotTheCards) {
  constexpr int kHost = 2;
  const CUmemPoolProps props = pool_on(kHost);
  Opaque pool = nullptr;
  const Opaque stream = nullptr;
  CUdeviceptr address = 0;
  ASSERT_EQ(cuda("cuMemPoolCreate", &pool, &props), CUDA_SUCCESS);
  EXPECT_EQ(cuda("cuMemAllocFromPoolAsync", &address, size_t{4 * kLimit}, pool, stream),
            CUDA_SUCCESS);
  EXPECT_EQ(room(), kLimit - fake::kContextBytes);
}

// HAMi-core does not check arrays, and mipmaps only for whether anything is left.
TEST_F(Devlimit, ArraysAndMipmapsCount) {
  const CUDA_ARRAY_DESCRIPTOR flat = {8192, 8192, 0x20, 1};
  const CUDA_ARRAY3D_DESCRIPTOR deep = {1024, 1024, 64, 0x20, 4, 0};
  const CUDA_ARRAY3D_DESCRIPTOR square = {8192, 8192, 0, 0x20, 2, 0};
  Opaque array = nullptr;
  const uint64_t before = room();
  std::vector<Opaque> arrays;
  while (cuda("cuArrayCreate_v2", &array, &flat) == CUDA_SUCCESS) arrays.push_back(array);
  EXPECT_EQ(arrays.size(), 3u);
  EXPECT_EQ(cuda("cuArray3DCreate_v2", &array, &deep), kFull);
  EXPECT_EQ(cuda("cuMipmappedArrayCreate", &array, &square, 5u), kFull);
  for (const Opaque one : arrays) ASSERT_EQ(cuda("cuArrayDestroy", one), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);
  ASSERT_EQ(cuda("cuMipmappedArrayCreate", &array, &square, 5u), CUDA_SUCCESS);
  EXPECT_GE(kLimit - room(), taken());
  EXPECT_LE(kLimit - room(), taken() + kMiB);
  ASSERT_EQ(cuda("cuMipmappedArrayDestroy", array), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);
  const CUDA_ARRAY3D_DESCRIPTOR absurd = {size_t{1} << 40, size_t{1} << 40, 1, 0x20, 4, 0};
  EXPECT_EQ(cuda("cuArray3DCreate_v2", &array, &absurd), kFull);
}

// HAMi-core hands every function of graphs to the driver.
TEST_F(Devlimit, NodesOfGraphsThatAllocateCountHoweverTheyCameAbout) {
  Opaque graph = nullptr, parent = nullptr, node = nullptr, made = nullptr, stream = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
  params.bytesize = 300 * kMiB;
  const uint64_t before = room();
  ASSERT_EQ(cuda("cuGraphCreate", &graph, 0u), CUDA_SUCCESS);
  const Opaque* const none = nullptr;
  ASSERT_EQ(cuda("cuGraphAddMemAllocNode", &node, graph, none, size_t{0}, &params), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuStreamCreate", &stream, 0u), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuStreamBeginCapture_v2", stream, 0), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  ASSERT_EQ(cuda("cuMemAllocAsync", &address, size_t{300 * kMiB}, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuStreamEndCapture", stream, &parent), CUDA_SUCCESS);
  EXPECT_EQ(room(), before) << "nothing is taken before it runs";
  ASSERT_EQ(cuda("cuGraphAddChildGraphNode", &node, parent, none, size_t{0}, graph), CUDA_SUCCESS);

  ASSERT_EQ(cuda("cuGraphInstantiateWithFlags", &made, parent, 0ull), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuGraphLaunch", made, stream), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - 600 * kMiB);
  ASSERT_EQ(cuda("cuGraphLaunch", made, stream), CUDA_SUCCESS) << "a second time it has its memory";
  EXPECT_EQ(room(), before - 600 * kMiB);
  ASSERT_EQ(allocate(&address, 300 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuDeviceGraphMemTrim", CUdevice{0}), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - 300 * kMiB);
  CUdeviceptr more = 0;
  ASSERT_EQ(allocate(&more, 200 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cuda("cuGraphLaunch", made, stream), kFull) << "its memory went with the trim";
  EXPECT_EQ(cuda("cuGraphUpload", made, stream), kFull);
  ASSERT_EQ(free_it(address), CUDA_SUCCESS);
  ASSERT_EQ(free_it(more), CUDA_SUCCESS);
  EXPECT_EQ(cuda("cuGraphLaunch", made, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuGraphExecDestroy", made), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - 600 * kMiB) << "the driver keeps it for other graphs";
  ASSERT_EQ(allocate(&address, 800 * kMiB), CUDA_SUCCESS) << "until it is needed";
}

// HAMi-core charges none of these.
TEST_F(Devlimit, MemoryOfOthersCountsWhereItIsOpened) {
  const uint64_t before = room();
  CUipcMemHandle ipc = {};
  size_t foreign = 700 * kMiB;
  memcpy(ipc.reserved, &foreign, sizeof foreign);
  CUdeviceptr address = 0, again = 0;
  ASSERT_EQ(cuda("cuIpcOpenMemHandle_v2", &address, ipc, 1u), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - foreign);
  CUipcMemHandle other = ipc;
  other.reserved[8] = 1;
  EXPECT_EQ(cuda("cuIpcOpenMemHandle_v2", &again, other, 1u), kFull);
  EXPECT_EQ(cuda("cuIpcOpenMemHandle", &again, other, 1u), kFull);
  ASSERT_EQ(cuda("cuIpcCloseMemHandle", address), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);
  ASSERT_EQ(cuda("cuMemPoolImportPointer", &address, Opaque{nullptr}, static_cast<void*>(&foreign)),
            CUDA_SUCCESS);
  EXPECT_EQ(room(), before - foreign);
  ASSERT_EQ(free_it(address), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);

  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr range = 0;
  ASSERT_EQ(
      cuda("cuMemAddressReserve", &range, size_t{4 * kLimit}, size_t{0}, CUdeviceptr{0}, 0ull),
      CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemImportFromShareableHandle", &handle, reinterpret_cast<void*>(kLimit), 1),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda("cuMemMap", range, size_t{kLimit}, size_t{0}, handle, 0ull), kFull);
  ASSERT_EQ(cuda("cuMemMap", range, size_t{512 * kMiB}, size_t{0}, handle, 0ull), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - 512 * kMiB);
  ASSERT_EQ(cuda("cuMemUnmap", range, size_t{512 * kMiB}), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemRelease", handle), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);

  CUDA_EXTERNAL_MEMORY_HANDLE_DESC what = {};
  Opaque external = nullptr;
  what.size = 700 * kMiB;
  ASSERT_EQ(cuda("cuImportExternalMemory", &external, &what), CUDA_SUCCESS);
  Opaque more = nullptr;
  EXPECT_EQ(cuda("cuImportExternalMemory", &more, &what), kFull);
  ASSERT_EQ(cuda("cuDestroyExternalMemory", external), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);
}

TEST_F(Devlimit, MemoryThatIsOpenTwiceStaysChargedUntilItIsClosedTwice) {
  const uint64_t before = room();
  CUipcMemHandle ipc = {};
  const size_t foreign = 700 * kMiB;
  memcpy(ipc.reserved, &foreign, sizeof foreign);
  CUdeviceptr address = 0, again = 0;
  ASSERT_EQ(cuda("cuIpcOpenMemHandle_v2", &address, ipc, 1u), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuIpcOpenMemHandle_v2", &again, ipc, 1u), CUDA_SUCCESS);
  ASSERT_EQ(again, address);
  EXPECT_EQ(room(), before - foreign) << "it is there once";
  ASSERT_EQ(cuda("cuIpcCloseMemHandle", address), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - foreign);
  ASSERT_EQ(cuda("cuIpcCloseMemHandle", address), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);
  EXPECT_EQ(cuda("cuIpcCloseMemHandle", address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(room(), before);
}

TEST_F(Devlimit, NoAddressIsTheDriversToRefuse) {
  const CUipcMemHandle ipc = {};
  CUdeviceptr* const nowhere = nullptr;
  Opaque const pool = nullptr;
  size_t bytes = kMiB;
  for (const char* name : {"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"})
    EXPECT_EQ(cuda(name, nowhere, ipc, 1u), CUDA_ERROR_INVALID_VALUE) << name;
  EXPECT_EQ(cuda("cuMemPoolImportPointer", nowhere, pool, static_cast<void*>(&bytes)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(allocate(nowhere, kMiB), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(room(), kLimit - fake::kContextBytes);
}

// A green context holds the primary one.
TEST_F(Devlimit, AGreenContextCountsAsThePrimaryOneThatItHolds) {
  Opaque green = nullptr, context = nullptr;
  Opaque const resources = nullptr;
  CUdeviceptr address = 0;
  const auto create = [&] { return cuda("cuGreenCtxCreate", &green, resources, CUdevice{1}, 1u); };
  // With no primary context that is the first one.
  ASSERT_EQ(create(), CUDA_SUCCESS);
  EXPECT_EQ(charged(1), fake::kContextBytes) << "measured";
  ASSERT_EQ(cuda("cuCtxFromGreenCtx", &context, green), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuCtxSetCurrent", context), CUDA_SUCCESS);
  ASSERT_EQ(allocate(&address, 100 * kMiB), CUDA_SUCCESS);
  // What it allocated is the primary context's.
  Opaque primary = nullptr;
  ASSERT_EQ(cuda("cuDevicePrimaryCtxRetain", &primary, CUdevice{1}), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuCtxSetCurrent", context_), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuGreenCtxDestroy", green), CUDA_SUCCESS);
  EXPECT_EQ(charged(1), fake::kContextBytes + 100 * kMiB);
  ASSERT_EQ(create(), CUDA_SUCCESS);
  EXPECT_EQ(charged(1), fake::kContextBytes + 100 * kMiB) << "it is there already";
  ASSERT_EQ(cuda("cuDevicePrimaryCtxRelease_v2", CUdevice{1}), CUDA_SUCCESS);
  EXPECT_EQ(charged(1), fake::kContextBytes + 100 * kMiB) << "still held";
  ASSERT_EQ(cuda("cuGreenCtxDestroy", green), CUDA_SUCCESS);
  EXPECT_EQ(taken(1), 0u);
  EXPECT_EQ(charged(1), 0u);
  // And it needs its room.
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = on_device(1);
  ASSERT_EQ(cuda("cuMemCreate", &handle, size_t{500 * kMiB}, &prop, 0ull), CUDA_SUCCESS);
  EXPECT_EQ(create(), kFull);
}

// HAMi-core charges contexts of cuCtxCreate nothing.
TEST_F(Devlimit, ContextsCountWhatTheyTakeAndWhatLiesInThem) {
  const uint64_t before = room();
  EXPECT_EQ(before, kLimit - fake::kContextBytes) << "measured, not guessed";
  Opaque context = nullptr;
  const void* const no_params = nullptr;
  ASSERT_EQ(cuda("cuCtxCreate_v4", &context, no_params, 0u, CUdevice{0}), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - fake::kContextBytes);
  CUdeviceptr address = 0;
  ASSERT_EQ(allocate(&address, kLimit - 3 * fake::kContextBytes + 1), CUDA_SUCCESS);
  Opaque another = nullptr;
  EXPECT_EQ(cuda("cuCtxCreate_v2", &another, 0u, CUdevice{0}), kFull);
  ASSERT_EQ(cuda("cuCtxDestroy_v2", context), CUDA_SUCCESS);
  EXPECT_EQ(room(), before) << "its memory went with it";
  ASSERT_EQ(allocate(&address, before), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuDevicePrimaryCtxReset_v2", CUdevice{0}), CUDA_SUCCESS);
  ASSERT_EQ(taken(), 0u);
  ASSERT_EQ(cuda("cuDevicePrimaryCtxRetain", &context_, CUdevice{0}), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);
}

// HAMi-core hooks neither.
TEST_F(Devlimit, ModulesLibrariesAndTheDevicesHeapCount) {
  const uint64_t before = room();
  Opaque module = nullptr, library = nullptr;
  const void* const image = "// .version 8.0";
  ASSERT_EQ(cuda("cuModuleLoadData", &module, image), CUDA_SUCCESS);
  int* const no_options = nullptr;
  void** const no_values = nullptr;
  ASSERT_EQ(cuda("cuLibraryLoadData", &library, image, no_options, no_values, 0u, no_options,
                 no_values, 0u),
            CUDA_SUCCESS);
  EXPECT_EQ(room(), before - 2 * fake::kModuleBytes);
  ASSERT_EQ(cuda("cuModuleUnload", module), CUDA_SUCCESS);
  EXPECT_EQ(room(), before - fake::kModuleBytes);
  const uint64_t heap = 8 * kMiB;
  EXPECT_EQ(cuda("cuCtxSetLimit", int{CU_LIMIT_MALLOC_HEAP_SIZE}, size_t{2 * kLimit}), kFull);
  ASSERT_EQ(cuda("cuCtxSetLimit", int{CU_LIMIT_MALLOC_HEAP_SIZE}, size_t{heap + 100 * kMiB}),
            CUDA_SUCCESS);
  EXPECT_EQ(room(), before - fake::kModuleBytes - 100 * kMiB);
  CUdeviceptr address = 0;
  ASSERT_EQ(allocate(&address, room()), CUDA_SUCCESS);
  EXPECT_EQ(cuda("cuModuleLoadData", &module, image), kFull);
}

TEST_F(Devlimit, MemoryTakenPastEveryHookIsFoundAndCounts) {
  // As a driver would by a path that nobody knows of.
  ASSERT_TRUE(fake::card().take(0, 500 * kMiB));
  Opaque module = nullptr;
  const void* const image = "// .version 8.0";
  ASSERT_EQ(cuda("cuModuleLoadData", &module, image), CUDA_SUCCESS);
  EXPECT_EQ(room(), kLimit - taken());
  CUdeviceptr address = 0;
  EXPECT_EQ(allocate(&address, 600 * kMiB), kFull);
}

TEST_F(Devlimit, EachDeviceHasItsOwnLimit) {
  Opaque second = nullptr;
  ASSERT_EQ(cuda("cuDevicePrimaryCtxRetain", &second, CUdevice{1}), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuCtxSetCurrent", second), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  EXPECT_EQ(allocate(&address, 512 * kMiB), kFull);
  ASSERT_EQ(allocate(&address, 400 * kMiB), CUDA_SUCCESS);
  const CUmemAllocationProp prop = on_device(0);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuda("cuMemCreate", &handle, size_t{900 * kMiB}, &prop, 0ull), CUDA_SUCCESS)
      << "on the device that it names, not the current one";
}

TEST_F(Devlimit, TheLimitIsWhatTheCardSeemsToHave) {
  size_t total = 0;
  ASSERT_EQ(cuda("cuDeviceTotalMem_v2", &total, CUdevice{0}), CUDA_SUCCESS);
  EXPECT_EQ(total, kLimit);
  ASSERT_EQ(cuda("cuDeviceTotalMem_v2", &total, CUdevice{1}), CUDA_SUCCESS);
  EXPECT_EQ(total, kLimit / 2);
  CUdeviceptr address = 0;
  ASSERT_EQ(allocate(&address, 100 * kMiB), CUDA_SUCCESS);
  Opaque device = nullptr;
  nvmlMemory memory = {};
  nvmlMemory_v2 memory2 = {};
  memory2.version = 0x2000028;
  for (unsigned i = 0; i < 2; ++i) {
    ASSERT_EQ(call_in(nvml_library(), "nvmlDeviceGetHandleByIndex_v2", i, &device), NVML_SUCCESS);
    ASSERT_EQ(call_in(nvml_library(), "nvmlDeviceGetMemoryInfo", device, &memory), NVML_SUCCESS);
    ASSERT_EQ(call_in(nvml_library(), "nvmlDeviceGetMemoryInfo_v2", device, &memory2),
              NVML_SUCCESS);
    EXPECT_EQ(memory.total, kLimit >> i);
    EXPECT_EQ(memory.used, i == 0 ? fake::kContextBytes + 100 * kMiB : 0);
    EXPECT_EQ(memory.free, memory.total - memory.used) << "never wraps round";
    EXPECT_EQ(memory2.total, memory.total);
    EXPECT_EQ(memory2.used, memory.used);
    EXPECT_EQ(memory2.version, 0x2000028u);
  }
}

TEST_F(Devlimit, ACallThatTheDriverRefusesIsNotCharged) {
  const uint64_t before = room();
  CUdeviceptr address = 0;
  EXPECT_EQ(allocate(&address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(free_it(0x1234), CUDA_ERROR_INVALID_VALUE);
  const CUmemAllocationProp prop = on_device();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuda("cuMemCreate", &handle, size_t{4096}, &prop, 0ull), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuda("cuCtxSetCurrent", Opaque{nullptr}), CUDA_SUCCESS);
  EXPECT_EQ(allocate(&address, kMiB), 201) << "the driver's own error";
  ASSERT_EQ(cuda("cuCtxSetCurrent", context_), CUDA_SUCCESS);
  EXPECT_EQ(room(), before);
}

TEST_F(Devlimit, AForksChildOwnsNothingOfItsParents) {
  CUdeviceptr address = 0;
  ASSERT_EQ(allocate(&address, 100 * kMiB), CUDA_SUCCESS);
  const uint64_t before = room();
  const pid_t child = ::fork();
  if (child == 0) {
    free_it(address);  // nonsense after fork, and no reason to give back what the parent holds
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  fake::card().used[0] += 100 * kMiB;  // the stand-in let the child free it
  EXPECT_EQ(room(), before);
  fake::card().used[0] -= 100 * kMiB;
}

TEST_F(Devlimit, OfTwoRacersForTheLastBytesExactlyOneGetsThem) {
  for (int round = 0; round < 50; ++round) {
    const size_t all = room();
    std::atomic<int> won{0}, ready{0};
    CUdeviceptr got[2] = {};
    std::vector<std::thread> racers;
    racers.reserve(2);
    for (int i = 0; i < 2; ++i) {
      racers.emplace_back([&, i] {
        cuda("cuCtxSetCurrent", context_);
        ++ready;
        while (ready < 2) std::this_thread::yield();
        if (allocate(&got[i], all) == CUDA_SUCCESS) ++won;
      });
    }
    for (std::thread& racer : racers) racer.join();
    ASSERT_EQ(won, 1) << round;
    for (const CUdeviceptr address : got) {
      if (address != 0) {
        ASSERT_EQ(free_it(address), CUDA_SUCCESS);
      }
    }
  }
}

// ---- the recording ----

class Recorded : public Devlimit {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    ::setenv("FLATOUT_DEVLIMIT_RECORD", file().c_str(), 1);
    Devlimit::SetUp();
  }
  void TearDown() override {
    Devlimit::TearDown();
    std::filesystem::remove_all(folder_);
  }
  std::string file(const std::string& end = "") const { return folder_ + "/memory" + end; }
  /// The lines behind the first, each without its time.
  static std::vector<std::string> lines(const std::string& path) {
    std::ifstream in(path);
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);)
      out.push_back(line.substr(0, line.find(",\"t\"")));
    EXPECT_FALSE(out.empty()) << path;
    if (!out.empty()) out.erase(out.begin());
    return out;
  }
  static std::string taken_line(uint64_t id, uint64_t bytes) {
    return "{\"op\":\"a\",\"id\":" + std::to_string(id) + ",\"size\":" + std::to_string(bytes);
  }
  std::string folder_ = "/tmp/flatout-recorded-XXXXXX";
};

TEST_F(Recorded, WhatComesAndGoesAndWhatIsRefusedIsWritten) {
  CUdeviceptr plain = 0, pooled = 0, refused = 0, range = 0;
  ASSERT_EQ(allocate(&plain, 3 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemAllocAsync", &pooled, size_t{5 * kMiB}, Opaque{nullptr}), CUDA_SUCCESS);
  EXPECT_EQ(allocate(&refused, kLimit), kFull);
  ASSERT_EQ(cuda("cuMemFreeAsync", pooled, Opaque{nullptr}), CUDA_SUCCESS);
  ASSERT_EQ(free_it(plain), CUDA_SUCCESS);
  const CUmemAllocationProp prop = on_device();
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuda("cuMemAddressReserve", &range, size_t{8 * kMiB}, size_t{0}, CUdeviceptr{0}, 0ull),
            CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemCreate", &handle, size_t{8 * kMiB}, &prop, 0ull), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemMap", range, size_t{8 * kMiB}, size_t{0}, handle, 0ull), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuMemRelease", handle), CUDA_SUCCESS);
  const std::vector<std::string> before = lines(file());
  ASSERT_EQ(before.size(), 6u) << "the memory is there until it is unmapped";
  ASSERT_EQ(cuda("cuMemUnmap", range, size_t{8 * kMiB}), CUDA_SUCCESS);
  const std::vector<std::string> all = lines(file());
  ASSERT_EQ(all.size(), 7u);
  const auto id_of = [](const std::string& line) {
    return std::stoull(line.substr(line.find("\"id\":") + 5));
  };
  for (const auto& [taken, freed, bytes] :
       std::initializer_list<std::tuple<size_t, size_t, uint64_t>>{
           {0, 4, 3 * kMiB}, {1, 3, 5 * kMiB}, {5, 6, 8 * kMiB}}) {
    const uint64_t id = id_of(all[taken]);
    EXPECT_EQ(all[taken], taken_line(id, bytes));
    EXPECT_EQ(all[freed], "{\"op\":\"f\",\"id\":" + std::to_string(id));
  }
  EXPECT_EQ(all[2], "{\"op\":\"oom\",\"size\":" + std::to_string(kLimit));
}

TEST_F(Recorded, EachCardAndEachProcessHasAFileOfItsOwn) {
  CUdeviceptr address = 0;
  Opaque other = nullptr;
  ASSERT_EQ(allocate(&address, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuda("cuCtxCreate_v2", &other, 0u, CUdevice{1}), CUDA_SUCCESS);
  ASSERT_EQ(allocate(&address, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(lines(file()).size(), 1u);
  EXPECT_EQ(lines(file("." + std::to_string(::getpid()))).size(), 1u);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(allocate(&address, 4 * kMiB) == CUDA_SUCCESS ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(lines(file()).size(), 1u) << "the child writes elsewhere";
  EXPECT_EQ(lines(file("." + std::to_string(child))).size(), 1u);
}

}  // namespace
}  // namespace flatout::devlimit

int main(int argc, char** argv) {
  // Itself again, with what LD_PRELOAD and the loader must find at the start.
  if (::getenv("FLATOUT_DEVLIMIT") == nullptr) {
    ::setenv("LD_PRELOAD", FLATOUT_DEVLIMIT_LIBRARY, 1);
    ::setenv("LD_LIBRARY_PATH", FLATOUT_FAKE_DRIVERS, 1);
    ::setenv("FLATOUT_DEVLIMIT", "0=1GiB,1=512MiB", 1);
    ::execv("/proc/self/exe", argv);
    return 1;
  }
  // A card for each test, before the stand-ins look for theirs.
  char path[] = "/tmp/flatout-fake-card-XXXXXX";
  const int fd = ::mkstemp(path);
  if (fd < 0) return 1;
  ::close(fd);
  ::setenv("FAKE_CARD", path, 1);
  fake::card();
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  ::unlink(path);
  return result;
}
