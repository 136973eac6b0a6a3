// Any bytes as what the process of a trial left behind: a run that can be written again, or an
// error.
#include <cstdint>
#include <string>

#include "base/result.h"
#include "remedy/trial_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout::remedy;  // NOLINT: a program of its own
  const auto run = trial_from_json(std::string(reinterpret_cast<const char*>(data), size));
  if (!run.ok()) return 0;
  const std::string text = to_json(*run);
  const auto again = trial_from_json(text);
  FLATOUT_CHECK(again.ok() && to_json(*again) == text);
  return 0;
}
