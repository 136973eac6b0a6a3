#include "screen/functions.h"

#include <gtest/gtest.h>

namespace flatout::screen {
namespace {

constexpr Nanos kTick = std::chrono::milliseconds(20);

probe::PythonThread thread(int32_t tid, const std::vector<uint32_t>& codes, bool gil) {
  probe::PythonThread out;
  out.tid = tid;
  out.holds_gil = gil;
  for (const uint32_t code : codes) out.frames.push_back({code, 1});
  return out;
}

void name_of(uint32_t code, Function& out) { out.function = std::string(1, "abc"[code]); }

const Function& find(const PythonProfile& profile, const std::string& name) {
  for (const Function& f : profile.functions) {
    if (f.function == name) return f;
  }
  static const Function kNone;
  ADD_FAILURE() << "no " << name;
  return kNone;
}

TEST(FunctionTable, OwnIsInnermostAndTotalAnywhere) {
  FunctionTable table;
  probe::PythonReading reading;
  // Of ten readings: six in b called by a (running, with the GIL), four in c called by a, waiting.
  for (int i = 0; i < 10; ++i) {
    reading.threads = {i < 6 ? thread(1, {1, 0}, true) : thread(2, {2, 0}, false)};
    table.add(
        reading, kTick, [](int32_t tid) { return tid == 1; }, name_of);
  }
  const PythonProfile p = table.take(10);
  EXPECT_EQ(p.readings, 10u);
  EXPECT_NEAR(p.gil_share, 0.6, 1e-9);
  ASSERT_EQ(p.functions.size(), 3u);
  EXPECT_EQ(p.functions[0].function, "a") << "by total";
  EXPECT_NEAR(find(p, "a").total_share, 1, 1e-9);
  EXPECT_EQ(find(p, "a").own_share, 0);
  EXPECT_NEAR(find(p, "b").own_share, 0.6, 1e-9);
  EXPECT_NEAR(find(p, "b").gil_share, 0.6, 1e-9);
  EXPECT_NEAR(find(p, "b").own_s, 0.12, 1e-9);
  EXPECT_NEAR(find(p, "c").waiting_share, 0.4, 1e-9);
  EXPECT_EQ(find(p, "c").own_s, 0);
}

TEST(FunctionTable, AFunctionThatCallsItselfCountsOnce) {
  FunctionTable table;
  probe::PythonReading reading;
  reading.threads = {thread(1, {0, 0, 0, 1}, false)};
  table.add(
      reading, kTick, [](int32_t) { return true; }, name_of);
  EXPECT_NEAR(find(table.take(10), "a").total_share, 1, 1e-9);
}

TEST(FunctionTable, TwoThreadsAreTwiceTheTime) {
  FunctionTable table;
  probe::PythonReading reading;
  reading.threads = {thread(1, {0}, false), thread(2, {0}, false)};
  table.add(
      reading, kTick, [](int32_t) { return true; }, name_of);
  EXPECT_NEAR(find(table.take(10), "a").own_share, 2, 1e-9);
}

TEST(FunctionTable, AnIntervalBeginsAnewSecondsGoOn) {
  FunctionTable table;
  probe::PythonReading reading;
  reading.threads = {thread(1, {0}, false)};
  table.add(
      reading, kTick, [](int32_t) { return true; }, name_of);
  table.take(10);
  reading.threads = {thread(1, {1}, false)};
  table.add(
      reading, kTick, [](int32_t) { return true; }, name_of);
  const PythonProfile p = table.take(10);
  EXPECT_EQ(find(p, "a").total_share, 0);
  EXPECT_NEAR(find(p, "a").total_s, 0.02, 1e-9);
  EXPECT_EQ(table.take(1).functions.size(), 1u);
}

TEST(FunctionTable, TornStacksAreNotCounted) {
  FunctionTable table;
  probe::PythonReading reading;
  reading.threads = {thread(1, {0}, true)};
  reading.threads[0].torn = true;
  table.add(
      reading, kTick, [](int32_t) { return true; }, name_of);
  const PythonProfile p = table.take(10);
  EXPECT_TRUE(p.functions.empty());
  EXPECT_EQ(p.gil_share, 1) << "who holds the lock is known all the same";
}

}  // namespace
}  // namespace flatout::screen
