// The tables of the failures that `flatout explain` knows, in the order in which they are asked.
//
// The words are those of the programs: PyTorch, TensorFlow, JAX, NCCL, the kernel, Slurm. Every
// kind has a log in tests/logs that must be recognised, and one like it that must not.
// The sureness is a judgement: 0.95 where the line itself names the cause, 0.6 where it is the
// usual one of several. Advice begins with what helps most often.
#pragma once

#include <vector>

#include "advise/log_rules.h"

namespace flatout::advise {

std::vector<LogRule> device_rules();    // log_rules_device.cpp: device memory, driver, kernels
std::vector<LogRule> ranks_rules();     // log_rules_ranks.cpp: collectives
std::vector<LogRule> host_rules();      // log_rules_host.cpp: DataLoader, memory, limits, crashes
std::vector<LogRule> software_rules();  // log_rules_software.cpp: libraries, numbers, models

}  // namespace flatout::advise
