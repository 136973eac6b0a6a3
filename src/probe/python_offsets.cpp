#include "probe/python_offsets.h"

#include <string>

namespace flatout::probe {

bool has_debug_offsets(std::string_view runtime) {
  return wire::has_debug_offsets(runtime.data(), runtime.size());
}

Result<PythonOffsets> parse_debug_offsets(std::string_view runtime) {
  if (!has_debug_offsets(runtime)) return Error{Code::kBadInput, "no debug offsets", ""};
  PythonOffsets o;
  switch (wire::read_debug_offsets(runtime.data(), runtime.size(), o)) {
    case wire::DebugOffsets::kGood:
      return o;
    case wire::DebugOffsets::kUnknownVersion:
      return Error{Code::kUnsupported,
                   "CPython 3." + std::to_string(o.minor) + " is not known to this flatout",
                   "update flatout"};
    case wire::DebugOffsets::kDamaged:
      break;
  }
  return Error{Code::kBadInput, "the interpreter's debug offsets make no sense", ""};
}

}  // namespace flatout::probe
