// The words that text, JSON and page of a trace share. Nothing here is escaped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/trace_summary.h"

namespace flatout::report {

/// "1.2 ms"
std::string time_text(int64_t ns);
/// "12 %" of a whole; "-" where that is nothing.
std::string share_text(int64_t part, int64_t whole);
/// "communication": as people read it.
std::string_view label(model::PathPart part);
/// "communication": as scripts do.
std::string_view key_of(model::PathPart part);
/// "without communication", "without kernel gemm_128x64"
std::string what_if_text(const model::CriticalPath::WhatIf& what_if);
/// Mean of the steps' lengths in ns; 0 without steps.
int64_t mean_step(const model::TraceSummary& trace);
/// What was not recorded, a sentence; empty: nothing is known to be missing.
std::string unrecorded_text(const model::TraceSummary& trace);

}  // namespace flatout::report
