// What became of a sample.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flatout::feed {

enum class Outcome : uint8_t {
  kOk,
  kTruncated,     // the data end before the picture does
  kCorrupt,       // the data contradict themselves, or libjpeg warned
  kEmpty,         // no bytes
  kNotAnImage,    // no format that anybody would call a picture
  kUnsupported,   // a picture, of a kind that is not read here
  kTooLarge,      // beyond a limit: pixels, bytes, memory, scans
  kMissingField,  // the record lacks the picture or its label
  kUnreadable,    // the file is gone, or cannot be read
};
constexpr int kOutcomes = 9;

/// "ok", "truncated", ...: as in JSON.
constexpr std::string_view outcome_name(Outcome outcome) {
  constexpr std::string_view kNames[kOutcomes] = {"ok",        "truncated",     "corrupt",
                                                  "empty",     "not_an_image",  "unsupported",
                                                  "too_large", "missing_field", "unreadable"};
  return kNames[static_cast<int>(outcome)];
}

/// An outcome, and in words what was wrong.
struct Verdict {
  Outcome outcome = Outcome::kOk;
  std::string detail;
  bool ok() const { return outcome == Outcome::kOk; }
};

/// A sample, or an archive, that is not what it should be.
struct BadSample {
  std::string file;
  Verdict verdict;
};

}  // namespace flatout::feed
