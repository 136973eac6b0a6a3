// The failures that `flatout explain` knows: tables (log_tables.h), and how their patterns are
// read.
#pragma once

#include <string_view>
#include <vector>

#include "model/finding.h"

namespace flatout::advise {

enum class Role {
  kCause,    // explains the failure by itself
  kGeneric,  // explains it unless something more specific is there ("Killed", "cuBLAS failed")
  kSymptom,  // follows from another process's failure: the first one in the log is the cause
  kNotice,   // does not end a job by itself, and is told only where nothing else is there
};

/// What of this machine bears on a failure.
enum class Look {
  kNothing,
  kGpuMemory,
  kDriver,
  kHostMemory,
  kShm,
  kOpenFiles,
  kProcesses,
  kLockedMemory,
  kCpu,
};

struct LogRule {
  std::string_view kind;
  std::string_view finding;  // an id of docs/findings, or empty
  Role role = Role::kCause;
  double sure = 0;  // how often this is the cause where such a line is in a log
  // The line is of the kernel, a shell, a scheduler or a launcher, and tells of a process's end.
  bool death = false;
  // Frameworks only warn of it, and fail later by another name: counts in a warning, too.
  bool warned = false;
  // Programs try it and go on another way: what then fails counts, not this.
  bool tried = false;
  Look look = Look::kNothing;
  // The kind of a cause whose mere mention anywhere in the log, or a line of the same episode, says
  // that it is behind this one.
  std::string_view confirmed_by = {};
  // Any of these on one line; '*' stands for anything within the line, '\n' at either end for the
  // line's begin or end.
  std::vector<std::string_view> patterns;
  // None of these on that line.
  std::vector<std::string_view> unless;
  std::string_view text;
  std::vector<model::Suggestion> advice;
};

/// All of them; of two that match the same line the earlier one counts.
const std::vector<LogRule>& log_rules();

/// Whether `line` holds the parts of `pattern` between its '*' in this order.
bool matches(std::string_view pattern, std::string_view line);

/// The longest part of a pattern: what the scanner looks for.
std::string_view longest_part(std::string_view pattern);

}  // namespace flatout::advise
