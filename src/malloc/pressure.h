// Whether memory is short: by the kernel's pressure stall information and the limit of our cgroup.
#pragma once

namespace flatout::malloc {

/// Reads at most two small files. Without them (other kernels, closed /proc): false.
bool under_pressure();

}  // namespace flatout::malloc
