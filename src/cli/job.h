// What the commands that start a job share.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/options.h"
#include "recorder/recorder.h"

namespace flatout::cli {

/// The command that `arguments` name. `flatout run train.py`: where the interpreter was forgotten,
/// and it is clear which one is meant, it is put in.
std::vector<std::string> job_command(const Settings& settings,
                                     const std::vector<std::string>& arguments);

/// The exit code that gives back the job's own: 128 + N for signal N. `interrupted`: Ctrl-C came to
/// us as well; where the job died of it, end_as_job() does the same.
int job_code(int wait_status, bool interrupted);

/// At the very end of main(): dies of SIGINT if the job did, on Ctrl-C. A shell goes on with its
/// loop or script after a program that only returns 130.
int end_as_job(int exit_code);

/// Says why the job did not start; returns 125, 126 or 127.
int start_failed(const Error& error, const std::vector<std::string>& command);

/// Starts it and passes signals on until it ends. Returns its own exit code, or start_failed()'s.
int run_job(const std::vector<std::string>& command, std::vector<std::string> environment);

/// Removes older run folders beyond --keep-runs and --keep-mb.
void prune(const recorder::Recorder& recorder, const Settings& settings);

}  // namespace flatout::cli
