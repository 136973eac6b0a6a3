// Keeps what a trial writes away from the user's files: a mount namespace of its own, with an
// overlay over every folder but some of the system's, whose upper half lies in a scratch folder.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace flatout::remedy {

/// What is written all the same, for a sentence.
inline constexpr std::string_view kNotIsolated =
    "/dev, /run, /boot and /usr (but /usr/local) and new names in / itself";

/// Puts this process, and all that it starts, into such a namespace. `scratch` is an existing
/// folder that takes what is written; the folder that it lies in is the run's own and stays as it
/// is. The working folder stays the same path. Call in a process with one thread. On an error the
/// process may be half way in: end it. Errors: kDenied where the kernel does not permit it.
Status isolate_files(const std::string& scratch);

/// Whether isolate_files() works here: tried in a child process.
Status can_isolate(const std::string& scratch);

}  // namespace flatout::remedy
