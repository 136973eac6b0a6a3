#include "devmem/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>

#include "base/text.h"

namespace flatout::devmem {
namespace {

constexpr int kMostDevices = 64;  // as devlimit counts

// "8gib" like "8GiB", and "8Gi" as Kubernetes has it.
std::optional<Bytes> size_of(std::string_view text) {
  std::string size(text);
  for (char& c : size) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (size.ends_with('I')) size += 'B';
  if (size.ends_with("IB")) size[size.size() - 2] = 'i';
  return parse_bytes(size);
}

}  // namespace

Bytes Limit::of(Bytes total) const {
  if (bytes > 0) return bytes;
  return fraction >= 1 ? total : static_cast<Bytes>(static_cast<double>(total) * fraction);
}

Result<Limit> parse_limit(std::string_view text) {
  const bool percent = text.ends_with('%');
  if (percent || text.find_first_not_of("0123456789.e-") == text.npos) {
    const auto number = parse_number<double>(percent ? text.substr(0, text.size() - 1) : text);
    const bool fraction = percent || text.find_first_of(".e") != text.npos;
    if (number && fraction) {
      const double ratio = percent ? *number / 100 : *number;
      if (ratio > 0 && ratio <= 1) return Limit{0, ratio};
      return Error{Code::kBadInput, fmt::format("'{}' is no part of a card", escape_terminal(text)),
                   "above 0 and at most 1 or 100%, as 0.5 or 50%"};
    }
  }
  const auto bytes = size_of(text);
  if (!bytes)
    return Error{Code::kBadInput,
                 fmt::format("'{}' is neither a size nor a fraction", escape_terminal(text)),
                 "as 8GiB, 0.5 or 50%"};
  if (*bytes < kPageBytes)
    return Error{Code::kBadInput,
                 fmt::format("{} bytes are less than a card gives at a time", *bytes),
                 "with a unit, as 8GiB"};
  return Limit{*bytes, 1};
}

Result<std::vector<DeviceLimits>> parse_limits(std::string_view text) {
  std::vector<DeviceLimits> out;
  for (const std::string_view part : split(text, ',')) {
    DeviceLimits one;
    std::string_view values = part;
    if (const size_t equals = part.find('='); equals != part.npos) {
      const auto device = parse_number<int>(part.substr(0, equals));
      const auto same = [&](const DeviceLimits& d) { return d.device == *device; };
      if (!device || *device < 0 || *device >= kMostDevices ||
          std::any_of(out.begin(), out.end(), same))
        return Error{Code::kBadInput,
                     fmt::format("'{}' names no device, or one that was named before",
                                 escape_terminal(part)),
                     "devices as the job numbers them: 0=8GiB,1=4GiB"};
      one.device = *device;
      values = part.substr(equals + 1);
    }
    for (const std::string_view value : split(values, '+')) {
      FLATOUT_TRY(const Limit limit, parse_limit(value));
      one.limits.push_back(limit);
    }
    out.push_back(std::move(one));
  }
  const bool plain = std::any_of(out.begin(), out.end(), [](auto& d) { return d.device < 0; });
  if (plain && out.size() > 1)
    return Error{Code::kBadInput,
                 fmt::format("'{}' says twice what a device may take", escape_terminal(text)),
                 "one size for every device, or 0=SIZE,1=SIZE"};
  return out;
}

}  // namespace flatout::devmem
