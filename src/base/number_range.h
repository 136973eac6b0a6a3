// "3-5": a range of numbers as people write it.
#pragma once

#include <optional>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace flatout {

/// First and last of "3-5", or of "3" alone; nothing for other text and where the last comes first.
template <class T>
std::optional<std::pair<T, T>> parse_range(std::string_view text) {
  const size_t dash = text.find('-', 1);  // a sign is part of the first number
  const auto first = parse_number<T>(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_number<T>(text.substr(dash + 1));
  if (!first || !last || *last < *first) return std::nullopt;
  return std::pair{*first, *last};
}

}  // namespace flatout
