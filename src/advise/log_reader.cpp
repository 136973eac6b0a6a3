#include "advise/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/fs.h"
#include "base/text.h"

namespace flatout::advise {
namespace {

constexpr size_t kBlock = 1 << 20;
constexpr size_t kLineWindow = 8 << 10;  // of a line, to either side of what was found
constexpr size_t kShownLine = 1000;      // bytes
constexpr uint64_t kQuietLines = 200;    // so many without an error: the job got over it
constexpr uint64_t kMessageLines = 8;    // of an exception, in which a rule may know it
constexpr size_t kMaxEpisodes = 64;
constexpr size_t kMaxUnknown = 4;     // an episode
constexpr int kMaxStrangeLines = 60;  // in an interleaved traceback

// What a literal means by itself, beside the rules.
enum Structure : uint8_t { kNone, kTraceback, kHandling, kDirectCause, kSuspect, kBatch };

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
    {"batch_size", kBatch},
    {"batch-size", kBatch},
    {"Batch size", kBatch},
    {"batch size", kBatch},
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
  std::map<std::string_view, uint32_t> known;

  Patterns() {
    for (const LogRule& rule : log_rules()) {
      for (const std::string_view pattern : rule.patterns) {
        uses[literal_of(longest_part(pattern))].push_back({&rule, pattern});
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
                                          "SystemExit",
                                          "BdbQuit",
                                          "HydraException"};

bool is_line_end(char c) { return c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.';
}

// What stands before a traceback on each of its lines may hold a time or a counter.
bool same_shape(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return x == y || (is_digit(x) && is_digit(y));
         });
}

// "ValueError: too big", "torch.cuda.OutOfMemoryError: ...", "AssertionError", "queue.Empty".
bool is_exception(std::string_view line) {
  const size_t end = std::find_if_not(line.begin(), line.end(), is_name) - line.begin();
  if (end == 0 || is_digit(line[0]) || line[0] == '.') return false;
  const std::string_view rest = line.substr(end);
  if (!rest.empty() && !rest.starts_with(": ") && rest != ":") return false;
  const std::string_view name = line.substr(0, end);
  const std::string_view last = name.substr(name.rfind('.') + 1);
  if (last.empty()) return false;
  const bool dotted = last.size() != name.size();
  const bool upper = last[0] >= 'A' && last[0] <= 'Z';
  const bool ends = last.ends_with("rror") || last.ends_with("timeout") || last.ends_with("xit");
  return (upper && (dotted || last.size() > 4)) || ends;
}

std::string shown(std::string_view line) { return std::string(trim(line).substr(0, kShownLine)); }

// What says of itself that it is no error.
bool is_harmless(std::string_view line) {
  constexpr std::string_view kWords[] = {"WARN", "Warning", "INFO", ": W ", ": I ", "dlerror"};
  return std::any_of(std::begin(kWords), std::end(kWords), [&](std::string_view word) {
    return line.find(word) != std::string_view::npos;
  });
}

// "mean squared error: 0.12" and "errors: 0 " are figures.
bool is_figure(std::string_view after) {
  while (after.starts_with(' ')) after.remove_prefix(1);
  return after.empty() ? false : is_digit(after[0]) || after[0] == '-' || after.starts_with("nan");
}

}  // namespace

void LogReader::count_lines(std::string_view block, size_t until) {
  if (until <= counted_) return;
  line_ +=
      static_cast<uint64_t>(std::count(block.begin() + static_cast<std::ptrdiff_t>(counted_),
                                       block.begin() + static_cast<std::ptrdiff_t>(until), '\n'));
  counted_ = until;
}

void LogReader::feed(std::string_view block) {
  counted_ = traceback_at_ = 0;
  scanner().scan(block, hits_);
  for (const LiteralScanner::Hit& hit : hits_) on_literal(hit.literal, block, hit.end);
  read_tracebacks(block, block.size());
  count_lines(block, block.size());
  out_.bytes += block.size();
}

void LogReader::on_literal(uint32_t literal, std::string_view block, size_t end) {
  if (block[end - 1] == '\n') --end;
  size_t from = end, to = end;
  while (from > 0 && end - from < kLineWindow && !is_line_end(block[from - 1])) --from;
  while (to < block.size() && to - end < kLineWindow && !is_line_end(block[to])) ++to;
  const std::string_view line = block.substr(from, to - from);
  read_tracebacks(block, to < block.size() && block[to] == '\r' ? to + 1 : to);
  count_lines(block, from);
  if (pending_.set && line_ > pending_.line.number + kMessageLines) settle_pending();
  switch (patterns().structure[literal]) {
    case kTraceback: {
      // One within another: how a worker's error arrives. The inner one decides.
      in_traceback_ = true;
      prefix_ = line.substr(0, line.find("Traceback (most"));
      if (const size_t text = prefix_.find_last_not_of(' ');
          prefix_.ends_with("Original ") || text == std::string::npos) {
        prefix_.clear();
      }
      traceback_at_ = to;
      while (traceback_at_ < block.size() && block[traceback_at_] != '\n') ++traceback_at_;
      traceback_at_ = std::min(traceback_at_ + 1, block.size());
      traceback_line_ = line_ + 1;
      strange_lines_ = 0;
      break;
    }
    case kHandling:
    case kDirectCause:
      if (pending_.set) {
        chain_ = pending_;
        chain_is_cause_ = patterns().structure[literal] == kDirectCause;
        pending_.set = false;
      }
      break;
    case kSuspect:
      if (!is_figure(block.substr(end, std::min<size_t>(8, to - end))) && !is_harmless(line)) {
        note_suspect(line);
      }
      break;
    case kBatch:
      note_batch_size(block.substr(end, to - end));
      break;
    default:
      break;
  }
  on_rules(literal, line);
}

void LogReader::on_rules(uint32_t literal, std::string_view line) {
  for (const Patterns::Use& use : patterns().uses[literal]) {
    if (!matches(use.pattern, line)) continue;
    const bool excluded =
        std::any_of(use.rule->unless.begin(), use.rule->unless.end(),
                    [&](std::string_view pattern) { return matches(pattern, line); });
    if (!excluded) note(*use.rule, line);
  }
}

Episode& LogReader::episode_at(uint64_t line) {
  if (out_.episodes.empty() || line > out_.episodes.back().last_line + kQuietLines) {
    // Of very many the first stays, in case that nothing later explains anything.
    if (out_.episodes.size() >= kMaxEpisodes) out_.episodes.erase(out_.episodes.begin() + 1);
    out_.episodes.emplace_back();
  }
  Episode& last = out_.episodes.back();
  last.last_line = std::max(last.last_line, line);
  return last;
}

void LogReader::note(const LogRule& rule, std::string_view line) {
  const bool notice = rule.role == Role::kNotice;
  // The exception that this line belongs to is known. What follows from a failure elsewhere says
  // nothing about one that was printed before it.
  const uint64_t reach = rule.role == Role::kSymptom ? 0 : kMessageLines;
  if (!notice && pending_.set && line_ <= pending_.line.number + reach) {
    pending_.set = chain_.set = false;
  }
  std::vector<LogEvent>& events = notice ? out_.notices : episode_at(line_).events;
  for (const LogEvent& event : events) {
    if (event.rule == &rule) return;
  }
  events.push_back({&rule, {line_, shown(line)}});
}

void LogReader::note_unknown(const model::SeenLine& line) {
  std::vector<model::SeenLine>& unknown = episode_at(line.number).unknown;
  if (unknown.size() >= kMaxUnknown) unknown.pop_back();
  unknown.push_back(line);
}

void LogReader::settle_pending() {
  if (!pending_.set) return;
  // Of a chain the cause is told; where handling one error failed, what it failed with.
  note_unknown(chain_.set && chain_is_cause_ ? chain_.line : pending_.line);
  pending_.set = chain_.set = false;
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
  if (line.empty() || line[0] == ' ' || line[0] == '\t') return;
  if (!is_exception(line)) {
    if (++strange_lines_ > kMaxStrangeLines) in_traceback_ = false;
    return;
  }
  in_traceback_ = false;
  for (const std::string_view carrier : kCarriers) {
    if (line.find(carrier) != std::string_view::npos) return;
  }
  settle_pending();
  pending_ = {{number, shown(line)}, true};
}

LogReading LogReader::finish() {
  settle_pending();
  out_.lines = line_ - 1;
  return std::move(out_);
}

Result<LogReading> read_log(const std::string& path) {
  const bool standard = path.empty() || path == "-";
  const int fd = standard ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  const std::string name = standard ? "standard input" : escape_terminal(path);
  if (fd < 0) return fs::error_from_errno(errno, "cannot read " + name);
  LogReader reader;
  std::string buffer;
  size_t held = 0;
  Status status;
  while (true) {
    buffer.resize(std::max(held + kBlock, buffer.size()));
    const ssize_t got = ::read(fd, buffer.data() + held, buffer.size() - held);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      status = fs::error_from_errno(errno, "cannot read " + name);
      break;
    }
    const size_t size = held + static_cast<size_t>(got);
    const std::string_view text(buffer.data(), size);
    if (got == 0) {
      if (size > 0) {
        buffer.resize(size);
        if (buffer.back() != '\n') buffer += '\n';
        reader.feed(buffer);
      }
      break;
    }
    // A pipe gives small pieces: wait for a block of them, and for a line's end unless the line
    // is longer than any that people read.
    if (size < kBlock) {
      held = size;
      continue;
    }
    const size_t feed = text.rfind('\n');
    const size_t whole = feed == std::string_view::npos ? size : feed + 1;
    reader.feed(text.substr(0, whole));
    held = size - whole;
    std::copy(buffer.begin() + static_cast<std::ptrdiff_t>(whole),
              buffer.begin() + static_cast<std::ptrdiff_t>(size), buffer.begin());
  }
  if (!standard) ::close(fd);
  if (!status.ok()) return status.error();
  return reader.finish();
}

}  // namespace flatout::advise
