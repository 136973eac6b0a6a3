// What is made from a finished run: steps, verdict, and the derived files of the run folder.
#pragma once

#include <string>

#include "base/result.h"
#include "model/finding.h"
#include "model/run.h"

namespace flatout::cli {

/// Finds the steps and the findings.
model::Diagnosis judge(model::Run& run);

/// findings.json and run.json: small, and what scripts wait for.
Status write_verdict(const std::string& folder, const model::Run& run,
                     const model::Diagnosis& diagnosis);
/// report.html, trace.json.gz, stacks.folded.
Status write_reports(const std::string& folder, const model::Run& run,
                     const model::Diagnosis& diagnosis);

/// Errors: kBadInput, with the formats that there are.
Status check_format(const std::string& format);
/// The report in one of the formats of `flatout report --format`. Errors: as check_format().
Result<std::string> render(const std::string& format, const model::Run& run,
                           const model::Diagnosis& diagnosis);

/// The last stack of every thread, innermost frame first (`attach --dump --json`).
std::string stacks_json(const model::Run& run);

/// Says the error; returns the exit code for it: 2 where kBadInput means the command line, else 1.
int fail(const Error& error);

/// Says what is wrong with a file or folder that was to be read; returns 1.
int fail_input(const Error& error);

/// Whether a file of that name can be written, "" included; says what is in the way of one that
/// cannot.
Status check_output(const std::string& path);

/// Writes to a file that the user named, or to standard output where `path` is empty. A new file
/// has the modes that the umask gives, an old one keeps its own.
Status write_text(const std::string& path, const std::string& text);

/// What is printed and not written yet may still fail: 1 then in the place of 0, and it is said.
int end_output(int exit_code);

}  // namespace flatout::cli
