// flatout completion, flatout manual: what a shell and man(1) need to know, from the very tables
// that the commands are parsed with.
#include "cli/manual.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "base/fs.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"

namespace flatout::cli {
namespace {

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

const Usage kManual{"manual",
                    "DIR",
                    "Writes the manual pages into a folder.",
                    "  flatout manual /usr/local/share/man/man1",
                    {},
                    false,
                    false,
                    false,
                    1,
                    1};

struct Flag {
  std::string name;  // "--out"
  bool takes_value = false;
  std::string text;
};

// The options of one command, as its parser has them.
std::vector<Flag> flags_of(const Usage& usage) {
  std::vector<Flag> out;
  for (const OptionRow& row : option_rows()) {
    if (std::find(usage.options.begin(), usage.options.end(), row.name) != usage.options.end()) {
      out.push_back({flag_of(row.name), row.takes_value, std::string(row.text)});
    }
  }
  if (usage.json) out.push_back({"--json", false, "print one JSON document on standard output"});
  out.push_back({"--help", false, "show examples and options"});
  return out;
}

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
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::string names_of(const Usage& usage) {
  std::vector<std::string> out;
  for (const Flag& flag : flags_of(usage)) out.push_back(flag.name);
  return join(out);
}

std::string bash(const std::vector<Usage>& usages) {
  std::string out =
      "# bash completion for flatout\n"
      "_flatout() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} words=\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    words='" +
      join(commands_of(usages)) +
      " --help --version'\n"
      "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
      "    return\n"
      "  fi\n"
      "  case \"$command ${COMP_WORDS[2]}\" in\n";
  for (const Usage& usage : usages) {
    if (usage.name.find(' ') == std::string_view::npos) continue;
    out += fmt::format("    '{}') words='{}' ;;\n", usage.name, names_of(usage));
  }
  out += "    *) case \"$command\" in\n";
  for (const std::string& command : commands_of(usages)) {
    const std::string parts = parts_of(usages, command);
    std::string words = parts;
    for (const Usage& usage : usages) {
      if (usage.name == command) words = names_of(usage);
    }
    if (command == "completion") words = "bash zsh fish --help";
    out += fmt::format("      {}) words='{}' ;;\n", command, words);
  }
  out +=
      "    esac ;;\n"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
      "}\n"
      "complete -o default -o bashdefault -F _flatout flatout\n";
  return out;
}

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

void add_zsh_arguments(std::string& out, std::string_view label, const Usage& usage) {
  out += fmt::format("    {})\n      _arguments", label);
  for (const Flag& flag : flags_of(usage)) {
    out += fmt::format(" \\\n        '{}{}[{}]{}'", flag.name, flag.takes_value ? "=" : "",
                       zsh_text(flag.text), flag.takes_value ? ":value:_files" : "");
  }
  out += fmt::format(" \\\n        '*:{}:{}' ;;\n", usage.takes_command ? "command" : "file",
                     usage.takes_command ? "_normal" : "_files");
}

std::string zsh(const std::vector<Usage>& usages) {
  std::string out =
      "#compdef flatout\n"
      "_flatout() {\n"
      "  if (( CURRENT == 2 )); then\n"
      "    compadd -- " +
      join(commands_of(usages)) +
      " --help --version\n"
      "    return\n"
      "  fi\n"
      "  case \"$words[2] $words[3]\" in\n";
  for (const Usage& usage : usages) {
    if (usage.name.find(' ') != std::string_view::npos) {
      add_zsh_arguments(out, fmt::format("'{}'", usage.name), usage);
    }
  }
  out += "    *) case \"$words[2]\" in\n";
  for (const std::string& command : commands_of(usages)) {
    const std::string parts = parts_of(usages, command);
    if (!parts.empty()) out += fmt::format("    {}) compadd -- {} ;;\n", command, parts);
    if (command == "completion") out += "    completion) compadd -- bash zsh fish ;;\n";
    for (const Usage& usage : usages) {
      if (usage.name == command && command != "completion") add_zsh_arguments(out, command, usage);
    }
  }
  out += "    esac ;;\n  esac\n}\n_flatout \"$@\"\n";
  return out;
}

std::string fish_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string fish(const std::vector<Usage>& usages) {
  const std::string commands = join(commands_of(usages));
  std::string out = "# fish completion for flatout\n";
  for (const std::string& command : commands_of(usages)) {
    std::string summary;
    for (const Usage& usage : usages) {
      if (usage.name == command) summary = usage.summary;
    }
    out += fmt::format(
        "complete -c flatout -f -n 'not __fish_seen_subcommand_from {}' -a {} -d '{}'\n", commands,
        command, fish_text(summary));
    const std::string parts = command == "completion" ? "bash zsh fish" : parts_of(usages, command);
    if (!parts.empty()) {
      out += fmt::format("complete -c flatout -f -n '__fish_seen_subcommand_from {}' -a '{}'\n",
                         command, parts);
    }
  }
  for (const Usage& usage : usages) {
    const size_t blank = usage.name.find(' ');
    std::string when = fmt::format("__fish_seen_subcommand_from {}", usage.name.substr(0, blank));
    if (blank != std::string_view::npos) {
      when += fmt::format("; and __fish_seen_subcommand_from {}", usage.name.substr(blank + 1));
    }
    for (const Flag& flag : flags_of(usage)) {
      out += fmt::format("complete -c flatout -n '{}' -l {}{} -d '{}'\n", when, flag.name.substr(2),
                         flag.takes_value ? " -r" : "", fish_text(flag.text));
    }
  }
  return out;
}

// Text for roff: dashes that can be copied, no line that is taken for a request.
std::string roff(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && (i == 0 || text[i - 1] == '\n')) {
      out += std::string("\\&") + c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string page_name(const Usage& usage) {
  std::string out = "flatout-" + std::string(usage.name);
  std::replace(out.begin(), out.end(), ' ', '-');
  return out;
}

std::string header(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return fmt::format(".TH {} 1 \"\" \"flatout {}\" \"Flatout\"\n", name, FLATOUT_VERSION);
}

std::string page_of(const Usage& usage) {
  std::string out = header(page_name(usage));
  out += fmt::format(".SH NAME\n{} \\- {}\n", roff(page_name(usage)), roff(usage.summary));
  out += fmt::format(".SH SYNOPSIS\n.B flatout {}\n{}\n", roff(usage.name), roff(usage.synopsis));
  out += fmt::format(".SH DESCRIPTION\n{}\n.SH OPTIONS\n", roff(usage.summary));
  for (const Flag& flag : flags_of(usage)) {
    out += fmt::format(".TP\n.B {}{}\n{}\n", roff(flag.name),
                       flag.takes_value ? " \\fIVALUE\\fR" : "", roff(flag.text));
  }
  out += fmt::format(".SH EXAMPLES\n.nf\n{}\n.fi\n", roff(usage.examples));
  out += ".SH SEE ALSO\n.BR flatout (1)\n";
  return out;
}

std::string main_page(const std::vector<Usage>& usages) {
  std::string out = header("flatout");
  out +=
      ".SH NAME\nflatout \\- finds why a training job is slow, erratic or out of memory\n"
      ".SH SYNOPSIS\n.B flatout\n.I COMMAND\n[\\fIoptions\\fR]\n.SH COMMANDS\n";
  for (const Usage& usage : usages) {
    out += fmt::format(".TP\n.BR {} (1)\n{}\n", roff(page_name(usage)), roff(usage.summary));
  }
  out +=
      ".SH ENVIRONMENT\n.TP\n.B FLATOUT_OPTION\nEach option may also be given as a variable "
      "(FLATOUT_RATE=20); the flag beats it.\n.TP\n.B NO_COLOR\nNo colours, whatever it holds.\n"
      ".SH EXIT STATUS\n0 done, 1 failed, 2 bad usage, 3 something was found that scripts are to "
      "stop "
      "at. \\fBrun\\fR gives back the job's own.\n";
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

int manual(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kManual, arguments, code);
  if (!settings) return code;
  const std::string& folder = settings->positional[0];
  ::mkdir(folder.c_str(), 0777);  // an error shows when the first page is written
  const std::vector<Usage> usages = all_usages();
  Status put = fs::write_atomically(folder + "/flatout.1", main_page(usages));
  for (const Usage& usage : usages) {
    if (!put.ok()) break;
    put = fs::write_atomically(folder + "/" + page_name(usage) + ".1", page_of(usage));
  }
  if (!put.ok()) log_error(put.error().message, put.error().hint);
  return put.ok() ? 0 : 1;
}

}  // namespace flatout::cli
