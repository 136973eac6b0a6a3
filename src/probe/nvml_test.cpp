#include "probe/nvml.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "probe/nvml_probe.h"
#include "probe/testing/fake_tree.h"
#include "probe/testing/record_sink.h"

namespace flatout::probe {
namespace {

using model::SignalId;

const std::string kLibrary = FLATOUT_BUILD_DIR "/nvml_stand_in/libnvidia-ml.so.1";

constexpr const char* kTwoGpus =
    "devices 2\ndriver 570.10\ncuda 12080\n"
    "0 name NVIDIA Test\n0 uuid GPU-1\n0 util 87\n0 mem_util 40\n0 mem_total 1000\n0 mem_used 600\n"
    "0 clock_sm 1410\n0 clock_mem 1215\n0 clock_sm_max 1980\n0 power 250500\n0 power_limit 400000\n"
    "0 temperature 61\n0 throttle 4\n0 pcie_tx 100\n0 pcie_rx 200\n0 ecc 3\n"
    "0 process_0 4711 500\n0 process_1 4712 -1\n"
    "1 name NVIDIA Test\n1 error 15\n";

class NvmlTest : public ::testing::Test {
 protected:
  void script(const std::string& text) {
    tree.write("script", text);
    ::setenv("NVML_STAND_IN", tree.root().full("script").c_str(), 1);
  }
  void TearDown() override { ::unsetenv("NVML_STAND_IN"); }
  FakeTree tree;
};

TEST_F(NvmlTest, ReadsADeviceInFull) {
  script(kTwoGpus);
  const auto nvml = Nvml::open(kLibrary);
  ASSERT_TRUE(nvml.ok()) << nvml.error().message;
  EXPECT_EQ((*nvml)->count(), 2u);
  EXPECT_EQ((*nvml)->driver_version(), "570.10");
  EXPECT_EQ((*nvml)->cuda_version(), "12.8");
  EXPECT_EQ((*nvml)->facts(0).uuid, "GPU-1");
  const GpuReading gpu = (*nvml)->read(0, true);
  EXPECT_EQ(gpu.error, "");
  EXPECT_EQ(gpu.util_ratio, 0.87);
  EXPECT_EQ(gpu.mem_used_bytes, 600u);
  EXPECT_EQ(gpu.clock_sm_hz, 1410e6);
  EXPECT_EQ(gpu.clock_sm_max_hz, 1980e6);
  EXPECT_EQ(gpu.clock_mem_hz, 1215e6);
  EXPECT_EQ(gpu.power_w, 250.5);
  EXPECT_EQ(gpu.power_limit_w, 400);
  EXPECT_EQ(gpu.temperature_c, 61);
  EXPECT_EQ(gpu.throttle_reasons, 4u);
  EXPECT_EQ(gpu.ecc_errors, 3u);
  EXPECT_EQ(gpu.pcie_tx_bytes_per_s, 100e3);
  EXPECT_EQ(gpu.pcie_rx_bytes_per_s, 200e3);
  ASSERT_EQ(gpu.processes.size(), 2u);
  EXPECT_EQ(gpu.processes[0].pid, 4711);
  EXPECT_EQ(gpu.processes[0].memory_bytes, 500u);
  EXPECT_FALSE(gpu.processes[1].memory_bytes) << "not available is not zero";
  EXPECT_FALSE((*nvml)->read(0, false).pcie_tx_bytes_per_s) << "measured only when asked for";
}

TEST_F(NvmlTest, SaysThatADeviceIsLost) {
  script(kTwoGpus);
  const auto nvml = Nvml::open(kLibrary);
  ASSERT_TRUE(nvml.ok());
  const GpuReading gpu = (*nvml)->read(1, true);
  EXPECT_EQ(gpu.error, "GPU is lost");
  EXPECT_FALSE(gpu.util_ratio);
  RecordSink sink;
  deliver_gpu(gpu, (*nvml)->facts(1), time_point_ns(1), sink);
  EXPECT_EQ(sink.facts["gpu.1.error"], "GPU is lost");
  EXPECT_EQ(sink.delivered, 0u);
}

TEST_F(NvmlTest, LeavesUnsetWhatTheDeviceCannotTell) {
  script("devices 1\n0 mem_total 1000\n0 mem_used 1\n");
  const auto nvml = Nvml::open(kLibrary);
  ASSERT_TRUE(nvml.ok());
  const GpuReading gpu = (*nvml)->read(0, true);
  EXPECT_FALSE(gpu.util_ratio);
  EXPECT_FALSE(gpu.power_w);
  EXPECT_FALSE(gpu.ecc_errors);
  RecordSink sink;
  deliver_gpu(gpu, {}, time_point_ns(1), sink);
  EXPECT_EQ(sink.last(SignalId::kGpuMemTotal), 1000);
  EXPECT_FALSE(sink.last(SignalId::kGpuUtil));
  EXPECT_TRUE(sink.missing_signals.contains("gpu.util_ratio"));
}

constexpr const char* kDivided =
    "devices 1\n0 name NVIDIA H100 80GB HBM3\n0 mig 1\n0 mem_total 80000\n0 mem_used 700\n"
    "0 process_0 4711 500\n"
    "100 name NVIDIA H100 80GB HBM3 MIG 1g.10gb\n100 gpu_instance 9\n100 compute_instance 0\n"
    "100 mem_total 10000\n100 mem_used 600\n100 process_0 4711 500\n"
    // The number 1 is a gap.
    "102 name NVIDIA H100 80GB HBM3 MIG 3g.40gb\n102 gpu_instance 2\n102 compute_instance 0\n"
    "102 process_0 4800 -1\n";

TEST_F(NvmlTest, ListsTheInstancesOfADividedGpuWithTheirProcesses) {
  script(kDivided);
  const auto nvml = Nvml::open(kLibrary);
  ASSERT_TRUE(nvml.ok());
  const GpuReading gpu = (*nvml)->read(0, false);
  EXPECT_FALSE(gpu.util_ratio);
  ASSERT_EQ(gpu.instances.size(), 2u);
  EXPECT_EQ(gpu.instances[0].gpu_instance, 9u);
  EXPECT_EQ(gpu.instances[0].profile, "1g.10gb");
  EXPECT_EQ(gpu.instances[0].mem_used_bytes, 600u);
  EXPECT_EQ(gpu.instances[1].profile, "3g.40gb");
  EXPECT_FALSE(gpu.instances[1].mem_used_bytes) << "not told is not zero";
  ASSERT_EQ(gpu.processes.size(), 2u) << "one that the GPU names, too, is there once";
  EXPECT_EQ(gpu.processes[0].pid, 4711);
  EXPECT_TRUE(gpu.instances[0].has(gpu.processes[0]));
  EXPECT_FALSE(gpu.instances[1].has(gpu.processes[0]));
  EXPECT_TRUE(gpu.instances[1].has(gpu.processes[1]));
  EXPECT_FALSE(gpu.processes[1].memory_bytes);
}

TEST_F(NvmlTest, AGpuThatCouldBeDividedButIsNotHasNoInstances) {
  script("devices 1\n0 mig 0\n0 util 1\n0 mem_util 1\n100 gpu_instance 9\n");
  const auto nvml = Nvml::open(kLibrary);
  ASSERT_TRUE(nvml.ok());
  EXPECT_TRUE((*nvml)->read(0, false).instances.empty());
}

TEST_F(NvmlTest, ListsMoreProcessesThanTheFirstGuess) {
  std::string text = "devices 1\n0 util 1\n0 mem_util 1\n";
  for (int i = 0; i < 100; ++i) {
    text += "0 process_" + std::to_string(i) + " " + std::to_string(1000 + i) + " 5\n";
  }
  script(text);
  const auto nvml = Nvml::open(kLibrary);
  ASSERT_TRUE(nvml.ok());
  EXPECT_EQ((*nvml)->read(0, false).processes.size(), 100u);
}

TEST_F(NvmlTest, ExplainsWhyThereIsNone) {
  EXPECT_EQ(Nvml::open("libno-such-nvml.so.1").error().code, Code::kNotFound);
  ::unsetenv("NVML_STAND_IN");
  EXPECT_NE(Nvml::open(kLibrary).error().message.find("Driver Not Loaded"), std::string::npos);
  script("devices 0\n");
  EXPECT_FALSE(Nvml::open(kLibrary).ok());
}

// Reads until the probe's thread has said something.
void read_until(Probe& probe, RecordSink& sink) {
  for (int i = 0; i < 100'000 && sink.delivered == 0 && sink.missing_signals.empty(); ++i) {
    probe.read(MonotonicClock::now(), sink);
    std::this_thread::yield();
  }
}

TEST_F(NvmlTest, ProbeDeliversFromItsThread) {
  script(kTwoGpus);
  RecordSink sink;
  const auto probe = make_nvml_probe({.root = tree.root()}, kLibrary);
  read_until(*probe, sink);
  EXPECT_EQ(sink.last(SignalId::kGpuUtil), 0.87);
  EXPECT_EQ(sink.last(SignalId::kGpuProcessMem, 4711), 500);
  EXPECT_EQ(sink.facts["gpu.driver_version"], "570.10");
  EXPECT_EQ(sink.facts["gpu.0.name"], "NVIDIA Test");
  EXPECT_EQ(sink.facts["gpu.count"], "2");
}

TEST_F(NvmlTest, ProbeTellsAMissingLibraryFromAMissingDriver) {
  RecordSink without, with;
  const auto first = make_nvml_probe({.root = tree.root()}, "libno-such-nvml.so.1");
  read_until(*first, without);
  EXPECT_EQ(without.missing_signals["gpu"].reason, "no NVIDIA driver");
  tree.write("proc/driver/nvidia/version", "NVRM version: 570\n");
  const auto second = make_nvml_probe({.root = tree.root()}, "libno-such-nvml.so.1");
  read_until(*second, with);
  EXPECT_EQ(with.missing_signals["gpu"].reason, "there is a driver, but no libnvidia-ml.so.1");
}

}  // namespace
}  // namespace flatout::probe
