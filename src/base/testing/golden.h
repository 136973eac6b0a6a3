// Golden files for tests: tests/golden/<room>/<name>, written anew with FLATOUT_RENEW_GOLDEN=1
// (`make golden`) and read in review.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace flatout {

inline void expect_golden(const std::string& room, const std::string& name,
                          const std::string& text) {
  const std::filesystem::path path =
      std::filesystem::path(FLATOUT_TEST_DATA) / "golden" / room / name;
  if (std::getenv("FLATOUT_RENEW_GOLDEN") != nullptr) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return;
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream stored;
  stored << file.rdbuf();
  EXPECT_EQ(stored.str(), text) << path << " differs: make golden, and read the diff";
}

}  // namespace flatout
