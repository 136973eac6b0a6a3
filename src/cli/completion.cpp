// flatout completion: what bash, zsh and fish need to know, from the very tables that the commands
// are parsed with.
#include <fmt/format.h>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/completion_values.h"
#include "cli/manual.h"
#include "cli/options.h"
#include "cli/outputs.h"

namespace flatout::cli {
namespace {

using Kind = Values::Kind;

const Usage kCompletion{"completion",
                        "bash|zsh|fish",
                        "Prints the completion for a shell; installed packages bring it along.",
                        "  source <(flatout completion bash)\n"
                        "  flatout completion fish > ~/.config/fish/completions/flatout.fish",
                        {},
                        false,
                        false,
                        false,
                        1,
                        1};

std::vector<std::string> commands_of(const std::vector<Usage>& usages) {
  std::vector<std::string> out;
  for (const Usage& usage : usages) {
    const std::string first(usage.name.substr(0, usage.name.find(' ')));
    if (out.empty() || out.back() != first) out.push_back(first);
  }
  return out;
}

// "summary diff" for trace; empty where a command has no commands of its own.
std::string parts_of(const std::vector<Usage>& usages, std::string_view command) {
  std::string out;
  for (const Usage& usage : usages) {
    const size_t blank = usage.name.find(' ');
    if (blank == std::string_view::npos || usage.name.substr(0, blank) != command) continue;
    out += (out.empty() ? "" : " ") + std::string(usage.name.substr(blank + 1));
  }
  return out;
}

std::string join(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// ---- bash ----

// A call of a function that sets COMPREPLY.
std::string bash_values(const Values& values) {
  switch (values.kind) {
    case Kind::kWords:
      return fmt::format("_flatout_words '{}'", join(values.words));
    case Kind::kFolder:
      return "_flatout_folders";
    case Kind::kRunFolder:
      return "_flatout_runs";
    case Kind::kPid:
      return "_flatout_pids";
    case Kind::kCommand:
      return "_flatout_command";
    case Kind::kNothing:
      return "_flatout_words ''";
    case Kind::kFile:
      break;
  }
  return "_flatout_files";
}

void add_bash_command(std::string& out, const Usage& usage) {
  std::string names;
  out += fmt::format("    '{}')\n      case \"$prev\" in\n", usage.name);
  for (const Flag& flag : flags_of(usage)) {
    names += (names.empty() ? "" : " ") + flag.flag;
    if (!flag.takes_value) continue;
    out += fmt::format("        {}) {}; return ;;\n",
                       flag.name == "output" ? "-o|--output" : flag.flag,
                       bash_values(values_of(usage, flag)));
  }
  out += fmt::format("      esac\n      options='{}'\n      words=({}) ;;\n", names,
                     bash_values(words_of(usage)));
}

constexpr std::string_view kBashFunctions = R"bash(# bash completion for flatout
_flatout_words() { compopt +o default 2> /dev/null; COMPREPLY=($(compgen -W "$1" -- "$cur")); }
# Without an answer bash completes files itself.
_flatout_files() { COMPREPLY=(); }
_flatout_folders() {
  compopt -o filenames 2> /dev/null
  mapfile -t COMPREPLY < <(compgen -d -- "$cur")
}
_flatout_runs() {
  local run
  _flatout_folders
  for run in flatout-runs/"$cur"*; do
    if [ -e "$run/series.bin" ]; then COMPREPLY+=("$run"); fi
  done
}
# Threads of the kernel and zombies have no memory, and nothing to be looked at.
_flatout_pids() {
  local pid size pids=
  while read -r pid size; do
    if [ "$size" != 0 ]; then pids+="$pid "; fi
  done < <(ps -A -o pid=,vsz= 2> /dev/null)
  _flatout_words "$pids"
}
# What follows is another program's.
_flatout_command() {
  local i
  for ((i = 2; i < COMP_CWORD; i++)); do
    if [ "${COMP_WORDS[i]}" = -- ]; then
      if declare -F _command_offset > /dev/null; then _command_offset $((i + 1)); fi
      return
    fi
  done
  COMPREPLY=()
}
_flatout() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} options= i
  local command=${COMP_WORDS[1]} words=(_flatout_words '')
  COMPREPLY=()
  # --option=value comes as three words.
  if [ "$cur" = = ]; then
    cur=
  elif [ "$prev" = = ]; then
    prev=${COMP_WORDS[COMP_CWORD-2]}
  fi
  if [ "$COMP_CWORD" -eq 1 ]; then
)bash";

std::string bash(const std::vector<Usage>& usages) {
  std::string out(kBashFunctions);
  out += fmt::format("    _flatout_words '{} help --help --version'\n    return\n  fi\n",
                     join(commands_of(usages)));
  // The second word is a part of the command, or its first argument.
  out += "  case \"$command\" in\n";
  for (const std::string& command : commands_of(usages)) {
    const std::string parts = parts_of(usages, command);
    if (parts.empty()) continue;
    out += fmt::format(
        "    {}) if [ \"$COMP_CWORD\" -eq 2 ]; then _flatout_words '{} --help'; return; fi\n"
        "      command=\"$command ${{COMP_WORDS[2]}}\" ;;\n",
        command, parts);
  }
  out +=
      "  esac\n"
      "  # Behind -- stands no option of ours.\n"
      "  for ((i = 2; i < COMP_CWORD; i++)); do\n"
      "    if [ \"${COMP_WORDS[i]}\" = -- ]; then prev= cur=${COMP_WORDS[COMP_CWORD]}; break; fi\n"
      "  done\n"
      "  case \"$command\" in\n";
  for (const Usage& usage : usages) add_bash_command(out, usage);
  out += fmt::format(
      "    'help') if [ \"$COMP_CWORD\" -eq 2 ]; then words=(_flatout_words '{}'); fi ;;\n",
      join(commands_of(usages)));
  out +=
      "  esac\n"
      "  if [ \"$i\" -ge \"$COMP_CWORD\" ] && [[ \"$cur\" = -* ]]; then\n"
      "    _flatout_words \"$options\"\n"
      "  else\n"
      "    \"${words[@]}\"\n"
      "  fi\n"
      "}\n"
      "complete -o default -o bashdefault -F _flatout flatout\n";
  return out;
}

// ---- zsh ----

// For a text in single quotes within brackets.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else if (c == '[' || c == ']' || c == ':' || c == '\\') {
      out += std::string("\\") + c;
    } else {
      out += c;
    }
  }
  return out;
}

// "label:action" as _arguments takes it.
std::string zsh_values(const Values& values) {
  switch (values.kind) {
    case Kind::kWords: {
      std::string words;
      for (const std::string& word : values.words) {
        words += (words.empty() ? "" : " ") + zsh_text(word);
      }
      return "value:(" + words + ")";
    }
    case Kind::kFolder:
      return "folder:_files -/";
    case Kind::kRunFolder:
      return "run folder:_flatout_runs";
    case Kind::kPid:
      return "process:_pids";
    case Kind::kCommand:
      return "command:_normal";
    case Kind::kNothing:
      return "value: ";
    case Kind::kFile:
      break;
  }
  return "file:_files";
}

void add_zsh_command(std::string& out, const Usage& usage) {
  out += fmt::format("    '{}')\n      _arguments", usage.name);
  for (const Flag& flag : flags_of(usage)) {
    const std::string value =
        flag.takes_value ? ":" + zsh_values(values_of(usage, flag)) : std::string();
    out += fmt::format(" \\\n        '{}{}{}[{}]{}'", flag.repeats ? "*" : "", flag.flag,
                       flag.takes_value ? "=" : "", zsh_text(flag.text), value);
    if (flag.name == "output") {
      out += fmt::format(" \\\n        '-o[{}]{}'", zsh_text(flag.text), value);
    }
  }
  const Values words = words_of(usage);
  if (words.kind == Kind::kCommand) {
    // From the first word that is no option on, all belongs to the other program.
    out += " \\\n        '(-):command:_command_names -e' '*::arguments:_normal'";
  } else if (words.kind != Kind::kNothing) {
    out += fmt::format(" \\\n        '*:{}'", zsh_values(words));
  }
  out += " ;;\n";
}

std::string zsh(const std::vector<Usage>& usages) {
  std::string out = fmt::format(
      "#compdef flatout\n"
      "_flatout_runs() {{\n"
      "  local -a runs\n"
      "  runs=(flatout-runs/*/series.bin(N:h))\n"
      "  (( $#runs )) && compadd -f -- $runs\n"
      "  _files -/\n"
      "}}\n"
      "_flatout() {{\n"
      "  local command=$words[2]\n"
      "  if (( CURRENT == 2 )); then\n"
      "    compadd -- {0} help --help --version\n"
      "    return\n"
      "  fi\n"
      "  case \"$command\" in\n"
      "    help) if (( CURRENT == 3 )); then compadd -- {0}; fi; return ;;\n",
      join(commands_of(usages)));
  for (const std::string& command : commands_of(usages)) {
    const std::string parts = parts_of(usages, command);
    if (parts.empty()) continue;
    out += fmt::format(
        "    {}) if (( CURRENT == 3 )); then compadd -- {} --help; return; fi\n"
        "      command=\"$command $words[3]\"; shift words; (( CURRENT-- )) ;;\n",
        command, parts);
  }
  // _arguments takes the first word for the command's name.
  out += "  esac\n  shift words; (( CURRENT-- ))\n  case \"$command\" in\n";
  for (const Usage& usage : usages) add_zsh_command(out, usage);
  out += "  esac\n}\n_flatout \"$@\"\n";
  return out;
}

// ---- fish ----

std::string fish_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// The options of `complete` that say what may be given.
std::string fish_values(const Values& values) {
  switch (values.kind) {
    case Kind::kWords:
      return fmt::format(" -x -a '{}'", fish_text(join(values.words)));
    case Kind::kFolder:
      return " -x -a '(__fish_complete_directories)'";
    case Kind::kRunFolder:
      return " -x -a '(__flatout_runs)'";
    case Kind::kPid:
      return " -x -a '(__fish_complete_pids)'";
    case Kind::kCommand:
      return " -x -a '(__fish_complete_subcommand)'";
    case Kind::kNothing:
      return " -x";
    case Kind::kFile:
      break;
  }
  return " -r -F";
}

void add_fish_command(std::string& out, const Usage& usage) {
  for (const Flag& flag : flags_of(usage)) {
    out += fmt::format("complete -c flatout -n '__flatout_is {}' -l {}{}{} -d '{}'\n", usage.name,
                       flag.flag.substr(2), flag.name == "output" ? " -s o" : "",
                       flag.takes_value ? fish_values(values_of(usage, flag)) : "",
                       fish_text(flag.text));
  }
  const Values words = words_of(usage);
  if (words.kind == Kind::kFile) return;  // fish completes them by itself
  out += fmt::format("complete -c flatout -n '__flatout_is {}'{}\n", usage.name,
                     words.kind == Kind::kNothing ? " -f" : fish_values(words));
}

constexpr std::string_view kFishFunctions = R"fish(# fish completion for flatout
# Whether the line begins with these words, the program's name aside.
function __flatout_is
  set -l words (commandline -opc)
  test (count $words) -gt (count $argv); or return 1
  for i in (seq (count $argv))
    set -l at (math $i + 1)
    test "$words[$at]" = "$argv[$i]"; or return 1
  end
end
# Whether so many words stand before the cursor, the program's name among them.
function __flatout_words
  test (count (commandline -opc)) -eq $argv[1]
end
function __flatout_runs
  for run in flatout-runs/*/series.bin
    string replace /series.bin '' $run
  end
  __fish_complete_directories
end
)fish";

std::string fish(const std::vector<Usage>& usages) {
  std::string out(kFishFunctions);
  out +=
      "complete -c flatout -f -n '__flatout_words 1' -a help -d 'show the help of a command'\n"
      "complete -c flatout -f -n '__flatout_is help'\n";
  out +=
      fmt::format("complete -c flatout -f -n '__flatout_is help; and __flatout_words 2' -a '{}'\n",
                  join(commands_of(usages)));
  for (const std::string& command : commands_of(usages)) {
    std::string summary;
    for (const Usage& usage : usages) {
      if (usage.name == command) summary = usage.summary;
    }
    out += fmt::format("complete -c flatout -f -n '__flatout_words 1' -a {} -d '{}'\n", command,
                       fish_text(summary));
    const std::string parts = parts_of(usages, command);
    if (parts.empty()) continue;
    out +=
        fmt::format("complete -c flatout -f -n '__flatout_is {}; and __flatout_words 2' -a '{}'\n",
                    command, parts);
  }
  for (const Usage& usage : usages) add_fish_command(out, usage);
  return out;
}

}  // namespace

int completion(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kCompletion, arguments, code);
  if (!settings) return code;
  const std::string& shell = settings->positional[0];
  const std::vector<Usage> usages = all_usages();
  std::string script;
  if (shell == "bash") script = bash(usages);
  if (shell == "zsh") script = zsh(usages);
  if (shell == "fish") script = fish(usages);
  if (script.empty()) {
    return bad_usage(fmt::format("there is no completion for '{}'", escape_terminal(shell)),
                     "bash, zsh or fish");
  }
  const Status put = write_text("", script);
  return put.ok() ? 0 : 1;
}

}  // namespace flatout::cli
