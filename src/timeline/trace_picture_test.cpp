#include "timeline/trace_picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "timeline/trace_analysis.h"

namespace flatout::timeline {
namespace {

using namespace model;  // NOLINT

/// A thread that launches kernels one after the other on a device, and a thread of nested slices.
Trace synthetic(int kernels, uint32_t seed) {
  Trace trace;
  trace.file = "made.json";
  trace.categories = {"kernel", "cuda_runtime", "cpu_op"};
  trace.tracks.resize(3);
  trace.tracks[0].is_stream = true;
  trace.tracks[0].device = 0;
  trace.tracks[0].stream = 7;
  trace.tracks[1].thread = "launches";
  trace.tracks[2].thread = "nests";
  std::mt19937 random(seed);
  const StringId launch = trace.strings.intern("cudaLaunchKernel");
  int64_t at = 1'000'000;
  for (int i = 0; i < kernels; ++i) {
    const StringId name = trace.strings.intern("kernel " + std::to_string(random() % 40));
    trace.push_back(at, 3'000, launch, 1, EventKind::kRuntime, 1, static_cast<uint32_t>(i + 1));
    const int64_t length = 1'000 + static_cast<int64_t>(random() % 100'000);
    trace.push_back(at + 5'000, length, name, 0, EventKind::kKernel, 0,
                    static_cast<uint32_t>(i + 1));
    trace.push_back(at, length + 4'000, name, 2, EventKind::kOp, 2);
    trace.push_back(at + 100, 200, launch, 2, EventKind::kOp, 2);
    trace.push_back(at + 400, length, name, 2, EventKind::kOp, 2);
    at += 5'000 + length + static_cast<int64_t>(random() % 50'000);
  }
  return trace;
}

size_t slices_in(const PictureLevel& level) {
  size_t count = 0;
  for (const auto& rows : level.tracks)
    for (const auto& row : rows) count += row.size();
  return count;
}

/// What holds for each level, whatever was joined.
void expect_sound(const TracePicture& picture) {
  for (const PictureLevel& level : picture.levels) {
    ASSERT_EQ(level.tracks.size(), picture.tracks.size());
    EXPECT_LT(level.begin, level.end);
    for (const auto& rows : level.tracks) {
      for (const auto& row : rows) {
        int64_t last = level.begin;
        for (const PictureSlice& s : row) {
          EXPECT_GE(s.begin, last);
          EXPECT_GE(s.end, s.begin);
          EXPECT_LE(s.end, level.end);
          EXPECT_LT(s.name, picture.names.size());
          EXPECT_GE(s.count, 1u);
          last = s.end;
        }
      }
    }
  }
}

TEST(TracePicture, AShortTraceIsDrawnAsItIs) {
  const Trace trace = synthetic(500, 1);
  const TraceIndex index(trace);
  const TracePicture picture = draw(index, summarize(index), 100'000);
  expect_sound(picture);
  ASSERT_EQ(picture.levels.size(), 1u);
  EXPECT_EQ(picture.levels[0].resolution, 0);
  // Of each track the same slices as in the trace, by name and time.
  for (size_t t = 0; t < picture.tracks.size(); ++t) {
    if (picture.tracks[t].kind == PictureTrack::Kind::kIdle) continue;
    std::multiset<std::tuple<std::string, int64_t, int64_t>> drawn, there;
    for (const auto& row : picture.levels[0].tracks[t])
      for (const PictureSlice& s : row)
        drawn.emplace(picture.names[s.name], s.begin + picture.begin, s.end + picture.begin);
    const bool stream = picture.tracks[t].kind == PictureTrack::Kind::kStream;
    const TrackId id = stream ? 0 : picture.tracks[t].thread == "launches" ? 1 : 2;
    for (size_t i = 0; i < trace.size(); ++i) {
      const auto e = static_cast<EventId>(i);
      if (trace.track[i] == id) there.emplace(trace.name_of(e), trace.start[e], trace.end(e));
    }
    EXPECT_EQ(drawn, there) << picture.tracks[t].thread;
  }
}

TEST(TracePicture, IdleTimeIsThatOfTheSummary) {
  const Trace trace = synthetic(300, 2);
  const TraceIndex index(trace);
  const TraceSummary summary = summarize(index);
  const TracePicture picture = draw(index, summary, 100'000);
  ASSERT_EQ(picture.tracks[0].kind, PictureTrack::Kind::kIdle);
  std::map<std::string, int64_t> blamed;
  for (const auto& row : picture.levels[0].tracks[0])
    for (const PictureSlice& s : row) blamed[picture.names[s.name]] += s.end - s.begin;
  const IdleBlame& idle = summary.devices[0].idle;
  EXPECT_EQ(blamed["waits for the host"], idle.host_wait);
  EXPECT_EQ(blamed["between kernels"], idle.kernel_wait);
  EXPECT_EQ(blamed["unknown"], idle.other);
  EXPECT_EQ(blamed["input wait"], idle.input_wait);
}

TEST(TracePicture, ALongTraceStaysWithinItsBounds) {
  const Trace trace = synthetic(60'000, 3);
  const TraceIndex index(trace);
  constexpr size_t kMost = 20'000;
  const TracePicture picture = draw(index, summarize(index), kMost);
  expect_sound(picture);
  size_t all = 0;
  for (const PictureLevel& level : picture.levels) all += slices_in(level);
  EXPECT_LE(all, kMost);
  EXPECT_GT(all, kMost / 8);
  const PictureLevel& whole = picture.levels[0];
  EXPECT_GT(whole.resolution, 0);
  // Joined or not, each slice is counted once.
  uint64_t slices = 0, tracks = 0;
  for (const PictureTrack& t : picture.tracks) tracks += t.slices;
  for (const auto& rows : whole.tracks)
    for (const auto& row : rows)
      for (const PictureSlice& s : row) slices += s.count;
  EXPECT_EQ(slices, tracks);
  // The longest gap is the first place, and looked at closely.
  int64_t longest = 0;
  for (const PicturePlace& place : picture.places)
    longest = std::max(longest, place.end - place.begin);
  ASSERT_FALSE(picture.places.empty());
  EXPECT_EQ(picture.places[0].end - picture.places[0].begin, longest);
  EXPECT_TRUE(std::any_of(picture.levels.begin(), picture.levels.end(), [&](const auto& level) {
    return level.resolution == 0 && level.begin <= picture.places[0].begin &&
           level.end >= picture.places[0].end;
  }));
}

TEST(TracePicture, MoreRowsThanSlicesMayBeAreABlockEach) {
  const Trace trace = synthetic(200, 5);
  const TraceIndex index(trace);
  const TracePicture picture = draw(index, summarize(index), 2);
  expect_sound(picture);
  ASSERT_FALSE(picture.levels.empty());
  size_t rows = 0;
  for (const auto& track : picture.levels[0].tracks) rows += track.size();
  EXPECT_EQ(slices_in(picture.levels[0]), rows);
}

TEST(TracePicture, SlicesThatCrossLieBelowEachOther) {
  Trace trace;
  trace.categories = {"cpu_op"};
  trace.tracks.resize(1);
  const StringId name = trace.strings.intern("a");
  trace.push_back(0, 100, name, 0, EventKind::kOp, 0);
  trace.push_back(50, 100, name, 0, EventKind::kOp, 0);  // begins in the first, ends after it
  trace.push_back(120, 100, name, 0, EventKind::kOp, 0);
  trace.push_back(400, 0, name, 0, EventKind::kOp, 0);
  const TraceIndex index(trace);
  const TracePicture picture = draw(index, summarize(index), 100);
  expect_sound(picture);
  EXPECT_EQ(slices_in(picture.levels[0]), 4u);
  EXPECT_EQ(picture.levels[0].tracks[0].size(), 3u);
}

TEST(TracePicture, AnEmptyTraceHasNoLevels) {
  Trace trace;
  const TraceIndex index(trace);
  const TracePicture picture = draw(index, summarize(index), 100);
  EXPECT_TRUE(picture.levels.empty());
  EXPECT_EQ(picture.length, 0);
}

TEST(TracePicture, CollectivesPutRanksOnOneClock) {
  // Each rank enters a collective at its own time; all leave together. Rank 1's clock is 5 s ahead.
  std::vector<TraceSummary> traces(2);
  std::vector<TracePicture> pictures(2);
  std::mt19937 random(4);
  for (int i = 0; i < 50; ++i) {
    const int64_t end = int64_t{1'000'000} * (i + 1);
    traces[0].collectives.push_back({end - static_cast<int64_t>(random() % 900'000), end, "sum"});
    traces[1].collectives.push_back({5'000'000'000 + end - static_cast<int64_t>(random() % 900'000),
                                     5'000'000'000 + end + static_cast<int64_t>(random() % 2'000),
                                     "sum"});
  }
  pictures[0].begin = 200'000;
  pictures[1].begin = 5'000'500'000;
  align(pictures, traces);
  EXPECT_EQ(pictures[0].offset, 0);
  EXPECT_NEAR(static_cast<double>(pictures[1].offset), 300'000, 2'000);
  // Without them Unix time tells, and without that nothing does.
  traces[1].collectives.clear();
  traces[0].epoch_times = traces[1].epoch_times = true;
  align(pictures, traces);
  EXPECT_EQ(pictures[1].offset, 5'000'300'000);
}

}  // namespace
}  // namespace flatout::timeline
