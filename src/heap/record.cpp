#include "heap/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/text.h"

namespace flatout::heap {
namespace {

constexpr size_t kMostStacks = 1 << 20;
constexpr size_t kMostMoments = 1024;
constexpr size_t kMostFrames = 1024;
constexpr size_t kMostClosed = 1 << 16;
// Of all stacks at all moments: each has as many, however short its line. The library writes 256.
constexpr size_t kMostReadings = size_t{32} << 20;

uint64_t take_number(std::string_view& line) {
  return parse_number<uint64_t>(next_word(line)).value_or(0);
}

void read_stack(std::string_view line, Record& out) {
  RecordStack s;
  s.live_bytes = take_number(line);
  s.live_count = take_number(line);
  s.total_bytes = take_number(line);
  s.total_count = take_number(line);
  s.peak_bytes = take_number(line);
  s.samples = take_number(line);
  s.sample_bytes = take_number(line);
  if (next_word(line) != ":") return;
  std::string_view word;
  while (!(word = next_word(line)).empty() && word != "@") {
    if (s.at_moment.size() == kMostMoments) return;
    s.at_moment.push_back(parse_number<uint64_t>(word).value_or(0));
  }
  if (word != "@") return;  // cut off
  while (!(word = next_word(line)).empty()) {
    if (s.native.size() + s.python.size() == kMostFrames) break;
    if (word[0] == 'p') {
      s.python.push_back(parse_number<uint32_t>(word.substr(1)).value_or(0));
      continue;
    }
    uint64_t pc = 0;
    std::from_chars(word.data(), word.data() + word.size(), pc, 16);
    s.native.push_back(pc);
  }
  if (out.stacks.size() < kMostStacks) out.stacks.push_back(std::move(s));
}

void read_place(std::string_view line, Record& out) {
  const std::vector<std::string_view> parts = split(line, '\t');
  if (parts.size() != 4) return;
  const auto id = parse_number<uint32_t>(parts[0]);
  if (!id) return;
  out.places[*id] = {to_utf8(parts[2]), to_utf8(parts[3]),
                     parse_number<uint32_t>(parts[1]).value_or(0)};
}

// The lines of `was` are put where they belong in `maps`, by address, unless something else lies
// there now.
std::string with_closed(std::string_view maps, std::vector<std::string_view> was) {
  const auto range = [](std::string_view line) {
    uint64_t begin = 0, end = 0;
    const char* const last = line.data() + line.size();
    const auto got = std::from_chars(line.data(), last, begin, 16);
    if (got.ptr != last && *got.ptr == '-') std::from_chars(got.ptr + 1, last, end, 16);
    return std::pair(begin, end);
  };
  std::sort(was.begin(), was.end(), [&](auto a, auto b) { return range(a) < range(b); });
  std::string out;
  uint64_t placed = 0;  // up to here
  auto next = was.begin();
  const auto place_before = [&](uint64_t begin) {
    for (; next != was.end() && range(*next).first < begin; ++next) {
      const auto [from, to] = range(*next);
      if (from < placed || to > begin) continue;
      out.append(*next) += '\n';
      placed = to;
    }
  };
  std::string_view line;
  while (next_line(maps, line)) {
    const auto [begin, end] = range(line);
    place_before(begin);
    out.append(line) += '\n';
    placed = std::max(placed, end);
  }
  place_before(UINT64_MAX);
  return out;
}

}  // namespace

Result<Record> parse_record(std::string_view text) {
  std::string_view line;
  if (!next_line(text, line) || line != "flatout-heap 1") {
    return Error{Code::kBadInput, "this is no record of a heap",
                 "flatout heap -- COMMAND makes one"};
  }
  Record out;
  std::vector<std::string_view> was;
  while (next_line(text, line)) {
    const std::string_view kind = next_word(line);
    if (kind == "stack") {
      read_stack(line, out);
    } else if (kind == "python") {
      while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
      read_place(line, out);
    } else if (kind == "pid") {
      out.pid = static_cast<int32_t>(take_number(line));
    } else if (kind == "interval") {
      out.interval = take_number(line);
    } else if (kind == "written") {
      out.written_ns = take_number(line);
    } else if (kind == "forked") {
      out.forked_ns = take_number(line);
    } else if (kind == "at-end") {
      out.at_end = true;
    } else if (kind == "objects-apart") {
      out.objects_apart = true;
    } else if (kind == "live") {
      out.live_bytes = take_number(line);
    } else if (kind == "peak") {
      out.peak_bytes = take_number(line);
    } else if (kind == "moments") {
      for (std::string_view word; !(word = next_word(line)).empty();) {
        if (out.moments_ns.size() == kMostMoments) break;
        out.moments_ns.push_back(parse_number<uint64_t>(word).value_or(0));
      }
    } else if (kind == "was") {
      if (was.size() < kMostClosed && !line.empty()) was.push_back(line.substr(1));
    } else if (kind == "maps") {
      out.maps = was.empty() ? std::string(text) : with_closed(text, std::move(was));
      break;
    }
  }
  if (out.stacks.size() * out.moments_ns.size() > kMostReadings) {
    return Error{Code::kBadInput,
                 fmt::format("the record of a heap is damaged: {} stacks at {} moments are more "
                             "than a process writes",
                             out.stacks.size(), out.moments_ns.size()),
                 ""};
  }
  for (RecordStack& s : out.stacks) s.at_moment.resize(out.moments_ns.size());
  return out;
}

}  // namespace flatout::heap
