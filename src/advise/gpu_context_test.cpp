#include "advise/gpu_context.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "probe/testing/fake_tree.h"

namespace flatout::advise {
namespace {

const std::string kLibrary = FLATOUT_BUILD_DIR "/cuda_stand_in/libcuda.so.1";
constexpr Nanos kLong = std::chrono::minutes(1);

class GpuContextTest : public ::testing::Test {
 protected:
  void script(const std::string& text) {
    tree.write("script", text);
    ::setenv("CUDA_STAND_IN", tree.root().full("script").c_str(), 1);
  }
  ~GpuContextTest() override { ::unsetenv("CUDA_STAND_IN"); }
  probe::FakeTree tree;
};

TEST_F(GpuContextTest, IsCreatedOnEachGpuThatAllowsIt) {
  script(
      "devices 2\n0 uuid 00112233445566778899aabbccddeeff\n0 free 1000\n0 total 3000\n"
      "1 context 2\n");
  const auto trials = try_contexts(kLibrary, kLong);
  ASSERT_TRUE(trials.ok()) << trials.error().message;
  ASSERT_EQ(trials->size(), 2u);
  EXPECT_EQ((*trials)[0].code, 0);
  EXPECT_EQ((*trials)[0].uuid, "GPU-00112233-4455-6677-8899-aabbccddeeff");
  EXPECT_EQ((*trials)[0].free_bytes, 1000u);
  EXPECT_EQ((*trials)[0].total_bytes, 3000u);
  EXPECT_EQ((*trials)[1].device, 1);
  EXPECT_EQ((*trials)[1].error, "CUDA_ERROR_OUT_OF_MEMORY");
}

TEST_F(GpuContextTest, SaysWhyCudaDoesNotStart) {
  script("init 100\n");
  const auto none = try_contexts(kLibrary, kLong);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Code::kUnsupported);
  EXPECT_NE(none.error().message.find("CUDA_ERROR_NO_DEVICE"), std::string::npos);
  const auto missing = try_contexts("libcuda_that_is_nowhere.so.1", kLong);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::kNotFound);
}

TEST_F(GpuContextTest, ADriverThatCrashesTakesNothingWithIt) {
  script("devices 2\n1 crash 1\n");
  const auto trials = try_contexts(kLibrary, kLong);
  ASSERT_FALSE(trials.ok());
  EXPECT_EQ(trials.error().code, Code::kGone);
  EXPECT_NE(trials.error().message.find("GPU 1"), std::string::npos);
}

TEST_F(GpuContextTest, ADriverThatHangsIsNotWaitedFor) {
  script("hang 600\n");
  const auto trials = try_contexts(kLibrary, std::chrono::milliseconds(200));
  ASSERT_FALSE(trials.ok());
  EXPECT_EQ(trials.error().code, Code::kTimeout);
}

}  // namespace
}  // namespace flatout::advise
