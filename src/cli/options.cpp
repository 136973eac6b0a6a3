#include "cli/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include "base/log.h"
#include "base/number.h"
#include "base/text.h"
#include "cli/json_file.h"
#include "cli/outputs.h"

namespace flatout::cli {
namespace {

std::vector<Usage>* recorded_usages = nullptr;

constexpr size_t kColumns = 80;
constexpr size_t kTextColumn = 29;  // where the texts of options begin in --help

constexpr double unbounded = std::numeric_limits<double>::infinity();

struct Range {
  std::string_view option, command;
  double least, most;
};
constexpr Range kRanges[] = {
#define FLATOUT_OPTION(name, type, standard, help)
#define FLATOUT_RANGE(name, command, least, most) {#name, command, least, most},
#include "cli/options.def"
};

std::string variable_of(std::string_view name) {
  std::string out = "FLATOUT_" + std::string(name);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return out;
}

bool is_given(const std::vector<std::string>& words, const std::string& name) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return word == name || word.starts_with(name + "=");
  });
}

// What the command line or the environment has, refused by this where it is wrong.
struct Given {
  std::string_view command;
  const std::vector<std::string>& words;

  // "--rate", or the variable where the value is from there.
  std::string source(std::string_view name) const {
    const bool flag = is_given(words, flag_of(name)) || (name == "output" && is_given(words, "-o"));
    return flag ? flag_of(name) : "the variable " + variable_of(name);
  }
  [[noreturn]] void refuse(std::string_view name, std::string_view wanted,
                           std::string_view value) const {
    throw CLI::ValidationError(
        fmt::format("{} is {}, not '{}'", source(name), wanted, escape_terminal(value)));
  }
};

// "a whole number from 0 to 65535", "a number of 0 or more".
std::string words_of(const Range& range, bool whole) {
  const std::string kind = whole ? "a whole number" : "a number";
  if (range.most == unbounded) return fmt::format("{} of {} or more", kind, range.least);
  if (whole) return fmt::format("{} from {} to {}", kind, range.least, saturate<count>(range.most));
  return fmt::format("{} from {} to {:.0f}", kind, range.least, range.most);
}

Range range_of(std::string_view option, std::string_view command) {
  for (const Range& range : kRanges) {
    if (range.option == option && (range.command.empty() || range.command == command)) return range;
  }
  return {option, command, -unbounded, unbounded};
}

template <class T>
T read_number(const Given& given, std::string_view name, const std::string& text) {
  constexpr bool kWhole = std::is_same_v<T, count>;
  const Range range = range_of(name, given.command);
  const auto value = parse_number<double>(text);
  if (!value || !(*value >= range.least && *value <= range.most) ||
      (kWhole && std::isfinite(*value) && *value != std::floor(*value))) {
    given.refuse(name, words_of(range, kWhole), text);
  }
  // A seed of 19 digits is no double, and one that is none of T's would be another one.
  const auto exact = parse_number<T>(text);
  const T nearest = saturate<T>(*value);
  if (!exact && range.most != unbounded && nearest == std::numeric_limits<T>::max())
    given.refuse(name, words_of(range, kWhole), text);
  return exact.value_or(nearest);
}
// The option's value is set when it is parsed; on the command line it beats the variable.
CLI::Option* bind_option(CLI::App& app, const Given& given, std::string_view name,
                         const std::string& names, bool& value) {
  // CLI11 reads the variable only later, and names the flag where it cannot.
  if (const char* text = std::getenv(variable_of(name).c_str());
      text != nullptr && *text != 0 && !is_given(given.words, flag_of(name))) {
    try {
      (void)CLI::detail::to_flag_value(text);
    } catch (const std::logic_error&) {
      given.refuse(name, "1 or 0", text);
    }
  }
  return app.add_flag(names, value);
}
CLI::Option* bind_option(CLI::App& app, const Given&, std::string_view, const std::string& names,
                         texts& value) {
  return app.add_option(names, value)->allow_extra_args(false);
}
CLI::Option* bind_option(CLI::App& app, const Given& given, std::string_view name,
                         const std::string& names, text& value) {
  return app.add_option_function<std::string>(names, [=, &value](const std::string& word) {
    if (word.empty()) throw CLI::ValidationError(given.source(name) + " is given nothing");
    value = word;
  });
}
template <class T>
CLI::Option* bind_option(CLI::App& app, const Given& given, std::string_view name,
                         const std::string& names, T& value) {
  return app.add_option_function<std::string>(
      names, [=, &value](const std::string& word) { value = read_number<T>(given, name, word); });
}

bool takes_value(std::string_view word) {
  return word == "-o" ||
         std::any_of(option_rows().begin(), option_rows().end(), [&](const OptionRow& option) {
           return option.type != "flag" && word == flag_of(option.name);
         });
}

// `text` in lines that end at kColumns, all but the first indented.
std::string wrapped(std::string_view text, size_t column, size_t indent) {
  std::string out;
  for (std::string_view word = next_word(text); !word.empty(); word = next_word(text)) {
    const bool first = out.empty();
    if (!first && column + 1 + word.size() > kColumns) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

// Cuts the job's command off: what follows "--", or the first word that is no option of ours.
std::vector<std::string> cut_command(std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const bool marked = word == "--";
    if (!marked && word.size() > 1 && word[0] == '-') {
      if (takes_value(word)) ++i;
      continue;
    }
    const auto begin = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    std::vector<std::string> command(begin + (marked ? 1 : 0), arguments.end());
    arguments.erase(begin, arguments.end());
    return command;
  }
  return {};
}

const char* json_text(const Usage& usage) {
  if (usage.json_to_file && usage.takes_command)
    return "print the result as JSON on standard output (the job's own goes to standard error); "
           "--json=FILE writes it there and leaves the job's alone";
  return "print the result as JSON on standard output; --json=FILE writes it there";
}

std::string shown(bool) { return ""; }
std::string shown(const texts&) { return ""; }
template <class T>
std::string shown(const T& standard) {
  return fmt::format("{}", standard);
}

size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

const std::vector<OptionRow>& option_rows() {
  static const std::vector<OptionRow> rows = {
#define FLATOUT_OPTION(name, type, standard, help) {#name, #type, shown(type(standard)), help},
#include "cli/options.def"
  };
  return rows;
}

std::string text_for(std::string_view all, std::string_view command) {
  std::string out;
  while (!all.empty()) {
    const size_t end = std::min(all.find(" | "), all.size());
    const std::string_view clause = all.substr(0, end);
    all.remove_prefix(std::min(end + 3, all.size()));
    const size_t colon = clause.find(": ");
    for (const std::string_view part : split(clause.substr(0, colon), ',')) {
      const std::string_view name = trim(part);
      const std::string_view base = name.substr(0, name.find(" --"));
      const bool within = command.starts_with(base) && command.substr(base.size()).starts_with(" ");
      if (base != command && base != "all" && !within) continue;
      if (!out.empty()) out += "; ";
      if (base != name) out += fmt::format("with {}: ", name.substr(base.size() + 1));
      out += clause.substr(colon + 2);
      break;
    }
  }
  return out;
}

std::string flag_of(std::string_view name) {
  std::string out = "--" + std::string(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::vector<Flag> flags_of(const Usage& usage) {
  std::vector<Flag> out;
  for (const OptionRow& row : option_rows()) {
    if (std::find(usage.options.begin(), usage.options.end(), row.name) == usage.options.end()) {
      continue;
    }
    const bool is_number = row.type == "count" || row.type == "number";
    std::string value;
    if (row.type != "flag") {
      value = !is_number ? "TEXT" : row.type == "count" ? "INT" : "FLOAT";
      if (!row.standard.empty()) value += "=" + row.standard;
    }
    out.push_back({row.name, flag_of(row.name), row.type != "flag", is_number, row.type == "texts",
                   std::move(value), text_for(row.text, usage.name)});
  }
  if (usage.json) out.push_back({"json", "--json", false, false, false, "", json_text(usage)});
  out.push_back({"help", "--help", false, false, false, "", "show examples and options"});
  return out;
}

std::string folded(std::string_view help) {
  std::string out;
  for (std::string_view line; next_line(help, line);) {
    const size_t note = line.find(" # "), gap = line.find("  ", line.find_first_not_of(' '));
    if (line.size() <= kColumns) {
      out += line;
    } else if (!line.starts_with("  ")) {
      out += wrapped(line, 0, 0);
    } else if (note != line.npos) {  // a comment stays one where it is pasted into a shell
      const std::string_view command = line.substr(0, line.find_last_not_of(' ', note) + 1);
      out += fmt::format("{}\n      {}", command, line.substr(note + 1));
    } else if (gap != line.npos) {
      const size_t column = line.find_first_not_of(' ', gap);
      out += line.substr(0, column);
      out += wrapped(line.substr(column), column, column);
    } else {
      const size_t end = line.rfind(" -", kColumns - 2);
      out += fmt::format("{} \\\n     {}", line.substr(0, end), line.substr(end));
    }
    out += '\n';
  }
  return out;
}

std::string help_of(const Usage& usage) {
  std::string out =
      fmt::format("{}\n\nExamples:\n{}\nUsage: flatout {} {}\n\nOptions:\n",
                  wrapped(usage.summary, 0, 0), folded(usage.examples), usage.name, usage.synopsis);
  for (const Flag& one : flags_of(usage)) {
    const std::string_view letter = one.name == "output" ? "-o," : one.name == "help" ? "-h," : "";
    std::string line =
        fmt::format("  {}{}{}{}", letter, one.flag, one.value.empty() ? "" : " ", one.value);
    if (line.size() + 2 > kTextColumn) {
      out += line + "\n";
      line.clear();
    }
    out +=
        fmt::format("{:<{}}{}\n", line, kTextColumn, wrapped(one.text, kTextColumn, kTextColumn));
  }
  if (!usage.options.empty()) {
    const std::string_view name = usage.options[0];
    out += fmt::format("\nOptions may also be given as variables: {} for {}.\n", variable_of(name),
                       flag_of(name));
  }
  return out;
}

void record_usages(std::vector<Usage>* into) { recorded_usages = into; }

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& known) {
  std::string_view best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string_view candidate : known) {
    const size_t d = distance(word, candidate);
    if (d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  }
  return best;
}

std::string size_words(std::string size) {
  for (char& c : size) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (size_t i = 1; i + 1 < size.size(); ++i) {
    if (size[i] == 'I' && size[i + 1] == 'B') size[i] = 'i';
  }
  return size;
}

void tell_standard_input(std::string_view what) {
  if (::isatty(STDIN_FILENO) != 1) return;
  fmt::print(stderr, "flatout: reading {} from standard input; Ctrl-D ends it, Ctrl-C gives up\n",
             what);
}

int bad_usage(std::string_view message, std::string_view hint) {
  log_error(message, hint);
  return 2;
}

namespace {

// Whether what the options name can be written, before anything else is done. Of merge's --output a
// folder is made.
Status check_outputs(const Usage& usage, const Settings& settings) {
  for (const std::string* path :
       {&settings.json_file, &settings.html, &settings.record, &settings.checkpoint}) {
    FLATOUT_TRY_STATUS(check_output(*path));
  }
  return usage.name == "merge" ? Status() : check_output(settings.output);
}

// What to say of a word that no option of the command has; nullopt where there is none.
std::optional<std::string> unknown_option(const std::vector<std::string>& words,
                                          const std::vector<std::string>& flags) {
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (name == "--") break;
    if (name.starts_with("--") && std::find(flags.begin(), flags.end(), name) == flags.end())
      return name;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Settings> parse(const Usage& usage, const std::vector<std::string>& arguments,
                              int& exit_code) {
  if (recorded_usages != nullptr) {
    recorded_usages->push_back(usage);
    return std::nullopt;
  }
  Settings settings;
  std::vector<std::string> words = arguments;
  std::vector<std::string> command;
  if (usage.takes_command) command = cut_command(words);

  const std::string help_hint = fmt::format("flatout {} --help", usage.name);
  CLI::App app;
  std::vector<std::string> flags;
  for (const Flag& one : flags_of(usage)) flags.push_back(one.flag);
  const std::vector<std::string> given_words = words;  // CLI11 takes them apart
  const Given given{usage.name, given_words};
  try {
#define FLATOUT_OPTION(name, type, standard, help)                                           \
  if (std::find(usage.options.begin(), usage.options.end(), #name) != usage.options.end()) { \
    const std::string names =                                                                \
        std::string_view(#name) == "output" ? "-o,--output" : flag_of(#name);                \
    bind_option(app, given, #name, names, settings.name)->envname(variable_of(#name));       \
  }
#include "cli/options.def"
    for (std::string& word : words) {
      if (word == "--") break;
      // CLI11 would take the next word for it.
      if (word.starts_with("--") && word.ends_with("=") && !unknown_option({word}, flags))
        throw CLI::ValidationError(word.substr(0, word.size() - 1) + " is given nothing");
      // Only --json=FILE names a file: `--json DIR` must not take DIR for it.
      if (usage.json && word.starts_with("--json=")) word.replace(0, 7, "--json-file=");
    }
    if (usage.json) {
      app.add_flag("--json", settings.json);
      app.add_option("--json-file", settings.json_file);
    }
    if (!usage.takes_command && usage.max_positional > 0) {
      app.add_option("arguments", settings.positional);
    }
    std::reverse(words.begin(), words.end());
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    std::fputs(help_of(usage).c_str(), stdout);
    exit_code = 0;
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (const auto unknown = unknown_option(given_words, flags)) {
      const std::string_view meant = nearest(*unknown, {flags.begin(), flags.end()});
      exit_code = bad_usage(
          fmt::format("flatout {} has no option {}", usage.name, escape_terminal(*unknown)),
          meant.empty() ? help_hint : fmt::format("did you mean {}? See {}", meant, help_hint));
    } else {
      exit_code = bad_usage(escape_terminal(error.what()), help_hint);
    }
    return std::nullopt;
  }
  if (usage.takes_command) settings.positional = std::move(command);
  if (settings.positional.size() < usage.min_positional ||
      settings.positional.size() > usage.max_positional) {
    exit_code =
        bad_usage(fmt::format("usage: flatout {} {}", usage.name, usage.synopsis), help_hint);
    return std::nullopt;
  }
  if (usage.name == "report" && !settings.json_file.empty() && !settings.output.empty()) {
    exit_code = bad_usage("--json=FILE and -o both name the file", "give one of them");
    return std::nullopt;
  }
  if (const Status writable = check_outputs(usage, settings); !writable.ok()) {
    log_error(writable.error().message, writable.error().hint);
    const bool starts_job = usage.takes_command && usage.name != "fix";
    exit_code = starts_job ? 125 : 1;
    return std::nullopt;
  }
  if (!settings.json_file.empty() && !usage.json_to_file) {
    settings.json = true;
    begin_json_file(std::exchange(settings.json_file, ""));
  }
  return settings;
}

}  // namespace flatout::cli
