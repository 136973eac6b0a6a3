// Any bytes as a fix.json: refused or read, and what is read can be written for a shell.
#include <cstddef>
#include <cstdint>
#include <string>

#include "remedy/fix_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto setting = flatout::remedy::setting_from_json(text);
  if (setting.ok()) flatout::remedy::env_file(*setting);
  return 0;
}
