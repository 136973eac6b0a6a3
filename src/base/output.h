// Writing what the user asked for, to wherever that is.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace flatout::fs {

/// All of `data`, waiting where the reader of a pipe that does not block is slow. `name` is for the
/// error.
Status write_all(int fd, std::string_view data, std::string_view name);

/// True where something other than a file or a folder has this name: a device, a pipe, a symbolic
/// link as /dev/stdout is one. A rename would put a file in its place.
bool is_special(const std::string& path);

/// What a symbolic link stands for in the end, be it there or not; any other path as it is. Links
/// of /proc stay: /dev/stdout leads to one, and what it stands for is open already.
std::string follow_links(std::string path);

/// For a name that the user gave: a pipe or a device is written into, else write_atomically(), not
/// for the owner alone. What a link leads to is written, and the link stays.
Status write_output(const std::string& name, std::string_view data);

}  // namespace flatout::fs
