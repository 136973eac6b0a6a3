#include "recorder/fault_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace flatout::recorder {
namespace {

void append(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  ASSERT_GE(fd, 0) << path;
  ASSERT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(fd);
}

TEST(FaultFile, GivesWhatWritersAppended) {
  const FaultFile file;
  EXPECT_EQ(file.text(), "");
  append(file.path(), "Fatal Python error: Aborted\n");
  append(file.path(), "  File \"x.py\", line 3 in f\n");
  EXPECT_EQ(file.text(), "Fatal Python error: Aborted\n  File \"x.py\", line 3 in f\n");
}

TEST(FaultFile, TakesNoMoreThanItsBound) {
  const FaultFile file;
  append(file.path(), std::string(100'000, 'x'));
  EXPECT_EQ(file.text().size(), size_t{16} << 10);
}

}  // namespace
}  // namespace flatout::recorder
