// Which line of the user's a record of a memory snapshot is about.
#pragma once

#include <string>

#include "devmem/pickle.h"

namespace flatout::devmem {

/// "model.py:17 forward": the innermost Python line of the record's "frames" that is no library's,
/// else the innermost; "" if there is none.
std::string python_line(const Pickle& pickle, const Pickle::Value& record);

}  // namespace flatout::devmem
