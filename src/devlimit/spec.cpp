#include "devlimit/spec.h"

#include <stdlib.h>
#include <string.h>

#include "devlimit/say.h"

namespace flatout::devlimit {
namespace {

// Digits with a point among them or not, as 12, 1.5 or .5; `at` goes behind them. strtod takes for
// a point what the program's locale has for one. Negative: it is no number.
double take_number(const char*& at, bool& fraction) {
  double digits = 0, scale = 1;
  bool any = false;
  for (fraction = false;; ++at) {
    if (*at == '.' && !fraction) {
      fraction = true;
    } else if (*at >= '0' && *at <= '9') {
      any = true;
      digits = digits * 10 + (*at - '0');
      if (fraction) scale *= 10;
    } else {
      return any ? digits / scale : -1;
    }
  }
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// One value; `end` is where it must end. UINT64_MAX: it is none.
uint64_t value_of(const char* text, const char* end, uint64_t total) {
  const char* after = text;
  bool fraction = false;
  const double number = take_number(after, fraction);
  while (after < end && *after == ' ') ++after;
  if (after > end || !(number >= 0)) return UINT64_MAX;
  const auto left = static_cast<size_t>(end - after);
  if (left == 1 && *after == '%' && number <= 100)
    return static_cast<uint64_t>(static_cast<double>(total) * number / 100);
  if (left == 0 && fraction && number <= 1)
    return static_cast<uint64_t>(static_cast<double>(total) * number);
  if (left == 0 && !fraction) return strtoull(text, nullptr, 10);
  static const char kUnits[] = "kmgt";
  const char* const unit = strchr(kUnits, lower(*after));
  if (left == 0 || unit == nullptr || *after == 0) return UINT64_MAX;
  // "G", "GB", "Gi" as Kubernetes has it, "GiB".
  const char* behind = after + 1;
  if (behind < end && lower(*behind) == 'i') ++behind;
  if (behind < end && lower(*behind) == 'b') ++behind;
  if (behind != end) return UINT64_MAX;
  const double bytes = number * static_cast<double>(uint64_t{1} << (10 * (unit - kUnits + 1)));
  return bytes < 1e18 ? static_cast<uint64_t>(bytes) : UINT64_MAX;
}

}  // namespace

uint64_t limit_of(const char* text, int device, uint64_t total) {
  if (text == nullptr) return UINT64_MAX;
  for (const char* at = text; *at != 0;) {
    const char* const comma = strchr(at, ',');
    const char* const end = comma != nullptr ? comma : at + strlen(at);
    const auto* const equals =
        static_cast<const char*>(memchr(at, '=', static_cast<size_t>(end - at)));
    char* after = nullptr;
    const bool named = equals == nullptr || (strtol(at, &after, 10) == device && after == equals);
    if (named) {
      const uint64_t value = value_of(equals != nullptr ? equals + 1 : at, end, total);
      if (value != UINT64_MAX) return value;
      say("FLATOUT_DEVLIMIT=%s is no size, fraction or list of devices: no device memory is given",
          text);
      return 0;
    }
    at = comma != nullptr ? comma + 1 : end;
  }
  return UINT64_MAX;
}

}  // namespace flatout::devlimit
