// Options of all commands, from one table (options.def), and the parsing that commands share.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flatout::cli {

using flag = bool;
using number = double;
using text = std::string;
using texts = std::vector<std::string>;

struct Settings {
#define FLATOUT_OPTION(name, type, standard, help) type name = standard;
#include "cli/options.def"
#undef FLATOUT_OPTION
  bool json = false;                    // --json
  std::string json_file;                // --json=FILE
  std::vector<std::string> positional;  // what is no option
};

/// How one command is called.
struct Usage {
  std::string_view name;      // "run"
  std::string_view synopsis;  // "[options] -- COMMAND..."
  std::string_view summary;   // one sentence
  std::string_view examples;  // lines, each indented by two blanks
  std::vector<std::string_view> options;
  bool json = false;
  bool json_to_file = false;   // --json=FILE as well
  bool takes_command = false;  // everything from the first word that is no option on is a command
  size_t min_positional = 0, max_positional = 0;
};

/// A row of options.def.
struct OptionRow {
  std::string_view name;  // "fail_on"
  bool takes_value;
  bool is_number;
  bool repeats;  // may be given several times
  std::string_view text;
};
const std::vector<OptionRow>& option_rows();
/// "--fail-on" for "fail_on".
std::string flag_of(std::string_view name);

/// An option of one command, as its parser has it.
struct Flag {
  std::string_view name;  // "fail_on"; "json" and "help" are no rows of options.def
  std::string flag;       // "--fail-on"
  bool takes_value = false, is_number = false, repeats = false;
  std::string text;
};
std::vector<Flag> flags_of(const Usage& usage);

/// From now on parse() only adds its usage to `into` and gives nullopt; nullptr ends that. A
/// command tells how it is called nowhere else, so completion and manual cannot differ from it.
void record_usages(std::vector<Usage>* into);

/// Parses the arguments after the command's name. nullopt: help was printed or the usage is wrong;
/// `exit_code` says which (0 or 2).
std::optional<Settings> parse(const Usage& usage, const std::vector<std::string>& arguments,
                              int& exit_code);

/// Prints "flatout: error: ..." and how to go on; returns 2.
int bad_usage(std::string_view message, std::string_view hint);

/// The one of `known` that `word` was probably meant to be, "" if none is near.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace flatout::cli
