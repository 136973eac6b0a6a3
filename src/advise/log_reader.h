// Reads a log of any length once, front to back, and keeps what an explanation needs: the first
// line that each rule matches, the exceptions that no rule knows, and what else looks like an
// error. Memory does not grow with the log.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "advise/literal_scanner.h"
#include "advise/log_line.h"
#include "advise/log_rules.h"
#include "base/result.h"
#include "model/advice.h"

namespace flatout::advise {

/// How much a line says about the end of the job.
enum class Weight {
  kMentioned,  // as a warning or less, or as something that was got over
  kSaid,       // as an error or without a level, or by an exception that was caught and logged
  kEnded,      // an exception that nothing caught, or the death of a process
};

/// A line that a rule matched.
struct LogEvent {
  const LogRule* rule = nullptr;
  model::SeenLine line;
  Weight weight = Weight::kSaid;
};

/// An exception that no rule knows.
struct UnknownException {
  model::SeenLine line;
  Weight weight = Weight::kEnded;
};

/// Errors that stand together: before the next episode the job wrote many lines without one, or
/// went on with its training.
struct Episode {
  std::vector<LogEvent> events;  // the first of each rule with its greatest weight, in order
  std::vector<UnknownException> unknown;  // the first few and the last
  uint64_t last_line = 0;
  bool anew = false;  // the job trained on for long before it: what was before did not end it
};

/// PyTorch's message of one line, with the lines behind it, over which it may be wrapped.
struct LongMessage {
  uint64_t line = 0;
  std::string text;
};

struct LogReading {
  std::deque<Episode> episodes;
  std::vector<LogEvent> notices;          // the first of each rule that ends no job
  std::vector<LogEvent> mentions;         // the first of each rule that was only mentioned
  std::vector<model::SeenLine> suspects;  // look like an error; the first two and the last two
  bool went_on = false;                   // with its training, after all of these
  bool ended_well = false;                // after all of these, as the log says
  bool cut_off = false;                   // in the middle of its last line
  std::optional<uint64_t> batch_size;     // that the log names
  std::optional<uint64_t> memory_limit;   // of the control group that ran out, as the kernel says
  std::optional<uint64_t> killed_bytes;   // resident memory of what the kernel killed
  // Of the device, as XLA says where cuDNN could not start.
  std::optional<uint64_t> device_free, device_total;
  uint64_t lines = 0, bytes = 0;
  bool no_text = false;              // its beginning is no log's
  std::string head;                  // its first few bytes
  std::deque<LongMessage> messages;  // of some of the events
  bool expandable_segments = false;  // PyTorch's are set, as an echoed command shows

  std::string_view message_of(const LogEvent& event) const;
};

class LogReader {
 public:
  /// Whole lines; only the last piece of a log may lack its line feed.
  void feed(std::string_view lines);
  /// What was read so far is no log's text.
  bool is_no_text() const { return out_.no_text; }
  /// Call once, at the end.
  LogReading finish();

 private:
  // The last exception that was read, and whether a rule knows it or the lines behind it.
  struct Exception {
    model::SeenLine line;
    Weight weight = Weight::kEnded;
    uint64_t reach = 0;  // lines of its message in which a rule may know it
    bool open = false;   // no rule does so far
    const LogRule* known = nullptr;
  };

  void on_literal(uint32_t literal, std::string_view block, size_t end);
  void on_rules(uint32_t literal, std::string_view line, std::string_view block, size_t from);
  void begin_traceback(std::string_view line, std::string_view block, size_t from, size_t to);
  void read_tracebacks(std::string_view block, size_t until);
  void read_traceback_line(std::string_view line, uint64_t number);
  void begin_chain(bool direct_cause);
  std::optional<Weight> weight_of(const LogRule& rule, std::string_view line, size_t at) const;
  bool is_harmless(std::string_view line, size_t at) const;
  void note(const LogRule& rule, std::string_view line, Weight weight);
  void note_unknown(const UnknownException& unknown);
  void note_suspect(std::string_view line);
  void note_last_line();
  void note_batch_size(std::string_view after);
  void note_device_memory(std::string_view after);
  void on_host_node();
  void on_scheduled();
  void settle();
  void on_sign(std::string_view block, size_t from);
  Progress progress_since_sign(std::string_view block, size_t from, Progress enough) const;
  bool in_message() const {
    return exception_.reach > 0 && line_ <= exception_.line.number + exception_.reach;
  }
  void begin_message(std::string_view block, size_t from);
  void go_on_with_message(std::string_view block);
  Episode& episode_at(uint64_t line);
  void count_lines(std::string_view block, size_t until);
  void look_for_text(std::string_view block);

  std::vector<LiteralScanner::Hit> hits_;
  struct LookedAt {
    uint64_t line = 0;
    uint32_t times = 0;
  };
  std::vector<LookedAt> looked_at_;  // by literal

  LogReading out_;
  uint64_t control_ = 0;       // bytes that no text has, in the first of the log
  uint64_t line_ = 1;          // of counted_
  size_t counted_ = 0;         // in the block
  bool message_open_ = false;  // the last one of out_.messages may go on in the next block
  std::string before_;         // the end of what was read before the block
  uint64_t sign_ = 0;          // the last line that looks like an error
  bool trained_ = false;       // training went on since the last episode,
  bool trained_long_ = false;  // longer than other ranks do when one fails
  // An open traceback: its lines are indented behind the prefix that its first line has.
  bool in_traceback_ = false;
  Weight traceback_weight_ = Weight::kEnded;
  std::string prefix_;
  size_t traceback_at_ = 0;  // next line of it, in the block
  uint64_t traceback_line_ = 0;
  uint64_t pinned_line_ = 0;  // the last that shows pin_memory
  uint64_t frame_line_ = 0;   // the last that shows a place in the program, or its source
  int strange_lines_ = 0;
  Exception exception_;
  // One in whose handling another came up.
  Exception chain_;
  bool chain_is_cause_ = false;
  bool chain_is_known_ = false;
  bool linked_ = false;  // the next traceback belongs to the chain
};

/// Up to `size` bytes to `to`; 0 at the end.
using ReadBytes = std::function<Result<size_t>(char* to, size_t size)>;
/// Of what is in memory.
ReadBytes bytes_of(std::string_view text);

/// Gives a log in pieces of whole lines, but for lines longer than any that people read, until
/// `take` returns false. Whether the last line lacked its end, which `take` gets. Errors: those of
/// `read`.
Result<bool> for_each_piece(const ReadBytes& read,
                            const std::function<bool(std::string_view)>& take);

/// Reads a log that is in memory.
LogReading read_text(std::string_view log);

/// Reads a file, or standard input where `path` is empty or "-". Errors: kNotFound, kDenied, kIo,
/// kBadInput (compressed).
Result<LogReading> read_log(const std::string& path);

}  // namespace flatout::advise
