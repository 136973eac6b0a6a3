#include "recorder/launch.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "recorder/test_folder.h"

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

TEST(Launch, NamesTheInterpreterThatIsMissing) {
  const TestFolder root;
  InheritedSignals signals{};
  ::sigemptyset(&signals.mask);
  signals.pipe.sa_handler = signals.child.sa_handler = SIG_DFL;
  const auto said = [&](const std::string& content) {
    std::ofstream(root / "job") << content;
    std::filesystem::permissions(root / "job", std::filesystem::perms::owner_all);
    const auto started = start_job({{root / "job"}, {}}, signals);
    EXPECT_FALSE(started.ok());
    EXPECT_EQ(started.error().code, Code::kDenied);
    return started.error().message + "; " + started.error().hint;
  };
  EXPECT_NE(said("#! /no/such/python -u\n").find("its interpreter /no/such/python is not there"),
            std::string::npos);
  EXPECT_NE(said("#!/bin/sh\r\n").find("line ends of Windows"), std::string::npos);
  const auto gone = start_job({{root / "nothing"}, {}}, signals);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code, Code::kNotFound);
}

}  // namespace
}  // namespace flatout::recorder
