// flatout manual: the pages for man(1), from the very tables that the commands are parsed with.
#include "cli/manual.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/fs.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"

namespace flatout::cli {
namespace {

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
    out += fmt::format(".TP\n.B {}{}{}\n{}\n", flag.name == "output" ? "\\-o, " : "",
                       roff(flag.flag), flag.takes_value ? " \\fIVALUE\\fR" : "", roff(flag.text));
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
