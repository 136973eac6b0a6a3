// Where CPython keeps what a reader of stacks needs (wire/python_offsets.h), with errors that say
// what is wrong.
#pragma once

#include <string_view>

#include "base/result.h"
#include "wire/python_offsets.h"

namespace flatout::probe {

using wire::kDebugOffsetsSize;
using wire::kNewestPython;
using wire::kOldestPython;
using wire::python_offsets;
using wire::PythonOffsets;

/// True where `runtime`, the start of _PyRuntime, holds a _Py_DebugOffsets.
bool has_debug_offsets(std::string_view runtime);
/// Errors: kUnsupported for a version that is not known, kBadInput where offsets make no sense.
Result<PythonOffsets> parse_debug_offsets(std::string_view runtime);

}  // namespace flatout::probe
