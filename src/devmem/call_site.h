// Where in the job's code a request comes from.
#pragma once

#include <string>
#include <string_view>

namespace flatout::devmem {

/// "train.py:17 forward" where this thread runs Python: its innermost frame that is no library's,
/// else the innermost. Else the function of the return address: "make_batch(int)+0x2a", or
/// "libx.so+0x1a2b" where it has no name; a thread without Python within a Python process is named
/// by its name ("thread pt_autograd_0"). Takes the GIL for a moment, so no lock may be held that
/// its holder could wait for.
std::string call_site(const void* return_address);

/// The C++ side of it alone.
std::string code_site(const void* address);

/// A mangled C++ name as C++ writes it; any other as it is.
std::string plain_name(const std::string& name);

/// Whether the file is a library's and not the job's own: in site-packages, or PyTorch's.
bool is_library_file(std::string_view file);

}  // namespace flatout::devmem
