// Raises PyTorch's own exception from below it.
#pragma once

#include <string>

namespace flatout::devmem {

/// Throws c10::OutOfMemoryError, which Python sees as torch.OutOfMemoryError; where this process's
/// libc10 does not show what that takes (before PyTorch 2.6 or so), a std::exception with the same
/// text, which Python sees as a RuntimeError.
[[noreturn]] void throw_as_torch(const std::string& text);

}  // namespace flatout::devmem
