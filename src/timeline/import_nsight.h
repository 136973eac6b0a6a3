// Nsight Systems: the SQLite database that `nsys export --type sqlite` writes. Kernels, copies,
// fills, calls of the CUDA runtime and driver, synchronisation, whole graphs, NVTX ranges, cuBLAS,
// cuDNN and operating-system calls. Tables and columns: "SQLite Schema Reference" of Nsight
// Systems' user guide; those that a version lacks are left out.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "timeline/trace_builder.h"

namespace flatout::timeline {

bool looks_like_sqlite(std::string_view head);

/// What could not be read of a database that could be opened; empty: all of it was.
using NsightDamage = std::string;

/// From a plain file, page by page. Errors: kBadInput for a database that no Nsight Systems wrote,
/// or that is damaged before its tables are known.
Result<NsightDamage> import_nsight_file(const std::string& path, TraceBuilder& builder);
/// The same from the bytes of a file.
Result<NsightDamage> import_nsight(std::string_view bytes, TraceBuilder& builder);

}  // namespace flatout::timeline
