// Options of all commands, from one table (options.def), and the parsing that commands share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flatout::cli {

using flag = bool;
using count = int64_t;
using number = double;
using text = std::string;
using texts = std::vector<std::string>;

struct Settings {
#define FLATOUT_OPTION(name, type, standard, help) type name = standard;
#include "cli/options.def"
#undef FLATOUT_OPTION
  bool json = false;                    // --json
  std::string json_file;                // --json=FILE of a command with json_to_file
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
  // --json=FILE leaves standard output to the job, and the command writes the file itself. Of all
  // others with --json it takes what they print.
  bool json_to_file = false;
  bool takes_command = false;  // everything from the first word that is no option on is a command
  size_t min_positional = 0, max_positional = 0;
};

/// A row of options.def.
struct OptionRow {
  std::string_view name;  // "fail_on"
  std::string_view type;  // "flag", "count", "number", "text" or "texts"
  std::string standard;   // the default, as --help shows it
  std::string_view text;  // of all commands
};
const std::vector<OptionRow>& option_rows();
/// What a row's text says of one command: "" if nothing.
std::string text_for(std::string_view all, std::string_view command);
/// "--fail-on" for "fail_on".
std::string flag_of(std::string_view name);

/// An option of one command, as its parser has it.
struct Flag {
  std::string_view name;  // "fail_on"; "json" and "help" are no rows of options.def
  std::string flag;       // "--fail-on"
  bool takes_value = false, is_number = false, repeats = false;
  std::string value;  // "INT=40": its kind and default
  std::string text;
};
std::vector<Flag> flags_of(const Usage& usage);

/// What --help prints, in lines of at most 80 columns.
std::string help_of(const Usage& usage);

/// Help that was written by hand, in lines of at most 80 columns: what a command does moves below
/// it or goes on in its column.
std::string folded(std::string_view help);

/// From now on parse() only adds its usage to `into` and gives nullopt; nullptr ends that. A
/// command tells how it is called nowhere else, so completion and manual cannot differ from it.
void record_usages(std::vector<Usage>* into);

/// Parses the arguments after the command's name. nullopt: help was printed, the usage is wrong or
/// what it names cannot be written; `exit_code` says which (0, 2; 1 or 125).
std::optional<Settings> parse(const Usage& usage, const std::vector<std::string>& arguments,
                              int& exit_code);

/// Prints "flatout: error: ..." and how to go on; returns 2.
int bad_usage(std::string_view message, std::string_view hint);

/// A size as parse_bytes() reads it, its unit in any case:
/// "8GiB" for "8gib".
std::string size_words(std::string size);

/// Says on a terminal that standard input is read, which else would look as if nothing happened.
void tell_standard_input(std::string_view what);

/// The one of `known` that `word` was probably meant to be, "" if none is near.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace flatout::cli
