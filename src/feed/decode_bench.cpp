// A JPEG of 500 x 375 and a part of it: by libjpeg alone, with our entropy decoder, from a seek
// index.
#include <benchmark/benchmark.h>

#include "feed/picture.h"
#include "feed/testing/pictures.h"

namespace {

using namespace flatout::feed;

class Ignore : public RowSink {
 public:
  void restart() override {}
  void rows(const uint8_t* first, size_t, int) override { benchmark::DoNotOptimize(*first); }
};

enum Way { kStock, kOwn, kIndexed };

void decode(benchmark::State& state, const Rect& part) {
  testing::JpegKind kind;
  kind.width = 500;
  kind.height = 375;
  kind.quality = 92;
  const auto data = testing::make_jpeg(kind);
  PictureDecoder decoder;
  Ignore ignore;
  std::vector<Checkpoint> found;
  Decoding how;
  how.found = &found;
  decoder.open(data);
  decoder.decode({0, 0, 1, 1}, how, ignore);
  how.found = nullptr;
  how.stock = state.range(0) == kStock;
  if (state.range(0) == kIndexed) how.checkpoints = found;
  while (state.KeepRunning()) {
    if (!decoder.open(data).ok() || !decoder.decode(part, how, ignore).ok())
      state.SkipWithError("it fails");
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(data.size()));
}

void BM_DecodeWhole(benchmark::State& state) { decode(state, {0, 0, 500, 375}); }
void BM_DecodePart(benchmark::State& state) { decode(state, {120, 90, 340, 260}); }

BENCHMARK(BM_DecodeWhole)->ArgName("way")->Arg(kStock)->Arg(kOwn);
BENCHMARK(BM_DecodePart)->ArgName("way")->Arg(kStock)->Arg(kOwn)->Arg(kIndexed);

}  // namespace
