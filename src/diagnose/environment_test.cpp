#include "diagnose/environment.h"

#include <gtest/gtest.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

std::string remark(const std::string& name, const std::string& value) {
  model::Run run;
  run.info["env." + name] = value;
  return environment_remark(run);
}

TEST(Environment, WhatSlowsAJobDownIsSaid) {
  EXPECT_EQ(remark("ONEDNN_MAX_CPU_ISA", "SSE41"),
            "Set in the environment: ONEDNN_MAX_CPU_ISA=SSE41 (keeps kernels from this CPU's wider "
            "vector instructions).");
  EXPECT_NE(remark("MALLOC_PERTURB_", "165"), "");
  EXPECT_NE(remark("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=4096"), "");
}

TEST(Environment, WhatDoesNotIsNot) {
  EXPECT_EQ(remark("ONEDNN_MAX_CPU_ISA", "AVX512_CORE"), "");
  EXPECT_EQ(remark("ATEN_CPU_CAPABILITY", "avx512"), "");
  EXPECT_EQ(remark("MALLOC_CHECK_", "0"), "");
  EXPECT_EQ(remark("GLIBC_TUNABLES", "glibc.malloc.arena_max=2"), "");
  EXPECT_EQ(environment_remark(model::Run()), "");
}

TEST(Environment, AHealthyJobsHeadlineSaysIt) {
  RunBuilder b;
  train(b, 60, 0, 20);
  b.machine(2, 1).process_cpu(100, 1);
  b.run().info["env.CUDA_LAUNCH_BLOCKING"] = "1";
  const model::Diagnosis d = diagnose(b.build());
  EXPECT_EQ(d.verdict, "healthy");
  EXPECT_EQ(d.remark, "Set in the environment: CUDA_LAUNCH_BLOCKING=1 (waits for each kernel).");
  EXPECT_NE(d.headline.find("CUDA_LAUNCH_BLOCKING=1"), std::string::npos) << d.headline;
}

}  // namespace
}  // namespace flatout::diagnose
