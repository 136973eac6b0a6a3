// Real messages, each with one that looks like it and is not.
#include "devmem/explain.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "devmem/explain_torch.h"

namespace flatout::devmem {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

struct Case {
  const char* kind;
  const char* message;
  const char* near_miss;
};

class Message : public testing::TestWithParam<Case> {};

TEST_P(Message, IsExplainedAndItsNearMissIsNot) {
  const Explanation e = explain_text(GetParam().message);
  EXPECT_EQ(e.kind, GetParam().kind);
  EXPECT_GT(e.sure, 0);
  EXPECT_FALSE(e.text.empty());
  EXPECT_FALSE(e.advice.empty());
  EXPECT_NE(explain_text(GetParam().near_miss).kind, GetParam().kind) << GetParam().near_miss;
}

const Case kCases[] = {
    {"torch_oom_fragmented",
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
     "capacity of 23.69 GiB of which 1.16 GiB is free. Including non-PyTorch memory, this process "
     "has 22.50 GiB memory in use. Of the allocated memory 12.30 GiB is allocated by PyTorch, and "
     "9.71 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
     "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
     "capacity of 23.69 GiB of which 1.16 GiB is free. Including non-PyTorch memory, this process "
     "has 22.50 GiB memory in use. Of the allocated memory 21.99 GiB is allocated by PyTorch, and "
     "25.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
     "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."},
    {"torch_oom_too_big",
     "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 15.78 GiB total "
     "capacity; 14.05 GiB already allocated; 0.41 GiB free; 14.30 GiB reserved in total by "
     "PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
     "fragmentation.",
     "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 15.78 GiB total "
     "capacity; 8.05 GiB already allocated; 0.41 GiB free; 14.30 GiB reserved in total by "
     "PyTorch)"},
    {"torch_memory_taken",
     "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a "
     "total capacity of 23.69 GiB of which 121.00 MiB is free. Process 4121 has 18.20 GiB memory "
     "in use. Including non-PyTorch memory, this process has 5.30 GiB memory in use. Of the "
     "allocated memory 4.90 GiB is allocated by PyTorch, and 14.50 MiB is reserved by PyTorch but "
     "unallocated.",
     "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a "
     "total capacity of 23.69 GiB of which 121.00 MiB is free. Process 4121 has 300.00 MiB memory "
     "in use. Including non-PyTorch memory, this process has 23.20 GiB memory in use. Of the "
     "allocated memory 22.90 GiB is allocated by PyTorch, and 14.50 MiB is reserved by PyTorch but "
     "unallocated."},
    {"torch_limit",
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
     "capacity of 79.15 GiB of which 70.10 GiB is free. Including non-PyTorch memory, this process "
     "has 8.80 GiB memory in use. 7.92 GiB allowed; Of the allocated memory 7.50 GiB is allocated "
     "by PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated.",
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
     "capacity of 79.15 GiB of which 0.10 GiB is free. 79.00 GiB allowed; Of the allocated memory "
     "78.50 GiB is allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated."},
    {"torch_request_exceeds_card",
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 160.00 GiB. GPU 0 has a total "
     "capacity of 79.15 GiB of which 70.10 GiB is free. Of the allocated memory 7.50 GiB is "
     "allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated.",
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 76.00 GiB. GPU 0 has a total "
     "capacity of 79.15 GiB of which 70.10 GiB is free. Of the allocated memory 7.50 GiB is "
     "allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated."},
    {"torch_free_but_refused",
     "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.13 GiB. GPU 0 has a "
     "total capacity of 15.99 GiB of which 2.35 GiB is free. Of the allocated memory 12.00 GiB is "
     "allocated by PyTorch, and 25.00 MiB is reserved by PyTorch but unallocated. If reserved but "
     "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
     "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.13 GiB. GPU 0 has a "
     "total capacity of 15.99 GiB of which 2.35 GiB is free. Of the allocated memory 12.00 GiB is "
     "allocated by PyTorch, and 25.00 MiB is reserved by PyTorch but unallocated."},
    {"torch_private_pools",
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 600.00 MiB. GPU 0 has a total "
     "capacity of 39.38 GiB of which 100.00 MiB is free. Of the allocated memory 30.00 GiB is "
     "allocated by PyTorch, with 8.00 GiB allocated in private pools (e.g., CUDA Graphs), and "
     "100.00 MiB is reserved by PyTorch but unallocated.",
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 600.00 MiB. GPU 0 has a total "
     "capacity of 39.38 GiB of which 100.00 MiB is free. Of the allocated memory 38.00 GiB is "
     "allocated by PyTorch, with 12.00 MiB allocated in private pools (e.g., CUDA Graphs), and "
     "100.00 MiB is reserved by PyTorch but unallocated."},
    {"tf_oom",
     "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor "
     "with shape[256,64,112,112] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by "
     "allocator GPU_0_bfc",
     "I tensorflow/core/common_runtime/bfc_allocator.cc: Chunk at 0x7f000 of size 256"},
    {"tf_oom_fragmented",
     "W tensorflow/core/common_runtime/bfc_allocator.cc:479] Allocator (GPU_0_bfc) ran out of "
     "memory trying to allocate 2.25GiB (rounded to 2415919104)requested by op conv2d\nIf the "
     "cause is memory fragmentation maybe the environment variable "
     "'TF_GPU_ALLOCATOR=cuda_malloc_async' will improve the situation.",
     "W tensorflow/core/common_runtime/bfc_allocator.cc:290] Allocator (GPU_0_bfc) ran out of "
     "memory trying to allocate 2.25GiB with freed_by_count=0. The caller indicates that this is "
     "not a failure, but may mean that there could be performance gains if more memory were "
     "available."},
    {"tf_not_a_failure",
     "W tensorflow/core/common_runtime/bfc_allocator.cc:290] Allocator (GPU_0_bfc) ran out of "
     "memory trying to allocate 2.25GiB with freed_by_count=0. The caller indicates that this is "
     "not a failure, but may mean that there could be performance gains if more memory were "
     "available.",
     "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.25GiB. The caller indicates "
     "that this is not a failure.\nResourceExhaustedError: OOM when allocating tensor with "
     "shape[8]"},
    {"tf_memory_taken",
     "E tensorflow/stream_executor/cuda/cuda_driver.cc:936] failed to allocate 10.92G (11725439488 "
     "bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
     "E failed to allocate a buffer: CUDA_ERROR_ILLEGAL_ADDRESS"},
    {"jax_oom",
     "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
     "allocate 17179869184 bytes.",
     "XlaRuntimeError: INVALID_ARGUMENT: Executable expected parameter 0 of size 4"},
    {"cublas_not_initialized",
     "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
     "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`"},
    {"cublas_alloc_failed",
     "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
     "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm`"},
    {"cudnn_alloc_failed", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
     "RuntimeError: cuDNN error: CUDNN_STATUS_BAD_PARAM"},
    {"cudnn_no_algorithm",
     "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
     "RuntimeError: Given groups=1, weight of size [64, 3, 7, 7], expected input to have 3 "
     "channels"},
    {"cudnn_not_initialized",
     "E tensorflow/stream_executor/cuda/cuda_dnn.cc:329] Could not create cudnn handle: "
     "CUDNN_STATUS_NOT_INITIALIZED",
     "Loaded cuDNN version 8902"},
    {"nccl_oom", "node1:77:99 [0] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
     "torch.distributed.DistBackendError: NCCL error: unhandled system error"},
    {"context",
     "E external/local_xla/xla/stream_executor/cuda/cuda_driver.cc: failed call to "
     "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
     "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"},
    {"cuda_oom",
     "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported "
     "at some other API call",
     "RuntimeError: CUDA error: device-side assert triggered"},
    {"library_oom",
     "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes (allocated "
     "so "
     "far: 9,000,000,000 bytes).",
     "XlaRuntimeError: INTERNAL: Out of memory allocating 17179869184 bytes."},
    {"pinned_memory", "RuntimeError: cudaHostAlloc(&ptr, size, 0) failed: out of memory",
     "UserWarning: 'pin_memory' argument is set as true but no accelerator is found"},
    {"host_memory",
     "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate "
     "memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
     "ValueError: can't allocate a batch of 0 samples"},
    {"shm",
     "RuntimeError: unable to allocate shared memory(shm) for file </torch_120_1>: Resource "
     "temporarily unavailable (11)",
     "UserWarning: shared memory of 64 MiB was requested"},
    {"triton_shared_memory",
     "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 262144, "
     "Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
     "triton.compiler.errors.CompilationError: at 12:4"},
};

INSTANTIATE_TEST_SUITE_P(Devmem, Message, testing::ValuesIn(kCases),
                         [](const auto& p) { return std::string(p.param.kind); });

TEST(Explain, TheDriversOwnCheckInPyTorchIsKnown) {
  EXPECT_EQ(explain_text("RuntimeError: CUDA driver error: out of memory").kind, "cuda_oom");
  EXPECT_EQ(explain_text("RuntimeError: CUDA driver error: invalid argument").kind, "unknown");
}

TEST(Explain, WhatAnAssertionExpectedDidNotHappen) {
  for (const char* text :
       {"AssertionError: expected CUDA out of memory. Tried to allocate 2.00 GiB, got ValueError",
        "E   AssertionError: should be CUDA error: out of memory",
        "AssertionError: 'CUBLAS_STATUS_ALLOC_FAILED' not found in 'bad shape'"})
    EXPECT_EQ(explain_text(text).kind, "unknown") << text;
  const char* const happened =
      "AssertionError: [OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB')]";
  EXPECT_EQ(explain_text(happened).finding, "gpu.oom_too_big");
}

TEST(Explain, FiguresOfTheMessageBecomeHolders) {
  const auto f = parse_torch_message(kCases[2].message);
  ASSERT_TRUE(f.has_value());
  EXPECT_EQ(f->request, 512 * kMiB);
  EXPECT_EQ(f->free, 121 * kMiB);
  EXPECT_EQ(f->total.value() / kMiB, static_cast<Bytes>(23.69 * 1024));
  ASSERT_EQ(f->others.size(), 1u);
  EXPECT_EQ(f->others[0].pid, 4121);
  EXPECT_EQ(f->others[0].bytes / kMiB, static_cast<Bytes>(18.20 * 1024));
  EXPECT_EQ(f->cached, static_cast<Bytes>(14.5 * 1048576));
}

// In a container PyTorch does not know its own process by the number that NVML gives.
TEST(Explain, AListedProcessThatHoldsWhatPyTorchHoldsIsThisOne) {
  const auto message = [](const char* processes) {
    return std::string(
               "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 800.00 MiB. GPU 0 "
               "has a total capacity of 23.68 GiB of which 121.00 MiB is free. ") +
           processes +
           " Of the allocated memory 22.90 GiB is allocated by PyTorch, and 200.00 MiB is reserved "
           "by PyTorch but unallocated.";
  };
  const std::string alone = message("Process 3553 has 23.55 GiB memory in use.");
  const auto figures = parse_torch_message(alone);
  EXPECT_TRUE(figures->others.empty());
  EXPECT_EQ(figures->process.value() / kMiB, static_cast<Bytes>(23.55 * 1024));
  EXPECT_EQ(explain_text(alone).kind, "torch_oom_too_big");
  // The smallest that can be this one is.
  const std::string beside =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total "
      "capacity of 23.69 GiB of which 121.00 MiB is free. Process 1 has 18.20 GiB memory in use. "
      "Process 2 has 5.30 GiB memory in use. Of the allocated memory 4.90 GiB is allocated by "
      "PyTorch, and 14.50 MiB is reserved by PyTorch but unallocated.";
  ASSERT_EQ(parse_torch_message(beside)->others.size(), 1u);
  EXPECT_EQ(parse_torch_message(beside)->others[0].pid, 1);
  EXPECT_EQ(explain_text(beside).kind, "torch_memory_taken");
}

TEST(Explain, OthersThatHoldAGoodPartComeBeforeWhatLiesIdleHere) {
  constexpr Bytes kGiB = Bytes{1} << 30;
  TorchFigures f;
  f.request = 2 * kGiB;
  f.total = 24 * kGiB;
  f.free = kGiB / 2;
  f.allocated = kGiB;
  f.cached = 3 * kGiB;
  f.process = 5 * kGiB;  // so that 18.5 GiB are others', though none is named
  EXPECT_EQ(explain_torch(f).kind, "torch_memory_taken");
  f.process = 23 * kGiB;  // what it has beyond PyTorch's is its own
  EXPECT_EQ(explain_torch(f).kind, "torch_oom_fragmented");
}

Bytes held_by(const Explanation& e, std::string_view what) {
  for (const Holder& h : e.holders)
    if (h.what.starts_with(what)) return h.bytes;
  return 0;
}

TEST(Explain, OthersHoldNoMoreThanIsLeftOfTheCard) {
  const std::string message =
      "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacty of 24.00 GiB of "
      "which 0.50 GiB is free. Process 7 has 20.00 GiB memory in use. Including non-PyTorch "
      "memory, this process has 15.00 GiB memory in use. Of the allocated memory 14.00 GiB is "
      "allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated.";
  EXPECT_EQ(parse_torch_message(message)->total, Bytes{24} * 1024 * kMiB)
      << "as PyTorch 2.1 spells it";
  EXPECT_EQ(held_by(explain_text(message), "other processes"), Bytes{17} * 512 * kMiB);
}

// PyTorch prints what lies idle in private pools as a part of what it has allocated
// (c10/cuda/CUDACachingAllocator.cpp, since 2.4).
TEST(Explain, PrivatePoolsAreAPartOfWhatIsAllocated) {
  const Explanation e = explain_text(
      "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 79.15 GiB of "
      "which 0.50 GiB is free. Including non-PyTorch memory, this process has 78.50 GiB memory in "
      "use. Of the allocated memory 72.00 GiB is allocated by PyTorch, with 5.00 GiB allocated in "
      "private pools (e.g., CUDA Graphs), and 5.25 GiB is reserved by PyTorch but unallocated.");
  constexpr Bytes kGiB = 1024 * kMiB;
  EXPECT_EQ(held_by(e, "tensors of this process"), 67 * kGiB);
  EXPECT_EQ(held_by(e, "private pools"), 5 * kGiB);
  EXPECT_EQ(held_by(e, "PyTorch's cache"), 5 * kGiB + kGiB / 4);
  EXPECT_EQ(held_by(e, "context and libraries"), kGiB + kGiB / 4);
  EXPECT_EQ(e.kind, "torch_oom_too_big");
}

TEST(Explain, WhatLiesIdleInGraphsPoolsIsNamedBeforeTheCache) {
  const auto kind = [](const char* in_pools) {
    return explain_text(std::string("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a "
                                    "total capacity of 79.15 GiB of which 0.50 GiB is free. Of the "
                                    "allocated memory 75.00 GiB is allocated by PyTorch, with ") +
                        in_pools +
                        " allocated in private pools (e.g., CUDA Graphs), and 2.60 GiB is reserved "
                        "by PyTorch but unallocated.")
        .kind;
  };
  EXPECT_EQ(kind("5.00 GiB"), "torch_private_pools");
  EXPECT_EQ(kind("12.00 MiB"), "torch_oom_fragmented");
  // Beside a process that holds more than the pools, it is that one.
  EXPECT_EQ(explain_text("CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total "
                         "capacity of 23.69 GiB of which 10.00 MiB is free. Process 7 has 18.00 "
                         "GiB memory in use. Including non-PyTorch memory, this process has 5.60 "
                         "GiB memory in use. Of the allocated memory 5.00 GiB is allocated by "
                         "PyTorch, with 200.00 MiB allocated in private pools (e.g., CUDA Graphs), "
                         "and 20.00 MiB is reserved by PyTorch but unallocated.")
                .kind,
            "torch_memory_taken");
}

const char* const kShortOfCache =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.17 GiB. GPU 3 has a total "
    "capacity of 79.10 GiB of which 412.69 MiB is free. Including non-PyTorch memory, this process "
    "has 78.69 GiB memory in use. Of the allocated memory 74.98 GiB is allocated by PyTorch, and "
    "2.51 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
    "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";

std::string remedies(const Explanation& e) {
  std::string all;
  for (const Advice& a : e.advice) all += a.id + " " + a.text + " " + a.remedy + "\n";
  return all;
}

TEST(Explain, AMessageIsTheSameHoweverItIsWrapped) {
  const std::string whole = explain_text(kShortOfCache).text;
  EXPECT_EQ(explain_text(kShortOfCache).kind, "torch_oom_fragmented");
  std::string wrapped;  // as a terminal of 80 columns wraps: anywhere
  for (std::string_view rest = kShortOfCache; !rest.empty();
       rest.remove_prefix(std::min<size_t>(79, rest.size())))
    wrapped += std::string(rest.substr(0, 79)) + "\n";
  EXPECT_EQ(explain_text("Traceback (most recent call last):\n  File \"t.py\"\n" + wrapped).text,
            whole);
  const Explanation boxed = explain_text(
      "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.17 GiB (GPU 0; 23.69 GiB \n"
      "total capacity; 20.10 GiB already allocated; 412.69 MiB free; 22.60 GiB reserved in \n"
      "total by PyTorch) If reserved memory is >> allocated memory try setting \n"
      "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and\n"
      "PYTORCH_CUDA_ALLOC_CONF\n");
  EXPECT_EQ(boxed.kind, "torch_oom_fragmented");
  EXPECT_NE(boxed.text.find("2.50 GiB lie unused"), std::string::npos) << boxed.text;
}

TEST(Explain, ARequestThatNoCardHoldsIsAMistake) {
  for (
      const char* message :
      {"CUDA out of memory. Tried to allocate more than 1EB memory.",
       "CUDA out of memory. Tried to allocate 1048576.00 GiB. GPU 0 has a total capacity of 39.39 "
       "GiB of which 38.00 GiB is free.",
       "CUDA out of memory. Tried to allocate 95367431.64 GiB. GPU 0 has a total capacity of 39.39 "
       "GiB of which 38.00 GiB is free. Of the allocated memory 900.00 MiB is allocated by "
       "PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated.",
       "CUDA out of memory. Tried to allocate 17179869160.58 GiB (GPU 0; 11.17 GiB total capacity; "
       "1.74 GiB already allocated; 8.41 GiB free; 1.76 GiB reserved in total by PyTorch)"}) {
    const Explanation e = explain_text(message);
    EXPECT_EQ(e.kind, "torch_request_exceeds_card") << message;
    EXPECT_EQ(e.text.find("0 B"), std::string::npos) << e.text;
    EXPECT_EQ(remedies(e).find("batch_size"), std::string::npos) << remedies(e);
  }
}

// Messages before PyTorch 2 do not count the context, which is a good part of a small card.
TEST(Explain, TheContextIsNobodyElse) {
  for (const char* message :
       {"RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 2.00 GiB total "
        "capacity; 1.36 GiB already allocated; 0 bytes free; 1.41 GiB reserved in total by "
        "PyTorch)",
        "RuntimeError: CUDA out of memory. Tried to allocate 50.00 MiB (GPU 0; 3.95 GiB total "
        "capacity; 3.03 GiB already allocated; 30.69 MiB free; 3.09 GiB reserved in total by "
        "PyTorch)"}) {
    const Explanation e = explain_text(message);
    EXPECT_NE(e.finding, "gpu.memory_taken") << message;
    EXPECT_EQ(held_by(e, "other processes"), 0u) << message;
  }
}

TEST(Explain, ExpandableSegmentsAreNotAdvisedForALittleThatLiesIdle) {
  for (const char* message :
       {"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a "
        "total capacity of 15.77 GiB of which 0 bytes is free. Including non-PyTorch memory, this "
        "process has 15.77 GiB memory in use. Of the allocated memory 15.30 GiB is allocated by "
        "PyTorch, and 1.50 KiB is reserved by PyTorch but unallocated.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a "
        "total "
        "capacity of 8.00 GiB of which 10.00 MiB is free. Including non-PyTorch memory, this "
        "process has 7.99 GiB memory in use. Of the allocated memory 7.50 GiB is allocated by "
        "PyTorch, and 14.00 MiB is reserved by PyTorch but unallocated.",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a "
        "total capacity of 4.75 GiB of which 37.19 MiB is free. Process 3 has 4.70 GiB memory in "
        "use. Of the allocated memory 4.41 GiB is allocated by PyTorch, and 41.50 MiB is reserved "
        "by PyTorch but unallocated."}) {
    const Explanation e = explain_text(message);
    EXPECT_EQ(e.kind, "torch_oom_too_big") << message;
    EXPECT_EQ(remedies(e).find("expandable"), std::string::npos) << remedies(e);
    EXPECT_NE(e.text.find("would have served this request, and hardly the next"), std::string::npos)
        << e.text;
  }
}

TEST(Explain, WhatIsFreeCountsWithWhatLiesIdle) {
  const Explanation e = explain_text(
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
      "total capacity of 15.77 GiB of which 1.10 GiB is free. Including non-PyTorch memory, this "
      "process has 14.67 GiB memory in use. Of the allocated memory 13.20 GiB is allocated by "
      "PyTorch, and 0.95 GiB is reserved by PyTorch but unallocated.");
  EXPECT_EQ(e.kind, "torch_oom_fragmented");
  EXPECT_NE(e.text.find("Together with what is free that would have been enough"),
            std::string::npos)
      << e.text;
}

TEST(Explain, ExpandableSegmentsAreNotAdvisedWhereTheyAreOnOrNotThere) {
  const std::string on =
      "+ export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + std::string(kShortOfCache);
  EXPECT_EQ(explain_text(on).kind, "torch_oom_fragmented");
  EXPECT_EQ(remedies(explain_text(on)).find("env:"), std::string::npos);
  EXPECT_NE(explain_text(on).text.find("are on already"), std::string::npos);
  EXPECT_NE(remedies(explain_text(kShortOfCache))
                .find("env:PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
            std::string::npos);
  const std::string before_2_1 = remedies(explain_text(
      "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 10.76 GiB total "
      "capacity; 7.00 GiB already allocated; 19.44 MiB free; 9.90 GiB reserved in total by "
      "PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb"));
  EXPECT_EQ(before_2_1.find("env:PYTORCH_CUDA_ALLOC_CONF=expandable"), std::string::npos);
  EXPECT_NE(before_2_1.find("older than 2.1"), std::string::npos) << before_2_1;
  EXPECT_NE(before_2_1.find("max_split_size_mb:512"), std::string::npos) << before_2_1;
  const std::string amd = remedies(explain_text(
      "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB. GPU 0 has a "
      "total capacity of 15.98 GiB of which 120.00 MiB is free. Of the allocated memory 11.90 GiB "
      "is allocated by PyTorch, and 3.31 GiB is reserved by PyTorch but unallocated. If reserved "
      "but unallocated memory is large try setting "
      "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation."));
  EXPECT_NE(amd.find("env:PYTORCH_HIP_ALLOC_CONF=expandable_segments:True"), std::string::npos)
      << amd;
}

TEST(Explain, HalfTheBatchIsAdvisedAndTheFiguresAreSaid) {
  const Explanation e = explain_text(kCases[1].message);
  ASSERT_FALSE(e.advice.empty());
  EXPECT_NE(e.advice[0].text.find("1/2 of it"), std::string::npos) << e.advice[0].text;
  EXPECT_NE(e.advice[0].text.find("needed 15.5 GiB at once"), std::string::npos)
      << e.advice[0].text;
}

TEST(Explain, OtherDevicesMessagesAreWeighedLikeCudas) {
  EXPECT_EQ(explain_text("torch.OutOfMemoryError: XPU out of memory. Tried to allocate 3.50 GiB. "
                         "GPU 0 has a total capacity of 15.91 GiB. Of the allocated memory 14.02 "
                         "GiB is allocated by PyTorch, and 210.52 MiB is reserved by PyTorch but "
                         "unallocated.")
                .kind,
            "torch_oom_too_big");
  EXPECT_EQ(explain_text("RuntimeError: MPS backend out of memory (MPS allocated: 17.36 GB, other "
                         "allocations: 512.80 MB, max allowed: 18.13 GB). Tried to allocate 768.00 "
                         "MB on private pool.")
                .kind,
            "torch_limit");
  EXPECT_EQ(explain_text("torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed "
                         "memory. (out of memory)\nCurrently allocated     : 21.34 GiB\n"
                         "Requested               : 1.50 GiB\nDevice limit            : 23.99 GiB\n"
                         "Free (according to CUDA): 26.38 MiB\n"
                         "PyTorch limit (set by user-supplied memory fraction)\n"
                         "                        : 17179869184.00 GiB\n")
                .kind,
            "torch_oom_too_big");
}

constexpr const char* kCudaOom =
    "RuntimeError: CUDA error: out of memory\n"
    "CUDA kernel errors might be asynchronously reported at some other API call\n";
constexpr const char* kPinning =
    "Traceback (most recent call last):\n"
    "  File \"/v/torch/utils/data/_utils/pin_memory.py\", line 41, in do_one_step\n"
    "    data = pin_memory(data, device)\n";

TEST(Explain, WhatARuleNeedsStandsInOneError) {
  const std::string oom = kCudaOom, pinning = kPinning;
  const std::string info = "node1:77:99 [0] NCCL INFO Channel 00/02 : 0 1\n";
  const std::string arguments = "Namespace(batch=8, pin_memory=True)\n";
  const std::string logs[] = {
      arguments + oom,
      oom + arguments,
      info + oom,
      oom + info,
      info + info + "\n" + oom + info,
      "NCCL version 2.18.6+cuda12.1\n" + oom,
      "NCCL version 2.18.6+cuda12.1\nCUDA error: out of memory\n",
      "[rank0]: " + oom +
          "[rank0]:[W1216 08:00:00 ProcessGroupNCCL.cpp:1250] Warning: no destroy\n",
      pinning + "RuntimeError: CUDA error: an illegal memory access was encountered\n" + oom,
      "INFO cuInit took 3 ms\n2024-01-17 15:40:54 made a CUDA context\n" + oom};
  for (const std::string& log : logs) {
    EXPECT_EQ(explain_text(log).kind, "cuda_oom") << log;
  }
  EXPECT_EQ(
      explain_text(pinning + "RuntimeError: CUDA error: an illegal memory access was encountered\n"
                             "\nslurmstepd: step 3 ran out of memory\n")
          .kind,
      "unknown");
}

TEST(Explain, AnErrorIsItsTracebackItsLineAndThoseThatContinueIt) {
  const std::string pinned = std::string(kPinning) + kCudaOom;
  EXPECT_EQ(explain_text(pinned).kind, "pinned_memory");
  std::string of_a_rank = "[rank3]: ";
  for (const char c : pinned.substr(0, pinned.size() - 1)) {
    of_a_rank += c;
    if (c == '\n') of_a_rank += "[rank3]: ";
  }
  EXPECT_EQ(explain_text("[rank1]: Namespace()\n" + of_a_rank + "\n").kind, "pinned_memory");
  EXPECT_EQ(explain_text("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, "
                         "unhandled cuda error, NCCL version 2.18.6\n"
                         "ncclUnhandledCudaError: Call to CUDA function failed.\n"
                         "Last error:\nCuda failure 'out of memory'\n")
                .kind,
            "nccl_oom");
}

TEST(Explain, ALineOfDigitsIsALine) {
  EXPECT_EQ(explain_text("20\n1234567\n").kind, "unknown");
  EXPECT_EQ(explain_text("20\n" + std::string(kCudaOom)).kind, "cuda_oom");
}

TEST(Explain, TheLastErrorIsTheOneThatEndedTheJob) {
  const std::string first = std::string("a batch of 64 is too large: ") + kCases[1].message + "\n";
  const std::string last =
      "Traceback (most recent call last):\n  File \"train.py\", line 3\n"
      "RuntimeError: [enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate "
      "memory: you tried to allocate 68719476736 bytes.\n";
  EXPECT_EQ(explain_text(first + "epoch 1\n" + last + "bye\n").kind, "host_memory");
  EXPECT_EQ(explain_text(last + "epoch 1\n" + first).kind, "torch_oom_too_big");
  const std::string nothing_failed =
      "2024-01-17 15:40:54.1: W tensorflow/core/common_runtime/bfc_allocator.cc:290] Allocator "
      "(GPU_0_bfc) ran out of memory trying to allocate 2.25GiB with freed_by_count=0. The caller "
      "indicates that this is not a failure.\n";
  EXPECT_EQ(explain_text(last + nothing_failed).kind, "host_memory");
}

TEST(Explain, AMessageOfPyTorchsThatWasWrappedIsReadOn) {
  std::string wrapped = "it failed: " + std::string(kCases[2].message) + "\n\nlater\n";
  for (size_t at = 0; (at = wrapped.find(". ", at)) != wrapped.npos; ++at)
    if (!wrapped.substr(at).starts_with(". Tried")) wrapped[at + 1] = '\n';
  EXPECT_EQ(explain_text(wrapped).kind, "torch_memory_taken") << wrapped;
}

// Plain data as pickle.dumps(protocol=2) writes it.
std::string pickled(std::string_view text) {
  std::string out = "X";
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(text.size() >> shift);
  return out + std::string(text);
}
std::string pickled(Bytes number) {
  std::string out = "\x8a\x08";
  for (int shift = 0; shift < 64; shift += 8) out += static_cast<char>(number >> shift);
  return out;
}
std::string list_of(const std::vector<std::string>& items) {
  std::string out = "](";
  for (const std::string& item : items) out += item;
  return out + "e";
}
std::string dict_of(const std::vector<std::pair<std::string_view, std::string>>& items) {
  std::string out = "}(";
  for (const auto& [key, value] : items) out += pickled(key) + value;
  return out + "u";
}
struct SegmentOptions {
  Bytes stream = 0, pool = 0;
  bool small = false, expandable = false;
};
std::string frames_at(Bytes line) {
  return list_of({dict_of({{"filename", pickled("/home/u/train.py")},
                           {"line", pickled(line)},
                           {"name", pickled("forward")}})});
}
std::string segment_at(Address address, Bytes device, std::string_view state, std::string size,
                       const SegmentOptions& options = {}) {
  return dict_of({{"device", pickled(device)},
                  {"address", pickled(address)},
                  {"stream", pickled(options.stream)},
                  {"segment_type", pickled(options.small ? "small" : "large")},
                  {"segment_pool_id", list_of({pickled(Bytes{0}), pickled(options.pool)})},
                  {"is_expandable", options.expandable ? "\x88" : "\x89"},
                  {"blocks", list_of({dict_of({{"size", std::move(size)},
                                               {"state", pickled(state)},
                                               {"frames", frames_at(7)}})})}});
}
Address address_of_next() {
  static Address address = 0;
  return address += Address{1} << 40;
}
std::string segment_of(Bytes device, std::string_view state, Bytes size,
                       const SegmentOptions& options = {}) {
  return segment_at(address_of_next(), device, state, pickled(size), options);
}
std::string event_of(std::string_view action, Address address, Bytes size) {
  return dict_of(
      {{"action", pickled(action)}, {"addr", pickled(address)}, {"size", pickled(size)}});
}
std::string oom_of(Bytes size, Bytes time = 0) {
  return dict_of({{"action", pickled("oom")},
                  {"size", pickled(size)},
                  {"stream", pickled(Bytes{0})},
                  {"time_us", pickled(time)},
                  {"frames", frames_at(88)},
                  {"device_free", pickled(50 * kMiB)}});
}
Result<Explanation> explain_parts(const std::vector<std::string>& segments,
                                  const std::vector<std::vector<std::string>>& traces) {
  std::vector<std::string> lists;
  for (const auto& events : traces) lists.push_back(list_of(events));
  return explain("\x80\x02" +
                 dict_of({{"segments", list_of(segments)}, {"device_traces", list_of(lists)}}) +
                 ".");
}

// As after an exception's handler freed what the step held.
TEST(Explain, ASnapshotIsJudgedAsItWasWhenMemoryRanOut) {
  const Address freed = address_of_next();
  const auto e = explain_parts({segment_of(0, "active_allocated", 900 * kMiB),
                                segment_at(freed, 0, "inactive", pickled(600 * kMiB))},
                               {{event_of("alloc", freed, 600 * kMiB), oom_of(200 * kMiB),
                                 event_of("free_requested", freed, 600 * kMiB),
                                 event_of("free_completed", freed, 600 * kMiB),
                                 event_of("segment_alloc", address_of_next(), kMiB)}});
  ASSERT_TRUE(e.ok()) << e.error().message;
  EXPECT_EQ(e->kind, "torch_oom_too_big") << e->text;
  EXPECT_EQ(held_by(*e, "tensors of this process"), 1500 * kMiB);
  EXPECT_EQ(held_by(*e, "/home/u/train.py:7"), 900 * kMiB);
  EXPECT_NE(e->text.find("asked for by /home/u/train.py:88 forward"), std::string::npos) << e->text;
}

TEST(Explain, SegmentsThatCameOrWentAfterTheEventAreTakenBack) {
  const Address came = address_of_next(), went = address_of_next();
  const auto e = explain_parts({segment_of(0, "active_allocated", 900 * kMiB),
                                segment_at(came, 0, "inactive", pickled(600 * kMiB))},
                               {{oom_of(200 * kMiB), event_of("segment_free", went, 300 * kMiB),
                                 event_of("segment_alloc", came, 600 * kMiB)}});
  ASSERT_TRUE(e.ok());
  EXPECT_EQ(held_by(*e, "PyTorch's cache"), 300 * kMiB);
}

TEST(Explain, IdleMemoryThatCannotServeTheRequestIsNoRemedy) {
  const auto idle_in = [](const SegmentOptions& options) {
    return explain_parts({segment_of(0, "active_allocated", 900 * kMiB),
                          segment_of(0, "inactive", 600 * kMiB, options)},
                         {{oom_of(200 * kMiB)}})
        .value();
  };
  EXPECT_EQ(idle_in({}).kind, "torch_oom_fragmented");
  EXPECT_NE(remedies(idle_in({})).find("env:"), std::string::npos);
  EXPECT_EQ(idle_in({.pool = 1}).kind, "torch_private_pools");
  EXPECT_EQ(idle_in({.stream = 5}).kind, "torch_idle_elsewhere");
  EXPECT_EQ(idle_in({.small = true}).kind, "torch_idle_elsewhere");
  for (const SegmentOptions& options :
       {SegmentOptions{.pool = 1}, SegmentOptions{.stream = 5}, SegmentOptions{.small = true},
        SegmentOptions{.expandable = true}}) {
    EXPECT_EQ(remedies(idle_in(options)).find("env:"), std::string::npos);
  }
}

TEST(Explain, TheLastOutOfMemoryEventIsTheLastInTime) {
  const auto e = explain_parts({segment_of(0, "active_allocated", 900 * kMiB)},
                               {{oom_of(300 * kMiB, 9)}, {oom_of(200 * kMiB, 1)}});
  ASSERT_TRUE(e.ok());
  EXPECT_NE(e->text.find("asked for 300 MiB"), std::string::npos) << e->text;
}

// PyTorch 2.0.
TEST(Explain, LinesAreReadFromABlocksHistory) {
  const std::string block = dict_of(
      {{"size", pickled(kMiB)},
       {"state", pickled("active_allocated")},
       {"history", list_of({dict_of({{"real_size", pickled(kMiB)}, {"frames", frames_at(31)}})})}});
  const auto e = explain_parts({dict_of({{"device", pickled(Bytes{0})},
                                         {"address", pickled(Bytes{4096})},
                                         {"blocks", list_of({block})}})},
                               {{}});
  ASSERT_TRUE(e.ok());
  EXPECT_EQ(held_by(*e, "/home/u/train.py:31"), kMiB);
}

TEST(Explain, ASnapshotOfAnyProtocolIsOne) {
  for (const char* name : {"snapshot_protocol0", "snapshot_protocol2", "snapshot_protocol4"}) {
    std::ifstream in(std::string(FLATOUT_TEST_DATA) + "/corpus/read_traces_fuzz/" + name);
    std::stringstream bytes;
    bytes << in.rdbuf();
    const auto e = explain(bytes.str());
    ASSERT_TRUE(e.ok()) << name << ": " << e.error().message;
    EXPECT_EQ(e->kind, "torch_oom_fragmented") << name;
  }
  EXPECT_FALSE(is_snapshot("(Worker pid=7) its blocks ran out of memory."));
}

TEST(Explain, ADamagedSnapshotIsRefusedAsByReplay) {
  const auto with = [](Bytes device, const std::string& size) {
    return explain_parts({segment_at(4096, device, "active_allocated", size)}, {{}}).ok();
  };
  EXPECT_TRUE(with(0, pickled(kMiB)));
  EXPECT_FALSE(with(0, pickled(~Bytes{4})));  // -5
  EXPECT_FALSE(with(0, pickled("12")));
  EXPECT_FALSE(with(0, pickled(Bytes{1} << 60)));
  EXPECT_FALSE(with(1'000'000'000, pickled(kMiB)));
  EXPECT_FALSE(with(~Bytes{0}, pickled(kMiB)));  // -1
}

TEST(Explain, ACacheOfAnotherDeviceServesNobody) {
  const auto snapshot = [](Bytes device_of_hole) {
    const std::string oom = dict_of({{"action", pickled("oom")},
                                     {"size", pickled(200 * kMiB)},
                                     {"device_free", pickled(50 * kMiB)}});
    return "\x80\x02" +
           dict_of({{"segments", list_of({segment_of(0, "active_allocated", 900 * kMiB),
                                          segment_of(device_of_hole, "inactive", 600 * kMiB)})},
                    {"device_traces", list_of({list_of({oom}), list_of({})})}}) +
           ".";
  };
  const auto own = explain(snapshot(0)), other = explain(snapshot(1));
  ASSERT_TRUE(own.ok()) << own.error().message;
  ASSERT_TRUE(other.ok()) << other.error().message;
  EXPECT_EQ(own->kind, "torch_oom_fragmented");
  EXPECT_EQ(other->kind, "torch_oom_too_big");
}

// The card is larger than what this process and the driver speak of where others hold a part.
TEST(Explain, ASnapshotDoesNotTellHowLargeTheCardIs) {
  const auto asked_for = [](Bytes size) {
    const std::string oom = dict_of(
        {{"action", pickled("oom")}, {"size", pickled(size)}, {"device_free", pickled(50 * kMiB)}});
    return explain("\x80\x02" +
                   dict_of({{"segments", list_of({segment_of(0, "active_allocated", 900 * kMiB),
                                                  segment_of(0, "inactive", 600 * kMiB)})},
                            {"device_traces", list_of({list_of({oom})})}}) +
                   ".")
        .value();
  };
  const Explanation large = asked_for(2000 * kMiB), small = asked_for(40 * kMiB);
  EXPECT_EQ(large.kind, "torch_oom_too_big");
  EXPECT_EQ(large.text.find("free of"), std::string::npos) << large.text;
  EXPECT_LT(large.sure, 0.7) << "others may hold the rest";
  EXPECT_EQ(small.kind, "torch_free_but_refused");
}

// Each record that refers to it would search it.
TEST(Explain, ADictionaryOfTooManyKeysIsRefused) {
  std::vector<std::string> names;
  for (int i = 0; i < 129; ++i) names.push_back("key " + std::to_string(i));
  const auto event_with = [&](size_t keys) {
    std::vector<std::pair<std::string_view, std::string>> items;
    for (size_t i = 0; i + 1 < keys; ++i) items.emplace_back(names[i], pickled(Bytes{i}));
    items.emplace_back("action", pickled("segment_map"));
    return items;
  };
  const auto snapshot = [&](const std::string& event) {
    return "\x80\x02" +
           dict_of({{"segments", list_of({segment_of(0, "active_allocated", kMiB)})},
                    {"device_traces", list_of({list_of({event})})}}) +
           ".";
  };
  EXPECT_TRUE(explain(snapshot(dict_of(event_with(128)))).ok());
  std::string one_by_one = "}";
  for (const auto& [key, value] : event_with(129)) one_by_one += pickled(key) + value + "s";
  for (const std::string& event : {dict_of(event_with(129)), one_by_one}) {
    const auto refused = explain(snapshot(event));
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("more than 128 keys"), std::string::npos)
        << refused.error().message;
  }
}

TEST(Explain, ExpandableSegmentsAreAdvisedOnlyWhereTheCacheCouldHaveServed) {
  for (const Case& c : kCases) {
    const Explanation e = explain_text(c.message);
    for (const Advice& a : e.advice) {
      if (a.remedy.find("expandable_segments") != std::string::npos) {
        EXPECT_EQ(e.kind, "torch_oom_fragmented");
      }
    }
  }
}

}  // namespace
}  // namespace flatout::devmem
