// Findings about the device of a live run, each with a near miss.
#include <gtest/gtest.h>

#include <algorithm>

#include "diagnose/diagnose.h"
#include "diagnose/testing/run_builder.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;
using model::IdleCause;

constexpr double kGiB = 1 << 30;
constexpr int64_t kJobPid = 100;  // RunBuilder's
const Doing kCompute{ThreadState::kOnCpuNative, {kMain}};

const Finding* find(const Diagnosis& d, std::string_view id) {
  const auto it = std::find_if(d.findings.begin(), d.findings.end(),
                               [&](const Finding& f) { return f.id == id; });
  return it == d.findings.end() ? nullptr : &*it;
}

class DeviceRun {
 public:
  DeviceRun() {
    for (int i = 0; i < 60; ++i) {
      b_.step({{Part::kForward, 4, kCompute}, {Part::kSync, 6, {ThreadState::kPoll, {kMain}}}},
              i < 3);
    }
    use_.recorded = nanos(1e9);
    use_.windows = 2;
    use_.sum.kernels = 1000;
    use_.sum.end = b_.now();
    use_.sum.kernel_sum = use_.sum.filled = nanos(1e9);
    busy(1);
    gpu_ = b_.entity(EntityKind::kGpu, 0, "card");
  }
  DeviceRun& busy(double share) {
    use_.sum.busy = use_.sum.compute = nanos(share * 1e9);
    return *this;
  }
  DeviceRun& idle(IdleCause cause, double share) {
    use_.sum.idle[static_cast<size_t>(cause)] = nanos(share * 1e9);
    return busy(1 - share);
  }
  DeviceRun& memory(double total, double used) {
    b_.gauge(SignalId::kGpuMemTotal, gpu_, total).gauge(SignalId::kGpuMemUsed, gpu_, used);
    return *this;
  }
  DeviceRun& other_holds(double bytes, const std::string& name = "python") {
    b_.entity(EntityKind::kOther, 999, name);
    b_.run().entities.push_back({EntityKind::kGpuProcess, 999, gpu_, "gpu0"});
    const auto id = static_cast<model::EntityId>(b_.run().entities.size() - 1);
    b_.gauge(SignalId::kGpuProcessMem, id, bytes);
    return *this;
  }
  /// Another GPU, on which the job holds so much.
  DeviceRun& second_gpu(double bytes = 0) {
    const auto second = b_.entity(EntityKind::kGpu, 1, "card");
    b_.gauge(SignalId::kGpuMemTotal, second, 64 * kGiB);
    if (bytes <= 0) return *this;
    b_.run().entities.push_back({EntityKind::kGpuProcess, kJobPid, second, "gpu1"});
    const auto id = static_cast<model::EntityId>(b_.run().entities.size() - 1);
    b_.gauge(SignalId::kGpuProcessMem, id, bytes);
    return *this;
  }
  DeviceRun& gauge(SignalId signal, double value) {
    b_.gauge(signal, gpu_, value);
    return *this;
  }
  DeviceRun& fact(const std::string& key, const std::string& value) {
    b_.run().info[key] = value;
    return *this;
  }
  /// A call that failed so many seconds before the job's end.
  DeviceRun& out_of_memory(double bytes, double before = 0) {
    const int64_t at = to_ns(b_.now()) - static_cast<int64_t>(before * 1e9);
    return fact("cuda.out_of_memory", "2 cuMemAlloc_v2 " +
                                          std::to_string(static_cast<int64_t>(bytes)) + " " +
                                          std::to_string(at) + " 0 0");
  }
  int64_t end_ns() const { return to_ns(b_.now()); }
  model::DeviceUse& use() { return use_; }
  Diagnosis diagnose(int wait_status = 0) {
    model::Run run = b_.build(true, wait_status);
    run.devices = {use_};
    return flatout::diagnose::diagnose(run);
  }

 private:
  RunBuilder b_;
  model::DeviceUse use_;
  model::EntityId gpu_ = 0;
};

constexpr int kFailed = 1 << 8;

TEST(Device, ADeviceThatAlwaysWorksIsHealthy) {
  const Diagnosis d = DeviceRun().memory(64 * kGiB, 40 * kGiB).diagnose();
  EXPECT_EQ(d.verdict, "healthy") << d.headline;
}

TEST(Device, SyncSavesNoMoreThanTheLongerOfHostAndDeviceAllows) {
  // The host works 40 % of the step, the device 70 %: without waits the device's time is left.
  const Diagnosis d = DeviceRun().idle(IdleCause::kSync, 0.3).diagnose();
  const Finding* f = find(d, "gpu.sync");
  ASSERT_NE(f, nullptr);
  EXPECT_NEAR(*f->gain, 1 / 0.7, 0.02);
  // The device works 20 %, the host 40 %.
  const Diagnosis bound_by_host = DeviceRun().idle(IdleCause::kSync, 0.8).diagnose();
  ASSERT_NE(find(bound_by_host, "gpu.sync"), nullptr);
  EXPECT_NEAR(*find(bound_by_host, "gpu.sync")->gain, 1 / 0.4, 0.05);
  EXPECT_EQ(find(DeviceRun().idle(IdleCause::kSync, 0.03).diagnose(), "gpu.sync"), nullptr);
  EXPECT_EQ(find(DeviceRun().idle(IdleCause::kInput, 0.3).diagnose(), "gpu.sync"), nullptr);
}

TEST(Device, ShortWaitsForLaunchesAreLaunchBound) {
  const Diagnosis d = DeviceRun().idle(IdleCause::kLaunch, 0.5).diagnose();
  ASSERT_NE(find(d, "gpu.launch_bound"), nullptr);
  EXPECT_NEAR(*find(d, "gpu.launch_bound")->gain, 2, 0.02);
  EXPECT_EQ(find(DeviceRun().idle(IdleCause::kDependency, 0.5).diagnose(), "gpu.launch_bound"),
            nullptr);
}

TEST(Device, TooLittleRecordedIsNotJudged) {
  DeviceRun r;
  r.idle(IdleCause::kLaunch, 0.5);
  r.use().sum.kernels = 5;
  EXPECT_EQ(r.diagnose().verdict, "healthy");
}

TEST(Device, ExposedCopiesAreNamedByTheirMemory) {
  for (const bool pageable : {true, false}) {
    DeviceRun r;
    r.use().sum.exposed_copies = nanos(0.2e9);
    if (pageable) r.use().sum.exposed_pageable = nanos(0.2e9);
    const Diagnosis d = r.diagnose();
    EXPECT_EQ(d.verdict, pageable ? "input.h2d_sync" : "gpu.no_overlap");
    EXPECT_NEAR(*d.findings[0].gain, 1.25, 0.02);
  }
}

TEST(Device, NarrowKernelsNeedFreeMemoryToBeASmallBatch) {
  DeviceRun narrow;
  narrow.use().sum.filled = nanos(0.1e9);
  EXPECT_EQ(narrow.memory(64 * kGiB, 16 * kGiB).diagnose().verdict, "gpu.small_batch");
  DeviceRun full;
  full.use().sum.filled = nanos(0.1e9);
  EXPECT_EQ(full.memory(64 * kGiB, 60 * kGiB).diagnose().verdict, "healthy");
  DeviceRun wide;
  EXPECT_EQ(wide.memory(64 * kGiB, 16 * kGiB).diagnose().verdict, "healthy");
}

TEST(Device, ALowClockCountsOnlyWhereItWasLowered) {
  const auto with = [](double reasons) {
    return DeviceRun()
        .gauge(SignalId::kGpuThrottle, reasons)
        .gauge(SignalId::kGpuClockSm, 900e6)
        .gauge(SignalId::kGpuClockSmMax, 1800e6)
        .diagnose();
  };
  const Diagnosis hot = with(0x40);
  ASSERT_EQ(hot.verdict, "gpu.throttled");
  EXPECT_NEAR(*hot.findings[0].gain, 2, 0.05);
  EXPECT_NE(hot.findings[0].title.find("hot"), std::string::npos);
  EXPECT_NE(with(0x4).findings.at(0).title.find("power"), std::string::npos);
  EXPECT_NE(with(0x88).findings.at(0).title.find("power"), std::string::npos);  // its brake
  EXPECT_NE(with(0x48).findings.at(0).title.find("hot"), std::string::npos);
  EXPECT_EQ(with(0x2).verdict, "healthy");  // the user's own choice
}

TEST(Device, OutOfMemoryIsToldByWhatWasFreeAndWhoHeldTheRest) {
  const auto verdict = [](double used, double others, double asked, double before = 0) {
    DeviceRun r;
    r.memory(64 * kGiB, used * kGiB);
    if (others > 0) r.other_holds(others * kGiB);
    return r.out_of_memory(asked * kGiB, before).diagnose(kFailed).verdict;
  };
  EXPECT_EQ(verdict(60, 50, 8), "gpu.memory_taken");
  EXPECT_EQ(verdict(60, 50, 80), "gpu.oom_too_big");  // nor would it fit alone
  EXPECT_EQ(verdict(60, 0, 8), "gpu.oom_too_big");
  EXPECT_EQ(verdict(30, 0, 8), "gpu.oom_fragmented");
  EXPECT_EQ(verdict(30, 0, 8, 60), "crash.exception");  // it went on after that
}

TEST(Device, MemoryThatMpsHoldsIsItsClients) {
  for (const char* name : {"nvidia-cuda-mps-server", "python"}) {
    DeviceRun r;
    r.memory(64 * kGiB, 60 * kGiB).other_holds(50 * kGiB, name);
    const Diagnosis d = r.out_of_memory(8 * kGiB).diagnose(kFailed);
    ASSERT_EQ(d.verdict, "gpu.memory_taken");
    EXPECT_EQ(d.findings[0].remedies.at(0).id, name[0] == 'n' ? "mps" : "stop");
  }
}

TEST(Device, AnotherExceptionSoonAfterAFailedAllocationIsItsOwn) {
  const auto verdict = [](const std::string& message) {
    DeviceRun r;
    r.memory(64 * kGiB, 60 * kGiB).out_of_memory(8 * kGiB, 2);
    r.fact("exception.type", "RuntimeError").fact("exception.message", message);
    return r.diagnose(kFailed).verdict;
  };
  EXPECT_EQ(verdict("bad label 17"), "crash.exception");
  EXPECT_EQ(verdict("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), "gpu.oom_too_big");
}

TEST(Device, OnlyADeviceOfTheJobIsToBlameForItsEnd) {
  const auto verdict = [](double held, const std::string& call) {
    DeviceRun r;
    r.second_gpu(held).fact("gpu.0.error", "GPU is lost");  // which never answered
    if (!call.empty()) r.fact("cuda.error", call + std::to_string(r.end_ns()));
    return r.diagnose(kFailed).verdict;
  };
  EXPECT_EQ(verdict(0, ""), "crash.exception");
  EXPECT_EQ(verdict(0, "700 cuCtxSynchronize 0 "), "crash.exception");
  EXPECT_EQ(verdict(kGiB, "700 cuCtxSynchronize 0 "), "crash.exception");
  const Diagnosis d = [] {
    DeviceRun r;
    r.second_gpu().fact("gpu.1.error", "GPU is lost");
    return r.fact("cuda.error", "999 cuCtxSynchronize 0 " + std::to_string(r.end_ns()))
        .diagnose(kFailed);
  }();
  EXPECT_EQ(d.verdict, "gpu.lost");
  EXPECT_EQ(d.findings.at(0).title, "GPU 1 was lost");
}

TEST(Device, ALostDeviceIsNotTheJobsOwnBug) {
  const auto verdict = [](const std::string& error, const std::string& call) {
    DeviceRun r;
    if (!error.empty()) r.fact("gpu.0.error", error);
    return r.fact("cuda.error", call).diagnose(kFailed).verdict;
  };
  EXPECT_EQ(verdict("GPU is lost", "999 cuCtxSynchronize 0 0 0 0"), "gpu.lost");
  EXPECT_EQ(verdict("", "214 cuCtxSynchronize 0 0 0 0"), "gpu.lost");  // ECC
  EXPECT_EQ(verdict("", "700 cuCtxSynchronize 0 0 0 0"), "crash.exception");
  EXPECT_EQ(verdict("", "46 cuCtxSynchronize 0 0 0 0"), "crash.exception");  // it is another's
}

TEST(Device, AFrameworksOwnMessageIsExplained) {
  DeviceRun r;
  r.fact("exception.type", "OutOfMemoryError");
  r.fact(
      "exception.message",
      "CUDA out of memory. Tried to allocate 40.00 GiB. GPU 0 has a total capacity of 23.99 GiB of "
      "which 10.00 GiB is free. Of the allocated memory 10.00 GiB is allocated by PyTorch, and "
      "100.00 MiB is reserved by PyTorch but unallocated.");
  EXPECT_EQ(r.diagnose(kFailed).verdict, "gpu.oom_too_big");
}

}  // namespace
}  // namespace flatout::diagnose
