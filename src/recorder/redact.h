// What of the user's environment and command lines may stand in a run folder.
// A report is shown to colleagues and pasted into issues: nothing that looks like a secret leaves.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flatout::recorder {

inline constexpr std::string_view kRedacted = "[redacted]";

/// Variables that can explain speed or behaviour (OMP_*, CUDA_*, NCCL_*, PYTHON*, ...), with values
/// redacted. `environment`: "NAME=value" each.
std::vector<std::pair<std::string, std::string>> recordable_environment(
    const std::vector<std::string>& environment);

/// One value of a variable or option by the name of that.
std::string redact_value(std::string_view name, std::string_view value);

/// Free text: credentials in URLs, and words that look like tokens (known prefixes, long random
/// strings), are replaced.
std::string redact_text(std::string_view text);

/// A command line, words separated by blanks: as redact_text(), and values of options and
/// assignments whose name says that they are secret (--token X, --api-key=X, WANDB_API_KEY=X).
std::string redact_command(std::string_view command);

}  // namespace flatout::recorder
