// Which line of the user's a record of a memory snapshot is about.
#pragma once

#include <string>
#include <vector>

#include "devmem/pickle.h"

namespace flatout::devmem {

/// The record's "frames"; in PyTorch 2.0 a block has those of its latest request in its "history".
/// nullptr if there are none.
const std::vector<Pickle::Index>* frames_of(const Pickle& pickle, const Pickle::Value& record);

/// "model.py:17 forward": the innermost Python line of the record's "frames" that is no library's,
/// else the innermost; "" if there is none.
std::string python_line(const Pickle& pickle, const Pickle::Value& record);

}  // namespace flatout::devmem
