// Reads PyTorch's messages of all ages, and as consoles break them.
#include "devmem/torch_message.h"

#include <gtest/gtest.h>

namespace flatout::devmem {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20, kGiB = Bytes{1} << 30;

TEST(TorchMessage, ReadsAllAgesOfTheMessage) {
  const auto old = parse_torch_message(
      "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 9.75 GiB "
      "already allocated; 19.44 MiB free; 9.90 GiB reserved in total by PyTorch)");
  ASSERT_TRUE(old);
  EXPECT_EQ(old->request, 20 * kMiB);
  EXPECT_EQ(old->cached.value() / kMiB, 153u);
  EXPECT_FALSE(old->expandable);
  EXPECT_FALSE(old->process);
  const auto oldest = parse_torch_message(
      "CUDA out of memory. Tried to allocate 98.00 MiB (GPU 0; 11.17 GiB total capacity; 3.34 GiB "
      "already allocated; 58.81 MiB free; 60.19 MiB cached)");
  ASSERT_TRUE(oldest);
  EXPECT_EQ(oldest->cached.value() / kMiB, 60u);
  EXPECT_FALSE(parse_torch_message("CUDA error: out of memory"));
  EXPECT_FALSE(parse_torch_message("all is well"));
  EXPECT_FALSE(parse_torch_message(
      "Tip: on \"RuntimeError: CUDA out of memory. Tried to allocate ...\" reduce --batch-size."));
}

// c10/cuda/CUDAMallocAsyncAllocator.cpp
TEST(TorchMessage, ReadsTheOneOfCudaMallocAsync) {
  const auto m = parse_torch_message(
      "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of "
      "memory)\nCurrently allocated     : 21.34 GiB\nRequested               : 1.50 GiB\n"
      "Device limit            : 23.99 GiB\nFree (according to CUDA): 26.38 MiB\n"
      "PyTorch limit (set by user-supplied memory fraction)\n"
      "                        : 17179869184.00 GiB\n");
  ASSERT_TRUE(m);
  EXPECT_EQ(m->request, 3 * kGiB / 2);
  EXPECT_EQ(m->free.value() / kMiB, 26u);
  EXPECT_EQ(m->total.value() / kGiB, 23u);
  EXPECT_EQ(m->allocated.value() / kGiB, 21u);
  EXPECT_FALSE(m->allowed) << "there is no limit";
  EXPECT_FALSE(m->cached) << "not known is not 0";
}

TEST(TorchMessage, ReadsThoseOfOtherDevices) {
  const auto xpu = parse_torch_message(
      "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total "
      "capacity of 15.91 GiB. Of the allocated memory 14.02 GiB is allocated by PyTorch, and "
      "210.52 "
      "MiB is reserved by PyTorch but unallocated.");
  ASSERT_TRUE(xpu);
  EXPECT_FALSE(xpu->free);
  EXPECT_EQ(xpu->cached.value() / kMiB, 210u);
  const auto mps = parse_torch_message(
      "RuntimeError: MPS backend out of memory (MPS allocated: 17.36 GB, other allocations: 512.80 "
      "MB, max allowed: 18.13 GB). Tried to allocate 768.00 MB on private pool.");
  ASSERT_TRUE(mps);
  EXPECT_EQ(mps->request, 768 * kMiB);
  EXPECT_EQ(mps->allowed.value() / kGiB, 18u);
  const auto npu = parse_torch_message(
      "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total "
      "capacity; "
      "57.18 GiB already allocated; 57.18 GiB current active; 1.36 GiB free; 57.97 GiB reserved in "
      "total by PyTorch)");
  ASSERT_TRUE(npu);
  EXPECT_EQ(npu->setting, "PYTORCH_NPU_ALLOC_CONF");
  EXPECT_EQ(npu->free.value() / kMiB, 1392u);
}

const char* const kWhole =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.17 GiB. GPU 3 has a total "
    "capacity of 79.10 GiB of which 412.69 MiB is free. Including non-PyTorch memory, this process "
    "has 78.69 GiB memory in use. Of the allocated memory 74.98 GiB is allocated by PyTorch, and "
    "2.51 GiB is reserved by PyTorch but unallocated.";

TEST(TorchMessage, ItsFiguresDoNotHangOnWhereItIsWrapped) {
  const auto whole = parse_torch_message(kWhole);
  ASSERT_TRUE(whole);
  for (const char* const border : {"", "\u2502 "}) {
    for (const size_t width : {60u, 72u, 80u, 100u}) {
      std::string wrapped;
      for (std::string_view rest = kWhole; !rest.empty();
           rest.remove_prefix(std::min(width, rest.size())))
        wrapped += border + std::string(rest.substr(0, width)) + "\n";
      const auto m = parse_torch_message(wrapped);
      ASSERT_TRUE(m) << wrapped;
      EXPECT_EQ(m->free, whole->free) << wrapped;
      EXPECT_EQ(m->total, whole->total) << wrapped;
      EXPECT_EQ(m->process, whole->process) << wrapped;
      EXPECT_EQ(m->allocated, whole->allocated) << wrapped;
      EXPECT_EQ(m->cached, whole->cached) << wrapped;
    }
  }
}

TEST(TorchMessage, WhatAnotherRankSaysBehindItIsNotItsOwn) {
  const auto m = parse_torch_message(
      "CUDA out of memory. Tried to allocate 1.00 GiB.\nRuntimeError: CUDA out of memory. Tried to "
      "allocate 2.00 GiB (GPU 0; 10.76 GiB total capacity; 9.75 GiB already allocated; 0.5 GiB "
      "free;");
  ASSERT_TRUE(m);
  EXPECT_EQ(m->request, kGiB);
  EXPECT_FALSE(m->total);
}

TEST(TorchMessage, ARequestMayBeLargerThanAnyCard) {
  const auto request = [](const char* size) {
    return parse_torch_message("CUDA out of memory. Tried to allocate " + std::string(size))
        ->request;
  };
  EXPECT_EQ(request("1048576.00 GiB."), Bytes{1} << 50);
  EXPECT_EQ(request("more than 1EB memory."), Bytes{1} << 60);
  EXPECT_GT(request("17179869160.58 GiB (GPU 0; 11.17 GiB total capacity;"), Bytes{1} << 62);
  EXPECT_EQ(request("512 bytes. GPU 0 has"), 512u);
}

TEST(TorchMessage, AnEchoedCommandSetsExpandableSegmentsAndPyTorchsAdviceDoesNot) {
  EXPECT_TRUE(
      sets_expandable_segments("a\n+ export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"));
  EXPECT_TRUE(
      sets_expandable_segments("PYTORCH_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True"));
  EXPECT_FALSE(sets_expandable_segments(
      "is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"));
}

}  // namespace
}  // namespace flatout::devmem
