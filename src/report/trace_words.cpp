#include "report/trace_words.h"

#include <fmt/format.h>

#include "base/text.h"

namespace flatout::report {

using namespace model;  // NOLINT: the nouns of the whole room

std::string time_text(int64_t ns) { return format_duration(Nanos(ns)); }

std::string share_text(int64_t part, int64_t whole) {
  return whole > 0 ? format_percent(static_cast<double>(part) / static_cast<double>(whole)) : "-";
}

std::string_view label(PathPart part) {
  switch (part) {
    case PathPart::kInput:
      return "input wait";
    case PathPart::kHost:
      return "the host's work";
    case PathPart::kDelay:
      return "delays";
    case PathPart::kCompute:
      return "compute";
    case PathPart::kCommunication:
      return "communication";
    case PathPart::kCopies:
      return "copies";
    case PathPart::kUnknown:
      break;
  }
  return "unknown";
}

std::string_view key_of(PathPart part) {
  switch (part) {
    case PathPart::kInput:
      return "input_wait";
    case PathPart::kHost:
      return "host";
    case PathPart::kDelay:
      return "delay";
    case PathPart::kCompute:
      return "compute";
    case PathPart::kCommunication:
      return "communication";
    case PathPart::kCopies:
      return "copies";
    case PathPart::kUnknown:
      break;
  }
  return "unknown";
}

std::string what_if_text(const CriticalPath::WhatIf& what_if) {
  return what_if.name.empty() ? fmt::format("without {}", label(what_if.part))
                              : fmt::format("without kernel {}", what_if.name);
}

int64_t mean_step(const TraceSummary& trace) {
  if (trace.steps.empty()) return 0;
  int64_t sum = 0;
  for (const TraceStepSummary& s : trace.steps) sum += s.wall;
  return sum / static_cast<int64_t>(trace.steps.size());
}

std::string unrecorded_text(const TraceSummary& trace) {
  if (!trace.incomplete()) return "";
  return fmt::format(
      "{} of {} launches left nothing on a device: what looks idle may be work that was not "
      "recorded",
      trace.unrecorded_launches, trace.launches);
}

}  // namespace flatout::report
