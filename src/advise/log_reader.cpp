#include "advise/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>

#include "base/contains.h"
#include "base/fs.h"
#include "base/text.h"
#include "devmem/error_blocks.h"
#include "devmem/torch_message.h"

namespace flatout::advise {
namespace {

constexpr size_t kBlock = 1 << 20;
constexpr size_t kLineWindow = 8 << 10;  // of a line, to either side of what was found
constexpr size_t kShownLine = 1000;      // bytes
constexpr uint64_t kQuietLines = 200;    // so many without an error: the job got over it
constexpr uint64_t kMessageLines = 8;    // of an exception, in which a rule may know it
constexpr uint64_t kGraphLines = 300;    // of TensorFlow's, that lists the nodes before it says why
constexpr size_t kLookBack = 8 << 10;    // for signs that the training went on
constexpr int kFewBars = 2;              // that tqdm prints while an exception closes it
constexpr uint64_t kOtherRanks = 50;     // lines that other ranks may print before they stop, too
constexpr size_t kLookedAtForText = 64 << 10;  // bytes
constexpr uint64_t kMostControl = 50;          // one such byte in so many is too much for a text
constexpr size_t kMaxEpisodes = 64;
constexpr size_t kMaxMessages = 64;
constexpr size_t kLongMessage = 4 << 10;  // bytes
constexpr size_t kMaxUnknown = 4;         // an episode
constexpr uint64_t kInnermost = 3;  // lines of a place in the program, its source and what marks it
constexpr int kMaxStrangeLines = 60;   // in an interleaved traceback
constexpr uint32_t kMostOnALine = 32;  // times that the same words are looked at

// What a literal means by itself, beside the rules.
enum Structure : uint8_t {
  kNone,
  kTraceback,
  kHandling,
  kDirectCause,
  kSuspect,
  kBatch,
  kGroupLimit,
  kResident,
  kHostNode,
  kScheduled,
  kExpandable,
  kPinned,
  kDeviceMemory,
};

struct Marker {
  std::string_view text;
  Structure structure;
};
constexpr Marker kMarkers[] = {
    {"Traceback (most recent call last)", kTraceback},
    {"During handling of the above exception", kHandling},
    {"The above exception was the direct cause", kDirectCause},
    {"Error: ", kSuspect},
    {"error: ", kSuspect},
    {"ERROR: ", kSuspect},
    {" ERROR ", kSuspect},
    {"[ERROR]", kSuspect},
    {" FATAL ", kSuspect},
    {"FATAL: ", kSuspect},
    {"Fatal Python error", kSuspect},
    {"Fatal error", kSuspect},
    {"fatal: ", kSuspect},
    {"terminate called", kSuspect},
    {"what():  ", kSuspect},
    {"Aborted", kSuspect},
    {"core dumped", kSuspect},
    {"Exception: ", kSuspect},
    {"panic: ", kSuspect},
    {"make: *** [", kSuspect},
    {"Error from server", kSuspect},
    {"Error response from daemon", kSuspect},
    {"NVRM: Xid", kSuspect},
    {"batch_size", kBatch},
    {"batch-size", kBatch},
    {"Batch size", kBatch},
    {"batch size", kBatch},
    {"memory: usage ", kGroupLimit},
    {"anon-rss:", kResident},
    {"Successfully assigned ", kScheduled},
    {"/cpu:0\"", kHostNode},
    {"/device:CPU:0\"", kHostNode},
    {"expandable_segments:True", kExpandable},
    {"in pin_memory", kPinned},
    {"pin_memory(", kPinned},
    {"] Memory usage: ", kDeviceMemory},
};

// What to look for, made once from the table of rules.
struct Patterns {
  struct Use {
    const LogRule* rule;
    std::string_view pattern;
  };
  std::vector<std::string> literals;
  std::vector<std::vector<Use>> uses;  // by literal
  std::vector<Structure> structure;    // by literal
  std::map<std::string, uint32_t, std::less<>> known;

  Patterns() {
    for (const LogRule& rule : log_rules()) {
      for (const std::string_view pattern : rule.patterns) {
        std::string part(longest_part(pattern));
        uses[literal_of(part)].push_back({&rule, pattern});
        if (!part.ends_with('\n')) continue;
        part.back() = '\r';  // as a terminal ends lines
        uses[literal_of(part)].push_back({&rule, pattern});
      }
    }
    for (const Marker& marker : kMarkers) structure[literal_of(marker.text)] = marker.structure;
  }

 private:
  uint32_t literal_of(std::string_view text) {
    const auto [it, added] = known.emplace(text, static_cast<uint32_t>(literals.size()));
    if (added) {
      literals.emplace_back(text);
      uses.emplace_back();
      structure.push_back(kNone);
    }
    return it->second;
  }
};

const Patterns& patterns() {
  static const Patterns made;
  return made;
}

const LiteralScanner& scanner() {
  static const LiteralScanner made(patterns().literals);
  return made;
}

// Exceptions that only carry another one, which is printed too.
constexpr std::string_view kCarriers[] = {"ProcessRaisedException",
                                          "ChildFailedError",
                                          "in DataLoader worker process",
                                          "in replica ",
                                          "in pin memory thread",
                                          "RayTaskError",
                                          "TrainingFailedError",
                                          "SystemExit",
                                          "BdbQuit",
                                          "HydraException"};

// Tracebacks of what Python only reports.
constexpr std::string_view kReported[] = {"Exception ignored in", "--- Logging error ---",
                                          "Error in atexit", "was never retrieved"};

bool is_line_end(char c) { return c == '\n' || c == '\r'; }

/// Where the line of `at` begins, and where it ends; kLineWindow away at most.
size_t line_begin(std::string_view block, size_t at) {
  const size_t least = at - std::min(at, kLineWindow);
  size_t begin = least;
  for (const char end : {'\n', '\r'}) {
    const void* const found = ::memrchr(block.data() + begin, end, at - begin);
    if (found != nullptr)
      begin = static_cast<size_t>(static_cast<const char*>(found) - block.data()) + 1;
  }
  return begin;
}
size_t line_end(std::string_view block, size_t at) {
  size_t to = std::min(block.size(), at + kLineWindow);
  for (const char end : {'\n', '\r'}) {
    const void* const found = std::memchr(block.data() + at, end, to - at);
    if (found != nullptr) to = static_cast<size_t>(static_cast<const char*>(found) - block.data());
  }
  return to;
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// What stands before a traceback on each of its lines may hold a time or a counter.
bool same_shape(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return x == y || (is_digit(x) && is_digit(y));
         });
}

// A place in the program, its source, IPython's arrow at it, or the frame that rich draws around.
bool is_frame(std::string_view line) {
  return line.starts_with(' ') || line.starts_with("---") || line.starts_with('\t') ||
         line.starts_with("\u2502") || line.starts_with("\u256d") || line.starts_with("\u2570");
}

std::string shown(std::string_view line) { return std::string(trim(line).substr(0, kShownLine)); }

// "mean squared error: 0.12" and "errors: 0 " are figures.
bool is_figure(std::string_view after) {
  while (after.starts_with(' ')) after.remove_prefix(1);
  return after.empty() ? false : is_digit(after[0]) || after[0] == '-' || after.starts_with("nan");
}

// "16777216kB" at the begin of `text`.
std::optional<uint64_t> kernel_kb(std::string_view text) {
  const size_t unit = text.find("kB");
  if (unit == std::string_view::npos) return std::nullopt;
  const auto kb = parse_number<uint64_t>(text.substr(0, unit));
  if (!kb || *kb > (uint64_t{1} << 50)) return std::nullopt;
  return *kb << 10;
}

const LogRule& rule_of(std::string_view kind) {
  const std::vector<LogRule>& rules = log_rules();
  return *std::find_if(rules.begin(), rules.end(),
                       [&](const LogRule& rule) { return rule.kind == kind; });
}

// The text before `pattern`'s first part, as far as it goes in `line`.
size_t begin_of(std::string_view pattern, std::string_view line) {
  if (pattern.starts_with('\n')) return 0;
  pattern = pattern.substr(0, pattern.find('*'));
  if (pattern.ends_with('\n')) pattern.remove_suffix(1);
  return std::min(line.find(pattern), line.size());
}

}  // namespace

void LogReader::count_lines(std::string_view block, size_t until) {
  if (until <= counted_) return;
  const char* p = block.data() + counted_;
  const char* const end = block.data() + until;
  while ((p = static_cast<const char*>(std::memchr(p, '\n', static_cast<size_t>(end - p))))) {
    ++line_;
    if (++p == end) break;
  }
  counted_ = until;
}

// Terminals' control characters aside, a log has none: NUL, 0x01 and the like are of binary files.
void LogReader::look_for_text(std::string_view block) {
  if (out_.bytes >= kLookedAtForText) return;
  constexpr size_t kHead = 4;
  out_.head += block.substr(0, kHead - std::min(kHead, out_.head.size()));
  const std::string_view begin = block.substr(0, kLookedAtForText - out_.bytes);
  control_ += static_cast<uint64_t>(std::ranges::count_if(begin, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 7 || (byte > 13 && byte < 27) || (byte > 27 && byte < 32);
  }));
  out_.no_text = control_ * kMostControl > out_.bytes + begin.size();
}

void LogReader::feed(std::string_view block) {
  look_for_text(block);
  counted_ = traceback_at_ = 0;
  if (message_open_) go_on_with_message(block);
  scanner().scan(block, hits_);
  for (const LiteralScanner::Hit& hit : hits_) on_literal(hit.literal, block, hit.end);
  read_tracebacks(block, block.size());
  count_lines(block, block.size());
  out_.bytes += block.size();
  before_ += block.substr(block.size() - std::min(block.size(), kLookBack));
  before_.erase(0, before_.size() - std::min(before_.size(), kLookBack));
}

void LogReader::on_literal(uint32_t literal, std::string_view block, size_t end) {
  if (is_line_end(block[end - 1])) --end;
  count_lines(block, end);
  if (looked_at_.empty()) looked_at_.resize(patterns().literals.size());
  LookedAt& looked_at = looked_at_[literal];
  if (looked_at.line != line_) looked_at = {line_, 0};
  if (++looked_at.times > kMostOnALine) return;
  const size_t from = line_begin(block, end), to = line_end(block, end);
  const std::string_view line = block.substr(from, to - from);
  read_tracebacks(block, to < block.size() && block[to] == '\r' ? to + 1 : to);
  if (!in_message()) settle();
  const std::string_view after = block.substr(end, to - end);
  switch (patterns().structure[literal]) {
    case kTraceback:
      begin_traceback(line, block, from, to);
      break;
    case kHandling:
      begin_chain(false);
      break;
    case kDirectCause:
      begin_chain(true);
      break;
    case kSuspect:
      if (!is_figure(after.substr(0, 8)) && !is_harmless(line, end - from)) {
        on_sign(block, from);
        note_suspect(line);
      }
      break;
    case kBatch:
      note_batch_size(after);
      break;
    case kGroupLimit:
      if (const size_t limit = after.find("limit "); limit != std::string_view::npos) {
        out_.memory_limit = kernel_kb(after.substr(limit + 6));
      }
      break;
    case kResident:
      // The kernel's reaper prints it once more when the memory is gone.
      if (const auto bytes = kernel_kb(after); bytes && *bytes > 0) out_.killed_bytes = bytes;
      break;
    case kHostNode:
      if (contains(line, "_device=")) on_host_node();
      break;
    case kScheduled:
      on_scheduled();
      break;
    case kDeviceMemory:
      note_device_memory(after);
      break;
    case kPinned:
      pinned_line_ = line_;
      break;
    case kExpandable:
      out_.expandable_segments |= devmem::sets_expandable_segments(line);
      break;
    default:
      break;
  }
  on_rules(literal, line, block, from);
}

void LogReader::on_rules(uint32_t literal, std::string_view line, std::string_view block,
                         size_t from) {
  for (const Patterns::Use& use : patterns().uses[literal]) {
    const LogRule& rule = *use.rule;
    if (!matches(use.pattern, line)) continue;
    if (std::any_of(rule.unless.begin(), rule.unless.end(),
                    [&](std::string_view pattern) { return matches(pattern, line); })) {
      continue;
    }
    const auto weight = weight_of(rule, line, begin_of(use.pattern, line));
    if (!weight) continue;
    if (*weight != Weight::kMentioned && rule.role != Role::kNotice) {
      if (!in_message() || rule.death) on_sign(block, from);
      sign_ = std::max(sign_, line_);
    }
    // CUDA says of the host's pages, too, that memory ran out.
    const bool pinned = rule.kind == "cuda_context_out_of_memory" && pinned_line_ > 0 &&
                        pinned_line_ < line_ && line_ <= pinned_line_ + kInnermost;
    note(pinned ? rule_of("pinned_memory") : rule, line, *weight);
    if (rule.kind == "cuda_out_of_memory") begin_message(block, from + begin_of(use.pattern, line));
  }
}

std::string_view LogReading::message_of(const LogEvent& event) const {
  for (const LongMessage& message : messages)
    if (message.line == event.line.number) return message.text;
  return event.line.text;
}

void LogReader::begin_message(std::string_view block, size_t from) {
  if (!out_.messages.empty() && out_.messages.back().line == line_) return;
  // As of the episodes, the first stays.
  if (out_.messages.size() >= kMaxMessages) out_.messages.erase(out_.messages.begin() + 1);
  out_.messages.push_back({line_, ""});
  go_on_with_message(block.substr(from));
}

void LogReader::go_on_with_message(std::string_view block) {
  std::string& text = out_.messages.back().text;
  text += block.substr(0, kLongMessage - text.size());
  message_open_ = text.size() < kLongMessage;
}

// nullopt: the line only shows the words.
std::optional<Weight> LogReader::weight_of(const LogRule& rule, std::string_view line,
                                           size_t at) const {
  if (line_ == frame_line_ || is_quoted(line)) return std::nullopt;
  if (devmem::is_expected(line, at)) return Weight::kMentioned;
  if (in_message() && line_ == exception_.line.number) return exception_.weight;
  if (is_mere_warning(line, at)) return rule.warned ? Weight::kSaid : Weight::kMentioned;
  if (rule.death) return Weight::kEnded;
  if (in_message() && !is_logged_error(line)) return exception_.weight;
  if (is_got_over(line, at)) return Weight::kMentioned;
  return is_exception(without_rank(line)) ? Weight::kEnded : Weight::kSaid;
}

// Looks like an error, and is none.
bool LogReader::is_harmless(std::string_view line, size_t at) const {
  return line_ == frame_line_ || (in_message() && exception_.weight == Weight::kMentioned) ||
         is_quoted(line) || is_mere_warning(line, at);
}

// The best of the lines before `from` and after the last sign of an error; from `enough` on it is
// not looked for better.
Progress LogReader::progress_since_sign(std::string_view block, size_t from,
                                        Progress enough) const {
  Progress best = Progress::kNone;
  if (line_ <= sign_ + 1) return best;
  uint64_t lines = line_ - sign_ - 1;
  size_t room = kLookBack;
  std::string_view last_bar;
  int bars = 0;
  for (std::string_view text : {block.substr(0, from), std::string_view(before_)}) {
    text = text.substr(text.size() - std::min(text.size(), room));
    room -= text.size();
    while (!text.empty() && lines > 0) {
      if (text.ends_with('\n')) text.remove_suffix(1);
      if (text.ends_with('\r')) text.remove_suffix(1);
      const size_t begin = text.find_last_of("\r\n") + 1;
      const std::string_view line = text.substr(begin);
      text = text.substr(0, begin);
      if (!text.ends_with('\r')) --lines;
      Progress progress = progress_of(line);
      if (progress == Progress::kBar) {
        if (line != last_bar && ++bars > kFewBars) progress = Progress::kStep;
        last_bar = line;
      }
      best = std::max(best, progress);
      if (best >= enough) return best;
    }
  }
  return best;
}

void LogReader::on_sign(std::string_view block, size_t from) {
  if (sign_ > 0 && progress_since_sign(block, from, Progress::kStep) >= Progress::kStep) {
    settle();
    trained_ = true;
    trained_long_ |= line_ > sign_ + kOtherRanks;
  }
  sign_ = std::max(sign_, line_);
}

Episode& LogReader::episode_at(uint64_t line) {
  if (out_.episodes.empty() || trained_ || line > out_.episodes.back().last_line + kQuietLines) {
    // Of very many the first stays, in case that nothing later explains anything.
    if (out_.episodes.size() >= kMaxEpisodes) out_.episodes.erase(out_.episodes.begin() + 1);
    out_.episodes.emplace_back().anew = trained_long_;
    trained_ = trained_long_ = false;
  }
  Episode& last = out_.episodes.back();
  last.last_line = std::max(last.last_line, line);
  return last;
}

void LogReader::note(const LogRule& rule, std::string_view line, Weight weight) {
  const bool notice = rule.role == Role::kNotice;
  const bool mention = weight == Weight::kMentioned;
  if (!notice && !mention && !rule.death && in_message()) {
    // The exception that this line belongs to is known. What follows from a failure elsewhere says
    // nothing about one that was printed before it.
    if (rule.role != Role::kSymptom || line_ == exception_.line.number) {
      exception_.open = chain_.open = false;
    }
    if (exception_.known == nullptr) exception_.known = &rule;
  }
  std::vector<LogEvent>& events = notice    ? out_.notices
                                  : mention ? out_.mentions
                                            : episode_at(line_).events;
  const auto old = std::find_if(events.begin(), events.end(),
                                [&](const LogEvent& event) { return event.rule == &rule; });
  if (old != events.end()) {
    if (old->weight >= weight) return;
    events.erase(old);
  }
  events.push_back({&rule, {line_, shown(line)}, weight});
}

void LogReader::note_unknown(const UnknownException& exception) {
  std::vector<UnknownException>& unknown = episode_at(exception.line.number).unknown;
  if (unknown.size() >= kMaxUnknown) unknown.pop_back();
  unknown.push_back(exception);
}

// TensorFlow names the node, with its device, behind the message.
void LogReader::on_host_node() {
  if (out_.episodes.empty()) return;
  for (LogEvent& event : out_.episodes.back().events) {
    if (event.rule->kind != "tensorflow_out_of_memory") continue;
    if (line_ <= event.line.number + kMessageLines) event.rule = &rule_of("host_out_of_memory");
  }
}

// Kubernetes found a node after all.
void LogReader::on_scheduled() {
  const auto waited = [](const LogEvent& event) { return event.rule->kind == "unschedulable"; };
  for (Episode& episode : out_.episodes) {
    std::copy_if(episode.events.begin(), episode.events.end(), std::back_inserter(out_.mentions),
                 waited);
    std::erase_if(episode.events, waited);
  }
  std::erase_if(out_.episodes, [](const Episode& episode) {
    return episode.events.empty() && episode.unknown.empty();
  });
}

void LogReader::settle() {
  if (!exception_.open) return;
  // Of a chain the cause is told; where handling one error failed, what it failed with.
  const Exception& told = chain_.open && chain_is_cause_ ? chain_ : exception_;
  note_unknown({told.line, told.weight});
  exception_.open = chain_.open = false;
}

void LogReader::begin_chain(bool direct_cause) {
  linked_ = true;
  if (exception_.open) {
    if (!direct_cause || !chain_.open || !chain_is_cause_) chain_ = exception_;
    chain_is_cause_ = direct_cause;
    exception_.open = false;
  } else if (const LogRule* known = exception_.known) {
    if (direct_cause || !known->tried) {
      chain_is_known_ = true;
    } else if (!out_.episodes.empty()) {
      for (LogEvent& event : out_.episodes.back().events) {
        if (event.rule == known) event.weight = Weight::kSaid;
      }
    }
  }
}

void LogReader::note_suspect(std::string_view line) {
  const std::string text = shown(line);
  for (const model::SeenLine& seen : out_.suspects) {
    if (seen.number == line_ || seen.text == text) return;
  }
  if (out_.suspects.size() >= 4) out_.suspects.erase(out_.suspects.begin() + 2);
  out_.suspects.push_back({line_, text});
}

void LogReader::note_batch_size(std::string_view after) {
  while (!after.empty() && (after[0] == '=' || after[0] == ':' || after[0] == ' ' ||
                            after[0] == '\'' || after[0] == '"')) {
    after.remove_prefix(1);
  }
  const size_t digits = after.find_first_not_of("0123456789");
  const auto value = parse_number<uint64_t>(after.substr(0, digits));
  const bool decimal = digits != std::string_view::npos && after[digits] == '.';
  if (value && *value > 0 && *value < 1'000'000 && !decimal) out_.batch_size = value;
}

// "16601251840 bytes free, 16928342016 bytes total."
void LogReader::note_device_memory(std::string_view after) {
  constexpr std::string_view kFree = " bytes free, ", kTotal = " bytes total";
  const size_t free = after.find(kFree), total = after.find(kTotal);
  if (free == after.npos || total == after.npos || total < free + kFree.size()) return;
  const size_t begin = free + kFree.size();
  out_.device_free = parse_number<uint64_t>(after.substr(0, free));
  out_.device_total = parse_number<uint64_t>(after.substr(begin, total - begin));
}

void LogReader::begin_traceback(std::string_view line, std::string_view block, size_t from,
                                size_t to) {
  const size_t at = line.find("Traceback (most");
  prefix_ = line.substr(0, at);
  const bool within = prefix_.ends_with("Original ");
  // IPython writes the exception's name before it.
  if (within || trim(prefix_).empty() || is_exception(trim(prefix_))) prefix_.clear();
  // One within another is how a worker's error arrives. The inner one decides.
  if (!within && !linked_) {
    chain_is_known_ = false;
    std::string_view last = from > 0 ? block.substr(0, from) : std::string_view(before_);
    while (!last.empty() && is_line_end(last.back())) last.remove_suffix(1);
    last = last.substr(last.find_last_of("\r\n") + 1);
    traceback_weight_ = Weight::kEnded;
    // Optuna goes on with the next trial, or ends with the same traceback once more.
    const bool of_trial = contains(last, "because of the following error");
    if (is_mere_warning(line, at) || is_logged_error(line) || is_logged_error(last) || of_trial) {
      traceback_weight_ = Weight::kSaid;
    }
    if (contains_any(last, kReported)) traceback_weight_ = Weight::kMentioned;
  }
  linked_ = false;
  if (traceback_weight_ != Weight::kMentioned) on_sign(block, from);
  in_traceback_ = true;
  traceback_at_ = std::min(block.find('\n', to), block.size() - 1) + 1;
  traceback_line_ = line_ + 1;
  strange_lines_ = 0;
}

// The lines of an open traceback up to `until`.
void LogReader::read_tracebacks(std::string_view block, size_t until) {
  while (in_traceback_ && traceback_at_ < until) {
    const size_t feed = block.find('\n', traceback_at_);
    const size_t end = std::min(feed, block.size());
    if (feed == std::string_view::npos ? until < block.size() : end > until) return;
    std::string_view line = block.substr(traceback_at_, end - traceback_at_);
    traceback_at_ = std::min(end + 1, block.size());
    read_traceback_line(line, traceback_line_++);
  }
}

void LogReader::read_traceback_line(std::string_view line, uint64_t number) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (!prefix_.empty() && line.size() >= prefix_.size() &&
      same_shape(line.substr(0, prefix_.size()), prefix_)) {
    line.remove_prefix(prefix_.size());
  }
  if (line.empty()) return;
  if (is_frame(line)) {
    frame_line_ = number;
    return;
  }
  if (!is_exception(line)) {
    if (++strange_lines_ > kMaxStrangeLines) in_traceback_ = false;
    return;
  }
  in_traceback_ = false;
  if (contains_any(line, kCarriers)) return;
  settle();
  const bool graph = line.ends_with("Graph execution error:");
  exception_ = {{number, shown(line)},
                traceback_weight_,
                graph ? kGraphLines : kMessageLines,
                traceback_weight_ != Weight::kMentioned && !chain_is_known_,
                nullptr};
  if (traceback_weight_ != Weight::kMentioned) sign_ = std::max(sign_, number);
}

// "pyarrow.lib.ArrowInvalid: ..." without a traceback, as somebody copies it.
void LogReader::note_last_line() {
  const std::string_view text = trim(before_);
  const std::string_view last = text.substr(text.find_last_of("\r\n") + 1);
  const std::string_view name = last.substr(0, last.find(':'));
  const size_t dot = name.rfind('.');
  if (sign_ > 0 || dot == name.npos || dot + 1 == name.size() || last.size() > kShownLine) return;
  const bool of_module = name[0] >= 'a' && name[0] <= 'z',
             is_class = name[dot + 1] >= 'A' && name[dot + 1] <= 'Z';
  if (!of_module || !is_class || last.size() == name.size() || !is_exception(last) ||
      is_figure(last.substr(name.size() + 1)))
    return;
  --line_;  // counted up behind the last line
  note_suspect(last);
  ++line_;
}

LogReading LogReader::finish() {
  settle();
  note_last_line();
  out_.lines = line_ - 1;
  const Progress last = progress_since_sign({}, 0, Progress::kEnd);
  out_.went_on = sign_ > 0 && last >= Progress::kStep;
  out_.ended_well = last == Progress::kEnd;
  return std::move(out_);
}

Result<bool> for_each_piece(const ReadBytes& read,
                            const std::function<bool(std::string_view)>& take) {
  std::string buffer;
  size_t held = 0;
  while (true) {
    buffer.resize(std::max(held + kBlock, buffer.size()));
    FLATOUT_TRY(const size_t got, read(buffer.data() + held, buffer.size() - held));
    const size_t size = held + got;
    const std::string_view text(buffer.data(), size);
    if (got == 0) {
      if (size == 0) return false;
      buffer.resize(size);
      const bool cut_off = buffer.back() != '\n';
      if (cut_off) buffer += '\n';
      take(buffer);
      return cut_off;
    }
    // A pipe gives small pieces: wait for a block of them, and for a line's end unless the line
    // is longer than any that people read.
    if (size < kBlock) {
      held = size;
      continue;
    }
    const size_t feed = text.rfind('\n');
    const size_t whole = feed == std::string_view::npos ? size : feed + 1;
    if (!take(text.substr(0, whole))) return false;
    held = size - whole;
    std::copy(buffer.begin() + static_cast<std::ptrdiff_t>(whole),
              buffer.begin() + static_cast<std::ptrdiff_t>(size), buffer.begin());
  }
}

ReadBytes bytes_of(std::string_view text) {
  return [rest = text](char* to, size_t size) mutable -> Result<size_t> {
    const size_t got = rest.copy(to, size);
    rest.remove_prefix(got);
    return got;
  };
}

LogReading read_text(std::string_view log) {
  LogReader reader;
  const auto take = [&](std::string_view piece) {
    reader.feed(piece);
    return true;
  };
  const bool cut_off = *for_each_piece(bytes_of(log), take);  // memory is always read
  LogReading out = reader.finish();
  out.cut_off = cut_off;
  return out;
}

Result<LogReading> read_log(const std::string& path) {
  const bool standard = path.empty() || path == "-";
  const int fd = standard ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  const std::string name = standard ? "standard input" : escape_terminal(path);
  if (fd < 0) return fs::error_from_errno(errno, "cannot read " + name);
  struct stat file = {};
  const bool is_device = ::fstat(fd, &file) == 0 && S_ISCHR(file.st_mode) && ::isatty(fd) != 1;
  LogReader reader;
  bool fresh = true, compressed = false;
  const auto read = [&](char* to, size_t size) -> Result<size_t> {
    ssize_t got = 0;
    do {
      got = ::read(fd, to, size);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return fs::error_from_errno(errno, "cannot read " + name);
    return static_cast<size_t>(got);
  };
  const Result<bool> cut_off = for_each_piece(read, [&](std::string_view piece) {
    compressed = fresh && piece.starts_with("\x1f\x8b");
    fresh = false;
    if (compressed) return false;
    reader.feed(piece);
    return !is_device || !reader.is_no_text();  // /dev/zero has no end
  });
  if (!standard) ::close(fd);
  if (!cut_off.ok()) return cut_off.error();
  if (compressed) {
    return Error{Code::kBadInput, name + " is compressed", "zcat FILE | flatout explain"};
  }
  LogReading out = reader.finish();
  out.cut_off = *cut_off;
  return out;
}

}  // namespace flatout::advise
