#include "diagnose/raised.h"

#include "base/text.h"
#include "diagnose/blame.h"

namespace flatout::diagnose {

using model::Run;

namespace {

/// A line of a traceback, `File "x.py", line 3, in f`; faulthandler writes it without a comma.
std::optional<model::Where> frame_line(std::string_view line) {
  line = trim(line);
  if (!line.starts_with("File \"")) return std::nullopt;
  line.remove_prefix(6);
  const size_t quote = line.find("\", line ");
  if (quote == std::string_view::npos) return std::nullopt;
  std::string_view rest = line.substr(quote + 8);
  const size_t end = rest.find_first_not_of("0123456789");
  const auto number = parse_number<int64_t>(rest.substr(0, end));
  if (!number) return std::nullopt;
  model::Where where{std::string(line.substr(0, quote)), *number, {}};
  if (const size_t in = rest.find(" in "); in != std::string_view::npos) {
    where.function = std::string(rest.substr(in + 4));
  }
  return where;
}

/// The innermost line of the user's in a traceback that a worker sent along as text.
std::optional<model::Where> traceback_line(std::string_view text) {
  const size_t original = text.find("Original Traceback");
  if (original == std::string_view::npos) return std::nullopt;
  text.remove_prefix(original);
  std::optional<model::Where> found;
  std::string_view line;
  while (next_line(text, line)) {
    auto where = frame_line(line);
    if (where && owner_of(where->file, {}) == Owner::kUser) found = std::move(where);
  }
  return found;
}

}  // namespace

std::optional<model::Where> fault_line(const Run& run) {
  std::string_view text = run.fact("fault.stack"), line;
  while (next_line(text, line)) {
    auto where = frame_line(line);
    if (where && owner_of(where->file, {}) == Owner::kUser) return where;
  }
  return std::nullopt;
}

std::optional<model::Where> exception_line(const Run& run, const std::string& prefix) {
  if (auto where = traceback_line(run.fact(prefix + "message"))) return where;
  if (auto where = traceback_line(run.fact(prefix + "traceback"))) return where;
  if (run.fact(prefix + "file").empty()) return std::nullopt;
  return model::Where{std::string(run.fact(prefix + "file")),
                      parse_number<int64_t>(run.fact(prefix + "line")).value_or(0),
                      std::string(run.fact(prefix + "function"))};
}

std::string exception_type(const Run& run, const std::string& prefix) {
  return escape_terminal(run.fact(prefix + "type").substr(0, 80));
}

std::string exception_words(const Run& run, const std::string& prefix) {
  const std::string_view message = run.fact(prefix + "message");
  return escape_terminal(message.substr(0, message.find('\n')).substr(0, 200));
}

}  // namespace flatout::diagnose
