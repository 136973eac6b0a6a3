// The JSON documents of the run folder and of --json; the schema is in docs/run-folder.md.
#pragma once

#include <string>

#include "model/comparison.h"
#include "model/finding.h"
#include "model/run.h"

namespace flatout::report {

/// findings.json: verdict, steps, breakdown, findings, missing. Ends with a newline. Numbers that
/// are not known are null; the breakdown adds up to 1 wherever there are steps.
std::string findings_json(const model::Run& run, const model::Diagnosis& diagnosis);

/// run.json: what was recorded: facts, processes, signals, neighbours, Missing.
std::string run_json(const model::Run& run);

/// `flatout compare --json`.
std::string comparison_json(const model::Comparison& comparison);

}  // namespace flatout::report
