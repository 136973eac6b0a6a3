// Reads a log of any length once, front to back, and keeps what an explanation needs: the first
// line that each rule matches, the exceptions that no rule knows, and what else looks like an
// error. Memory does not grow with the log.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "advise/literal_scanner.h"
#include "advise/log_rules.h"
#include "base/result.h"
#include "model/advice.h"

namespace flatout::advise {

/// A line that a rule matched.
struct LogEvent {
  const LogRule* rule = nullptr;
  model::SeenLine line;
};

/// Errors that stand together: between two episodes a job wrote many lines without one, so it got
/// over the earlier.
struct Episode {
  std::vector<LogEvent> events;  // the first of each rule, in the log's order
  std::vector<model::SeenLine>
      unknown;  // exceptions that no rule knows; the first few and the last
  uint64_t last_line = 0;
};

struct LogReading {
  std::deque<Episode> episodes;
  std::vector<LogEvent> notices;          // the first of each rule that ends no job
  std::vector<model::SeenLine> suspects;  // look like an error; the first two and the last two
  std::optional<uint64_t> batch_size;     // that the log names
  uint64_t lines = 0, bytes = 0;
};

class LogReader {
 public:
  /// Whole lines; only the last piece of a log may lack its line feed.
  void feed(std::string_view lines);
  /// Call once, at the end.
  LogReading finish();

 private:
  struct Pending {
    model::SeenLine line;
    bool set = false;
  };

  void on_literal(uint32_t literal, std::string_view block, size_t end);
  void on_rules(uint32_t literal, std::string_view line);
  void read_tracebacks(std::string_view block, size_t until);
  void read_traceback_line(std::string_view line, uint64_t number);
  void note(const LogRule& rule, std::string_view line);
  void note_unknown(const model::SeenLine& line);
  void note_suspect(std::string_view line);
  void note_batch_size(std::string_view line);
  void settle_pending();
  Episode& episode_at(uint64_t line);
  void count_lines(std::string_view block, size_t until);

  std::vector<LiteralScanner::Hit> hits_;

  LogReading out_;
  uint64_t line_ = 1;   // of counted_
  size_t counted_ = 0;  // in the block
  // An open traceback: its lines are indented behind the prefix that its first line has.
  bool in_traceback_ = false;
  std::string prefix_;
  size_t traceback_at_ = 0;  // next line of it, in the block
  uint64_t traceback_line_ = 0;
  int strange_lines_ = 0;
  // The last exception, until it is clear that no rule matches it or the lines behind it.
  Pending pending_;
  // An exception in whose handling another one came up.
  Pending chain_;
  bool chain_is_cause_ = false;
};

/// Reads a file, or standard input where `path` is empty or "-". Errors: kNotFound, kDenied, kIo.
Result<LogReading> read_log(const std::string& path);

}  // namespace flatout::advise
