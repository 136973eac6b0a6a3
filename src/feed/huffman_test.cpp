// Our entropy decoder against libjpeg's, coefficient by coefficient.
#include "feed/huffman.h"

#include <gtest/gtest.h>

#include "feed/testing/coefficients.h"
#include "feed/testing/pictures.h"

namespace flatout::feed {
namespace {

using testing::by_libjpeg;
using testing::by_ours;
using testing::JpegKind;
using testing::make_jpeg;

void expect_equal(const std::vector<uint8_t>& data, const std::string& what) {
  const auto theirs = by_libjpeg(data);
  const auto ours = by_ours(data);
  ASSERT_TRUE(theirs.has_value()) << what;
  ASSERT_TRUE(ours.has_value()) << what;
  ASSERT_EQ(ours->coefficients, *theirs) << what;
  ASSERT_TRUE(ours->same_from_checkpoints) << what;
}

TEST(Huffman, CoefficientsAreLibjpegsForEveryKindOfScan) {
  std::mt19937 random(3);
  for (int round = 0; round < 120; ++round) {
    JpegKind kind;
    constexpr int kFactors[][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {4, 2}};
    kind.h = kFactors[round % 6][0];
    kind.v = kFactors[round % 6][1];
    kind.width = 1 + static_cast<int>(random() % 150);
    kind.height = 1 + static_cast<int>(random() % 110);
    kind.quality = round % 3 == 0 ? 100 : 1 + static_cast<int>(random() % 100);
    kind.grey = round % 11 == 0;
    if (kind.grey) kind.h = kind.v = 1;
    kind.optimize = round % 2 == 0;
    kind.restart = round % 4 == 0 ? 1 + static_cast<int>(random() % 9) : 0;
    expect_equal(make_jpeg(kind, static_cast<unsigned>(round)), "round " + std::to_string(round));
  }
}

TEST(Huffman, BlocksFullToTheLastCoefficientEndWhereTheyEnd) {
  // Noise at the best quality: hardly a coefficient is zero, so that blocks end without a mark.
  JpegKind kind;
  kind.quality = 100;
  kind.h = kind.v = 1;
  kind.noise = true;
  kind.optimize = true;
  for (unsigned seed = 0; seed < 5; ++seed) expect_equal(make_jpeg(kind, seed), "noise");
}

TEST(Huffman, IrregularDataAreRefused) {
  const auto whole = make_jpeg({});
  ASSERT_TRUE(by_ours(whole).has_value());
  auto cut = whole;
  cut.resize(whole.size() * 2 / 3);
  EXPECT_FALSE(by_ours(cut).has_value());
  // A marker amid the scan.
  auto marked = whole;
  marked[whole.size() / 2] = 0xFF;
  marked[whole.size() / 2 + 1] = 0xD3;
  EXPECT_FALSE(by_ours(marked).has_value());
  JpegKind restarts;
  restarts.restart = 4;
  auto renumbered = make_jpeg(restarts);
  for (size_t i = renumbered.size() / 2; i + 1 < renumbered.size(); ++i) {
    if (renumbered[i] != 0xFF || (renumbered[i + 1] & 0xF8) != 0xD0) continue;
    renumbered[i + 1] ^= 1;
    break;
  }
  EXPECT_FALSE(by_ours(renumbered).has_value());
}

}  // namespace
}  // namespace flatout::feed
