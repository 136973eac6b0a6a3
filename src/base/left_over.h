// What a killed process left behind of the files that it was writing, or counting in.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace flatout::fs {

inline constexpr std::string_view kDigits = "0123456789";  // of a process's number
inline constexpr std::string_view kMkstemp =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Removes the regular files whose path is `prefix` and some of `letters`, which belong to the
/// caller, were not written to for `least_age`, and which no process has open or mapped,
/// here or in another container. Where that cannot be told (network file systems) they stay.
void remove_left_over(const std::string& prefix, std::string_view letters,
                      std::chrono::seconds least_age);

}  // namespace flatout::fs
