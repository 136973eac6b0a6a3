#include "probe/code_map.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "probe/testing/fake_tree.h"

namespace flatout::probe {
namespace {

using std::chrono::seconds;

constexpr TimePoint kStart = TimePoint(seconds(1000));

/// The map of this process as a fake one: a library at 1000, and a heap.
struct Mapped {
  FakeTree tree;
  CodeMap code{tree.root(), getpid()};

  void library(const std::string& name, int heap = 4) const {
    const std::string end = std::to_string(heap) + "000";
    tree.write("proc/" + std::to_string(getpid()) + "/maps",
               "1000-2000 r-xp 00000000 08:01 " + std::to_string(name.size()) + " /lib/" + name +
                   "\n3000-" + end + " rw-p 00000000 00:00 0 [heap]\n");
  }
  std::string at(uint64_t address) const {
    const symbols::Mapping* m = code.find(address);
    return m == nullptr ? "" : std::string(m->file_name());
  }
};

TEST(CodeMap, AnotherLibraryInThePlaceOfOneThatIsNoMoreIsSeenWhereAStackIsDoubtful) {
  Mapped job;
  job.library("first.so");
  ASSERT_TRUE(job.code.ready(kStart));
  job.library("other_one.so");
  ASSERT_TRUE(job.code.ready(kStart + seconds(10)));
  EXPECT_EQ(job.at(0x1800), "first.so") << "nothing made it doubtful";
  job.code.doubt(CodeMap::Doubt::kOfStack);
  const uint64_t before = job.code.version();
  ASSERT_TRUE(job.code.ready(kStart + seconds(11)));
  EXPECT_EQ(job.at(0x1800), "other_one.so");
  EXPECT_NE(job.code.version(), before);
}

TEST(CodeMap, WhereStacksAreAlwaysDoubtfulItIsLookedAtSeldomerAndKeepsWhatItKnows) {
  Mapped job;
  job.library("first.so");
  ASSERT_TRUE(job.code.ready(kStart));
  const uint64_t before = job.code.version();
  for (int s = 1; s < 100; ++s) {
    job.library("first.so", 4 + s % 5);  // a heap grows all the time
    job.code.doubt(CodeMap::Doubt::kOfStack);
    ASSERT_TRUE(job.code.ready(kStart + seconds(s)));
    EXPECT_EQ(job.code.version(), before);
  }
  job.library("other_one.so");
  job.code.doubt(CodeMap::Doubt::kOfStack);
  ASSERT_TRUE(job.code.ready(kStart + seconds(101)));
  EXPECT_EQ(job.at(0x1800), "first.so") << "looked at 2, 6, 14, 30, 62 and 126 s after the start";
  job.code.doubt(CodeMap::Doubt::kOfPlace);
  ASSERT_TRUE(job.code.ready(kStart + seconds(102)));
  EXPECT_EQ(job.at(0x1800), "other_one.so");
}

TEST(CodeMap, AMapThatCannotBeReadIsTriedAgain) {
  Mapped job;
  EXPECT_FALSE(job.code.ready(kStart));
  job.library("first.so");
  EXPECT_FALSE(job.code.ready(kStart + seconds(1)));
  EXPECT_TRUE(job.code.ready(kStart + seconds(3)));
}

}  // namespace
}  // namespace flatout::probe
