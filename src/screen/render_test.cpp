#include "screen/render.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <thread>

#include "base/testing/golden.h"
#include "base/text.h"
#include "screen/help.h"
#include "screen/panels.h"
#include "screen/testing/fake_machine.h"

namespace flatout::screen {
namespace {

// As the sampler took it, but at a time of day that does not change.
std::shared_ptr<const Snapshot> at_noon(const std::shared_ptr<const Snapshot>& taken) {
  auto out = std::make_shared<Snapshot>(*taken);
  out->unix_ns = int64_t{1'700'049'600} * 1'000'000'000;
  return out;
}

class RenderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("TZ", "UTC", 1);
    ::tzset();
  }
  void look(Sampler& sampler, Session& session) {
    session.add(at_noon(sampler.look(session.wanted())));
  }
  // What is drawn and how, as one text.
  static std::string picture(Session& session, bool unicode) {
    const Frame frame = render(session, unicode);
    return frame.canvas.text() + std::string(20, '=') + "\n" + frame.canvas.styles();
  }
};

TEST_F(RenderTest, TheWholeScreenAt80By24) {
  FakeMachine machine;
  Sampler sampler(machine.options());
  Session session(machine.tree.root(), 0, 1);
  session.resize(80, 24);
  look(sampler, session);
  expect_golden("screen", "first_look_80x24.txt", picture(session, true));
  machine.between_looks();
  look(sampler, session);
  expect_golden("screen", "top_80x24.txt", picture(session, true));
  expect_golden("screen", "top_80x24_ascii.txt", picture(session, false));
}

TEST_F(RenderTest, TheTreeWithThreads) {
  FakeMachine machine;
  Sampler sampler(machine.options());
  Session session(machine.tree.root(), 0, 1);
  session.resize(80, 24);
  session.key('t');
  session.key('H');
  look(sampler, session);
  machine.between_looks();
  look(sampler, session);
  session.say("");
  expect_golden("screen", "tree_80x24.txt", picture(session, true));
}

TEST_F(RenderTest, MenusPromptsAndHelp) {
  FakeMachine machine;
  Sampler sampler(machine.options());
  Session session(machine.tree.root(), 0, 1);
  session.resize(80, 24);
  look(sampler, session);
  machine.between_looks();
  look(sampler, session);
  session.key('k');
  expect_golden("screen", "signals_80x24.txt", picture(session, true));
  session.key(key::kEnter);
  expect_golden("screen", "confirm_80x24.txt", picture(session, true));
  session.key('n');
  session.key(key::f(1));
  expect_golden("screen", "help_80x24.txt", picture(session, true));
}

// Divided: two parts with a process each, one of them not to be seen from here, and a free one.
constexpr const char* kDividedGpu =
    "7 mig 1\n7 temperature 40\n"
    "170 name NVIDIA H100 80GB HBM3 MIG 1g.10gb\n170 gpu_instance 9\n170 compute_instance 0\n"
    "170 mem_total 10737418240\n170 mem_used 5368709120\n170 process_0 4102 5000000000\n"
    "171 name NVIDIA H100 80GB HBM3 MIG 1g.10gb\n171 gpu_instance 10\n171 compute_instance 0\n"
    "171 mem_total 10737418240\n171 mem_used 9663676416\n171 process_0 70001 9600000000\n"
    "173 name NVIDIA H100 80GB HBM3 MIG 3g.40gb\n173 gpu_instance 2\n173 compute_instance 0\n"
    "173 mem_total 42949672960\n173 mem_used 13631488\n";

TEST_F(RenderTest, EightGpusAt200By60) {
  const std::string library = FLATOUT_BUILD_DIR "/nvml_stand_in/libnvidia-ml.so.1";
  FakeMachine machine(96);
  std::string script = "devices 8\ndriver 570.10\ncuda 12080\n";
  for (int i = 0; i < 8; ++i) {
    script += fmt::format("{0} name NVIDIA H100 80GB HBM3\n{0} uuid GPU-{0}\n", i);
    if (i == 6) {
      script += fmt::format("{} error 15\n", i);  // lost
      continue;
    }
    script +=
        fmt::format("{0} mem_total 85899345920\n{0} mem_used {1}\n", i, 85899345920 / 8 * (i + 1));
    if (i == 5) continue;  // a driver that tells neither utilisation nor clocks
    if (i == 7) {
      script += kDividedGpu;
      continue;
    }
    script += fmt::format(
        "{0} util {1}\n{0} mem_util 5\n{0} clock_sm 1980\n{0} clock_sm_max 1980\n"
        "{0} power 612000\n{0} power_limit 700000\n{0} temperature 61\n{0} pcie_tx 1200000\n"
        "{0} pcie_rx 22000\n{0} throttle {2}\n",
        i, 12 * i, i == 3 ? 68 : 0);
    if (i == 0) {  // of another container; of a driver that tells no memory
      script += "0 process_0 4100 9000000000\n0 process_1 70000 1000000000\n";
      script += "0 process_2 4102 -1\n";
    }
    if (i == 1) script += "1 process_0 4101 21000000000\n";
  }
  machine.tree.write("script", script);
  ::setenv("NVML_STAND_IN", machine.tree.root().full("script").c_str(), 1);
  SamplerOptions options = machine.options();
  options.nvml = library;
  Sampler sampler(options);
  Session session(machine.tree.root(), 0, 1);
  session.resize(200, 60);
  while (sampler.look({})->gpus.size() < 8) std::this_thread::yield();  // from NVML's own thread
  look(sampler, session);
  machine.between_looks();
  look(sampler, session);
  expect_golden("screen", "gpus_200x60.txt", picture(session, true));
  session.resize(80, 24);  // no room for more than their figures
  expect_golden("screen", "gpus_80x24.txt", picture(session, true));
  ::unsetenv("NVML_STAND_IN");
}

TEST_F(RenderTest, CurvesOfUtilisationAndMemoryStandSideBySide) {
  FakeMachine machine;
  Sampler sampler(machine.options());
  Session session(machine.tree.root(), 0, 1);
  session.resize(120, 50);
  for (int i = 0; i < 60; ++i) {
    machine.between_looks();
    auto snapshot = std::make_shared<Snapshot>(*at_noon(sampler.look({})));
    Gpu gpu;
    gpu.name = "NVIDIA RTX A6000";
    gpu.now.util_ratio = (i % 20) * 0.05;
    gpu.now.mem_used_bytes = uint64_t{1} << 30 << (i / 15);
    gpu.now.mem_total_bytes = uint64_t{16} << 30;
    gpu.now.processes = {{FakeMachine::kJob, 1 << 30, {}, {}}};
    if (i == 30) gpu.now.mem_used_bytes.reset();  // not told: a gap, not zero
    snapshot->gpus = {gpu};
    session.add(snapshot);
  }
  expect_golden("screen", "gpu_curves_120x50.txt", picture(session, true));
}

TEST_F(RenderTest, PanesShowOneProcess) {
  FakeMachine machine;
  Sampler sampler(machine.options());
  Session session(machine.tree.root(), 0, 1);
  session.resize(80, 30);
  look(sampler, session);
  machine.between_looks();
  auto snapshot = std::make_shared<Snapshot>(*at_noon(sampler.look({})));
  Details details;
  details.pid = FakeMachine::kJob;
  details.command = {"/usr/bin/python3", "train.py", "--name", "\x1b[2J"};
  details.environment = {{"OMP_NUM_THREADS", "4"}, {"LD_PRELOAD", "\x1b]0;x\x07"}};
  details.limits = {{"Max open files", "1024", "1048576", "files"}};
  details.files = {{3, "/data/train.bin", 1 << 20, uint64_t{1} << 30, 5e6, true, false},
                   {5, "/logs/train.log", 1 << 10, uint64_t{1} << 10, 300, false, true},
                   {6, "/data/index.db", 1 << 20, uint64_t{1} << 30, 4e3, true, true},
                   {4, "socket:[12]", std::nullopt, std::nullopt, std::nullopt}};
  details.allowed_cores = "0-7";
  details.python.version = "3.11";
  details.python.readings = 50;
  details.python.gil_share = 0.6;
  details.python.functions = {{"__getitem__", "data.py", 41, 0.55, 0.05, 0.9, 0.5, 1.2, 3.4},
                              {"train", "train.py", 7, 0, 0, 1, 0, 0, 4}};
  details.autogroup = "/autogroup-821 nice 5";
  details.native.readings = 50;
  details.native.threads = 40;
  details.native.watched = 16;
  details.native.functions = {{"sgemm_kernel", "libblas.so.3", 0, 3.2, 0, 3.2, 0, 6.4, 6.4},
                              {"\x1b[2Jread", "libc.so.6", 0, 0, 0.95, 0.95, 0, 0, 1.9}};
  snapshot->details = std::make_shared<const Details>(details);
  session.add(snapshot);
  session.key(key::kEnter);
  expect_golden("screen", "functions_80x30.txt", picture(session, true));
  session.key(key::kTab);
  expect_golden("screen", "native_80x30.txt", picture(session, true));
  session.key(key::kTab);
  expect_golden("screen", "files_80x30.txt", picture(session, true));
  session.key(key::kTab);
  expect_golden("screen", "environment_80x30.txt", picture(session, true));
  session.key(key::kTab);
  expect_golden("screen", "process_80x30.txt", picture(session, true));
}

TEST_F(RenderTest, JobsThatFlatoutRecordsSayHowTheyFare) {
  FakeMachine machine;
  Sampler sampler(machine.options());
  Session session(machine.tree.root(), 0, 1);
  session.resize(120, 30);
  look(sampler, session);
  machine.between_looks();
  auto snapshot = std::make_shared<Snapshot>(*at_noon(sampler.look({})));
  ASSERT_EQ(snapshot->jobs.size(), 1u);
  Job& job = snapshot->jobs[0];
  job.folder = "/runs/x";
  job.steps_per_s = 16.31;
  job.suspect = "input.decode_cpu";
  job.where = "data.py:41";
  job.breakdown[static_cast<size_t>(model::Part::kInputWait)] = 0.61;
  job.breakdown[static_cast<size_t>(model::Part::kForward)] = 0.13;
  session.add(snapshot);
  expect_golden("screen", "job_120x30.txt", picture(session, true));
  session.fold(Panel::kJobs);
  session.fold(Panel::kCores);
  session.fold(Panel::kDisks);
  session.fold(Panel::kMemory);
  expect_golden("screen", "folded_120x30.txt", picture(session, true));
}

TEST_F(RenderTest, TheMemoryPanelHasTheControlGroupOfTheProcessAtTheCursor) {
  FakeMachine machine;
  Sampler sampler(machine.options());
  Session session(machine.tree.root(), 0, 1);
  session.resize(80, 24);
  auto snapshot = std::make_shared<Snapshot>(*at_noon(sampler.look({})));
  snapshot->memory.group_pid = FakeMachine::kJob;
  snapshot->memory.group_used = uint64_t{15} << 29;
  session.add(snapshot);
  EXPECT_NE(render(session, true).canvas.text().find("control group of 4100 7.50G/no limit"),
            std::string::npos);
  auto limited = std::make_shared<Snapshot>(*snapshot);
  limited->memory.group_limit = uint64_t{8} << 30;
  session.add(limited);
  const Canvas full = render(session, true).canvas;
  const int line = 6;
  EXPECT_NE(full.text().find("control group of 4100 7.50G/8.00G"), std::string::npos);
  EXPECT_EQ(full.at(6, line).style, Style::kWarning);
  // Most of it page cache: it is not full.
  auto cached = std::make_shared<Snapshot>(*limited);
  cached->memory.group_cache = uint64_t{4} << 30;
  session.add(cached);
  EXPECT_EQ(render(session, true).canvas.at(6, line).style, Style::kPlain);
}

TEST_F(RenderTest, AnyOtherSizeIsDrawnAsFarAsItGoes) {
  FakeMachine machine(300);
  Sampler sampler(machine.options());
  Session session(machine.tree.root(), 0, 1);
  look(sampler, session);
  machine.between_looks();
  look(sampler, session);
  session.key(key::kEnter);
  for (const int width : {1, 2, 4, 5, 6, 7, 20, 79, 500}) {
    for (const int height : {1, 2, 3, 5, 9, 23, 200}) {
      session.resize(width, height);
      const Frame frame = render(session, true);
      EXPECT_EQ(frame.canvas.width(), width);
      EXPECT_EQ(frame.canvas.height(), height);
      for (const Zone& zone : frame.zones) {
        EXPECT_LT(zone.y, height);
        if (zone.kind == Zone::Kind::kRow) {
          EXPECT_LT(zone.value, 9);
        }
      }
    }
  }
}

// On a narrow screen columns are left out, and those that stay say what they say on a wide one.
TEST_F(RenderTest, NoColumnIsWrittenOverAnother) {
  FakeMachine machine;
  Sampler sampler(machine.options());
  Session session(machine.tree.root(), 0, 1);
  look(sampler, session);
  machine.between_looks();
  look(sampler, session);
  // What stands under each heading, by process.
  const auto table = [&](int width) {
    session.resize(width, 40);
    const Frame frame = render(session, false);
    const std::string text = frame.canvas.text();
    std::map<std::string, std::map<std::string, std::string>> out;
    std::vector<std::string> headings;
    for (const std::string_view line : split(text, '\n')) {
      std::vector<std::string> words;
      std::string_view rest = line;
      for (auto word = next_word(rest); !word.empty(); word = next_word(rest)) {
        words.emplace_back(word);
      }
      if (!words.empty() && words[0] == "PID") {
        headings = words;
      } else if (words.size() >= headings.size()) {
        for (size_t i = 1; i + 1 < headings.size(); ++i) out[words[0]][headings[i]] = words[i];
      }
    }
    return out;
  };
  const auto wide = table(200);
  ASSERT_GT(wide.size(), 2u);
  for (int width = 26; width < 110; ++width) {
    const auto narrow = table(width);
    size_t same = 0;
    for (const auto& [pid, columns] : narrow) {
      if (!wide.contains(pid)) continue;
      for (const auto& [column, text] : columns) EXPECT_EQ(text, wide.at(pid).at(column)) << width;
      ++same;
    }
    EXPECT_EQ(same, wide.size()) << width;
  }
}

TEST_F(RenderTest, JobsThatDoNotAllFitAreCounted) {
  FakeMachine machine;
  Sampler sampler(machine.options());
  Session session(machine.tree.root(), 0, 1);
  auto snapshot = std::make_shared<Snapshot>(*at_noon(sampler.look({})));
  snapshot->jobs.resize(2, snapshot->jobs.at(0));
  snapshot->cores.clear();
  session.add(snapshot);
  for (int height = 8; height < 24;
       ++height) {  // among them one that leaves three lines for two jobs
    session.resize(80, height);
    const std::string text = render(session, true).canvas.text();
    EXPECT_EQ(text.find("+-"), std::string::npos) << height;
  }
}

TEST(Help, FitsOnTheNarrowestScreen) {
  std::string_view rest = help_text(), line;
  while (next_line(rest, line)) EXPECT_LE(line.size(), 80u) << line;
}

TEST(ShortBytes, HasThreeDigitsAndIsNeverOffByMoreThanAHundredth) {
  EXPECT_EQ(short_bytes(0), "0B");
  EXPECT_EQ(short_bytes(999), "999B");
  EXPECT_EQ(short_bytes(1000), "0.98K");
  EXPECT_EQ(short_bytes(1024 * 1024), "1.00M");
  EXPECT_EQ(short_bytes(12.34 * (1 << 30)), "12.3G");
  EXPECT_EQ(short_bytes(123.4 * (1 << 20)), "123M");
  EXPECT_EQ(short_bytes(1023.9 * (1 << 20)), "1.00G");
}

TEST(CpuTime, IsWrittenAsInHtop) {
  EXPECT_EQ(cpu_time(0, 1e7), "0:00.00");
  EXPECT_EQ(cpu_time(18712, 1e7), "3:07.12");
  EXPECT_EQ(cpu_time(100 * 3600 * 12 + 100 * 60 * 34, 1e7), "12h34m");
}

}  // namespace
}  // namespace flatout::screen
