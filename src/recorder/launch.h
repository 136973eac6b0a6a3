// Starting the job as if flatout were not there: same session, process group, terminal, standard
// files, limits, signal mask and dispositions; only some environment variables are added.
#pragma once

#include <signal.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace flatout::recorder {

/// What a process gives to its children and flatout changes for itself.
struct InheritedSignals {
  sigset_t mask;
  struct sigaction pipe, child;
};

/// Opens /dev/null in place of standard files that are closed, so that no file of ours takes their
/// number. The job still gets them closed.
void guard_standard_files();

struct LaunchOptions {
  std::vector<std::string> command;
  std::vector<std::string> environment;  // "NAME=value"
  bool stdout_to_stderr = false;
  bool dies_with_us = false;
};

/// Forks and executes; returns the pid once the program runs.
/// Errors: kNotFound (exit code 127), kDenied (found but cannot be executed: 126), kIo (125).
Result<int32_t> start_job(const LaunchOptions& options, const InheritedSignals& signals);

/// This process's environment.
std::vector<std::string> current_environment();
/// Sets NAME=value, replacing what there was.
void set_variable(std::vector<std::string>& environment, const std::string& name,
                  const std::string& value);
/// Puts `library` behind what LD_PRELOAD names already: who preloads something means it to come
/// first.
void add_preload(std::vector<std::string>& environment, const std::string& library);
/// The value of `name`, "" if there is none.
std::string variable(const std::vector<std::string>& environment, const std::string& name);

/// Where the parts live that are loaded into the job; empty where they are not installed.
struct AgentPaths {
  std::string library;    // libflatout_agent.so
  std::string inject;     // folder of sitecustomize.py
  std::string mpi;        // libflatout_mpi.so
  std::string allocator;  // libflatout_malloc.so
  std::string feed;       // libflatout_feed.so
  std::string nn;         // libflatout_nn.so
  std::string limiter;    // libflatout_devlimit.so
  std::string devmem;     // libflatout_devmem.so
};
/// Looks beside the program (build tree) and in ../lib/flatout (installed).
AgentPaths find_agent();

}  // namespace flatout::recorder
