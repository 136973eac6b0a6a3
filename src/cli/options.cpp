#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "base/log.h"
#include "base/text.h"

namespace flatout::cli {
namespace {

std::vector<Usage>* recorded_usages = nullptr;

template <class T>
constexpr bool kTakesValue = !std::is_same_v<T, bool>;

// CLI11's help, with our own line of usage.
class Help : public CLI::Formatter {
 public:
  explicit Help(std::string usage) : usage_(std::move(usage)) {}
  std::string make_usage(const CLI::App*, std::string) const override { return usage_; }

 private:
  std::string usage_;
};

std::string variable_of(std::string_view name) {
  std::string out = "FLATOUT_" + std::string(name);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return out;
}

CLI::Option* bind(CLI::App& app, const std::string& flag_name, bool& value, const char* help) {
  return app.add_flag(flag_name, value, help)->capture_default_str();
}
CLI::Option* bind(CLI::App& app, const std::string& flag_name, texts& value, const char* help) {
  return app.add_option(flag_name, value, help)->allow_extra_args(false);  // begins empty
}
template <class T>
CLI::Option* bind(CLI::App& app, const std::string& flag_name, T& value, const char* help) {
  return app.add_option(flag_name, value, help)->capture_default_str();
}

bool takes_value(std::string_view word) {
  return word == "-o" ||
         std::any_of(option_rows().begin(), option_rows().end(), [&](const OptionRow& option) {
           return option.takes_value && word == flag_of(option.name);
         });
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
  return usage.json_to_file
             ? "print the result as JSON on standard output (the job's own goes to standard "
               "error); --json=FILE writes it there and leaves the job's alone"
             : "print one JSON document on standard output";
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
#define FLATOUT_OPTION(name, type, standard, help) \
  {#name, kTakesValue<type>, std::is_same_v<type, number>, std::is_same_v<type, texts>, help},
#include "cli/options.def"
#undef FLATOUT_OPTION
  };
  return rows;
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
    out.push_back({row.name, flag_of(row.name), row.takes_value, row.is_number, row.repeats,
                   std::string(row.text)});
  }
  if (usage.json) out.push_back({"json", "--json", false, false, false, json_text(usage)});
  out.push_back({"help", "--help", false, false, false, "show examples and options"});
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

int bad_usage(std::string_view message, std::string_view hint) {
  log_error(message, hint);
  return 2;
}

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

  CLI::App app(fmt::format("{}\n\nExamples:\n{}", usage.summary, usage.examples),
               fmt::format("flatout {}", usage.name));
  std::vector<std::string> flags = {"--help"};
#define FLATOUT_OPTION(name, type, standard, help)                                           \
  if (std::find(usage.options.begin(), usage.options.end(), #name) != usage.options.end()) { \
    flags.push_back(flag_of(#name));                                                         \
    const std::string names =                                                                \
        std::string_view(#name) == "output" ? "-o,--output" : flag_of(#name);                \
    bind(app, names, settings.name, help)->envname(variable_of(#name));                      \
  }
#include "cli/options.def"
#undef FLATOUT_OPTION
  if (usage.json) {
    flags.push_back("--json");
    // Only --json=FILE names a file: `--json DIR` must not take DIR for it.
    for (std::string& word : words) {
      if (word == "--") break;
      if (word.starts_with("--json=")) word.replace(0, 7, "--json-file=");
    }
    app.add_flag("--json", settings.json, json_text(usage));
    app.add_option("--json-file", settings.json_file)->group("");
  }
  if (!usage.takes_command && usage.max_positional > 0) {
    app.add_option("arguments", settings.positional, std::string(usage.synopsis))->group("");
  }
  app.formatter(
      std::make_shared<Help>(fmt::format("\nUsage: flatout {} {}\n", usage.name, usage.synopsis)));
  try {
    std::reverse(words.begin(), words.end());
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    exit_code = 0;
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    exit_code = 2;
    std::string hint = fmt::format("flatout {} --help", usage.name);
    for (const std::string& word : arguments) {
      const std::string name = word.substr(0, word.find('='));
      if (name == "--") break;
      if (!name.starts_with("--") || std::find(flags.begin(), flags.end(), name) != flags.end()) {
        continue;
      }
      const std::vector<std::string_view> known(flags.begin(), flags.end());
      const std::string_view meant = nearest(name, known);
      if (!meant.empty())
        hint = fmt::format("did you mean {}? See flatout {} --help", meant, usage.name);
      bad_usage(fmt::format("flatout {} has no option {}", usage.name, escape_terminal(name)),
                hint);
      return std::nullopt;
    }
    bad_usage(escape_terminal(error.what()), hint);
    return std::nullopt;
  }
  if (usage.takes_command) settings.positional = std::move(command);
  if (settings.positional.size() < usage.min_positional ||
      settings.positional.size() > usage.max_positional) {
    exit_code = bad_usage(fmt::format("usage: flatout {} {}", usage.name, usage.synopsis),
                          fmt::format("flatout {} --help", usage.name));
    return std::nullopt;
  }
  set_verbose(settings.verbose);
  return settings;
}

}  // namespace flatout::cli
