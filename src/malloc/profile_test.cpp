#include "malloc/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "malloc/allocator.h"

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
  uint64_t live, live_count, total, total_count, peak, samples, sample_bytes;
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
        line.samples >> line.sample_bytes >> word;
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
  ASSERT_EQ(dump_heap(true), 0);
  uint64_t told_peak = 0;
  size_t moments = 0;
  const auto lines = read_record(path, told_peak, moments);
  EXPECT_EQ(told_peak, peak);
  ASSERT_EQ(lines.size(), 3u);
  ASSERT_GE(moments, 128u);
  ASSERT_LE(moments, 256u);
  // Moments are spread evenly: every gap-th sample, the gap a power of two.
  size_t gap = 1;
  while (samples / gap > 256) gap *= 2;
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

// A function that is known by its address and a few instructions, sanitizers or not.
#define PLACE __attribute__((noinline, no_sanitize("address"), no_sanitize("undefined")))

// Each a place of its own, by which it is known in the record: what it has kept in truth.
struct Keeper {
  size_t bytes;
  double kept = 0;
};
Keeper g_keepers[] = {{24}, {1500}, {2049}, {20'000}, {70'000}, {900'000}};
std::vector<void*> g_kept;
void* g_grown = nullptr;

template <size_t kKeeper>
PLACE void keep() {
  Keeper& keeper = g_keepers[kKeeper];
  g_kept.push_back(allocate(keeper.bytes));
  keeper.kept += static_cast<double>(keeper.bytes);
  asm volatile("" ::: "memory");
}
// A string that becomes somewhat longer.
PLACE void keep_resized() {
  g_kept.push_back(reallocate(allocate(5000), 5050));
  asm volatile("" ::: "memory");
}
PLACE void grow(size_t bytes) {
  g_grown = reallocate(g_grown, bytes);
  asm volatile("" ::: "memory");
}
constexpr size_t kPiece = 16384;
PLACE void shrink_one() {
  g_kept.push_back(reallocate(allocate(25 * kPiece), 13 * kPiece));
  asm volatile("" ::: "memory");
}

// By the function that allocated: what the record says that it has in use, and the square of how
// much chance may be in it.
struct Told {
  double live = 0, square = 0;
};
// The function that a return address lies in: the one that begins last before it.
std::string function_of(uintptr_t pc) {
  static const std::map<uintptr_t, std::string> known = [] {
    const auto at = [](auto* function) { return reinterpret_cast<uintptr_t>(function); };
    return std::map<uintptr_t, std::string>{
        {at(&keep<0>), "24"},           {at(&keep<1>), "1500"},  {at(&keep<2>), "2049"},
        {at(&keep<3>), "20000"},        {at(&keep<4>), "70000"}, {at(&keep<5>), "900000"},
        {at(&keep_resized), "resized"}, {at(&grow), "grown"},    {at(&shrink_one), "shrunk"}};
  }();
  const auto next = known.upper_bound(pc);
  if (next == known.begin()) return "";
  const auto found = std::prev(next);
  return pc - found->first < 512 ? found->second : "";
}

std::map<std::string, Told> told_of(const std::string& path) {
  std::map<std::string, Told> out;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    if (!text.starts_with("stack ")) continue;
    std::istringstream words(text);
    std::string word, name;
    double live = 0, skipped = 0, sample_bytes = 0;
    words >> word >> live;
    for (int i = 0; i < 5; ++i) words >> skipped;
    words >> sample_bytes;
    while (words >> word && word != "@") continue;
    while (name.empty() && words >> word) name = function_of(std::stoull(word, nullptr, 16));
    out[name].live += live;
    out[name].square += live * sample_bytes;
  }
  return out;
}

// Beside blocks that are drawn every time, and with pauses, so that the interval changes all the
// time: the sum over many rounds is the truth, within five standard deviations for each place.
TEST(HeapProfile, EstimatesAreTrueInTheMean) {
  const std::string path = testing::TempDir() + "flatout_true_" + std::to_string(getpid());
  set_heap_path(path.c_str());
  std::map<std::string, Told> sums;
  std::map<std::string, double> truth;
  set_sample_interval(1 << 10);
  start_sampling(make_cache());
  for (int round = 0; round < 100; ++round) {
    ASSERT_EQ(dump_heap(true), 0);
    const auto before = told_of(path);
    for (Keeper& each : g_keepers) each.kept = 0;
    size_t grown = 0, resized = 0, shrunk = 0;
    for (int i = 0; i < 400; ++i) {
      for (int k = 0; k < 20; ++k) keep<0>();
      keep<1>();
      keep<2>();
      if (i % 3 == 0) keep<3>();
      if (i % 10 == 0) keep<4>();
      if (i % 50 == 0) keep<5>();
      keep_resized(), resized += 5000;
      grow(grown += 5000);
      if (i % 50 == 0) shrink_one(), shrunk += 13 * kPiece;
      // NOLINTNEXTLINE(clang-analyzer-unix.Malloc)
      deallocate(allocate(3 << 20));
      if (i % 100 == 99) usleep(200);
    }
    for (const Keeper& each : g_keepers) truth[std::to_string(each.bytes)] += each.kept;
    truth["resized"] += double(resized);
    truth["grown"] += double(grown);
    truth["shrunk"] += double(shrunk);
    ASSERT_EQ(dump_heap(true), 0);
    for (const auto& [name, told] : told_of(path)) {
      const auto old = before.find(name);
      sums[name].live += told.live - (old == before.end() ? 0 : old->second.live);
      sums[name].square += told.square - (old == before.end() ? 0 : old->second.square);
    }
    for (void* p : g_kept) deallocate(p);
    g_kept.clear();
    deallocate(std::exchange(g_grown, nullptr));
  }
  set_sample_interval(0);
  start_sampling(make_cache());
  set_heap_path("");
  unlink(path.c_str());
  for (const auto& [name, bytes] : truth) {
    const double sigma = std::sqrt(sums[name].square);
    EXPECT_NEAR(sums[name].live, bytes, 5 * sigma + bytes / 500) << name << ", sigma " << sigma;
    // What moves now and then is known better than by this sigma: large blocks are drawn for sure.
    if (name != "grown") {
      EXPECT_LT(sigma, bytes / 20) << name << ": too few samples to say";
    }
  }
}

}  // namespace
}  // namespace flatout::malloc
