#include "advise/explain_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "advise/explain.h"
#include "base/text.h"

namespace flatout::advise {
namespace {

constexpr size_t kBefore = 64 << 10;  // bytes of a traceback before the line that counts
constexpr size_t kBehind = 16 << 10;
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

// Where something else ended the job: the memory that ran out before it, if any.
const LogEvent* last_of_memory(const LogReading& log) {
  for (auto episode = log.episodes.rbegin(); episode != log.episodes.rend(); ++episode) {
    for (const LogEvent& event : episode->events)
      if (is_memory(*event.rule) && event.rule->role != Role::kSymptom) return &event;
  }
  return nullptr;
}

// Where line `number` begins, from 1.
size_t begin_of_line(std::string_view log, uint64_t number) {
  size_t at = 0;
  for (; number > 1; --number) {
    const size_t feed = log.find('\n', at);
    if (feed == log.npos) break;
    at = feed + 1;
  }
  return at;
}

// What the room devmem says of the error at a line, with its traceback.
devmem::Explanation explain_line(std::string_view log, uint64_t number, bool is_expanding) {
  const size_t at = begin_of_line(log, number);
  const std::string_view before = log.substr(at - std::min(at, kBefore), std::min(at, kBefore));
  const size_t traceback = before.rfind(kTraceback);
  const size_t from = traceback == before.npos
                          ? at
                          : at - before.size() + before.substr(0, traceback).find_last_of('\n') + 1;
  return devmem::explain_error(log.substr(from, at - from + kBehind), at - from, is_expanding);
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

bool is_mentioned(const LogReading& log) {
  return std::any_of(log.mentions.begin(), log.mentions.end(),
                     [](const LogEvent& event) { return is_memory(*event.rule); });
}

}  // namespace

devmem::Explanation explain_memory(std::string_view text) {
  const LogReading log = read_text(text);
  const model::Explanation answer = explain(log, {});
  if (log.bytes == 0 || log.no_text) {
    devmem::Explanation out = as_memory(answer, Look::kGpuMemory);
    out.kind = "unknown";
    return out;
  }
  const LogEvent* event = event_of(log, answer);
  if (event == nullptr && answer.kind != "none") event = last_of_memory(log);
  if (event != nullptr) {
    devmem::Explanation out = explain_line(text, event->line.number, log.expandable_segments);
    const bool of_device = event->rule->look == Look::kGpuMemory;
    if (out.kind != "unknown" && (of_device || !out.finding.starts_with("gpu."))) return out;
    return as_memory(event_of(log, answer) ? answer : explain_event(log, *event),
                     event->rule->look);
  }
  // What the rules of `explain` do not know, unless the job only told of it and went on.
  const std::string none = "Nothing in it says that memory ran out.";
  if (answer.kind == "none" && (is_mentioned(log) || last_of_memory(log) != nullptr))
    return nothing(none + " It is told on the way, and the job went on.");
  if (!is_mentioned(log)) {
    devmem::Explanation out = devmem::explain_text(text);
    // PyTorch's message it knows: if it passed one over, the job did so, too.
    if (out.kind != "unknown" && !out.kind.starts_with("torch_")) return out;
  }
  return nothing(answer.kind == "none" ? none
                                       : none + " What failed is told by `flatout explain`.");
}

}  // namespace flatout::advise
