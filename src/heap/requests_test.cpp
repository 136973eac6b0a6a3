#include "heap/requests.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "base/fs.h"

namespace flatout::heap {
namespace {

TEST(Requests, StepsAreMarkedInTheFileOfTheirProcess) {
  std::string folder = testing::TempDir() + "flatout-requests-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/t.jsonl";
  const std::string shell = "{\"op\":\"meta\",\"name\":\"sh\",\"pid\":7}\n";
  const std::string head = "{\"op\":\"meta\",\"name\":\"python\",\"pid\":70}\n";
  const std::string a =
      "{\"op\":\"a\",\"id\":1,\"size\":5000,\"site\":\"x\\\"t\\\":3 f\",\"t\":100}\n";
  const std::string f = "{\"op\":\"f\",\"id\":1,\"t\":250}\n", mark = "{\"op\":\"mark\"}\n";
  ASSERT_TRUE(fs::write_atomically(path, shell + a).ok());
  ASSERT_TRUE(fs::write_atomically(path + ".70", head + a + f).ok());
  ASSERT_TRUE(mark_steps(path, 70, {50, 200, 250, 900}).ok());
  EXPECT_EQ(*fs::Root("/").read(path), shell + a);
  const std::string marked = head + mark + a + mark + mark + f;
  EXPECT_EQ(*fs::Root("/").read(path + ".70"), marked);
  // What the job marked itself stays.
  ASSERT_TRUE(mark_steps(path, 70, {60}).ok());
  EXPECT_EQ(*fs::Root("/").read(path + ".70"), marked);
  EXPECT_EQ(mark_steps(path, 71, {50}).error().code, Code::kNotFound);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace flatout::heap
