// What `flatout run` shows while the job runs: one line, and the terminal's title.
#pragma once

#include <string>

#include "model/finding.h"
#include "model/run.h"
#include "report/terminal.h"

namespace flatout::report {

/// "flatout 0:42  16.3 steps/s  input 61% forward 13%  input.decode_cpu 2.0x data.py:41", cut to
/// options.width by leaving out whole pieces, the least important first. No '\n'.
std::string status_line(const model::Run& run, const model::Diagnosis& so_far,
                        const TextOptions& options);

/// Text for the terminal's title, plain and short: "16.3 steps/s input.decode_cpu - train.py".
std::string title_text(const model::Run& run, const model::Diagnosis& so_far);

}  // namespace flatout::report
