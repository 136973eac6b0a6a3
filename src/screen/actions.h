// Does to processes what was confirmed: the only place of flatout that may.
#pragma once

#include <string>

#include "base/fs.h"
#include "screen/session.h"

namespace flatout::screen {

/// Carries out kSignal, kNice, kIoPriority, kCores and kAutogroup; says how it went, for people. A
/// target whose number is another process's by now is left alone. What holds for a process is done
/// to all of its threads, for Linux has nice values, I/O priorities and allowed cores by thread.
std::string act(const fs::Root& root, const Command& command);

}  // namespace flatout::screen
