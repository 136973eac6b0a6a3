// Whose a line of Python in a trace is, by its file alone.
#pragma once

#include <string_view>

namespace flatout::timeline {

/// Whether a file, as a profiler names it, is Python's own or a library's. Profilers cut what
/// sys.path holds off the names, so that the standard library is "selectors.py" and PyTorch
/// "torch/nn/modules/module.py".
bool is_library_file(std::string_view file);

}  // namespace flatout::timeline
