// Which error of a log counts for device memory, and what only looks like one.
#include "advise/explain_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace flatout::advise {
namespace {

const std::string kOom =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.17 GiB. GPU 3 has a total "
    "capacity of 79.10 GiB of which 412.69 MiB is free. Including non-PyTorch memory, this process "
    "has 78.69 GiB memory in use. Of the allocated memory 74.98 GiB is allocated by PyTorch, and "
    "2.51 GiB is reserved by PyTorch but unallocated.\n";

struct Case {
  const char* kind;
  const char* log;
};

class MemoryLog : public testing::TestWithParam<Case> {};

TEST_P(MemoryLog, IsKnown) {
  const devmem::Explanation e = explain_memory(GetParam().log);
  EXPECT_EQ(e.kind, GetParam().kind) << GetParam().log << e.text;
  EXPECT_FALSE(e.advice.empty()) << GetParam().log;
}

const Case kCases[] = {
    {"cuda_out_of_memory", "RuntimeError: CUDA out of memory.\n"},
    {"cuda_context_out_of_memory", "RuntimeError: HIP error: out of memory\n"},
    {"library_out_of_device_memory",
     "Error out of memory at line 351 in file /home/u/bitsandbytes/csrc/pythonInterface.c\n"},
    {"onnxruntime_out_of_memory",
     "onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate memory for "
     "requested buffer of size 3145728000\n"},
    {"library_out_of_device_memory",
     "[TRT] [E] 1: [defaultAllocator.cpp::allocate::21] Error Code 1: Cuda Runtime (out of "
     "memory)\n"},
    {"library_out_of_device_memory",
     "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9216.00 MiB on device 0: cudaMalloc "
     "failed: out of memory\n"},
    {"library_out_of_device_memory",
     "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 1.500000GB memory "
     "on GPU 0, 14.900000GB memory has been allocated and available memory is only 1.012207GB.\n"},
    {"library_out_of_device_memory",
     "MemoryError: std::bad_alloc: out_of_memory: RMM failure "
     "at:/rmm/pool_memory_resource.hpp:257: "
     "Maximum pool size exceeded\n"},
    {"library_out_of_device_memory",
     "xgboost.core.XGBoostError: [10:10:10] device_helpers.cuh:431: Memory allocation error on "
     "worker 0: bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: 1081344\n"},
    {"tensorflow_out_of_memory",
     "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. "
     "Ran out of memory in memory space hbm. Used 16.52G of 15.48G hbm.\n"},
    {"tensorflow_out_of_memory",
     "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node "
     "__wrapped__MatMul_device_/job:localhost/replica:0/task:0/device:GPU:0}} failed to allocate "
     "memory [Op:MatMul]\n"},
    {"tensor_not_initialized",
     "tensorflow.python.framework.errors_impl.InternalError: Failed copying input tensor from "
     "/job:localhost/replica:0/task:0/device:CPU:0 to /job:localhost/replica:0/task:0/device:GPU:0 "
     "in order to run _EagerConst: Dst tensor is not initialized.\n"},
    {"cudnn_no_algorithm",
     "RuntimeError: GET was unable to find an engine to execute this computation\n"},
    {"cuda_library_out_of_memory", "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED\n"},
    {"kv_cache_too_small",
     "ValueError: No available memory for the cache blocks. Try increasing "
     "`gpu_memory_utilization` when initializing the engine.\n"},
    {"device_share_taken",
     "ValueError: Free memory on device cuda:0 (14.28/23.69 GiB) on startup is less than desired "
     "GPU memory utilization (0.9, 21.32 GiB).\n"},
    {"triton_shared_memory",
     "triton.runtime.errors.OutOfResources: out of resource: tensor memory, Required: 1024, "
     "Hardware limit: 512. Reducing block sizes or `num_stages` may help.\n"},
    // The host's:
    {"host_memory",
     "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor "
     "with shape[500000,3,224,224] and type float on /job:localhost/replica:0/task:0/device:CPU:0 "
     "by allocator cpu [Op:ConcatV2]\n"},
    {"host_out_of_memory",
     "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 37.3 GiB for an array with "
     "shape (100000, 50000) and data type float64\n"},
    {"container_memory_limit", "State:          Terminated\n  Reason:       OOMKilled\n"},
    {"container_memory_limit",
     "[12345.6] Memory cgroup out of memory: Killed process 4242 (python) total-vm:98765432kB, "
     "anon-rss:33445566kB, file-rss:12345kB\n"},
    {"slurm_memory",
     "RuntimeError: DataLoader worker (pid(s) 9821) exited unexpectedly\nslurmstepd: error: "
     "Detected "
     "1 oom_kill event in StepId=123456.0. Some of the step tasks have been OOM Killed.\n"},
    {"ray_memory",
     "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"},
    {"python_memory_error",
     "Traceback (most recent call last):\n  File \"train.py\", line 88, in "
     "<module>\nMemoryError\n"},
};

INSTANTIATE_TEST_SUITE_P(Advise, MemoryLog, testing::ValuesIn(kCases), [](const auto& p) {
  return std::to_string(p.index) + "_" + p.param.kind;
});

std::string progress(int lines) {
  std::string out;
  for (int i = 0; i < lines; ++i) out += "step " + std::to_string(i) + " loss 0.5\n";
  return out;
}

const std::string kTraceback = "Traceback (most recent call last):\n  File \"t.py\", line 3\n";
const std::string kPinned =
    kTraceback + "    x.pin_memory()\nRuntimeError: CUDA error: out of memory\n";
const std::string kCublas = kTraceback +
                            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
                            "`cublasCreate(handle)`\n";
const std::string kNccl = kTraceback +
                          "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, "
                          "unhandled cuda error\nLast error:\nCuda failure 'out of memory'\n";

TEST(ExplainMemory, SaysTheSameAsExplainOfWhatCameLongBefore) {
  const std::string other = kTraceback + "WidgetFault: bent\n";
  const std::string finished = progress(300) + "Training finished.\n";
  for (const std::string& log : {kPinned, kCublas, kNccl}) {
    EXPECT_NE(explain_memory(log).kind, "unknown") << log;
    EXPECT_EQ(explain_memory(log + finished).kind, "unknown") << log;
    const devmem::Explanation before = explain_memory(log + progress(300) + other);
    EXPECT_EQ(before.kind, "unknown") << log << before.text;
    EXPECT_NE(before.text.find("flatout explain"), std::string::npos);
  }
}

TEST(ExplainMemory, WhatOnlyFollowsFromAnotherFailureIsNotTold) {
  const std::string assertion =
      "Indexing.cu:1289: indexSelectLargeIndex: block: [4,0,0], thread: [0,0,0] Assertion "
      "`srcIndex < srcSelectDimSize` failed.\n";
  EXPECT_EQ(explain_memory(assertion + kTraceback +
                           "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
                           "`cublasCreate(handle)`\n")
                .kind,
            "unknown");
}

// As a file that is read piece by piece.
TEST(ExplainMemory, ALongLogIsReadWhereItsErrorIs) {
  const std::string log = progress(100'000) + kTraceback + kOom + progress(3);
  for (const size_t most : {size_t{1} << 20, size_t{4099}}) {
    size_t opened = 0;
    const auto open = [&]() -> Result<ReadBytes> {
      ++opened;
      return ReadBytes([&, rest = std::string_view(log)](char* to, size_t size) mutable {
        const size_t got = rest.copy(to, std::min(size, most));
        rest.remove_prefix(got);
        return Result<size_t>(got);
      });
    };
    const auto e = explain_memory(open);
    ASSERT_TRUE(e.ok());
    EXPECT_EQ(e->kind, explain_memory(kTraceback + kOom).kind);
    EXPECT_EQ(e->text, explain_memory(kTraceback + kOom).text);
    EXPECT_EQ(opened, 2u);
  }
  const auto fails = []() -> Result<ReadBytes> {
    return ReadBytes([](char*, size_t) -> Result<size_t> { return Error{Code::kIo, "torn", ""}; });
  };
  EXPECT_FALSE(explain_memory(fails).ok());
}

TEST(ExplainMemory, TheHostsMemoryIsSaidToBeThat) {
  const devmem::Explanation e = explain_memory("State: Terminated\n  Reason: OOMKilled\n");
  EXPECT_TRUE(e.text.starts_with("This is about the host's memory, not the card's.")) << e.text;
}

TEST(ExplainMemory, TheFirstFailureOfSeveralIsTheCause) {
  EXPECT_EQ(explain_memory("[rank0]: " + kOom +
                           "[rank1]: RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when "
                           "calling `cublasCreate(handle)`\n")
                .kind,
            "torch_oom_fragmented");
  const std::string traceback = "Traceback (most recent call last):\n  File \"t.py\", line 3\n";
  const std::string second = traceback + kOom +
                             "\nDuring handling of the above exception, another exception "
                             "occurred:\n\n" +
                             traceback + "KeyError: 'loss'\n";
  EXPECT_EQ(explain_memory(second).kind, "torch_oom_fragmented");
}

TEST(ExplainMemory, WhatTheJobGotOverOrOnlyQuotesIsNoFailure) {
  for (const std::string& log :
       {std::string("Tip: if you get \"RuntimeError: CUDA out of memory. Tried to allocate ...\" "
                    "reduce --batch-size.\nepoch 1 loss 0.2\nTraining finished.\n"),
        "epoch 1 step 10 loss 2.3\n| WARNING: ran out of memory with exception: " +
            kOom.substr(0, kOom.size() - 1) + "; Skipping batch\nstep 11 loss 2.0\n",
        kOom + "epoch 2 loss 0.2\nepoch 3 loss 0.1\nTraining finished.\n"}) {
    const devmem::Explanation e = explain_memory(log);
    EXPECT_EQ(e.kind, "unknown") << log << e.text;
    EXPECT_EQ(e.sure, 0);
  }
  EXPECT_EQ(explain_memory("W tensorflow/core/common_runtime/bfc_allocator.cc:290] Allocator "
                           "(GPU_0_bfc) ran out of memory trying to allocate 2.25GiB with "
                           "freed_by_count=0. The caller indicates that this is not a failure, but "
                           "may mean that there could be performance gains.\nTraining finished.\n")
                .kind,
            "tf_not_a_failure");
}

TEST(ExplainMemory, AnotherFailureLeavesTheMemoryThatRanOutToBeTold) {
  const std::string other =
      "Traceback (most recent call last):\n  File \"t.py\", line 3\nWidgetFault: bent\n";
  EXPECT_EQ(explain_memory(other).kind, "unknown");
  EXPECT_NE(explain_memory(other).text.find("flatout explain"), std::string::npos);
  EXPECT_EQ(explain_memory(other + "[rank1]: " + kOom).kind, "torch_oom_fragmented");
}

TEST(ExplainMemory, WhatIsNoLogIsSaidToBeThat) {
  EXPECT_NE(explain_memory("").text.find("empty"), std::string::npos);
  EXPECT_EQ(explain_memory("").kind, "unknown");
  EXPECT_NE(explain_memory(std::string(5000, '\0')).text.find("no text"), std::string::npos);
  std::string utf16 = "\xff\xfe";
  for (const char c : kOom) utf16 += {c, '\0'};
  ASSERT_EQ(explain_memory(utf16).advice.size(), 1u);
  EXPECT_NE(explain_memory(utf16).advice[0].text.find("iconv"), std::string::npos);
}

}  // namespace
}  // namespace flatout::advise
