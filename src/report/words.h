// The words that every format uses for the same thing. Nothing here is escaped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/device.h"
#include "model/finding.h"
#include "model/rank.h"
#include "model/run.h"

namespace flatout::report {

std::string_view label(model::Part part);           // "input wait"
std::string_view label(model::ThreadState state);   // "waits for a core"
std::string_view label(model::IdleCause cause);     // what a device waits for: "the next batch"
std::string_view label(model::StepSource source);   // "the agent's hooks"
std::string where_text(const model::Where& where);  // "data.py:41 in __getitem__"
/// The same with a C++ function's parameters and namespaces left out, as far as needed to fit.
std::string where_text(const model::Where& where, size_t width);
/// "exit code 3", "killed by SIGKILL (signal 9)", "still running", "" where it is not known.
std::string exit_text(const model::Run& run);
/// The same of a rank; of one that runs what it does.
std::string exit_text(const model::Rank& rank);
/// The ranks that a short list is to have: late ones first, then those that work longest, at most
/// `most`.
std::vector<const model::Rank*> telling_ranks(const model::RankReport& report, size_t most);
/// Whether the job ended other than by exit code 0.
bool failed(const model::Run& run);
/// The command line: fact "command", else that of the main process.
std::string command_of(const model::Run& run);
/// Processes of the job that live on after the command has ended.
std::vector<const model::Process*> survivors(const model::Run& run);
/// "2.0x"; never "1.0x" for something above 1.005.
std::string factor_text(double factor);
/// The part of a slice of time for people: "12.3 s" after the run's begin.
std::string since_begin(const model::Run& run, TimePoint at);
/// The changes of speed that were largest, `most` at the most, in the order in which they came.
std::vector<model::SpeedChange> main_changes(const model::Run& run, size_t most);

}  // namespace flatout::report
