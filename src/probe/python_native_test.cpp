#include "probe/python_native.h"

#include <gtest/gtest.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/fs.h"

namespace flatout::probe {
namespace {

int some_data = 1;

/// A thread that waits for a semaphore, as long as this lives.
class Waiting {
 public:
  Waiting() : thread_([this] { wait(); }) {
    while (!call()) std::this_thread::yield();
  }
  ~Waiting() {
    sem_post(&semaphore_);
    thread_.join();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  /// nullopt as long as it does not wait.
  std::optional<SyscallInfo> call() const {
    const auto text =
        fs::Root("/").read("proc/self/task/" + std::to_string(tid_.load()) + "/syscall", 1024);
    auto call = text.ok() ? parse_syscall(*text) : std::nullopt;
    return call && call->number == SYS_futex ? call : std::nullopt;
  }

 private:
  void wait() {
    tid_ = static_cast<int>(gettid());
    while (sem_wait(&semaphore_) != 0) {
    }
  }
  sem_t semaphore_ = [] {
    sem_t s;
    sem_init(&s, 0, 0);
    return s;
  }();
  std::atomic<int> tid_{0};
  std::thread thread_;
};

TEST(PythonNativeStacks, EndAtTheInterpreter) {
  const Waiting waiting;
  FunctionNames names(fs::Root("/"), true);
  // This program stands for the interpreter, and libc for what it calls.
  PythonNativeStacks stacks(fs::Root("/"), getpid(), reinterpret_cast<uint64_t>(&some_data), names);
  const auto frames = stacks.blocked(*waiting.call());
  ASSERT_FALSE(frames.empty());
  for (const auto& frame : frames) {
    EXPECT_NE(frame.file.find("libc"), std::string::npos) << frame.function << " " << frame.file;
  }
}

TEST(PythonNativeStacks, HaveNoFramesUntilTheNamesAreRead) {
  const Waiting waiting;
  FunctionNames names(fs::Root("/"), false);
  PythonNativeStacks stacks(fs::Root("/"), getpid(), reinterpret_cast<uint64_t>(&some_data), names);
  int ticks = 0;
  while (stacks.blocked(*waiting.call()).empty() && ++ticks < 100) names.start_tick();
  EXPECT_GT(ticks, 0);
  EXPECT_LT(ticks, 100);
}

TEST(PythonNativeStacks, StandAProcessThatIsGone) {
  FunctionNames names(fs::Root("/"), true);
  PythonNativeStacks stacks(fs::Root("/"), 0x7ffffff0, 4096, names);
  EXPECT_TRUE(stacks.blocked(SyscallInfo{SYS_futex, {}, 4096, 4096}).empty());
  EXPECT_FALSE(stacks.sample(0x7ffffff0));
}

}  // namespace
}  // namespace flatout::probe
