#include "probe/stack_probe.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

namespace flatout::probe {
namespace {

using model::ThreadState;
namespace stdfs = std::filesystem;

class RecordingSink : public model::Sink {
 public:
  model::EntityId entity(model::EntityKind, int64_t, std::string_view, model::EntityId) override {
    return 0;
  }
  void reading(model::SignalId, model::EntityId, TimePoint, double) override {}
  void missing(const model::Missing& m) override { said_missing.push_back(m.signal); }
  void process(const model::Process&) override {}
  void process_end(int32_t, int, TimePoint) override {}
  model::ThreadId thread(int32_t, int32_t tid, std::string_view name) override {
    threads.push_back(tid);
    names.emplace_back(name);
    return static_cast<model::ThreadId>(threads.size() - 1);
  }
  model::FrameId frame(std::string_view function, std::string_view, uint32_t,
                       model::FrameKind) override {
    return id_of(functions, std::string(function));
  }
  model::StackId stack(model::StackId parent, model::FrameId frame) override {
    return id_of(stacks, (parent != 0 ? stacks[parent - 1] + ";" : "") + functions[frame - 1]);
  }
  void stack_reading(const model::StackReading& r) override {
    last[threads[r.thread]] = r;
    weight_us[threads[r.thread]] += r.weight_us;
    count++;
  }
  void fact(std::string_view, std::string_view) override {}

  std::vector<int32_t> threads;
  std::vector<std::string> names, said_missing;
  std::map<int32_t, model::StackReading> last;
  std::map<int32_t, uint64_t> weight_us;
  std::vector<std::string> functions, stacks;  // of the latter the functions, outermost first
  int count = 0;

 private:
  static uint32_t id_of(std::vector<std::string>& all, std::string one) {
    const auto it = std::find(all.begin(), all.end(), one);
    const auto id = static_cast<uint32_t>(it - all.begin() + 1);
    if (it == all.end()) all.push_back(std::move(one));
    return id;
  }
};

/// A made-up /proc with one process, 100, and threads as a test adds them.
class StackProbeOn : public testing::Test {
 protected:
  StackProbeOn() {
    std::string name = (stdfs::temp_directory_path() / "flatout-stacks-XXXXXX").string();
    path_ = mkdtemp(name.data());
    write("loadavg", "0 0 0 1/80 100\n");
    write("uptime", "100 100\n");
    set_thread(100, 'S', "1000 0 1", "230 0x1 0x1 0x0 0x0 0x0 0x0 0x7000 0x8000",
               "hrtimer_nanosleep");
    write("100/stat", stat_line(100, 'S'));
    write("100/cmdline", std::string("job\0", 4));
    job_ = std::make_unique<JobTree>(fs::Root(path_), 100, 1);
    scope_.root = fs::Root(path_);
    scope_.job = job_.get();
    scope_.self_pid = 1;
    probe_ = std::make_unique<StackProbe>(scope_);
  }
  ~StackProbeOn() override { stdfs::remove_all(path_); }

  static std::string stat_line(int tid, char state) {
    return std::to_string(tid) + " (a) b) " + state +
           " 1 100 100 0 -1 4194304 10 0 0 0 5 1 0 0 20 0 2 0 500 1000 100 18446744073709551615 0 "
           "0 0 0 0 0 0 "
           "0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
  }
  void write(const std::string& file, const std::string& text) {
    const stdfs::path full = stdfs::path(path_) / "proc" / file;
    stdfs::create_directories(full.parent_path());
    std::ofstream(full, std::ios::binary | std::ios::trunc) << text;
  }
  void set_thread(int tid, char state, const std::string& schedstat, const std::string& call,
                  const std::string& wchan) {
    const std::string base = "100/task/" + std::to_string(tid) + "/";
    write(base + "stat", stat_line(tid, state));
    write(base + "schedstat", schedstat + "\n");
    write(base + "syscall", call + "\n");
    write(base + "wchan", wchan);
  }
  void tick() {
    now_ += std::chrono::milliseconds(20);
    job_->update(now_, sink_);
    probe_->tick(now_, std::chrono::milliseconds(20), sink_);
  }

  std::string path_;
  TimePoint now_ = time_point_ns(100'000'000'000);
  std::unique_ptr<JobTree> job_;
  Scope scope_;
  std::unique_ptr<StackProbe> probe_;
  RecordingSink sink_;
};

TEST_F(StackProbeOn, DeliversEveryThreadWithItsStateAndTheTimeItStandsFor) {
  set_thread(101, 'S', "5 5 5", "202 0x1 0x0 0x0 0x0 0x0 0x0 0x1 0x1", "futex_do_wait");
  tick();
  tick();
  ASSERT_EQ(sink_.last.size(), 2u);
  EXPECT_EQ(sink_.last[100].state, ThreadState::kSleep);
  EXPECT_EQ(sink_.last[100].syscall, 230);
  EXPECT_EQ(sink_.last[101].state, ThreadState::kLock);
  EXPECT_EQ(sink_.weight_us[100], 40000u);
  EXPECT_EQ(sink_.names[0], "a) b");
}

TEST_F(StackProbeOn, ReadsAThreadThatDidNotRunOnlyOnce) {
  tick();
  EXPECT_EQ(probe_->last_cost().read, 1u);
  tick();
  EXPECT_EQ(probe_->last_cost().read, 0u);
  EXPECT_EQ(sink_.last[100].state, ThreadState::kSleep);
  set_thread(100, 'D', "1001 0 2", "0 0x3 0x1 0x1 0x0 0x0 0x0 0x1 0x1", "folio_wait_bit");
  tick();
  EXPECT_EQ(probe_->last_cost().read, 1u);
  EXPECT_EQ(sink_.last[100].state, ThreadState::kDisk);
}

TEST_F(StackProbeOn, TellsARunningThreadFromOneThatWaitsForACore) {
  set_thread(100, 'R', "1000 0 1", "running", "0");
  set_thread(101, 'R', "1000 0 1", "running", "0");
  for (int i = 1; i < 20; i++) {
    set_thread(100, 'R', std::to_string(i * 20'000'000) + " 0 1", "running", "0");
    tick();
  }
  EXPECT_EQ(sink_.last[100].state, ThreadState::kOnCpuNative);
  EXPECT_EQ(sink_.last[101].state, ThreadState::kRunQueue);
}

TEST_F(StackProbeOn, DeliversIdlePoolsSeldomWithAllTheirTime) {
  for (int tid = 101; tid < 141; tid++) {
    set_thread(tid, 'S', "5 5 5", "202 0x1 0x0 0x0 0x0 0x0 0x0 0x1 0x1", "futex_do_wait");
  }
  for (int i = 0; i < 200; i++) tick();
  EXPECT_EQ(sink_.last[120].flags & model::kIdleWorker, model::kIdleWorker);
  EXPECT_GE(sink_.weight_us[120], 2'900'000u);
  EXPECT_LE(sink_.weight_us[120], 4'000'000u);
  EXPECT_EQ(sink_.weight_us[100], 4'000'000u);
  EXPECT_LT(sink_.count, 200 + 40 * 40);
}

TEST_F(StackProbeOn, TakesTurnsAmongTooManyThreadsAndSaysSo) {
  for (int tid = 101; tid < 1701; tid++) {
    const std::string base = "100/task/" + std::to_string(tid) + "/";
    write(base + "stat", stat_line(tid, 'R'));
  }
  for (int i = 0; i < 4; i++) {
    tick();
    EXPECT_LE(probe_->last_cost().looked, 1000u);
  }
  EXPECT_EQ(sink_.last.size(), 1601u);
  EXPECT_FALSE(sink_.said_missing.empty());
  EXPECT_EQ(sink_.said_missing[0], "stacks.threads");
}

TEST_F(StackProbeOn, ForgetsThreadsAndProcessesThatEnd) {
  set_thread(101, 'S', "5 5 5", "202 0x1 0x0 0x0 0x0 0x0 0x0 0x1 0x1", "futex_do_wait");
  tick();
  stdfs::remove_all(stdfs::path(path_) / "proc/100/task/101");
  sink_.last.clear();
  for (int i = 0; i < 30; i++) tick();
  sink_.last.clear();
  tick();
  EXPECT_EQ(sink_.last.count(101), 0u);
  stdfs::remove_all(stdfs::path(path_) / "proc/100");
  for (int i = 0; i < 30; i++) tick();
  EXPECT_EQ(probe_->last_cost().threads, 0u);
}

/// Samplers that this process holds: files of perf_event_open.
int samplers() {
  int count = 0;
  for (const auto& entry : stdfs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += stdfs::read_symlink(entry, gone).string().find("perf_event") != std::string::npos;
  }
  return count;
}

/// A process in which one thread computes and two pass a byte to and fro, some 100,000 times a
/// second.
int32_t start_switching() {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int there[2], back[2];
  if (pipe(there) != 0 || pipe(back) != 0) _exit(1);
  const auto pass = [](int from, int to) {
    for (char byte = 0; read(from, &byte, 1) == 1 && write(to, &byte, 1) == 1;) {
    }
  };
  std::thread([&] { pass(there[0], back[1]); }).detach();
  std::thread([&] { pass(back[0], there[1]); }).detach();
  if (write(there[1], "", 1) != 1) _exit(1);
  for (std::atomic<uint64_t> computed = 0;;) computed.fetch_add(1, std::memory_order_relaxed);
}

/// Watches a real process.
struct Watcher {
  explicit Watcher(int32_t pid) : job(fs::Root("/"), pid, getpid()) {}
  void tick() {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    job.update(MonotonicClock::now(), sink);
    probe.tick(MonotonicClock::now(), std::chrono::milliseconds(10), sink);
  }

  JobTree job;
  RecordingSink sink;
  StackProbe probe{Scope{.self_pid = getpid(), .job = &job}};
};

// A sampler costs its thread some time at each switch to another.
TEST(StackProbe, SamplesThreadsThatSwitchOftenNowAndThenOnly) {
  if (!CpuSampler::open(gettid(), 4096).ok()) GTEST_SKIP() << "lacks perf_event_open";
  const int32_t child = start_switching();
  ASSERT_GT(child, 0);
  Watcher watcher(child);
  int most = 0, with_rest = 0, ticks = 0;
  // The names of functions and what the process is are found out first.
  const TimePoint end = MonotonicClock::now() + std::chrono::seconds(60);
  while (MonotonicClock::now() < end && (most < 2 || with_rest < 20)) {
    watcher.tick();
    const int held = samplers();
    most = std::max(most, held);
    if (most >= 2) ++ticks, with_rest += held == 1;
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_GE(most, 2) << "those who switch are sampled, too";
  EXPECT_GE(with_rest, 20) << "of " << ticks << " readings: only the one that computes is sampled";
}

/// A process that starts a thread after the other; each computes for a few milliseconds.
int32_t start_short_threads() {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto compute = [] {
    std::atomic<uint64_t> computed = 0;
    while (computed.fetch_add(1, std::memory_order_relaxed) < 1'000'000) {
    }
  };
  for (;;) std::thread(compute).join();
}

TEST(StackProbe, SeesTheStacksOfThreadsThatLiveForAMoment) {
  if (!CpuSampler::open(gettid(), 4096).ok()) GTEST_SKIP() << "lacks perf_event_open";
  const int32_t child = start_short_threads();
  ASSERT_GT(child, 0);
  Watcher watcher(child);
  std::map<int32_t, int> stacks;  // readings with one, by thread
  const TimePoint end = MonotonicClock::now() + std::chrono::seconds(60);
  while (MonotonicClock::now() < end && stacks.size() < 50) {
    watcher.sink.last.clear();
    watcher.tick();
    for (const auto& [tid, reading] : watcher.sink.last) {
      if (tid != child && reading.stack != 0) ++stacks[tid];
    }
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_GE(stacks.size(), 50u);
}

/// Over where calls of the other one had their frames.
[[gnu::noinline]] void compute_a_little() {
  std::atomic<uint64_t> sums[64] = {};
  for (uint64_t i = 0; i < 20'000; ++i) sums[i % 64].fetch_add(i);
}

[[gnu::noinline]] void rest_a_little() {
  const timespec time{0, 300'000};
  nanosleep(&time, nullptr);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // no tail call
}

/// A process that computes and sleeps in turns, for a fraction of a millisecond each.
int32_t start_taking_turns() {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) compute_a_little(), rest_a_little();
}

// Its stack is copied some microseconds after the kernel said that it sleeps.
TEST(StackProbe, TheStackOfAThreadThatIsBlockedForAMomentIsThatOfWhereItIsBlocked) {
  const int32_t child = start_taking_turns();
  ASSERT_GT(child, 0);
  Watcher watcher(child);
  int asleep = 0, there = 0, elsewhere = 0;
  const TimePoint end = MonotonicClock::now() + std::chrono::seconds(60);
  while (MonotonicClock::now() < end && there < 400) {
    watcher.sink.last.clear();
    watcher.tick();
    const auto& reading = watcher.sink.last[child];
    if (reading.state != ThreadState::kSleep) continue;
    ++asleep;
    if (reading.stack == 0) continue;
    const std::string& stack = watcher.sink.stacks[reading.stack - 1];
    ++(stack.find("rest_a_little") != std::string::npos ? there : elsewhere);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_GE(there, 400) << "of " << asleep;
  EXPECT_EQ(elsewhere, 0);
}

}  // namespace
}  // namespace flatout::probe
