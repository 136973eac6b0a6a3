// Real messages, each with one that looks like it and is not.
#include "devmem/explain.h"

#include <gtest/gtest.h>

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

TEST(Explain, FiguresOfTheMessageBecomeHolders) {
  const auto f = parse_torch_message(kCases[2].message);
  ASSERT_TRUE(f.has_value());
  EXPECT_EQ(f->request, 512 * kMiB);
  EXPECT_EQ(f->free, 121 * kMiB);
  EXPECT_EQ(f->total / kMiB, static_cast<Bytes>(23.69 * 1024));
  EXPECT_EQ(f->others / kMiB, static_cast<Bytes>(18.20 * 1024));
  EXPECT_EQ(f->cached, static_cast<Bytes>(14.5 * 1048576));
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
std::string segment_of(Bytes device, std::string_view state, Bytes size) {
  return dict_of(
      {{"device", pickled(device)},
       {"address", pickled(device << 40)},
       {"blocks", list_of({dict_of({{"size", pickled(size)}, {"state", pickled(state)}})})}});
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
