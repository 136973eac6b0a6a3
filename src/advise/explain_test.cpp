#include "advise/explain.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "advise/explain_memory.h"
#include "base/text.h"
#include "devmem/explain.h"

namespace flatout::advise {
namespace {

constexpr uint64_t kGiB = 1 << 30;

struct LogCase {
  std::string file, near;  // the rule that must not be seen, for a near miss
  std::string kind, finding, source, text;
};

// The format: tests/logs/README.md.
std::vector<LogCase> read_cases() {
  std::vector<LogCase> out;
  for (const auto& entry : std::filesystem::directory_iterator(FLATOUT_TEST_DATA "/logs")) {
    if (entry.path().extension() != ".txt") continue;
    std::ifstream in(entry.path());
    std::string line;
    while (std::getline(in, line)) {
      if (!line.starts_with("=== ")) {
        if (!out.empty()) out.back().text += line + "\n";
        continue;
      }
      LogCase next;
      next.file = entry.path().filename();
      std::istringstream words(line.substr(4));
      std::string first;
      words >> first;
      if (first == "near") {
        words >> next.near >> next.kind;
        next.near.pop_back();  // ':'
      } else {
        next.kind = first;
        words >> next.finding;
        if (next.finding == "-") next.finding.clear();
        std::getline(words >> std::ws, next.source);
      }
      out.push_back(std::move(next));
    }
  }
  return out;
}

model::Explanation explain_text(std::string_view text, const Machine& machine = {}) {
  LogReader reader;
  reader.feed(text);
  return explain(reader.finish(), machine);
}

TEST(Explain, KnowsEachLogAndNoNearMiss) {
  const std::vector<LogCase> cases = read_cases();
  ASSERT_GT(cases.size(), 150u);
  for (const LogCase& c : cases) {
    const model::Explanation e = explain_text(c.text);
    const std::string what =
        c.file + ": " + (c.near.empty() ? "" : "near " + c.near) + "\n" + c.text;
    EXPECT_EQ(e.kind, c.kind) << what << e.text;
    if (c.near.empty()) {
      EXPECT_EQ(e.finding, c.finding) << what;
      EXPECT_FALSE(c.source.empty()) << what;
    } else {
      EXPECT_NE(e.kind, c.near) << what;
    }
    if (e.kind == "unknown" || e.kind == "none") {
      EXPECT_EQ(e.finding, "") << what;
      EXPECT_EQ(e.sure, 0) << what;
    }
  }
}

// `flatout devmem explain` may say more, or nothing, but not something else.
TEST(Explain, OfEachLogDevmemExplainFindsTheSame) {
  for (const LogCase& c : read_cases()) {
    const model::Explanation e = explain_text(c.text);
    const devmem::Explanation memory = explain_memory(c.text);
    if (memory.kind == "unknown") {
      EXPECT_FALSE(e.finding.starts_with("gpu.oom") || e.finding == "gpu.memory_taken")
          << c.file << "\n"
          << c.text;
    } else if (e.kind != "unknown" && e.kind != "none") {
      EXPECT_EQ(memory.finding, e.finding) << c.file << "\n" << c.text << memory.kind;
    }
  }
}

TEST(Explain, EachRuleHasALogAndANearMiss) {
  std::set<std::string> logs, near;
  for (const LogCase& c : read_cases()) {
    (c.near.empty() ? logs : near).insert(c.near.empty() ? c.kind : c.near);
  }
  std::set<std::string> kinds;
  for (const LogRule& rule : log_rules()) {
    const std::string kind(rule.kind);
    EXPECT_TRUE(kinds.insert(kind).second) << kind << " stands twice";
    EXPECT_TRUE(logs.contains(kind)) << kind << " has no log";
    EXPECT_TRUE(near.contains(kind)) << kind << " has no near miss";
    EXPECT_FALSE(rule.text.empty() || rule.advice.empty()) << kind;
    EXPECT_TRUE(rule.sure > 0 && rule.sure < 1) << kind;
  }
  EXPECT_GE(kinds.size(), 40u);
}

TEST(Explain, EachPatternIsOfALogThatIsKnownByItsKind) {
  const std::vector<LogCase> cases = read_cases();
  for (const LogRule& rule : log_rules()) {
    for (const std::string_view pattern : rule.patterns) {
      const bool seen = std::any_of(cases.begin(), cases.end(), [&](const LogCase& c) {
        if (!c.near.empty() || c.kind != rule.kind) return false;
        std::string_view rest = c.text, line;
        while (next_line(rest, line)) {
          if (matches(pattern, line)) return true;
        }
        return false;
      });
      EXPECT_TRUE(seen) << rule.kind << ": no log has '" << pattern << "'";
    }
  }
}

const std::string kOom =
    "Traceback (most recent call last):\n"
    "  File \"train.py\", line 9, in <module>\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
    "capacity of 8.00 GiB of which 0.50 GiB is free. Including non-PyTorch memory, this process "
    "has "
    "7.50 GiB memory in use. Of the allocated memory 7.00 GiB is allocated by PyTorch, and 10.00 "
    "MiB "
    "is reserved by PyTorch but unallocated.\n";
const std::string kUnknown =
    "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\nWidgetFault: bent\n";

std::string repeated(const std::string& line, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += line;
  return out;
}

std::string progress(int lines) {
  std::string out;
  for (int i = 0; i < lines; ++i) out += "step " + std::to_string(i) + " loss 0.5\n";
  return out;
}

TEST(Explain, AnErrorThatTheJobGotOverIsNotTheCause) {
  EXPECT_EQ(explain_text(kOom + progress(300) + kUnknown).kind, "unknown");
  EXPECT_EQ(explain_text(kUnknown + progress(300) + kOom).kind, "cuda_out_of_memory");
  // Close to each other the known cause counts, less surely.
  const model::Explanation both = explain_text(kUnknown + progress(20) + kOom);
  EXPECT_EQ(both.kind, "cuda_out_of_memory");
  EXPECT_LT(both.sure, explain_text(kOom).sure);
}

TEST(Explain, WhatOnlyFollowsLeavesTheCauseToAnEarlierEpisode) {
  const std::string timeout =
      "[rank0]:[E ProcessGroupNCCL.cpp:563] [Rank 0] Watchdog caught collective operation "
      "timeout\n";
  EXPECT_EQ(explain_text(kOom + repeated("rank 0 waits\n", 5000) + timeout).kind,
            "cuda_out_of_memory");
  EXPECT_EQ(explain_text(kOom + progress(10) + timeout).kind, "cuda_out_of_memory");
  EXPECT_EQ(explain_text(progress(10) + timeout).kind, "nccl_timeout");
  // Who trains on for thousands of steps did not end of it.
  EXPECT_EQ(explain_text(kOom + progress(5000) + timeout).kind, "nccl_timeout");
}

TEST(Explain, ATrainingThatGoesOnHasNoFailure) {
  EXPECT_EQ(explain_text(kOom + progress(300)).kind, "none");
  EXPECT_EQ(explain_text(kUnknown + progress(300)).kind, "none");
  EXPECT_EQ(explain_text(kUnknown + progress(300)).seen.size(), 0u);
  // A few steps may be those of other ranks.
  const model::Explanation few = explain_text(kOom + progress(3));
  EXPECT_EQ(few.kind, "cuda_out_of_memory");
  EXPECT_LT(few.sure, 0.5);
  EXPECT_EQ(explain_text(kUnknown + progress(3)).kind, "unknown");
  EXPECT_EQ(explain_text(kOom + progress(3) + "Training complete\n").kind, "none");
  // tqdm closes its bar, and Weights & Biases sums up, when an exception ends the job.
  const std::string closing =
      "  3%|2         | 12/400 [00:10<05:00,  1.20it/s]\n"
      "wandb: Run summary:\nwandb: train/loss 0.25\nwandb: epoch 3\n";
  EXPECT_EQ(explain_text(kOom + closing).sure, explain_text(kOom).sure);
  std::string bars;
  for (int i = 0; i < 100; ++i) {
    bars += "\r 12%|#2        | " + std::to_string(i) + "/400 [00:10<05:00,  1.20it/s]";
  }
  EXPECT_LT(explain_text(kOom + bars + "\n").sure, explain_text(kOom).sure);
}

TEST(Explain, SaysTheLineAndABatchThatMayFit) {
  const model::Explanation e = explain_text("Namespace(batch_size=64)\n" + kOom);
  ASSERT_FALSE(e.seen.empty());
  EXPECT_EQ(e.seen[0].number, 4u);
  EXPECT_NE(e.advice[0].text.find("32 instead of the 64"), std::string::npos) << e.advice[0].text;
  EXPECT_EQ(e.lines, 4u);
}

TEST(Explain, LineEndsAndPrefixesMakeNoDifference) {
  std::string crlf, stamped;
  std::string_view rest = kUnknown, line;
  int second = 0;
  while (next_line(rest, line)) {
    crlf += std::string(line) + "\r\n";
    stamped +=
        "2024-05-02 10:11:0" + std::to_string(second++) + " [rank1]: " + std::string(line) + "\n";
  }
  for (const std::string& text : {crlf, stamped}) {
    const model::Explanation e = explain_text(text);
    EXPECT_EQ(e.kind, "unknown");
    ASSERT_EQ(e.seen.size(), 1u) << text;
    EXPECT_EQ(e.seen[0].text, "WidgetFault: bent");
  }
  std::string windows;
  rest = kOom;
  while (next_line(rest, line)) windows += std::string(line) + "\r\n";
  EXPECT_EQ(explain_text(windows).kind, "cuda_out_of_memory");
  EXPECT_EQ(explain_text("").kind, "none");
  EXPECT_EQ(explain_text(progress(5) + "mean squared error: 0.12\n").kind, "none");
}

TEST(Explain, EachLogIsTheSameAsATerminalWritesIt) {
  for (const LogCase& c : read_cases()) {
    std::string log;
    std::string_view rest = c.text, line;
    while (next_line(rest, line)) log += std::string(line) + "\r\n";
    EXPECT_EQ(explain_text(log).kind, c.kind) << c.text;
  }
}

// Each hit looks at some kilobytes around it: without a bound this takes minutes.
TEST(Explain, ALineOfMegabytesIsReadInTheTimeOfMegabytes) {
  const std::string line = repeated("RuntimeError: CUDA Error: ", 60'000);
  const model::Explanation e =
      explain_text("Traceback (most recent call last):\n" + line + "\n" + line + kOom);
  EXPECT_EQ(e.kind, "cuda_out_of_memory");
  EXPECT_EQ(e.lines, 5u);
}

TEST(Explain, ALogInPiecesIsTheSameLog) {
  const std::string log = progress(400) + kUnknown + progress(300) + kOom + progress(10);
  const model::Explanation whole = explain_text(log);
  for (const size_t lines : {1u, 2u, 3u, 50u}) {
    LogReader reader;
    std::string_view rest = log, line;
    std::string piece;
    size_t count = 0;
    while (next_line(rest, line)) {
      piece += std::string(line) + "\n";
      if (++count % lines != 0) continue;
      reader.feed(piece);
      piece.clear();
    }
    reader.feed(piece);
    const model::Explanation e = explain(reader.finish(), {});
    EXPECT_EQ(e.kind, whole.kind) << lines;
    ASSERT_EQ(e.seen.size(), whole.seen.size()) << lines;
    EXPECT_EQ(e.seen[0].number, whole.seen[0].number) << lines;
    EXPECT_EQ(e.lines, whole.lines) << lines;
  }
}

TEST(Explain, EachLogInPiecesOfALineIsTheSameLog) {
  const std::string before = progress(40);
  for (const LogCase& c : read_cases()) {
    const std::string log = before + c.text + progress(2) + c.text;
    const model::Explanation whole = explain_text(log);
    LogReader reader;
    std::string_view rest = log, line;
    while (next_line(rest, line)) reader.feed(std::string(line) + "\n");
    const model::Explanation e = explain(reader.finish(), {});
    EXPECT_EQ(e.kind, whole.kind) << log;
    EXPECT_EQ(e.sure, whole.sure) << log;
    EXPECT_EQ(e.seen.empty() ? 0 : e.seen[0].number, whole.seen.empty() ? 0 : whole.seen[0].number)
        << log;
  }
}

Machine one_gpu(uint64_t used, std::vector<probe::GpuProcess> processes) {
  Machine m;
  Gpu gpu;
  gpu.reading.mem_total_bytes = 8 * kGiB;
  gpu.reading.mem_used_bytes = used;
  gpu.reading.processes = std::move(processes);
  m.gpus.push_back(gpu);
  Task task;
  task.pid = 4711;
  task.command = "python old.py";
  m.tasks.push_back(task);
  return m;
}

TEST(Explain, NamesWhoHoldsTheMemoryNow) {
  const std::string log =
      "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
      "`cublasCreate(handle)`\n";
  const model::Explanation taken = explain_text(log, one_gpu(7 * kGiB, {{4711, 6 * kGiB}}));
  ASSERT_EQ(taken.holders.size(), 1u);
  EXPECT_EQ(taken.holders[0].what, "pid 4711 python old.py on GPU 0");
  EXPECT_EQ(taken.holders[0].bytes, 6 * kGiB);
  const model::Explanation free = explain_text(log, one_gpu(1u << 20, {}));
  EXPECT_TRUE(free.holders.empty());
  EXPECT_LT(free.sure, taken.sure);
  EXPECT_EQ(free.finding, "gpu.memory_taken");
}

TEST(OomMessage, OneMessageHasOneAnswer) {
  const auto both = [](double wanted, double free, double allocated, double spare) {
    const std::string line = fmt::format(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {:.2f} GiB. GPU 0 has a "
        "total capacity of 24.00 GiB of which {:.2f} GiB is free. Including non-PyTorch memory, "
        "this process has {:.2f} GiB memory in use. Of the allocated memory {:.2f} GiB is "
        "allocated by PyTorch, and {:.2f} GiB is reserved by PyTorch but unallocated.\n",
        wanted, free, 24 - free, allocated, spare);
    std::string finding = explain_text(line).finding;
    EXPECT_EQ(finding, devmem::explain_text(line).finding) << line;
    return finding;
  };
  // With what is free, its idle memory would have been enough.
  EXPECT_EQ(both(2, 1.2, 20.4, 1.9), "gpu.oom_fragmented");
  EXPECT_EQ(both(2, 0.2, 21.4, 1.9), "gpu.oom_fragmented");
  EXPECT_EQ(both(4, 0.2, 21.4, 1.9), "gpu.oom_too_big");
  EXPECT_EQ(both(2, 1.2, 22.2, 0.1), "gpu.oom_too_big");
  EXPECT_EQ(both(30, 1.2, 20.4, 1.9), "gpu.oom_too_big");
  EXPECT_EQ(both(1, 2.2, 20.4, 0.9), "gpu.memory_taken");
}

TEST(Explain, WhatIsNoLogIsNotTakenForAGoodOne) {
  EXPECT_EQ(explain_text("").text, "The log is empty: it says nothing of what happened.");
  std::string random(100'000, '\0');
  uint32_t state = 1;
  for (char& c : random) {
    state = state * 1'664'525 + 1'013'904'223;
    c = static_cast<char>(state >> 24);
  }
  EXPECT_EQ(explain_text(random).kind, "unknown");
  EXPECT_NE(explain_text(random).text.find("no text"), std::string::npos);
  // Progress bars and colours are text.
  std::string bars;
  for (int i = 0; i < 500; ++i) bars += "\r\x1b[32mstep\x1b[0m \xe2\x96\x88 " + std::to_string(i);
  EXPECT_EQ(explain_text(bars + "\n").kind, "none");
}

TEST(Explain, OnlyALogThatEndsWellIsWell) {
  EXPECT_TRUE(explain_text("epoch 1 loss 0.5\nTraining complete\n").well);
  for (const char* log : {"", "epoch 1 loss 0.5\n", "WidgetFault: bent\n", "Killed\n"}) {
    EXPECT_FALSE(explain_text(log).well) << log;
  }
}

TEST(Explain, WithoutAFailureItSaysWhetherTheLogEndsWell) {
  const auto text_of = [](std::string_view log, bool cut_off) {
    LogReader reader;
    reader.feed(log);
    LogReading reading = reader.finish();
    reading.cut_off = cut_off;
    return explain(reading, {}).text;
  };
  EXPECT_EQ(text_of("epoch 1 loss 0.5\nTraining complete\n", true),
            "No sign of a failure in 2 lines.");
  EXPECT_TRUE(
      text_of("epoch 1 loss 0.5\n", false).ends_with("does not say that it ended well, either."));
  EXPECT_TRUE(
      text_of("epoch 1 loss 0.5\nepoch 2 lo\n", true).ends_with("was killed from outside."));
}

}  // namespace
}  // namespace flatout::advise
