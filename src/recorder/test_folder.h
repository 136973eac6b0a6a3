// A temporary folder for tests of files.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace flatout::recorder {

class TestFolder {
 public:
  TestFolder() {
    char name[] = "/tmp/flatout_test_XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& leaf) const { return path_ + "/" + leaf; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace flatout::recorder
