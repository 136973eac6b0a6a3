#include "recorder/redact.h"

#include <gtest/gtest.h>

namespace flatout::recorder {
namespace {

TEST(Redact, KeepsOnlyVariablesOfTheAllowList) {
  const auto kept = recordable_environment({"OMP_NUM_THREADS=4", "HOME=/home/me", "AWS_PROFILE=x",
                                            "NCCL_DEBUG=INFO", "HF_TOKEN=hf_abcdefgh12345678",
                                            "noequals", "=odd"});
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0], (std::pair<std::string, std::string>{"NCCL_DEBUG", "INFO"}));
  EXPECT_EQ(kept[1], (std::pair<std::string, std::string>{"OMP_NUM_THREADS", "4"}));
}

TEST(Redact, KeepsWhatMakesAJobSlowFromOutside) {
  const std::vector<std::string> slow = {"COV_CORE_SOURCE=src",
                                         "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4096",
                                         "ONEDNN_MAX_CPU_ISA=SSE41", "PYTHONTRACEMALLOC=25"};
  EXPECT_EQ(recordable_environment(slow).size(), slow.size());
}

TEST(Redact, HidesSecretsEvenInAllowedVariables) {
  const auto kept =
      recordable_environment({"TORCH_HUB_TOKEN=short", "LIGHTNING_URL=https://me:pw@host/x",
                              "CUDA_HOME=/usr/local/cuda-12.4"});
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0].second, "/usr/local/cuda-12.4");
  EXPECT_EQ(kept[1].second, "https://[redacted]@host/x");
  EXPECT_EQ(kept[2].second, "[redacted]");
}

TEST(Redact, HidesValuesOfSecretOptions) {
  EXPECT_EQ(redact_command("train --token=abc --lr 0.1"), "train --token=[redacted] --lr 0.1");
  EXPECT_EQ(redact_command("train --api-key abc --epochs 3"),
            "train --api-key [redacted] --epochs 3");
  EXPECT_EQ(redact_command("env WANDB_API_KEY=0123 python x.py"),
            "env WANDB_API_KEY=[redacted] python x.py");
  EXPECT_EQ(redact_command("train --password hunter2"), "train --password [redacted]");
}

TEST(Redact, KeepsWhatOnlySoundsSecret) {
  const char* const harmless[] = {
      "python train.py --max-tokens 512 --tokenizer bert-base-uncased",
      "python train.py --author me --num-workers=4 --data /data/imagenet/train",
      "python -m torch.distributed.run --nproc_per_node 2 train.py",
      "python train.py --checkpoint epoch-0012-step-00034000.pt --run resnet50_v1.5_bs256",
      "python train.py --key image --lr 1e-4 --url http://host:8080/data?x=1",
      "/opt/conda/envs/py311/lib/python3.11/site-packages/torch/utils/data/dataloader.py"};
  for (const char* command : harmless) EXPECT_EQ(redact_command(command), command);
}

TEST(Redact, HidesTokensByTheirLook) {
  EXPECT_EQ(redact_text("use ghp_16C7e42F292c6912E7710c838347Ae178B4a now"), "use [redacted] now");
  EXPECT_EQ(redact_text("AKIAIOSFODNN7EXAMPLE9"), "[redacted]");
  EXPECT_EQ(redact_text("key=9f86d081884c7d659a2feaa0c55ad015"), "key=[redacted]");
  EXPECT_EQ(redact_text("s3://me:secret@bucket/x and ftp://a@b"),
            "s3://[redacted]@bucket/x and ftp://[redacted]@b");
}

TEST(Redact, SurvivesOddText) {
  EXPECT_EQ(redact_text(""), "");
  EXPECT_EQ(redact_text("://@"), "://[redacted]@");
  EXPECT_EQ(redact_command("--token"), "--token");
  EXPECT_EQ(redact_command("  a  "), "  a  ");
  EXPECT_EQ(redact_text(std::string_view("\xff\xfe=\0/", 5)), std::string("\xff\xfe=\0/", 5));
}

}  // namespace
}  // namespace flatout::recorder
