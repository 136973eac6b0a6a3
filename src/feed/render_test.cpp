// The fast paths against plain ones: SIMD against loops, parts of a JPEG against the whole.
#include "feed/render.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/bytes.h"
#include "feed/simd.h"
#include "feed/testing/pictures.h"

namespace flatout::feed {
namespace {

using testing::JpegKind;
using testing::make_jpeg;
using testing::make_pixels;

class Collector : public RowSink {
 public:
  explicit Collector(int width) : width_(width) {}
  void restart() override { pixels.clear(); }
  void rows(const uint8_t* first, size_t stride, int count) override {
    for (int y = 0; y < count; ++y) {
      const uint8_t* pixel = first + static_cast<size_t>(y) * stride;
      for (int x = 0; x < width_; ++x, pixel += 4) {
        pixels.insert(pixels.end(), pixel, pixel + 3);
      }
    }
  }
  std::vector<uint8_t> pixels;

 private:
  int width_;
};

View centre_view(int shorter, Size size) {
  Augment augment;
  augment.kind = Augment::Kind::kCenterCrop;
  augment.shorter = shorter;
  SampleRandom random(1, 0, 0, Purpose::kAugment);
  return choose_view(augment, size, random);
}

TEST(Augment, ResizesTheLongerSideAsTorchvisionRounds) {
  EXPECT_EQ(centre_view(232, {217, 203}).whole_width, 248);
  EXPECT_EQ(centre_view(224, {392, 427}).whole_height, 244);
  EXPECT_EQ(centre_view(256, {500, 375}).whole_width, 341);
  EXPECT_GT(centre_view(16384, {1'000'000, 1}).whole_width, 1'000'000) << "no overflow";
}

// A signature, and a header with its checksum.
std::vector<uint8_t> png_start(uint32_t width, uint32_t height) {
  std::string header = "IHDR";
  for (const uint32_t side : {width, height})
    for (const int shift : {24, 16, 8, 0}) header += static_cast<char>(side >> shift & 0xFF);
  header += std::string("\x08\x02\0\0\0", 5);
  const uint32_t sum = crc32(header);
  for (const int shift : {24, 16, 8, 0}) header += static_cast<char>(sum >> shift & 0xFF);
  const std::string all = "\x89PNG\r\n\x1A\n" + std::string("\0\0\0\x0D", 4) + header;
  return {all.begin(), all.end()};
}

TEST(Picture, WithASideThatNeedsAMillionWeightsIsTooLarge) {
  PictureDecoder decoder;
  EXPECT_TRUE(decoder.open(png_start(1'000'000, 1)).ok());
  EXPECT_EQ(decoder.open(png_start(1'000'001, 1)).outcome, Outcome::kTooLarge);
  EXPECT_EQ(decoder.open(png_start(1, 80'000'000)).outcome, Outcome::kTooLarge);
}

std::vector<uint8_t> decode(const std::vector<uint8_t>& data, Rect part, const Decoding& how) {
  PictureDecoder decoder;
  EXPECT_TRUE(decoder.open(data).ok());
  Collector rows(part.width);
  const Verdict verdict = decoder.decode(part, how, rows);
  EXPECT_TRUE(verdict.ok()) << verdict.detail;
  return rows.pixels;
}

// By libjpeg alone.
Decoding by_libjpeg(int by = 1) {
  Decoding how;
  how.denominator = by;
  how.stock = true;
  return how;
}

std::vector<uint8_t> cut(const std::vector<uint8_t>& whole, int width, Rect part) {
  std::vector<uint8_t> out;
  for (int y = part.y; y < part.y + part.height; ++y) {
    const uint8_t* row =
        whole.data() +
        (static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(part.x)) * 3;
    out.insert(out.end(), row, row + static_cast<size_t>(part.width) * 3);
  }
  return out;
}

TEST(Decode, PartsEqualLibjpegsWholeToTheBit) {
  std::mt19937 random(4);
  for (const auto& [h, v] : {std::pair{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {4, 2}, {1, 4}}) {
    for (const bool progressive : {false, true}) {
      JpegKind kind;
      kind.width = 203;
      kind.height = 157;
      kind.h = h;
      kind.v = v;
      kind.progressive = progressive;
      kind.optimize = h == 1;
      kind.restart = h == 2 && v == 2 ? 5 : 0;
      const auto data = make_jpeg(kind);
      Decoding how;
      std::vector<Checkpoint> found;
      how.found = &found;
      decode(data, {0, 0, 1, 1}, how);
      EXPECT_EQ(found.empty(), progressive);
      how.found = nullptr;
      for (const int by : {1, 2, 4, 8}) {
        const int width = (kind.width + by - 1) / by, height = (kind.height + by - 1) / by;
        const auto whole = decode(data, {0, 0, width, height}, by_libjpeg(by));
        how.denominator = by;
        for (int i = 0; i < 10; ++i) {
          Rect part;
          part.width = 1 + static_cast<int>(random() % static_cast<unsigned>(width));
          part.height = 1 + static_cast<int>(random() % static_cast<unsigned>(height));
          part.x = static_cast<int>(random() % static_cast<unsigned>(width - part.width + 1));
          part.y = static_cast<int>(random() % static_cast<unsigned>(height - part.height + 1));
          const auto expected = cut(whole, width, part);
          for (const bool indexed : {false, true}) {
            how.checkpoints =
                indexed ? std::span<const Checkpoint>(found) : std::span<const Checkpoint>();
            ASSERT_EQ(decode(data, part, how), expected)
                << h << 'x' << v << (progressive ? " progressive" : "")
                << (indexed ? " indexed" : "") << " 1/" << by << " at " << part.x << ',' << part.y
                << ' ' << part.width << 'x' << part.height;
          }
        }
      }
    }
  }
}

TEST(Decode, DamageIsJudgedAsByLibjpegAlone) {
  std::mt19937 random(5);
  JpegKind kind;
  kind.restart = 7;
  int damaged = 0;
  for (int round = 0; round < 300; ++round) {
    kind.restart = round % 2 == 0 ? 7 : 0;
    auto data = make_jpeg(kind, static_cast<unsigned>(round % 4));
    for (int i = 0; i < 3; ++i)
      data[650 + random() % (data.size() - 660)] ^= static_cast<uint8_t>(1U << (random() % 8));
    PictureDecoder own, stock;
    if (!own.open(data).ok() || !stock.open(data).ok()) continue;
    for (const bool lenient : {false, true}) {
      Decoding how;
      how.lenient = lenient;
      std::vector<Checkpoint> found;
      how.found = &found;
      Collector a(kind.width), b(kind.width);
      const Verdict ours = own.decode({0, 0, kind.width, kind.height}, how, a);
      how.stock = true;
      how.found = nullptr;
      const Verdict theirs = stock.decode({0, 0, kind.width, kind.height}, how, b);
      ASSERT_EQ(ours.outcome, theirs.outcome) << round << ours.detail << theirs.detail;
      ASSERT_EQ(ours.detail, theirs.detail);
      if (lenient || ours.ok()) {
        ASSERT_EQ(a.pixels, b.pixels) << round;
      }
      if (!ours.ok()) {
        ++damaged;
        ASSERT_TRUE(found.empty());
      }
      if (!lenient && (!own.open(data).ok() || !stock.open(data).ok())) break;
    }
  }
  EXPECT_GT(damaged, 100);
}

TEST(Decode, AnIndexOfAnotherPictureIsNoticed) {
  const auto one = make_jpeg({}, 1), two = make_jpeg({}, 2);
  std::vector<Checkpoint> found;
  Decoding how;
  how.found = &found;
  decode(one, {0, 0, 1, 1}, how);
  how.found = nullptr;
  how.checkpoints = found;
  const Rect part{40, 60, 90, 40};
  EXPECT_EQ(decode(two, part, how), decode(two, part, by_libjpeg()));
  for (Checkpoint& each : found) each.bit = 0xFFFFFFF0;
  EXPECT_EQ(decode(two, part, how), decode(two, part, by_libjpeg()));
}

TEST(Axis, WeightsAddUpToOneAndStayInside) {
  for (const auto& [from, to, whole] : {std::tuple{0.0, 500.0, 224},
                                        {3.0, 4.0, 224},
                                        {0.0, 3000.0, 7},
                                        {10.5, 300.25, 64},
                                        {0.0, 65000.0, 1}}) {
    Axis axis;
    const int low = static_cast<int>(from), high = static_cast<int>(std::ceil(to));
    axis.make(from, to, low, high, whole, 0, whole, false);
    for (int i = 0; i < whole; ++i) {
      int sum = 0;
      for (int k = 0; k < axis.taps; ++k) sum += axis.weight(i)[k];
      EXPECT_TRUE(sum == 1 << axis.shift || sum == 32767) << sum;
      EXPECT_GE(axis.begin[static_cast<size_t>(i)], low);
      EXPECT_LE(axis.begin[static_cast<size_t>(i)] + axis.used[static_cast<size_t>(i)], high);
    }
  }
}

TEST(Simd, EqualsPlainLoopsToTheBit) {
  if (!has_avx2()) GTEST_SKIP() << "this processor has no AVX2";
  std::mt19937 random(9);
  for (int round = 0; round < 60; ++round) {
    const int length = 1 + static_cast<int>(random() % 900);
    const int out = 1 + static_cast<int>(random() % 300);
    const std::vector<uint8_t> source =
        make_pixels(length + kRowSlack, 1, 4, static_cast<unsigned>(round));
    Axis axis;
    axis.make(0, length, 0, length, out, 0, out, round % 2 == 1);
    std::vector<uint8_t> fast(static_cast<size_t>(out) * 4 + kRowSlack), plain(fast.size());
    resize_row_avx2(axis, source.data(), 0, fast.data(), out);
    resize_row_portable(axis, source.data(), 0, plain.data(), out);
    for (int i = 0; i < out; ++i) {
      for (int c = 0; c < 3; ++c)
        ASSERT_EQ(fast[static_cast<size_t>(i * 4 + c)], plain[static_cast<size_t>(i * 4 + c)]);
    }

    std::vector<const uint8_t*> rows;
    std::vector<std::vector<uint8_t>> memory(static_cast<size_t>(axis.taps));
    for (auto& row : memory) {
      row = make_pixels(out + kRowSlack, 1, 4,
                        static_cast<unsigned>(round * 100) + static_cast<unsigned>(rows.size()));
      rows.push_back(row.data());
    }
    combine_rows_avx2(rows.data(), axis.weight(0), axis.taps, axis.shift, fast.data(), out);
    combine_rows_portable(rows.data(), axis.weight(0), axis.taps, axis.shift, plain.data(), out);
    fast.resize(static_cast<size_t>(out) * 4);
    plain.resize(static_cast<size_t>(out) * 4);
    ASSERT_EQ(fast, plain);

    const float mean[3] = {0.485F, 0.456F, 0.406F}, std[3] = {0.229F, 0.224F, 0.225F};
    const Normalize normalize = Normalize::from_mean_std(mean, std);
    std::vector<float> a(static_cast<size_t>(out) * 3), b(a.size());
    const size_t plane = static_cast<size_t>(out);
    float* const fast_planes[3] = {a.data(), a.data() + plane, a.data() + 2 * plane};
    float* const plain_planes[3] = {b.data(), b.data() + plane, b.data() + 2 * plane};
    write_planes_f32_avx2(source.data(), std::min(out, length), normalize, fast_planes);
    write_planes_f32_portable(source.data(), std::min(out, length), normalize, plain_planes);
    ASSERT_EQ(a, b);
  }
}

TEST(Render, MirrorsAndLayoutsHoldTheSamePixels) {
  const auto data = make_jpeg({});
  const auto render = [&](bool flip, Type type, Layout layout) {
    Renderer renderer;
    EXPECT_TRUE(renderer.open(data).ok());
    View view;
    view.box = {7, 11, 100, 90};
    view.whole_width = 40;
    view.whole_height = 30;
    view.flip = flip;
    std::vector<uint8_t> out(size_t{40} * 30 * 3 * type_bytes(type));
    const float zero[3] = {0, 0, 0}, one[3] = {1 / 255.0F, 1 / 255.0F, 1 / 255.0F};
    EXPECT_TRUE(renderer
                    .render(view, Mode::kExact,
                            {out.data(), type, layout, 40, 30, Normalize::from_mean_std(zero, one)})
                    .ok());
    return out;
  };
  const auto plain = render(false, Type::kU8, Layout::kNhwc);
  const auto mirrored = render(true, Type::kU8, Layout::kNhwc);
  const auto planes = render(false, Type::kF32, Layout::kNchw);
  const auto* values = reinterpret_cast<const float*>(planes.data());
  for (size_t y = 0; y < 30; ++y) {
    for (size_t x = 0; x < 40; ++x) {
      for (size_t c = 0; c < 3; ++c) {
        const uint8_t pixel = plain[(y * 40 + x) * 3 + c];
        ASSERT_EQ(pixel, mirrored[(y * 40 + 39 - x) * 3 + c]);
        ASSERT_NEAR(pixel, values[(c * 30 + y) * 40 + x], 1e-3);
      }
    }
  }
}

TEST(Render, HalfSizeIsTakenOnlyWhereItSuffices) {
  JpegKind kind;
  kind.width = kind.height = 400;
  const auto data = make_jpeg(kind);
  const auto render = [&](int size, Mode mode) {
    Renderer renderer;
    EXPECT_TRUE(renderer.open(data).ok());
    View view;
    view.box = {0, 0, 400, 400};
    view.whole_width = view.whole_height = size;
    std::vector<uint8_t> out(static_cast<size_t>(size) * static_cast<size_t>(size) * 3);
    EXPECT_TRUE(
        renderer.render(view, mode, {out.data(), Type::kU8, Layout::kNhwc, size, size, {}}).ok());
    return out;
  };
  EXPECT_EQ(render(101, Mode::kScaled), render(101, Mode::kExact));
  EXPECT_NE(render(100, Mode::kScaled), render(100, Mode::kExact));
}

// APP1 with one tag.
std::vector<uint8_t> with_orientation(std::vector<uint8_t> jpeg, uint8_t orientation) {
  const std::vector<uint8_t> segment = {
      0xFF, 0xE1, 0, 34,   'E', 'x', 'i', 'f', 0, 0, 'M', 'M',         0, 42, 0, 0, 0, 8,
      0,    1,    1, 0x12, 0,   3,   0,   0,   0, 1, 0,   orientation, 0, 0,  0, 0, 0, 0};
  jpeg.insert(jpeg.begin() + 2, segment.begin(), segment.end());
  return jpeg;
}

// What the eye sees at (x, y) of a picture stored as `stored` (width x height), by EXIF's table.
Rect stored_place(int orientation, int x, int y, int width, int height) {
  switch (orientation) {
    case 2:
      return {width - 1 - x, y, 1, 1};
    case 3:
      return {width - 1 - x, height - 1 - y, 1, 1};
    case 4:
      return {x, height - 1 - y, 1, 1};
    case 5:
      return {y, x, 1, 1};
    case 6:
      return {y, height - 1 - x, 1, 1};
    case 7:
      return {width - 1 - y, height - 1 - x, 1, 1};
    case 8:
      return {width - 1 - y, x, 1, 1};
    default:
      return {x, y, 1, 1};
  }
}

TEST(Render, TurnsAPictureAsItsExifDataSay) {
  JpegKind kind;
  kind.width = 61;
  kind.height = 40;
  const auto plain = make_jpeg(kind);
  const auto stored = decode(plain, {0, 0, 61, 40}, by_libjpeg());
  for (uint8_t orientation = 1; orientation <= 8; ++orientation) {
    for (const bool flip : {false, true}) {
      Renderer renderer;
      const auto data = with_orientation(plain, orientation);
      ASSERT_TRUE(renderer.open(data, true).ok());
      const Size size = renderer.size();
      ASSERT_EQ(size.width, orientation >= 5 ? 40 : 61);
      ASSERT_EQ(size.height, orientation >= 5 ? 61 : 40);
      // A part at full size: each pixel is one of the stored picture.
      View view;
      view.box = {3, 7, 30, 20};
      view.whole_width = 30;
      view.whole_height = 20;
      view.skip_x = 2;
      view.skip_y = 1;
      view.flip = flip;
      constexpr int kWidth = 25, kHeight = 18;
      std::vector<uint8_t> out(size_t{kWidth} * kHeight * 3);
      ASSERT_TRUE(renderer
                      .render(view, Mode::kExact,
                              {out.data(), Type::kU8, Layout::kNhwc, kWidth, kHeight, {}})
                      .ok());
      for (int y = 0; y < kHeight; ++y) {
        for (int x = 0; x < kWidth; ++x) {
          const int seen_x = 3 + 2 + (flip ? kWidth - 1 - x : x);
          const Rect at = stored_place(orientation, seen_x, 7 + 1 + y, 61, 40);
          for (int c = 0; c < 3; ++c)
            ASSERT_EQ(out[static_cast<size_t>((y * kWidth + x) * 3 + c)],
                      stored[static_cast<size_t>((at.y * 61 + at.x) * 3 + c)])
                << int{orientation} << (flip ? " mirrored" : "") << " at " << x << ',' << y;
        }
      }
    }
  }
}

}  // namespace
}  // namespace flatout::feed
