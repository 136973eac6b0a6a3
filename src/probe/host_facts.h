// Facts about the machine and the job's place in it that can explain a slow-down without a change
// of code: container, limits, scheduling, storage below the working directory, what is left in
// /dev/shm. Told once at the start. (What needs the job's environment is told by the recorder.)
#pragma once

#include "base/fs.h"
#include "model/sink.h"
#include "probe/probe.h"

namespace flatout::probe {

/// Tells the facts; keys: docs/run-folder.md, "Facts".
void tell_host_facts(const fs::Root& root, int32_t job_pid, model::Sink& sink);

/// True where the kernel counts how long tasks wait for block I/O. From Linux 5.14 on that is a
/// switch, off by default; before it was always on, if built.
bool accounts_block_io(const fs::Root& root);

/// Tells them on its first reading, and nothing after that.
std::unique_ptr<Probe> make_host_facts_probe(const Scope& scope);

}  // namespace flatout::probe
