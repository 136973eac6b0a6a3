// Any text of users round a secret: wherever it stands, it does not come out.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "recorder/redact.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout::recorder;  // NOLINT: a program of its own
  constexpr std::string_view kSecret = "hunter2hunter2";
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.find(kSecret) != std::string_view::npos) return 0;
  const size_t cut = size > 0 ? data[0] * size / 256 : 0;
  const std::string before(text.substr(0, cut)), after(text.substr(cut));
  const auto check = [&](const std::string& shown) {
    FLATOUT_CHECK(shown.find(kSecret) == std::string::npos);
  };
  const std::string secret(kSecret);
  const std::string url = before + " https://me:" + secret + "@host/" + after;
  check(redact_text(url));
  check(redact_command(url));
  check(redact_command(before + " --password " + secret + " " + after));
  check(redact_command(before + " --api-key=" + secret + " " + after));
  check(redact_command(before + " WANDB_API_KEY=" + secret + " " + after));
  for (const auto& [name, value] :
       recordable_environment({"TORCH_TOKEN=" + secret, "OMP_X=" + url, std::string(text)})) {
    check(value);
  }
  return 0;
}
