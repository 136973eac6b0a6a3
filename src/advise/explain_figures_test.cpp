#include "advise/explain_figures.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "advise/explain.h"

namespace flatout::advise {
namespace {

model::Explanation explain_text(std::string_view log) {
  LogReader reader;
  reader.feed(log);
  return explain(reader.finish(), {});
}

std::string advice_of(const model::Explanation& e, std::string_view id) {
  for (const model::Suggestion& advice : e.advice) {
    if (advice.id == id) return advice.text;
  }
  return "";
}

// On a device of 24 GiB, of which the context takes half a GiB.
std::string torch_oom(double wanted, double allocated, double free) {
  return fmt::format(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {:.2f} GiB. GPU 0 has a total "
      "capacity of 24.00 GiB of which {:.2f} GiB is free. Including non-PyTorch memory, this "
      "process "
      "has {:.2f} GiB memory in use. Of the allocated memory {:.2f} GiB is allocated by PyTorch, "
      "and "
      "0.00 GiB is reserved by PyTorch but unallocated.\n",
      wanted, free, 24.0 - free, allocated);
}

TEST(ExplainFigures, TheBatchIsHalvedUntilTheMessagesFiguresFit) {
  const std::string named = "Namespace(batch_size=64)\n";
  const auto batch = [&](double wanted, double allocated, double free) {
    return advice_of(explain_text(named + torch_oom(wanted, allocated, free)), "batch_size");
  };
  // 24 GiB needed, 23.5 there: half is the next to try.
  EXPECT_NE(batch(1, 23, 0.5).find("32 instead of the 64"), std::string::npos) << batch(1, 23, 0.5);
  // 60 GiB at once on top of 3: 23.5 of 63 is less than half, so a quarter.
  EXPECT_NE(batch(60, 3, 20.5).find("16 instead of the 64"), std::string::npos)
      << batch(60, 3, 20.5);
  EXPECT_NE(batch(60, 3, 20.5).find("over 4 batches"), std::string::npos);
  // It says what that rests on.
  EXPECT_NE(batch(60, 3, 20.5).find("needed 63.0 GiB at once"), std::string::npos)
      << batch(60, 3, 20.5);
  EXPECT_NE(batch(60, 3, 20.5).find("could have 23.5 GiB"), std::string::npos)
      << batch(60, 3, 20.5);
  // Not even one sample fits.
  const std::string none =
      advice_of(explain_text("batch_size: 32\n" + torch_oom(900, 3, 20.5)), "batch_size");
  EXPECT_NE(none.find("not even a batch of 1"), std::string::npos) << none;
  // What is thousands of times too large is no matter of the batch.
  EXPECT_EQ(batch(90000, 3, 20.5), "");
}

TEST(ExplainFigures, WithoutABatchInTheLogTheShareIsSaid) {
  const std::string text = advice_of(explain_text(torch_oom(60, 3, 20.5)), "batch_size");
  EXPECT_NE(text.find("1/4 of it"), std::string::npos) << text;
  EXPECT_NE(text.find("batch_size"), std::string::npos) << text;
  const std::string bare =
      advice_of(explain_text("RuntimeError: CUDA out of memory.\n"), "batch_size");
  EXPECT_NE(bare.find("1/2 of it"), std::string::npos) << bare;
  EXPECT_NE(bare.find("halves the activations"), std::string::npos) << bare;
}

TEST(ExplainFigures, AMessageDeepInALongLineHasItsFigures) {
  std::string line = "{\"level\":\"error\",\"msg\":\"Traceback (most recent call last):";
  for (int i = 0; i < 150; ++i) line += "\\n  File \\\"train.py\\\", line 3, in forward";
  std::string oom = torch_oom(1, 23, 0.5);
  oom.pop_back();
  const model::Explanation e = explain_text(line + "\\n" + oom + "\"}\n");
  EXPECT_NE(e.text.find("asked for 1.00 GiB with 512 MiB free of 24.0 GiB"), std::string::npos)
      << e.text;
}

TEST(ExplainFigures, ALimitAndARequestBeyondTheCardAreSaid) {
  const model::Explanation limit = explain_text(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
      "capacity of 79.15 GiB of which 70.10 GiB is free. Including non-PyTorch memory, this "
      "process "
      "has 8.80 GiB memory in use. 7.92 GiB allowed; Of the allocated memory 7.50 GiB is allocated "
      "by PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated.\n");
  EXPECT_NE(limit.text.find("may take only 7.92 GiB"), std::string::npos) << limit.text;
  ASSERT_FALSE(limit.advice.empty());
  EXPECT_EQ(limit.advice[0].id, "limit");
  const model::Explanation large = explain_text(torch_oom(95367431.64, 3, 20.5));
  EXPECT_NE(large.text.find("larger than the card"), std::string::npos) << large.text;
  EXPECT_EQ(advice_of(large, "batch_size"), "");
}

TEST(ExplainFigures, ABatchOfOneCannotBeHalved) {
  const std::string text =
      advice_of(explain_text("batch_size: 1\n" + torch_oom(1, 23, 0.5)), "batch_size");
  EXPECT_NE(text.find("smaller inputs"), std::string::npos) << text;
}

TEST(ExplainFigures, TensorFlowsShapeNamesTheBatch) {
  const std::string oom =
      "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor "
      "with shape[96,256,112,112] and type float on /job:localhost/replica:0/task:0/device:GPU:0 "
      "by "
      "allocator GPU_0_bfc\n";
  const std::string guessed = advice_of(explain_text(oom), "batch_size");
  EXPECT_NE(guessed.find("48 if it is 96 now"), std::string::npos) << guessed;
  // What the log calls the batch comes before the guess.
  const std::string named = advice_of(explain_text("batch_size: 32\n" + oom), "batch_size");
  EXPECT_NE(named.find("16 instead of the 32"), std::string::npos) << named;
  // A vector has no batch.
  const std::string vector = advice_of(
      explain_text(
          "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when "
          "allocating tensor with shape[9600000] on /device:GPU:0 by allocator GPU_0_bfc\n"),
      "batch_size");
  EXPECT_EQ(vector.find("9600000"), std::string::npos) << vector;
  EXPECT_NE(vector.find("1/2 of it"), std::string::npos) << vector;
}

TEST(ExplainFigures, XlaSaysWhatItAskedFor) {
  const model::Explanation e = explain_text(
      "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
      "allocate 8589934592 bytes.\n");
  EXPECT_NE(e.text.find("It asked for 8.00 GiB at once."), std::string::npos) << e.text;
}

TEST(ExplainFigures, TheKernelsFiguresAreThePeakAndTheLimit) {
  const model::Explanation e = explain_text(
      "[1.1] memory: usage 16777216kB, limit 16777216kB, failcnt 3044\n"
      "[1.2] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=22871,uid=1000\n"
      "[1.3] Memory cgroup out of memory: Killed process 22871 (python) total-vm:41231100kB, "
      "anon-rss:15728640kB, file-rss:71424kB\n"
      "[1.4] oom_reaper: reaped process 22871 (python), now anon-rss:0kB, file-rss:0kB\n");
  EXPECT_EQ(e.kind, "container_memory_limit");
  EXPECT_NE(e.text.find("What was killed held 15.0 GiB."), std::string::npos) << e.text;
  EXPECT_NE(e.text.find("The limit was 16.0 GiB."), std::string::npos) << e.text;
  EXPECT_NE(advice_of(e, "limit").find("above 16.0 GiB"), std::string::npos);
}

TEST(ExplainFigures, SlurmsFiguresAreThePeakAndTheLimit) {
  const model::Explanation e = explain_text(
      "slurmstepd: error: Step 712.0 exceeded memory limit (5242880 > 4194304), being killed\n");
  EXPECT_EQ(e.kind, "slurm_memory");
  EXPECT_NE(e.text.find("held 5.00 GiB. The limit was 4.00 GiB."), std::string::npos) << e.text;
  EXPECT_NE(advice_of(e, "slurm_mem").find("above 5.00 GiB"), std::string::npos);
}

TEST(ExplainFigures, WithoutFiguresTheAdviceStaysThatOfTheRule) {
  const model::Explanation e = explain_text("Killed\n");
  EXPECT_EQ(e.text.find("limit was"), std::string::npos);
  EXPECT_EQ(advice_of(e, "limit").find("above"), std::string::npos);
}

}  // namespace
}  // namespace flatout::advise
