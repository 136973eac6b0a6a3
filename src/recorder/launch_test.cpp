#include "recorder/launch.h"

#include <gtest/gtest.h>

namespace flatout::recorder {
namespace {

TEST(Launch, PreloadsBehindWhatIsPreloadedAlready) {
  std::vector<std::string> environment{"A=1"};
  add_preload(environment, "/x/libflatout_malloc.so");
  EXPECT_EQ(variable(environment, "LD_PRELOAD"), "/x/libflatout_malloc.so");
  environment = {"LD_PRELOAD=/a.so /b.so"};
  add_preload(environment, "/x/libflatout_malloc.so");
  EXPECT_EQ(variable(environment, "LD_PRELOAD"), "/a.so /b.so:/x/libflatout_malloc.so");
}

TEST(Launch, PreloadsOnlyOnce) {
  std::vector<std::string> environment{"LD_PRELOAD=/x/m.so:/a.so"};
  add_preload(environment, "/x/m.so");
  EXPECT_EQ(variable(environment, "LD_PRELOAD"), "/x/m.so:/a.so");
  add_preload(environment, "/x/m");  // another file, whose name begins alike
  EXPECT_EQ(variable(environment, "LD_PRELOAD"), "/x/m.so:/a.so:/x/m");
}

}  // namespace
}  // namespace flatout::recorder
