#include "devmem/device_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "devmem/explain.h"
#include "devmem/limits.h"
#include "devmem/sim_driver.h"
#include "devmem/trace.h"

namespace flatout::devmem {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

class Pools : public testing::Test {
 protected:
  std::unique_ptr<DevicePool> open(PoolOptions options = {}) {
    auto pool = DevicePool::open(card_, std::move(options));
    if (!pool.ok()) ADD_FAILURE() << pool.error().message;
    return pool.ok() ? std::move(*pool) : nullptr;
  }
  static Result<Address> take(DevicePool& pool, Bytes size, Stream stream = 0) {
    return pool.allocate(size, stream, nullptr);
  }
  static Status give(DevicePool& pool, Address address) {
    return pool.free(address, std::nullopt, std::nullopt, nullptr);
  }
  /// What was written to standard error meanwhile.
  template <class Function>
  static std::string said_by(Function function) {
    testing::internal::CaptureStderr();
    function();
    return testing::internal::GetCapturedStderr();
  }

  std::shared_ptr<Card> card_ = std::make_shared<Card>(std::make_unique<SimDriver>(1024 * kMiB));
  SimDriver& sim_ = static_cast<SimDriver&>(card_->driver());
};

// A model of what streams have done decides whether a block may be handed out again: its own stream
// may have it at once, another only when all that was queued on each stream that used it is done.
TEST_F(Pools, ABlockIsUsedAgainOnlyWhenTheStreamsThatUsedItAreDone) {
  for (const char* policy : {"arena", "torch", "torch_expandable"}) {
    const auto pool = open({.policy = policy, .limit = 44 * kMiB});
    struct Use {
      Stream stream;
      uint64_t after;  // pieces of work
    };
    struct Block {
      Bytes size;
      std::vector<Use> uses;
    };
    std::map<Address, Block> live, freed;  // freed: until something else lies there
    std::map<Stream, uint64_t> queued;
    std::vector<std::pair<Stream, Event>> ends;  // an event behind each piece of work
    std::map<std::pair<Stream, uint64_t>, Event> end_of;
    const auto launch = [&](Stream stream) {
      sim_.launch(stream);
      end_of[{stream, ++queued[stream]}] = sim_.record(stream);
    };
    std::mt19937_64 random(11);
    for (int i = 0; i < 6000; ++i) {
      const Stream stream = 3 + random() % 4;
      if (random() % 8 == 0) sim_.finish(stream);
      if (random() % 5 < 2 && !live.empty()) {
        auto it = std::next(live.begin(), static_cast<long>(random() % live.size()));
        Block block = std::move(it->second);
        for (Use& use : block.uses) use.after = queued[use.stream];
        const bool elsewhere = random() % 6 == 0;  // freed on a stream that it is not for
        if (elsewhere) block.uses.push_back({stream, queued[stream]});
        ASSERT_TRUE(pool->free(it->first, block.size,
                               elsewhere ? std::optional(stream) : std::nullopt, nullptr)
                        .ok());
        freed[it->first] = std::move(block);
        live.erase(it);
        continue;
      }
      const Bytes size = 1 + random() % (Bytes{1} << (9 + random() % 14));
      const auto got = take(*pool, size, stream);
      if (!got.ok()) {
        ASSERT_EQ(got.error().code, Code::kFull) << got.error().message;
        continue;
      }
      const Address end = *got + size;
      const auto next = live.lower_bound(*got);
      ASSERT_TRUE(next == live.end() || next->first >= end);
      ASSERT_TRUE(next == live.begin() ||
                  std::prev(next)->first + std::prev(next)->second.size <= *got);
      for (auto it = freed.begin(); it != freed.end() && it->first < end;) {
        if (it->first + it->second.size <= *got) {
          ++it;
          continue;
        }
        for (const Use& use : it->second.uses) {
          if (use.stream == stream || use.after == 0) continue;
          ASSERT_TRUE(sim_.is_done(end_of.at({use.stream, use.after})))
              << policy << ": stream " << stream << " gets what stream " << use.stream << " uses";
        }
        it = freed.erase(it);
      }
      live[*got] = {size, {{stream, 0}}};
      launch(stream);
      if (random() % 4 == 0) {
        const Stream other = 3 + random() % 4;
        ASSERT_TRUE(pool->use_on(*got, other).ok());
        live[*got].uses.push_back({other, 0});
        launch(other);
      }
    }
    for (const auto& [address, block] : live) ASSERT_TRUE(give(*pool, address).ok());
    pool->trim();
    EXPECT_EQ(pool->stats().reserved, 0u);
    EXPECT_EQ(pool->stats().waiting, 0u);
    EXPECT_LE(pool->stats().peak_reserved, 44 * kMiB);
    EXPECT_GT(pool->stats().refused, 0u) << "the limit was never met";
    for (const auto& [place, event] : end_of) sim_.forget(event);
    EXPECT_EQ(sim_.used(), 0u);
  }
}

TEST_F(Pools, RecordStreamKeepsABlockUntilThatStreamIsDoneWithIt) {
  const auto pool = open();
  const Address block = *take(*pool, 8 * kMiB, 1);
  ASSERT_TRUE(pool->use_on(block, 2).ok());
  sim_.launch(2);
  ASSERT_TRUE(give(*pool, block).ok());
  EXPECT_EQ(pool->stats().waiting, 8 * kMiB);
  const Address other = *take(*pool, 8 * kMiB, 1);
  EXPECT_NE(other, block);
  sim_.finish(2);
  EXPECT_EQ(*take(*pool, 8 * kMiB, 1), block);
  EXPECT_EQ(pool->stats().waiting, 0u);
  EXPECT_EQ(pool->use_on(block + 256, 2).error().code, Code::kBadInput);
}

TEST_F(Pools, WhatAStreamFreedBeforeItWasDestroyedIsUsedAgainWhenItsWorkIsDone) {
  Stream dead = 10;
  for (const char* policy : {"arena", "torch", "torch_expandable"}) {
    const auto pool = open({.policy = policy, .limit = 64 * kMiB});
    const Address own = *take(*pool, 20 * kMiB, ++dead), shared = *take(*pool, 40 * kMiB, 2);
    ASSERT_TRUE(pool->use_on(shared, dead).ok());
    sim_.launch(dead);
    const Event end = sim_.record(dead);
    sim_.destroy(dead);
    ASSERT_TRUE(give(*pool, own).ok());
    ASSERT_TRUE(give(*pool, shared).ok());
    EXPECT_TRUE(take(*pool, 60 * kMiB, 2).ok()) << policy;
    EXPECT_TRUE(sim_.is_done(end)) << policy;
    sim_.forget(end);
  }
}

TEST_F(Pools, WhatWaitsForAStreamIsWaitedForBeforeAnyoneIsRefused) {
  const auto pool = open({.limit = 64 * kMiB});
  const Address block = *take(*pool, 60 * kMiB, 1);
  ASSERT_TRUE(pool->use_on(block, 2).ok());
  sim_.launch(2);
  ASSERT_TRUE(give(*pool, block).ok());
  EXPECT_TRUE(take(*pool, 60 * kMiB, 1).ok());
}

TEST_F(Pools, PoolsOnACardKeepTheirLimitsAndGiveWhatLiesIdleToEachOther) {
  const auto first = open({.limit = 640 * kMiB}), second = open({.limit = 384 * kMiB});
  EXPECT_FALSE(take(*second, 400 * kMiB).ok());
  const Address large = *take(*first, 600 * kMiB);
  ASSERT_TRUE(give(*first, large).ok());
  EXPECT_GE(first->stats().reserved, 600 * kMiB);
  const auto third = open();  // no limit of its own
  EXPECT_TRUE(take(*third, 700 * kMiB).ok());
  EXPECT_EQ(first->stats().reserved, 0u) << "it lay idle";
  EXPECT_FALSE(take(*first, 600 * kMiB).ok());
}

TEST_F(Pools, LimitsThatAddUpToMoreThanTheCardHasAreRefused) {
  const auto first = open({.limit = 640 * kMiB});
  const auto second = DevicePool::open(card_, {.limit = 500 * kMiB});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("add up to"), std::string::npos);
}

TEST_F(Pools, APolicyForOneStreamOnlyIsRefused) {
  for (const char* name : {"tf_growth", "none"}) {
    const auto pool = DevicePool::open(card_, {.policy = name});
    ASSERT_FALSE(pool.ok());
    EXPECT_NE(pool.error().message.find(name), std::string::npos);
    EXPECT_NE(pool.error().hint.find("arena"), std::string::npos);
  }
}

TEST_F(Pools, AGraphUnderCaptureGetsNothingAndSpoilsNothing) {
  const auto pool = open();
  const Address block = *take(*pool, kMiB, 1);
  sim_.begin_capture(5);
  EXPECT_EQ(take(*pool, kMiB, 5).error().code, Code::kUnsupported);
  ASSERT_TRUE(pool->use_on(block, 5).ok());
  ASSERT_TRUE(give(*pool, block).ok());
  EXPECT_NE(*take(*pool, kMiB, 1), block) << "the graph may use it whenever it runs";
  sim_.end_capture(5);
  EXPECT_TRUE(take(*pool, kMiB, 5).ok());
}

TEST_F(Pools, NoDriverCallIsMadeInASteadyState) {
  const auto pool = open();
  uint64_t calls = 0;
  for (int step = 0; step < 5; ++step) {
    std::vector<Address> blocks;
    for (int i = 1; i <= 40; ++i) blocks.push_back(*take(*pool, Bytes(i) * 77'777, 1));
    for (const Address block : blocks) ASSERT_TRUE(give(*pool, block).ok());
    if (step == 1) calls = pool->stats().driver_calls;
  }
  EXPECT_EQ(pool->stats().driver_calls, calls);
}

TEST_F(Pools, ARefusalSaysWhoHasTheMemoryInWordsThatAreKnown) {
  const auto pool = open({.limit = 64 * kMiB, .name = "GPU 0", .user = "PyTorch"});
  ASSERT_TRUE(take(*pool, 40 * kMiB).ok());
  const auto got = take(*pool, 512 * kMiB);
  ASSERT_FALSE(got.ok());
  EXPECT_TRUE(got.error().message.starts_with(
      "CUDA out of memory. Tried to allocate 512 MiB. GPU 0 has a total capacity of 1.00 GiB"))
      << got.error().message;
  EXPECT_NE(got.error().message.find("64.0 MiB allowed;"), std::string::npos)
      << got.error().message;
  EXPECT_EQ(explain_text("torch.OutOfMemoryError: " + got.error().message).kind, "torch_limit");
  const PoolStats stats = pool->stats();
  EXPECT_EQ(stats.refused, 1u);
  EXPECT_EQ(stats.live, 40 * kMiB);
  EXPECT_EQ(stats.limit, 64 * kMiB);
}

TEST_F(Pools, ThreadsShareAPoolAndAllComesBack) {
  const auto pool = open();
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<Address> mine;
      for (int i = 0; i < 2000; ++i) {
        const auto got = take(*pool, 1 + random() % 300'000, static_cast<Stream>(t));
        if (got.ok()) mine.push_back(*got);
        if (mine.size() > 20 || (!got.ok() && !mine.empty())) {
          std::swap(mine.front(), mine.back());
          EXPECT_TRUE(give(*pool, mine.back()).ok());
          mine.pop_back();
        }
      }
      for (const Address block : mine) EXPECT_TRUE(give(*pool, block).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  pool->trim();
  const PoolStats stats = pool->stats();
  EXPECT_EQ(stats.live, 0u);
  EXPECT_EQ(stats.allocations, stats.frees);
  EXPECT_EQ(stats.reserved, 0u);
}

// ---- what is recorded ----

Trace read_back(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  auto traces = read_traces(text.str(), path);
  if (!traces.ok()) ADD_FAILURE() << traces.error().message;
  return traces.ok() ? std::move(traces->at(0)) : Trace{};
}

class PoolFiles : public Pools {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const char* name) const { return folder_ + "/" + name; }
  const std::string folder_ = [] {
    std::string name = testing::TempDir() + "flatout-pool-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    return name;
  }();
};

TEST_F(PoolFiles, ARecordingHasEveryRequestAndWhatWasRefused) {
  const auto pool = open({.limit = 64 * kMiB, .name = "a job", .record_to = file("memory.jsonl")});
  const Address first = *take(*pool, 30 * kMiB, 7);
  const Address second = *take(*pool, 1000);
  EXPECT_FALSE(take(*pool, 50 * kMiB).ok());
  ASSERT_TRUE(give(*pool, first).ok());
  pool->flush();
  const Trace trace = read_back(file("memory.jsonl"));
  EXPECT_EQ(trace.name, "a job");
  EXPECT_EQ(trace.blocks, 2u);
  EXPECT_EQ(trace.ops.size(), 3u);
  EXPECT_EQ(trace.ops[0].stream, 7u);
  EXPECT_EQ(trace.peak_live, 30 * kMiB + 1000);
  ASSERT_EQ(trace.failures.size(), 1u);
  EXPECT_EQ(trace.failures[0].size, 50 * kMiB);
  EXPECT_EQ(trace.skipped, 0u);
  ASSERT_TRUE(give(*pool, second).ok());
}

TEST_F(PoolFiles, ASnapshotBeginsWithWhatWasLiveBeforeTheHistoryThatIsKept) {
  const auto pool = open({.kept = 10});
  const Address weights = *take(*pool, 5 * kMiB);
  const Address early = *take(*pool, 3 * kMiB);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(give(*pool, *take(*pool, kMiB)).ok());
  ASSERT_TRUE(give(*pool, early).ok());
  ASSERT_TRUE(pool->snapshot(file("now.jsonl")).ok());
  const Trace trace = read_back(file("now.jsonl"));
  EXPECT_EQ(trace.skipped, 0u) << "every end has its beginning";
  EXPECT_EQ(trace.peak_live, 9 * kMiB);
  Bytes live = 0;
  std::vector<Bytes> sizes(trace.blocks);
  for (const Op& op : trace.ops) {
    if (op.kind == Op::kAllocate) live += sizes[op.block] = op.size;
    if (op.kind == Op::kFree) live -= sizes[op.block];
  }
  EXPECT_EQ(live, 5 * kMiB) << "the weights";
  ASSERT_TRUE(give(*pool, weights).ok());
  EXPECT_FALSE(pool->snapshot("/nowhere/at/all").ok());
}

TEST_F(PoolFiles, AFileThatIsThereIsLeftAlone) {
  std::ofstream(file("memory.jsonl")) << "precious\n";
  const auto pool = open({.record_to = file("memory.jsonl")});
  const auto another = open({.record_to = file("memory.jsonl")});
  const std::string own = file("memory.jsonl") + "." + std::to_string(::getpid());
  EXPECT_TRUE(std::filesystem::exists(own));
  EXPECT_TRUE(std::filesystem::exists(own + ".2"));
  std::string text;
  std::ifstream(file("memory.jsonl")) >> text;
  EXPECT_EQ(text, "precious");
  const auto nowhere = DevicePool::open(card_, {.record_to = "/nowhere/at/all"});
  ASSERT_FALSE(nowhere.ok());
  EXPECT_NE(nowhere.error().message.find("/nowhere/at/all"), std::string::npos);
}

// ---- debug mode ----

// Its name is what the reports are to show: exported by the linker's -rdynamic.
extern "C" __attribute__((noinline)) const void* flatout_test_caller() {
  return __builtin_return_address(0);
}

TEST_F(Pools, DebugModeNamesADoubleFreeWithItsPlaces) {
  const auto pool = open({.debug = true});
  const void* const here = reinterpret_cast<const void*>(&flatout_test_caller);
  const Address block = *pool->allocate(3 * kMiB, 0, here);
  ASSERT_TRUE(pool->free(block, 3 * kMiB, 0, here).ok());
  const std::string said = said_by([&] {
    const Status twice = pool->free(block, 3 * kMiB, 0, here);
    EXPECT_EQ(twice.error().code, Code::kBadInput);
  });
  EXPECT_NE(said.find("double free of"), std::string::npos) << said;
  EXPECT_NE(said.find("3145728 bytes"), std::string::npos) << said;
  EXPECT_NE(said.find("it was freed at flatout_test_caller"), std::string::npos) << said;
  EXPECT_NE(said.find("allocated at flatout_test_caller"), std::string::npos) << said;
  // Once it is somebody's again, a free is none too many.
  EXPECT_EQ(*pool->allocate(3 * kMiB, 0, here), block);
  EXPECT_EQ(said_by([&] { EXPECT_TRUE(give(*pool, block).ok()); }), "");
}

TEST_F(Pools, DebugModeForgetsTheOldestFreeNotALaterOneOfTheSameAddress) {
  constexpr int kRemembered = 100'000;
  const auto pool = open({.debug = true});
  const Address block = *take(*pool, kMiB), other = *take(*pool, kMiB);
  ASSERT_TRUE(give(*pool, block).ok());
  ASSERT_EQ(*take(*pool, kMiB), block);
  for (int i = 0; i < kRemembered - 2; ++i) {
    const Address again = *take(*pool, 2 * kMiB);
    ASSERT_NE(again, block);
    ASSERT_TRUE(give(*pool, again).ok());
  }
  ASSERT_TRUE(give(*pool, block).ok());
  const Address last = *take(*pool, 2 * kMiB);
  ASSERT_NE(last, block);
  ASSERT_TRUE(give(*pool, last).ok());  // one more than are remembered
  const std::string said = said_by([&] { EXPECT_FALSE(give(*pool, block).ok()); });
  EXPECT_NE(said.find("double free of"), std::string::npos) << said;
  ASSERT_TRUE(give(*pool, other).ok());
}

TEST_F(Pools, DebugModeNamesAForeignPointerAndWhatItLiesIn) {
  const auto pool = open({.debug = true});
  const Address block = *take(*pool, kMiB);
  std::string said = said_by([&] { EXPECT_FALSE(give(*pool, 0x1000).ok()); });
  EXPECT_NE(said.find("free of 0x1000"), std::string::npos) << said;
  EXPECT_NE(said.find("no block begins there"), std::string::npos) << said;
  said = said_by([&] { EXPECT_FALSE(give(*pool, block + 512).ok()); });
  EXPECT_NE(said.find("it lies 512 bytes within"), std::string::npos) << said;
}

TEST_F(Pools, DebugModeNamesAWrongSizeAndAWrongStream) {
  const auto pool = open({.debug = true});
  const Address first = *take(*pool, 1000, 4), second = *take(*pool, 2000, 4);
  std::string said = said_by([&] { EXPECT_TRUE(pool->free(first, 1001, 4, nullptr).ok()); });
  EXPECT_NE(said.find("with 1001 bytes, and it has 1000"), std::string::npos) << said;
  said = said_by([&] { EXPECT_TRUE(pool->free(second, 2000, 5, nullptr).ok()); });
  EXPECT_NE(said.find("on stream 0x5, and it is for stream 0x4"), std::string::npos) << said;
}

TEST_F(Pools, DebugModeNamesWhatWasNeverFreed) {
  auto pool = open({.debug = true});
  ASSERT_TRUE(take(*pool, 2 * kMiB).ok());
  const std::string said = said_by([&] { pool.reset(); });
  EXPECT_NE(said.find("1 blocks with 2.00 MiB were never freed"), std::string::npos) << said;
  EXPECT_EQ(sim_.used(), 0u);
}

TEST_F(Pools, WithoutDebugModeAMistakeIsAnErrorThatSaysHowToFindIt) {
  const auto pool = open();
  const Status foreign = give(*pool, 0x1000);
  ASSERT_FALSE(foreign.ok());
  EXPECT_NE(foreign.error().hint.find("FLATOUT_DEVMEM_DEBUG=1"), std::string::npos);
}

// ---- limits as users write them ----

TEST(Limits, AreReadInAnyCaseAndQuotedAsTheyWereWritten) {
  ASSERT_TRUE(parse_limits("8gib").ok());
  EXPECT_EQ(parse_limits("8gib")->at(0).limits.at(0).bytes, Bytes{8} << 30);
  EXPECT_EQ(parse_limits("5e-1")->at(0).limits.at(0).fraction, 0.5);
  for (const char* wrong : {"abc", "x=8GiB", "8GiBx", "4096=1GiB"}) {
    const auto read = parse_limits(wrong);
    ASSERT_FALSE(read.ok()) << wrong;
    EXPECT_NE(read.error().message.find(wrong), std::string::npos) << read.error().message;
  }
}

TEST(Limits, AreReadForAllDevicesOrByDeviceAndForSeveralPools) {
  const auto all = parse_limits("8GiB");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->at(0).device, -1);
  EXPECT_EQ(all->at(0).limits[0].of(1), Bytes{8} << 30);
  const auto by_device = parse_limits("0=4GiB+25%,2=0.5");
  ASSERT_TRUE(by_device.ok());
  ASSERT_EQ(by_device->size(), 2u);
  EXPECT_EQ(by_device->at(0).limits.size(), 2u);
  EXPECT_EQ(by_device->at(0).limits[1].of(4096 * kMiB), 1024 * kMiB);
  EXPECT_EQ(by_device->at(1).device, 2);
}

TEST(Limits, AMistakeIsNamed) {
  for (const auto& [text, says] :
       std::initializer_list<std::pair<const char*, const char*>>{{"lots", "neither a size"},
                                                                  {"", "neither a size"},
                                                                  {"3", "less than a card"},
                                                                  {"1.5", "no part"},
                                                                  {"1GiB,2GiB", "twice"},
                                                                  {"1GiB,0=2GiB", "twice"},
                                                                  {"0=1GiB,0=2GiB", "named before"},
                                                                  {"x=1GiB", "names no device"},
                                                                  {"0=1GiB+", "neither a size"}}) {
    const auto read = parse_limits(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_NE(read.error().message.find(says), std::string::npos) << read.error().message;
  }
}

}  // namespace
}  // namespace flatout::devmem
