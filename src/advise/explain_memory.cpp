#include "advise/explain_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "advise/explain.h"
#include "base/text.h"

namespace flatout::advise {
namespace {

constexpr size_t kBlock = 1 << 20;    // bytes that are looked at, at one time
constexpr size_t kBefore = 64 << 10;  // bytes of a traceback before the line that counts
constexpr size_t kBehind = 16 << 10;
constexpr uint64_t kContinuing = 8;  // lines of a message behind its first (devmem/error_blocks.h)
constexpr std::string_view kTraceback = "Traceback (most recent call last)";

bool is_memory(const LogRule& rule) {
  return rule.look == Look::kGpuMemory || rule.look == Look::kHostMemory ||
         rule.look == Look::kShm || rule.look == Look::kLockedMemory;
}

// The event that `answer` rests on; nullptr where it is of another kind.
const LogEvent* event_of(const LogReading& log, const model::Explanation& answer) {
  for (const Episode& episode : log.episodes) {
    for (const LogEvent& event : episode.events) {
      if (!answer.seen.empty() && event.line.number == answer.seen[0].number &&
          is_memory(*event.rule))
        return &event;
    }
  }
  return nullptr;
}

// Where something else ended the job: the memory that ran out shortly before it, if any. What may
// only follow from the other failure does not count.
const LogEvent* last_of_memory(const LogReading& log) {
  for (auto episode = log.episodes.rbegin(); episode != log.episodes.rend(); ++episode) {
    for (const LogEvent& event : episode->events)
      if (is_memory(*event.rule) && event.rule->role == Role::kCause) return &event;
    if (episode->anew) break;
  }
  return nullptr;
}

// The first line behind what the job got over.
uint64_t begin_of_the_last(const LogReading& log) {
  for (size_t i = log.episodes.size(); i-- > 1;)
    if (log.episodes[i].anew) return log.episodes[i - 1].last_line + kContinuing + 1;
  return 1;
}

Result<LogReading> read_log(const OpenLog& open) {
  LogReader reader;
  FLATOUT_TRY(const ReadBytes read, open());
  FLATOUT_TRY(const bool cut_off, for_each_piece(read, [&](std::string_view piece) {
                reader.feed(piece);
                return !reader.is_no_text();  // it may have no end
              }));
  LogReading out = reader.finish();
  out.cut_off = cut_off;
  return out;
}

// What stands around line `number`, from 1, and where that begins in it.
struct Place {
  std::string text;
  size_t at = 0;
};
Result<Place> place_of_line(const OpenLog& open, uint64_t number) {
  Place place;
  bool is_found = false;
  uint64_t line = 1;
  FLATOUT_TRY(const ReadBytes read, open());
  const Result<bool> done = for_each_piece(read, [&](std::string_view piece) {
    if (!is_found) {
      const auto feeds = static_cast<uint64_t>(std::count(piece.begin(), piece.end(), '\n'));
      size_t begin = piece.size();
      if (line + feeds > number || line == number) {
        for (begin = 0; line < number; ++line) begin = piece.find('\n', begin) + 1;
        is_found = true;
      } else {
        line += feeds;
      }
      place.text += piece.substr(0, begin);
      place.text.erase(0, place.text.size() - std::min(place.text.size(), kBefore));
      place.at = place.text.size();
      piece.remove_prefix(begin);
    }
    place.text += piece.substr(0, place.at + kBehind - place.text.size());
    return place.text.size() < place.at + kBehind;
  });
  if (!done.ok()) return done.error();
  return place;
}

// What the room devmem says of the error at a line, with its traceback.
Result<devmem::Explanation> explain_line(const OpenLog& open, uint64_t number, bool is_expanding) {
  FLATOUT_TRY(const Place place, place_of_line(open, number));
  const std::string_view text = place.text;
  const size_t traceback = text.substr(0, place.at).rfind(kTraceback);
  const size_t from =
      traceback == text.npos ? place.at : text.substr(0, traceback).find_last_of('\n') + 1;
  return devmem::explain_error(text.substr(from), place.at - from, is_expanding);
}

// The last that the room devmem knows from line `number` on.
Result<devmem::Explanation> explain_from(const OpenLog& open, uint64_t number) {
  devmem::Explanation last = devmem::explain_text({});
  std::string text;
  uint64_t line = 1;
  const auto look = [&](size_t keep) {
    devmem::Explanation here = devmem::explain_text(text);
    // What did not fail tells only where nothing did.
    if (here.kind != "unknown" && (here.kind != "tf_not_a_failure" || last.kind == "unknown"))
      last = std::move(here);
    text.erase(0, text.size() - std::min(text.size(), keep));
  };
  FLATOUT_TRY(const ReadBytes read, open());
  const Result<bool> done = for_each_piece(read, [&](std::string_view piece) {
    for (; line < number && !piece.empty(); ++line)
      piece.remove_prefix(std::min(piece.find('\n'), piece.size() - 1) + 1);
    text += piece;
    if (text.size() > kBlock) look(kBehind);
    return true;
  });
  if (!done.ok()) return done.error();
  look(0);
  return last;
}

devmem::Explanation as_memory(const model::Explanation& answer, Look look) {
  devmem::Explanation out;
  out.kind = answer.kind;
  out.finding = answer.finding;
  out.sure = answer.sure;
  out.text = look == Look::kGpuMemory
                 ? answer.text
                 : "This is about the host's memory, not the card's. " + answer.text;
  for (const model::Holder& holder : answer.holders)
    out.holders.push_back({holder.what, holder.bytes.value_or(0)});
  for (const model::Suggestion& advice : answer.advice)
    out.advice.push_back({advice.text, "", advice.id});
  return out;
}

devmem::Explanation nothing(std::string text) {
  devmem::Explanation out;
  out.kind = "unknown";
  out.text = std::move(text);
  return out;
}

bool has_memory(const LogReading& log) {
  return std::any_of(log.episodes.begin(), log.episodes.end(), [](const Episode& episode) {
    return std::any_of(episode.events.begin(), episode.events.end(),
                       [](const LogEvent& event) { return is_memory(*event.rule); });
  });
}

bool is_mentioned(const LogReading& log) {
  return std::any_of(log.mentions.begin(), log.mentions.end(),
                     [](const LogEvent& event) { return is_memory(*event.rule); });
}

}  // namespace

Result<devmem::Explanation> explain_memory(const OpenLog& open) {
  FLATOUT_TRY(const LogReading log, read_log(open));
  const model::Explanation answer = explain(log, {});
  if (log.bytes == 0 || log.no_text) {
    devmem::Explanation out = as_memory(answer, Look::kGpuMemory);
    out.kind = "unknown";
    return out;
  }
  const LogEvent* event = event_of(log, answer);
  if (event == nullptr && answer.kind != "none") event = last_of_memory(log);
  if (event != nullptr) {
    FLATOUT_TRY(devmem::Explanation out,
                explain_line(open, event->line.number, log.expandable_segments));
    const bool of_device = event->rule->look == Look::kGpuMemory;
    // Other lines of the log may say what is behind it.
    const bool is_explained = event_of(log, answer) && answer.finding != out.finding;
    if (!is_explained && out.kind != "unknown" && (of_device || !out.finding.starts_with("gpu.")))
      return out;
    return as_memory(event_of(log, answer) ? answer : explain_event(log, *event),
                     event->rule->look);
  }
  // What the rules of `explain` do not know, unless the job only told of it and went on.
  const std::string none = "Nothing in it says that memory ran out.";
  const bool was_seen = is_mentioned(log) || has_memory(log);
  if (answer.kind == "none" && was_seen)
    return nothing(none + " It is told on the way, and the job went on.");
  const bool got_over = answer.kind == "none" && !log.episodes.empty();
  if (!was_seen && !got_over && (answer.kind == "none" || answer.kind == "unknown")) {
    FLATOUT_TRY(devmem::Explanation out, explain_from(open, begin_of_the_last(log)));
    // PyTorch's message it knows: if it passed one over, the job did so, too.
    if (out.kind != "unknown" && !out.kind.starts_with("torch_")) return out;
  }
  // Of another failure it may be known that it only looks like the card's memory.
  if (answer.kind != "none" && answer.kind != "unknown" && !answer.seen.empty()) {
    FLATOUT_TRY(devmem::Explanation out,
                explain_line(open, answer.seen[0].number, log.expandable_segments));
    if (out.kind != "unknown" && out.finding == answer.finding) return out;
  }
  return nothing(answer.kind == "none" ? none
                                       : none + " What failed is told by `flatout explain`.");
}

devmem::Explanation explain_memory(std::string_view log) {
  const auto open = [log]() -> Result<ReadBytes> { return bytes_of(log); };
  return *explain_memory(open);  // memory is always read
}

}  // namespace flatout::advise
