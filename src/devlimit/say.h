// Messages for the user, on standard error, each at most once in a process.
#pragma once

namespace flatout::devlimit {

/// printf; "flatout: warning: " stands before it. Does nothing the second time at the same place,
/// known by `format`'s address.
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...);

}  // namespace flatout::devlimit
