#include "advise/log_line.h"

#include <gtest/gtest.h>

#include <string>

namespace flatout::advise {
namespace {

bool warns_of(std::string_view line, std::string_view words) {
  return is_mere_warning(line, line.find(words));
}

TEST(LogLine, KnowsAnException) {
  for (const char* line : {"ValueError: too big", "torch.cuda.OutOfMemoryError: CUDA", "KeyError",
                           "queue.Empty", "socket.timeout: timed out", "RuntimeError:"}) {
    EXPECT_TRUE(is_exception(line)) << line;
  }
  for (const char* line : {"", "loss: 0.3", "Done", "Epoch 3: loss", "  ValueError: x", "3Error: x",
                           "ValueError (x)", "the Error: x"}) {
    EXPECT_FALSE(is_exception(line)) << line;
  }
}

TEST(LogLine, TakesTheRankAway) {
  EXPECT_EQ(without_rank("[rank12]: KeyError: 'x'"), "KeyError: 'x'");
  EXPECT_EQ(without_rank("[rank0]:[E ProcessGroup"), "[E ProcessGroup");
  EXPECT_EQ(without_rank("[12:00:00]: KeyError"), "[12:00:00]: KeyError");
}

TEST(LogLine, AnEchoedCommandOrACommentReportsNothing) {
  for (const char* line : {"+ ulimit -l", "++ date", "# OOMKilled", "#SBATCH --mem=4G", "$ ls",
                           "  // CUDA out of memory"}) {
    EXPECT_TRUE(is_quoted(line)) << line;
  }
  for (const char* line : {"#0  0x7f in main ()", "+5 points", "KeyError", "", "/bin/sh: x"}) {
    EXPECT_FALSE(is_quoted(line)) << line;
  }
}

TEST(LogLine, ALevelBeforeTheWordsMakesAMereWarning) {
  for (const char* level :
       {"WARNING:root:", "2024-05-02 10:11:12 INFO | ", "[W socket.cpp:436] ",
        "W0612 10:00:01.1 12 a.py:1] ", "[rank0]:[W612 10:00:01.1 a.cpp:1] ",
        "2021-01-01 10:00:00.1: W tensorflow/a.cc:1] ", "a.py:1: UserWarning: ", "[info     ] ",
        "level=warning msg=", "{\"level\": \"warn\", \"msg\": \"", "wandb: ", "x NCCL INFO ",
        "[DEBUG] ", "a.cc:12: warning: "}) {
    EXPECT_TRUE(warns_of(std::string(level) + "disk is full", "disk is full")) << level;
  }
  for (const char* level :
       {"", "ERROR:root:", "[E socket.cpp:436] ", "E0612 10:00:01.1 12 a.py:1] ", "x NCCL WARN ",
        "NCCL_DEBUG=INFO ", "INFORMATION ", "2021-01-01 10:00:00.1: E tensorflow/a.cc:1] ",
        "OSError: "}) {
    EXPECT_FALSE(warns_of(std::string(level) + "disk is full", "disk is full")) << level;
  }
  // A level behind it says nothing.
  EXPECT_FALSE(warns_of("disk is full INFO", "disk is full"));
}

TEST(LogLine, KnowsWhatWasGotOverOrOnlyMightBe) {
  EXPECT_TRUE(is_got_over("disk is full, retrying", 0));
  EXPECT_TRUE(is_got_over("a.jpg is broken, skipped", 0));
  EXPECT_TRUE(is_got_over("If you see: disk is full", 12));
  EXPECT_FALSE(is_got_over("disk is full", 0));
  EXPECT_FALSE(is_got_over("disk is full. If you see this, make room", 0));
}

TEST(LogLine, KnowsProgress) {
  for (const char* line :
       {"Epoch: [3][ 10/5005]\tTime", "step 12 loss 0.5", "train_loss=0.25", "iter: 100",
        "100/100 [====] - 4s 40ms/step - loss: 1.1", "{'loss': 1.4, 'epoch': 0.5}",
        "saved checkpoint to out/last.pt", "Epoch 3/10",
        "[I 2024-01-01 10:01:00,000] Trial 4 finished with value: 0.3 and parameters: {}."}) {
    EXPECT_EQ(progress_of(line), Progress::kStep) << line;
  }
  for (const char* line : {"Training complete", "trainer exited with code 0"}) {
    EXPECT_EQ(progress_of(line), Progress::kEnd) << line;
  }
  EXPECT_EQ(progress_of(" 12%|#2   | 48/400 [00:10<05:00,  1.20it/s, loss=0.5]"), Progress::kBar);
  for (const char* line :
       {"", "wandb: train/loss 0.25", "    loss = 0.5 * x", "timestep 5", "loss is bad",
        "epochs: 10", "slurmstepd: error: *** STEP 812.0 ON n07 CANCELLED AT 2024 ***",
        "batch_size=64", "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss: block: [0,0,0]",
        "saved you a seat",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish."}) {
    EXPECT_EQ(progress_of(line), Progress::kNone) << line;
  }
}

}  // namespace
}  // namespace flatout::advise
