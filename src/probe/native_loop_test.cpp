#include "probe/native_loop.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

namespace flatout::probe {
namespace {

NativePath path(std::vector<PlaceInCode> places) { return places; }

std::vector<NativePath> of_each(std::initializer_list<std::pair<NativePath, int>> counts) {
  std::vector<NativePath> paths;
  for (const auto& [path, count] : counts) paths.insert(paths.end(), count, path);
  return paths;
}

std::vector<uint64_t> addresses(const std::vector<CallSite>& sites) {
  std::vector<uint64_t> out;
  for (const CallSite& site : sites) out.push_back(site.address);
  return out;
}

TEST(NativeLoop, TheLoopIsWhereMostStacksPart) {
  const auto paths =
      of_each({{path({{"main", 10}, {"train", 21}, {"forward", 31}, {"gemm", 41}}), 5},
               {path({{"main", 10}, {"train", 22}, {"backward", 32}, {"gemm", 42}}), 9},
               {path({{"main", 10}, {"train", 23}, {"update", 33}}), 1},
               {path({{"main", 10}, {"train", 24}}), 1},
               {path({{"main", 11}, {"load", 50}, {"read", 60}}), 4}});
  const std::vector<CallSite> sites = call_sites(paths, 0);
  EXPECT_EQ(addresses(sites), (std::vector<uint64_t>{22, 21, 23}));
  EXPECT_EQ(sites[0].caller, "train");
  EXPECT_EQ(sites[0].callee, "backward");
  EXPECT_NEAR(sites[0].share, 0.45, 1e-9);
  EXPECT_EQ(addresses(call_sites(paths, 1)), (std::vector<uint64_t>{10, 11}));
  EXPECT_TRUE(call_sites(paths, 2).empty());
  EXPECT_TRUE(call_sites({}, 0).empty());
}

// Of a thread that is blocked, stacks may begin with main.
TEST(NativeLoop, WhatCallsMainIsNotAlwaysKnown) {
  const auto paths = of_each({{path({{"_start", 1}, {"main", 10}, {"learn", 20}}), 5},
                              {path({{"main", 11}, {"store", 30}, {"fsync", 31}}), 5}});
  EXPECT_EQ(addresses(call_sites(paths, 0)), (std::vector<uint64_t>{10, 11}));
}

// Its loop is one over layers.
TEST(NativeLoop, APassThatTakesMostOfTheStepIsNotTheLoop) {
  const auto paths = of_each({{path({{"main", 10}, {"Net::backward", 20}, {"matmul_back", 30}}), 7},
                              {path({{"main", 10}, {"Net::backward", 21}, {"norm_back", 31}}), 2},
                              {path({{"main", 11}, {"Net::update", 40}}), 1}});
  EXPECT_EQ(addresses(call_sites(paths, 0)), (std::vector<uint64_t>{10, 11}));
}

// A small net's passes are but calls of matmul in main.
TEST(NativeLoop, WhatWasInlinedSaysWhichCallsTrain) {
  std::vector<NativePath> paths(60, {{"main", 10, {"Net::forward", "validate"}}, {"matmul", 30}});
  paths.insert(paths.end(), 20, {{"main", 11, {"Net::backward"}}, {"matmul", 30}});
  paths.insert(paths.end(), 20, {{"main", 12, {"Net::forward"}}, {"matmul", 30}});
  std::vector<MeasuredSite> measured;
  for (const CallSite& site : call_sites(paths, 0)) {
    EXPECT_EQ(site.trains, site.address == 11 ? Trains::kByInlined : Trains::kUnknown);
    measured.push_back({site, site.address == 10 ? 1800.0 : 470.0});
  }
  ASSERT_EQ(measured.size(), 3u);
  const MeasuredSite* best = once_a_step(measured);
  ASSERT_NE(best, nullptr);
  EXPECT_NE(best->site.address, 10u);
}

// main calls train() once, so the compiler put all of it there.
TEST(NativeLoop, WhatTheCalleeIsNamedSaysMoreThanWhatAllCallsWereInlinedWith) {
  std::vector<NativePath> paths(20, {{"main", 10, {"train"}}, {"parse", 30, {}}});
  paths.insert(paths.end(), 20, {{"main", 11, {"train"}}, {"Net::backward", 40, {}}});
  std::vector<MeasuredSite> measured;
  for (const CallSite& site : call_sites(paths, 0))
    measured.push_back({site, site.address == 10 ? 3300.0 : 50.0});
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_EQ(once_a_step(measured)->site.address, 11u);
}

// Both of a step's waits go through the same function.
TEST(NativeLoop, AFunctionThatIsCalledFromSeveralPlacesIsNotTheLoop) {
  const auto paths = of_each({{path({{"main", 10}, {"wait", 20}, {"futex", 30}}), 6},
                              {path({{"main", 11}, {"wait", 20}, {"futex", 30}}), 4}});
  EXPECT_EQ(addresses(call_sites(paths, 0)), (std::vector<uint64_t>{10, 11}));
}

TEST(NativeLoop, WhatTrainsComesRoundOnceAStep) {
  const auto site = [](uint64_t address, std::string callee, double share, double rate) {
    const NativePath calls{{"main", address, {}}, {std::move(callee), 1, {}}};
    const NativePath other{{"main", 999, {}}, {"other", 2, {}}};
    CallSite one = call_sites(std::vector<NativePath>{calls, other}, 0).front();
    one.share = share;
    return MeasuredSite{std::move(one), rate};
  };
  const auto chosen = [](const std::vector<MeasuredSite>& sites) {
    const MeasuredSite* best = once_a_step(sites);
    return best == nullptr ? 0 : best->site.address;
  };
  // Beside what is done for each of its samples, and what is done every forty steps.
  EXPECT_EQ(chosen({site(1, "read(char*)", 0.5, 6400), site(2, "parse(int)", 0.2, 3300),
                    site(3, "Net::backward(Vec const&)", 0.2, 50)}),
            3u);
  EXPECT_EQ(chosen({site(1, "evaluate", 0.7, 1.2), site(2, "Net::apply_gradients", 0.1, 49),
                    site(3, "forward", 0.1, 51)}),
            2u);
  // A class's name says nothing of what its function does.
  EXPECT_EQ(chosen({site(1, "Trainer::validate", 0.2, 1.2), site(2, "learn", 0.6, 51)}), 2u);
  // By their time, where no name tells; never one that it would cost too much to count.
  EXPECT_EQ(chosen({site(1, "a", 0.3, 90), site(2, "b", 0.25, 20), site(3, "c", 0.2, 21)}), 2u);
  EXPECT_EQ(chosen({site(1, "train", 0.9, 50'000)}), 0u);
  EXPECT_EQ(chosen({site(1, "train", 0.9, 0)}), 0u);
}

__attribute__((noinline)) void first() { asm volatile(""); }
__attribute__((noinline)) void second() { asm volatile("nop"); }

uint64_t address_of(void (*function)()) { return reinterpret_cast<uint64_t>(function); }

/// A thread that calls first() three times a round, and second() once.
class Looping {
 public:
  explicit Looping(int us = 4000)  // seldom enough for all rounds to be counted
      : thread_([this, us] {
          tid_ = gettid();
          while (!over_) {
            for (int i = 0; i < 3; ++i) first();
            second();
            ++rounds_;
            if (us > 0) usleep(us);
            while (rests_ && !over_) usleep(1000);
          }
        }) {
    while (tid_ == 0) std::this_thread::yield();
  }
  ~Looping() {
    over_ = true;
    thread_.join();
  }
  int32_t tid() const { return tid_; }
  uint64_t rounds() const { return rounds_; }
  void rest(bool on) { rests_ = on; }

 private:
  std::atomic<int32_t> tid_{0};
  std::atomic<bool> over_{false}, rests_{false};
  std::atomic<uint64_t> rounds_{0};
  std::thread thread_;
};

/// Shows `loop` the thread's stacks and looks until it has counted `more` rounds beyond what it
/// had. What was counted and what went by, since it found them: some of it while it began to count.
struct Counted {
  uint64_t counted = 0, went = 0, began = 0;
};
Counted count(NativeLoop& loop, const Looping& looping, uint64_t more, Nanos later = {}) {
  uint64_t had = 0, begun = 0, began = 0;
  std::optional<uint64_t> rounds;
  for (int tick = 0; tick < 8000 && (!rounds || *rounds < had + more); ++tick) {
    if (loop.wants_stacks()) {
      loop.saw({{"main", address_of(&first)}, {"read_sample", 1}});
      loop.saw({{"main", address_of(&second)}, {"train_step", 2}});
    }
    const uint64_t now = looping.rounds();
    const bool before = rounds.has_value();
    rounds = loop.rounds(MonotonicClock::now() + later);
    if (!before && rounds) {
      had = *rounds;
      begun = now;
      began = looping.rounds() - begun;
    }
    usleep(1000);
  }
  return {rounds.value_or(0) - had, looping.rounds() - begun, began};
}

TEST(NativeLoop, CountsRoundsOfAThreadByItsStacks) {
  if (!AddressCounter::open(gettid(), address_of(&first), 1000).ok()) {
    GTEST_SKIP() << "lacks hardware breakpoints";
  }
  Looping looping;
  NativeLoop loop(looping.tid());
  const auto [counted, went, began] = count(loop, looping, 100);
  EXPECT_GE(counted, 100u);
  EXPECT_LE(counted, went + 2);
  EXPECT_GE(counted + began + 5, went - went / 10);
  EXPECT_EQ(loop.name(), "main calls train_step");
  EXPECT_TRUE(loop.counts());

  // It does something else for a while, and comes back to the same loop.
  looping.rest(true);
  std::optional<uint64_t> rounds = loop.rounds(MonotonicClock::now());
  usleep(20'000);
  Nanos later{};
  while (rounds && later < std::chrono::seconds(100)) {
    later += std::chrono::milliseconds(100);
    rounds = loop.rounds(MonotonicClock::now() + later);
  }
  EXPECT_FALSE(rounds.has_value());
  EXPECT_LT(later, std::chrono::seconds(10));
  EXPECT_TRUE(loop.wants_stacks());
  looping.rest(false);
  EXPECT_GE(count(loop, looping, 50, later).counted, 50u);
  EXPECT_GE(loop.rounds(MonotonicClock::now() + later).value_or(0), counted + 50);
  EXPECT_EQ(loop.number(), 1u);
}

// A uprobe's trap lies in the way of all threads.
TEST(NativeLoop, CodeThatOtherThreadsRunIsNotProbed) {
  if (!AddressCounter::open(gettid(), address_of(&first), 1000, AddressCounter::By::kUprobe).ok()) {
    GTEST_SKIP() << "lacks uprobes (they need root)";
  }
  const Looping looping;
  NativeLoop loop(looping.tid(), AddressCounter::By::kUprobe);
  for (int tick = 0; tick < 100; ++tick) {
    if (loop.wants_stacks()) {
      loop.saw({{"main", address_of(&second)}, {"train_step", 2}});
      loop.saw_elsewhere({{"start_thread", 7}, {"main", 8}});
    }
    EXPECT_FALSE(loop.rounds(MonotonicClock::now()).has_value());
    usleep(1000);
  }
}

// Each time costs the thread as much as some of its calls.
TEST(NativeLoop, WhatComesByTooOftenIsLeftAlone) {
  if (!AddressCounter::open(gettid(), address_of(&first), 1000).ok()) {
    GTEST_SKIP() << "lacks hardware breakpoints";
  }
  const Looping looping(0);
  NativeLoop loop(looping.tid());
  for (int tick = 0; tick < 1000; ++tick) {
    if (loop.wants_stacks()) loop.saw({{"main", address_of(&second)}, {"train_step", 2}});
    EXPECT_FALSE(loop.rounds(MonotonicClock::now()).has_value());
    usleep(1000);
  }
}

[[gnu::naked, gnu::noinline]] void takes_no_trap() { asm volatile("hlt"); }

// The kernel puts no uprobe on some instructions.
TEST(NativeLoop, APlaceThatCannotBeCountedIsLeftOut) {
  if (!AddressCounter::open(gettid(), address_of(&first), 1000, AddressCounter::By::kUprobe).ok()) {
    GTEST_SKIP() << "lacks uprobes (they need root)";
  }
  const Looping looping;
  NativeLoop loop(looping.tid(), AddressCounter::By::kUprobe);
  for (int tick = 0; tick < 4000 && !loop.counts(); ++tick) {
    if (loop.wants_stacks()) {
      for (int i = 0; i < 3; ++i) loop.saw({{"main", address_of(&takes_no_trap)}, {"wait", 3}});
      loop.saw({{"main", address_of(&second)}, {"train_step", 2}});
    }
    loop.rounds(MonotonicClock::now());
    usleep(1000);
  }
  EXPECT_TRUE(loop.trouble().ok());
  EXPECT_EQ(loop.name(), "main calls train_step");
}

}  // namespace
}  // namespace flatout::probe
