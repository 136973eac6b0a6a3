#include "heap/record.h"

#include <gtest/gtest.h>

namespace flatout::heap {
namespace {

constexpr std::string_view kText =
    "flatout-heap 1\n"
    "pid 4121\n"
    "interval 524288\n"
    "written 35\n"
    "forked 5\n"
    "at-end\n"
    "objects-apart\n"
    "live 3000\n"
    "peak 5000\n"
    "moments 10 20 30\n"
    "stack 1000 2 4000 8 1500 7 900 : 100 200 300 @ 7f01 7f02 p2 p1\n"
    "stack 2000 1 2000 1 2000 1 2000 : 0 0 2000 @\n"
    "python 1\t12\tmain\t/job/my train.py\n"
    "python 2\t40\tstep\t/job/model.py\n"
    "maps\n"
    "7f00-8000 r-xp 00000000 08:01 5 /usr/bin/train\n";

TEST(HeapRecord, HasWhatWasWritten) {
  const auto record = parse_record(kText);
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->pid, 4121);
  EXPECT_EQ(record->peak_bytes, 5000u);
  EXPECT_FALSE(record->exact());
  EXPECT_TRUE(record->objects_apart);
  EXPECT_TRUE(record->at_end);
  EXPECT_EQ(record->written_ns, 35u);
  EXPECT_EQ(record->forked_ns, 5u);
  EXPECT_EQ(record->moments_ns, (std::vector<uint64_t>{10, 20, 30}));
  ASSERT_EQ(record->stacks.size(), 2u);
  const RecordStack& s = record->stacks[0];
  EXPECT_EQ(s.total_count, 8u);
  EXPECT_EQ(s.peak_bytes, 1500u);
  EXPECT_EQ(s.samples, 7u);
  EXPECT_EQ(s.sample_bytes, 900u);
  EXPECT_EQ(s.at_moment, (std::vector<uint64_t>{100, 200, 300}));
  EXPECT_EQ(s.native, (std::vector<uint64_t>{0x7f01, 0x7f02}));
  EXPECT_EQ(s.python, (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(record->places.at(1).file, "/job/my train.py");
  EXPECT_EQ(record->places.at(2).line, 40u);
  EXPECT_EQ(record->maps, "7f00-8000 r-xp 00000000 08:01 5 /usr/bin/train\n");
}

// A library that was closed is where it was, unless another lies there now.
TEST(HeapRecord, KnowsWhereClosedLibrariesLay) {
  const auto record = parse_record(
      "flatout-heap 1\n"
      "was 9000-a000 r-xp 00001000 08:01 7 /lib/later.so\n"
      "was 5000-6000 r-xp 00001000 08:01 6 /lib/closed.so\n"
      "was 7f00-8000 r-xp 00000000 08:01 5 /usr/bin/train\n"
      "was 7000-7f80 r-xp 00000000 08:01 8 /lib/overlaps.so\n"
      "maps\n"
      "4000-5000 r-xp 00000000 08:01 4 /usr/bin/first\n"
      "7f00-8000 r-xp 00000000 08:01 5 /usr/bin/train\n");
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->maps,
            "4000-5000 r-xp 00000000 08:01 4 /usr/bin/first\n"
            "5000-6000 r-xp 00001000 08:01 6 /lib/closed.so\n"
            "7f00-8000 r-xp 00000000 08:01 5 /usr/bin/train\n"
            "9000-a000 r-xp 00001000 08:01 7 /lib/later.so\n");
}

TEST(HeapRecord, CutOffGivesWhatIsWhole) {
  for (size_t size = 0; size < kText.size(); ++size) {
    const auto record = parse_record(kText.substr(0, size));
    ASSERT_EQ(record.ok(), size >= kText.find('\n')) << size;
    if (!record.ok()) continue;
    for (const RecordStack& s : record->stacks) {
      EXPECT_EQ(s.at_moment.size(), record->moments_ns.size());
    }
  }
}

// Short lines stand for as many numbers as there are moments.
TEST(HeapRecord, MoreStacksTimesMomentsThanAnyProcessHasAreRefused) {
  const auto record_of = [](size_t stacks, size_t moments) {
    std::string text = "flatout-heap 1\n";
    for (size_t i = 0; i < stacks; ++i) text += "stack 1 1 1 1 1 1 1 : 1 @\n";
    text += "moments";
    for (size_t i = 0; i < moments; ++i) text += " 1";
    return parse_record(text + "\n");
  };
  const auto honest = record_of(5000, 32);
  ASSERT_TRUE(honest.ok());
  EXPECT_EQ(honest->stacks.size(), 5000u);
  EXPECT_EQ(honest->stacks[4999].at_moment.size(), 32u);
  const auto hostile = record_of(40'000, 1024);
  ASSERT_FALSE(hostile.ok());
  EXPECT_EQ(hostile.error().code, Code::kBadInput);
  EXPECT_NE(hostile.error().message.find("40000 stacks at 1024 moments"), std::string::npos)
      << hostile.error().message;
}

TEST(HeapRecord, OtherFilesAreRefused) {
  EXPECT_FALSE(parse_record("heap profile: 1: 2 [3: 4] @ heap_v2/1\n").ok());
  EXPECT_FALSE(parse_record("").ok());
}

}  // namespace
}  // namespace flatout::heap
