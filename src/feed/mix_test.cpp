// Mixup and cutmix: what they draw, and that they leave nothing unmixed.
#include "feed/mix.h"

#include <gtest/gtest.h>

#include <vector>

#include "feed/distort.h"

namespace flatout::feed {
namespace {

Mix draw(const MixOptions& options, uint64_t number) {
  SampleRandom random(3, 0, number, Purpose::kMix);
  return choose_mix(options, 20, 10, random);
}

// Beta(alpha, alpha) has the mean 1/2 and the variance 1 / (8 alpha + 4).
TEST(Mix, DrawsWeightsFromABetaDistribution) {
  for (const double alpha : {0.2, 1.0, 4.0}) {
    double sum = 0, squares = 0;
    constexpr int kDraws = 20000;
    for (uint64_t i = 0; i < kDraws; ++i) {
      const double weight = draw({alpha, 0}, i).weight;
      ASSERT_GE(weight, 0);
      ASSERT_LE(weight, 1);
      sum += weight;
      squares += weight * weight;
    }
    const double mean = sum / kDraws;
    EXPECT_NEAR(mean, 0.5, 0.01) << alpha;
    EXPECT_NEAR(squares / kDraws - mean * mean, 1 / (8 * alpha + 4), 0.005) << alpha;
  }
}

TEST(Mix, TakesTheShareOfTheBoxForTheWeight) {
  bool inside = false;
  for (uint64_t i = 0; i < 200; ++i) {
    const Mix mix = draw({0, 1.0}, i);
    ASSERT_EQ(mix.kind, Mix::Kind::kCutmix);
    EXPECT_GE(mix.box.x, 0);
    EXPECT_GE(mix.box.y, 0);
    EXPECT_LE(mix.box.x + mix.box.width, 20);
    EXPECT_LE(mix.box.y + mix.box.height, 10);
    EXPECT_FLOAT_EQ(mix.weight, 1 - static_cast<float>(mix.box.width * mix.box.height) / 200);
    inside = inside || (mix.box.width > 0 && mix.box.height > 0);
  }
  EXPECT_TRUE(inside);
}

TEST(Mix, IsOneOrTheOtherWhereBothAreAskedFor) {
  int cut = 0;
  for (uint64_t i = 0; i < 1000; ++i) cut += draw({0.2, 1.0}, i).kind == Mix::Kind::kCutmix;
  EXPECT_NEAR(cut, 500, 100);
  EXPECT_EQ(draw({}, 1).kind, Mix::Kind::kNone);
}

TEST(Mix, MixesEachWithTheOneBeforeItAndTheFirstWithTheLast) {
  std::vector<float> data = {1, 1, 1, 10, 10, 10, 100, 100, 100};
  const Target sample{nullptr, Type::kF32, Layout::kNchw, 1, 1, {}};
  Mix mix;
  mix.kind = Mix::Kind::kMixup;
  mix.weight = 0.75F;
  std::vector<uint8_t> scratch;
  mix_batch(mix, sample, data.data(), 3, scratch);
  EXPECT_FLOAT_EQ(data[0], 0.75F * 1 + 0.25F * 100);
  EXPECT_FLOAT_EQ(data[3], 0.75F * 10 + 0.25F * 1);
  EXPECT_FLOAT_EQ(data[6], 0.75F * 100 + 0.25F * 10);
}

TEST(Distort, TakesPicturesOfAnySize) {
  std::vector<uint8_t> scratch;
  for (const auto& [width, height] : {std::pair{1, 1}, {1, 7}, {7, 1}, {2, 2}, {5, 3}}) {
    for (int kind = 0; kind < Distortion::kKinds; ++kind) {
      for (const int magnitude : {0, 30}) {
        std::vector<uint8_t> pixels(static_cast<size_t>(width * height) * 4, 90);
        Distortions one;
        one.count = 1;
        bool has_sign = false;
        one.steps[0].kind = static_cast<Distortion::Kind>(kind);
        one.steps[0].amount =
            distortion_strength(one.steps[0].kind, magnitude, width, height, has_sign);
        distort(one, pixels.data(), width, height, scratch);
        const bool stays = kind == 0 || (magnitude == 0 && has_sign);
        EXPECT_TRUE(!stays || pixels[0] == 90) << kind;
      }
    }
  }
}

}  // namespace
}  // namespace flatout::feed
