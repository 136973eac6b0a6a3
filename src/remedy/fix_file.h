// What `flatout fix` writes and `flatout run --with` reads: fix.json; and flatout.env, for a shell.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "remedy/search.h"

namespace flatout::remedy {

/// fix.json: the outcome, and under "apply" what `flatout run --with` needs.
std::string fix_json(const std::vector<std::string>& command, const Outcome& outcome,
                     bool isolated);
/// The setting of a fix.json. Errors: kBadInput. Any input may be hostile.
Result<Setting> setting_from_json(const std::string& text);

/// The same of a file. Errors: kNotFound, kDenied, kIo, kBadInput; the message names the file.
Result<Setting> read_fix_file(const std::string& path);

/// Every flatout.env begins so.
inline constexpr std::string_view kEnvFileMark = "# Written by flatout fix.";

/// Lines NAME='value': the part of a setting that is environment. Agent settings need `flatout run
/// --with`; a comment says so.
std::string env_file(const Setting& setting);

/// How to make a setting permanent without flatout: lines for a shell, a Dockerfile, a Slurm
/// script.
std::vector<std::string> shell_lines(const Setting& setting);
/// Of a remedy, with the command that does the same from outside where there is one.
std::vector<std::string> shell_lines(const Attempt& attempt);
std::vector<std::string> dockerfile_lines(const Setting& setting);
std::vector<std::string> slurm_lines(const Setting& setting);

}  // namespace flatout::remedy
