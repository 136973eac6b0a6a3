#include "malloc/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace flatout::malloc {
namespace {

// Three places that allocate, each of one size, by which its line is known in the record.
__attribute__((noinline)) Sample* small() {
  Sample* s = take_sample(100, 1);
  asm volatile("" ::: "memory");
  return s;
}
__attribute__((noinline)) Sample* middle() {
  Sample* s = take_sample(3000, 1);
  asm volatile("" ::: "memory");
  return s;
}
__attribute__((noinline)) Sample* large() {
  Sample* s = take_sample(70'000, 1);
  asm volatile("" ::: "memory");
  return s;
}
constexpr uint64_t kSizes[] = {100, 3000, 70'000};

struct Line {
  uint64_t live, live_count, total, total_count, peak, samples;
  std::vector<uint64_t> at_moment;
};

// By the size of its blocks.
std::map<uint64_t, Line> read_record(const std::string& path, uint64_t& peak, size_t& moments) {
  std::map<uint64_t, Line> out;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    std::istringstream words(text);
    std::string kind, word;
    words >> kind;
    if (kind == "peak") words >> peak;
    if (kind == "moments") {
      for (moments = 0; words >> word;) ++moments;
    }
    if (kind != "stack") continue;
    Line line{};
    words >> line.live >> line.live_count >> line.total >> line.total_count >> line.peak >>
        line.samples >> word;
    while (words >> word && word != "@") line.at_moment.push_back(std::stoull(word));
    out[line.total / line.total_count] = line;
  }
  return out;
}

TEST(HeapRecord, HoldsPeakAndMomentsOfEachPlace) {
  const std::string path = testing::TempDir() + "flatout_record_" + std::to_string(getpid());
  set_heap_path(path.c_str());
  std::mt19937 random(5);
  struct Model {
    uint64_t live = 0, total = 0, peak = 0;
    std::vector<Sample*> kept;
  } model[3];
  uint64_t live = 0, peak = 0, samples = 0;
  std::vector<std::array<uint64_t, 3>> after;  // each sample: what each place had
  for (int i = 0; i < 5000; ++i) {
    const size_t k = random() % 3;
    Model& m = model[k];
    if (random() % 100 < 55) {
      Sample* s = k == 0 ? small() : k == 1 ? middle() : large();
      ASSERT_NE(s, nullptr);
      m.kept.push_back(s);
      m.live += kSizes[k];
      ++m.total;
      live += kSizes[k];
      ++samples;
      after.push_back({model[0].live, model[1].live, model[2].live});
      // A process that is killed leaves at least half: a record comes with every doubling.
      if (samples == 8 || samples == 64 || samples == 300) {
        uint64_t told = 0, ignored_peak = 0;
        size_t ignored_moments = 0;
        for (const auto& [size, line] : read_record(path, ignored_peak, ignored_moments)) {
          told += line.samples;
        }
        EXPECT_GE(2 * told, samples);
      }
      if (live > peak) {
        peak = live;
        for (Model& each : model) each.peak = each.live;
      }
    } else if (!m.kept.empty()) {
      std::swap(m.kept[random() % m.kept.size()], m.kept.back());
      drop_sample(m.kept.back());
      m.kept.pop_back();
      m.live -= kSizes[k];
      live -= kSizes[k];
    }
  }
  ASSERT_EQ(dump_heap(), 0);
  uint64_t told_peak = 0;
  size_t moments = 0;
  const auto lines = read_record(path, told_peak, moments);
  EXPECT_EQ(told_peak, peak);
  ASSERT_EQ(lines.size(), 3u);
  ASSERT_GE(moments, 16u);
  ASSERT_LE(moments, 32u);
  // Moments are spread evenly: every gap-th sample, the gap 8 times a power of two.
  size_t gap = 8;
  while (samples / gap > 32) gap *= 2;
  for (size_t k = 0; k < 3; ++k) {
    const Line& line = lines.at(kSizes[k]);
    EXPECT_EQ(line.live, model[k].live);
    EXPECT_EQ(line.live_count, model[k].kept.size());
    EXPECT_EQ(line.total_count, model[k].total);
    EXPECT_EQ(line.samples, model[k].total);
    EXPECT_EQ(line.peak, model[k].peak);
    ASSERT_EQ(line.at_moment.size(), moments);
    for (size_t i = 0; i < moments; ++i) {
      EXPECT_EQ(line.at_moment[i], after[(i + 1) * gap - 1][k]) << k << " at moment " << i;
    }
  }
  set_heap_path("");
  unlink(path.c_str());
}

}  // namespace
}  // namespace flatout::malloc
