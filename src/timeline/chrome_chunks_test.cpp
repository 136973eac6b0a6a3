// Several threads read what one thread reads, row by row.
#include "timeline/chrome_chunks.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "timeline/import_trace.h"

namespace flatout::timeline {
namespace {

namespace fs = std::filesystem;
using model::EventId;
using model::Trace;

Trace one_thread(std::string_view text, const TraceOptions& options = {}) {
  auto trace = import_trace_bytes(text, "t", options);
  EXPECT_TRUE(trace.ok());
  return trace.ok() ? std::move(*trace) : Trace{};
}

void expect_equal(const Trace& a, const Trace& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const auto e = static_cast<EventId>(i);
    ASSERT_EQ(a.start[i], b.start[i]) << i;
    ASSERT_EQ(a.duration[i], b.duration[i]) << i;
    ASSERT_EQ(a.args[i], b.args[i]) << i;
    ASSERT_EQ(a.name_of(e), b.name_of(e)) << i;
    ASSERT_EQ(a.kind[i], b.kind[i]) << i;
    ASSERT_EQ(a.correlation[i], b.correlation[i]) << i;
    ASSERT_EQ(a.categories[a.category[i]], b.categories[b.category[i]]) << i;
    ASSERT_EQ(a.track[i], b.track[i]) << i;
  }
  ASSERT_EQ(a.tracks.size(), b.tracks.size());
  for (size_t i = 0; i < a.tracks.size(); ++i) {
    EXPECT_EQ(a.tracks[i].pid, b.tracks[i].pid);
    EXPECT_EQ(a.tracks[i].tid, b.tracks[i].tid);
    EXPECT_EQ(a.tracks[i].process, b.tracks[i].process);
    EXPECT_EQ(a.tracks[i].thread, b.tracks[i].thread);
    EXPECT_EQ(a.tracks[i].device, b.tracks[i].device);
    EXPECT_EQ(a.tracks[i].stream, b.tracks[i].stream);
  }
  ASSERT_EQ(a.copies.size(), b.copies.size());
  for (size_t i = 0; i < a.copies.size(); ++i) EXPECT_EQ(a.copies[i].event, b.copies[i].event);
  ASSERT_EQ(a.collectives.size(), b.collectives.size());
  for (size_t i = 0; i < a.collectives.size(); ++i) {
    EXPECT_EQ(a.collectives[i].event, b.collectives[i].event);
    EXPECT_EQ(a.strings[a.collectives[i].name], b.strings[b.collectives[i].name]);
    EXPECT_EQ(a.strings[a.collectives[i].group], b.strings[b.collectives[i].group]);
  }
  EXPECT_EQ(a.bytes_read, b.bytes_read);
  EXPECT_EQ(a.events_seen, b.events_seen);
  EXPECT_EQ(a.phases, b.phases);
  EXPECT_EQ(a.slices_by_category, b.slices_by_category);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.world_size, b.world_size);
  EXPECT_EQ(a.base_time_ns, b.base_time_ns);
  EXPECT_EQ(a.device_names, b.device_names);
  EXPECT_EQ(a.epoch_times, b.epoch_times);
  EXPECT_EQ(a.damage.cut_off, b.damage.cut_off);
  EXPECT_EQ(a.damage.bad_numbers, b.damage.bad_numbers);
  EXPECT_EQ(a.damage.dropped, b.damage.dropped);
}

// By threads that are handed the text, and by threads that read a file by themselves.
// Where cuts are easy to find, both ways find them.
enum class Borders : uint8_t { kClear, kHidden };

std::optional<Trace> pieces(std::string_view text, size_t chunk, const TraceOptions& options = {},
                            Borders borders = Borders::kClear) {
  const auto trace_of = [](Result<std::optional<ChunkedImport>> all) {
    EXPECT_TRUE(all.ok());
    if (!all.ok() || !*all) return std::optional<Trace>();
    return std::optional<Trace>((*all)->builder.finish((*all)->report));
  };
  const auto source = memory_source(text);
  auto handed = trace_of(import_chunks(*source, options, 3, chunk));
  const int file = ::memfd_create("trace", MFD_CLOEXEC);
  EXPECT_EQ(::write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  const auto read = trace_of(
      import_file_chunks("/proc/self/fd/" + std::to_string(file), text.size(), options, 3, chunk));
  ::close(file);
  if (read) expect_equal(*read, one_thread(text, options));
  if (borders == Borders::kClear) EXPECT_EQ(read.has_value(), handed.has_value());
  return handed;
}

std::string unpacked(const fs::path& file) {
  auto source = open_source(file.string());
  EXPECT_TRUE(source.ok());
  auto text = read_all(**source, size_t{1} << 30);
  EXPECT_TRUE(text.ok());
  return text.ok() ? std::move(*text) : std::string();
}

TEST(ChromeChunks, OurOwnTracesComeOutTheSame) {
  const fs::path folder = fs::path(FLATOUT_TEST_DATA) / "traces";
  for (const char* file :
       {"torch_cpu/torch_cpu_input_bound.json.gz", "torch_cpu/torch_cpu_python_bound.json.gz",
        "tensorflow/tf1_timeline_feed.json.gz", "tensorflow/tf2_keras_slow_input.trace.json.gz"}) {
    SCOPED_TRACE(file);
    const std::string text = unpacked(folder / file);
    const Trace whole = one_thread(text);
    for (const size_t chunk : {size_t{8192}, size_t{50'000}, text.size() * 2}) {
      const auto joined = pieces(text, chunk);
      ASSERT_TRUE(joined) << chunk;
      expect_equal(*joined, whole);
    }
  }
}

TEST(ChromeChunks, ThirdPartiesTracesComeOutTheSame) {
  const char* const folder = std::getenv("FLATOUT_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "FLATOUT_TRACES names no folder with traces";
  size_t in_pieces = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".json.gz") || entry.file_size() > 900'000) continue;
    const std::string text = unpacked(entry.path());
    const auto whole = import_trace_bytes(text);
    if (!whole.ok()) continue;
    SCOPED_TRACE(entry.path().string());
    const auto joined = pieces(text, 300'000);
    if (!joined) continue;  // a bare list, or damaged
    expect_equal(*joined, *whole);
    ++in_pieces;
  }
  EXPECT_GT(in_pieces, 20u);
}

std::string made(int events, std::string_view extra = "") {
  std::string text = "{\"distributedInfo\": {\"rank\": 3, \"world_size\": 8}, \"traceEvents\": [";
  for (int i = 0; i < events; ++i) {
    text += (i > 0 ? ",\n" : "\n") + std::string("{\"ph\": \"X\", \"cat\": \"") +
            (i % 3 == 0 ? "kernel" : "cpu_op") + "\", \"name\": \"n" + std::to_string(i % 17) +
            " }, {\\\"ph\\\": \", \"pid\": 1, \"tid\": " + std::to_string(i % 5) +
            ", \"ts\": " + std::to_string(i) + ", \"dur\": " + std::to_string(i % 90) +
            ", \"args\": {\"list\": [{\"name\": 1}, {\"name\": 2}], \"stream\": 7, \"device\": 0, "
            "\"correlation\": " +
            std::to_string(8589934592LL + i % 40) + "}}";
  }
  text += extra;
  return text + "\n], \"baseTimeNanoseconds\": 5}";
}

// Names and arguments that look like the border between two events: either the cut is right, or it
// is seen to be wrong.
TEST(ChromeChunks, WhatLooksLikeABorderIsNoneOrIsNotTakenForOne) {
  const std::string text = made(3000);
  const Trace whole = one_thread(text);
  size_t joined = 0;
  for (size_t chunk = 3000; chunk < 6000; chunk += 37) {
    const auto trace = pieces(text, chunk, {}, Borders::kHidden);
    if (!trace) continue;
    expect_equal(*trace, whole);
    ++joined;
  }
  EXPECT_GT(joined, 10u);
}

TEST(ChromeChunks, TheBoundOnHostSlicesIsThatOfTheWhole) {
  TraceOptions options;
  options.host_slices = 500;
  std::string text;
  {
    // Without lists in the arguments, so that every cut is right.
    text = "{\"traceEvents\": [";
    for (int i = 0; i < 3000; ++i) {
      text += (i > 0 ? ",\n" : "\n") +
              std::string(
                  "{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"a\", \"pid\": 1, "
                  "\"tid\": 1, \"ts\": ") +
              std::to_string(i) + ", \"dur\": " + std::to_string(i % 90) + "}";
    }
    text += "]}";
  }
  const auto joined = pieces(text, 10'000, options);
  ASSERT_TRUE(joined);
  expect_equal(*joined, one_thread(text, options));
  EXPECT_GT(joined->damage.dropped, 100u);
}

TEST(ChromeChunks, SlicesThatMayCrossACutAreLeftToOneThread) {
  std::string text = "{\"traceEvents\": [";
  for (int i = 0; i < 2000; ++i) {
    text += (i > 0 ? ",\n" : "\n") + std::string("{\"ph\": \"") + (i % 2 == 0 ? "B" : "E") +
            "\", \"name\": \"a\", \"pid\": 1, \"tid\": 1, \"ts\": " + std::to_string(i) + "}";
  }
  text += "]}";
  EXPECT_FALSE(pieces(text, 10'000).has_value());
}

TEST(ChromeChunks, DamageIsLeftToOneThread) {
  const std::string text = made(3000);
  for (const size_t at : {text.size() / 3, text.size() / 2}) {
    std::string bad = text;
    bad.replace(bad.find("\"ts\": ", at), 6, "\"ts\"} ");
    const auto joined = pieces(bad, 20'000, {}, Borders::kHidden);
    if (joined) expect_equal(*joined, one_thread(bad));
  }
  const std::string cut = text.substr(0, text.size() / 2);
  const auto joined = pieces(cut, 20'000, {}, Borders::kHidden);
  if (joined) expect_equal(*joined, one_thread(cut));
}

}  // namespace
}  // namespace flatout::timeline
