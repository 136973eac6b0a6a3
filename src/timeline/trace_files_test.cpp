#include "timeline/trace_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace flatout::timeline {
namespace {

namespace fs = std::filesystem;

// A folder with these empty files, gone with this.
class Folder {
 public:
  explicit Folder(const std::vector<std::string>& files) {
    std::string name = testing::TempDir() + "trace_files_XXXXXX";
    path_ = ::mkdtemp(name.data());
    for (const std::string& file : files) {
      fs::create_directories((path_ / file).parent_path());
      std::ofstream(path_ / file).put('{');
    }
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& inside) const { return (path_ / inside).string(); }
  // What trace_files() says of the folder or of what is in it, without the folder's own name.
  std::vector<std::string> traces(const std::string& inside = "") const {
    const auto files = trace_files((path_ / inside).string());
    std::vector<std::string> out;
    for (const std::string& file : files.ok() ? *files : std::vector<std::string>())
      out.push_back(fs::path(file).lexically_relative(path_).string());
    return out;
  }

 private:
  fs::path path_;
};

using Names = std::vector<std::string>;

TEST(TraceFiles, AFileIsItself) {
  EXPECT_EQ(*trace_files("not there.json"), Names{"not there.json"});
}

TEST(TraceFiles, ARunFolderHasOne) {
  const Folder run({"trace.json.gz", "series.bin", "host.trace.json.gz"});
  EXPECT_EQ(run.traces(), Names{"trace.json.gz"});
}

TEST(TraceFiles, OfTensorBoardsFolderTheLastRecordingOfEachHost) {
  const Folder logs({"events.out.tfevents.1.host",
                     "plugins/profile/2024_01_01_10_00_00/a.xplane.pb",
                     "plugins/profile/2024_01_02_10_00_00/a.trace.json.gz",
                     "plugins/profile/2024_01_02_10_00_00/a.xplane.pb",
                     "plugins/profile/2024_01_02_10_00_00/b.trace.json.gz",
                     "plugins/profile/2024_01_03_10_00_00/a.memory_profile.json.gz"});
  const Names last{"plugins/profile/2024_01_02_10_00_00/a.xplane.pb",
                   "plugins/profile/2024_01_02_10_00_00/b.trace.json.gz"};
  EXPECT_EQ(logs.traces(), last);
  EXPECT_EQ(logs.traces("plugins/profile"), last);
  EXPECT_EQ(logs.traces("plugins/profile/"), last);
  EXPECT_EQ(logs.traces("plugins/profile/2024_01_01_10_00_00"),
            Names{"plugins/profile/2024_01_01_10_00_00/a.xplane.pb"});
}

TEST(TraceFiles, KerasHasFoldersForTrainingAndValidation) {
  const Folder logs({"train/plugins/profile/2024_01_02_10_00_00/a.xplane.pb",
                     "validation/plugins/profile/2024_01_01_10_00_00/a.xplane.pb"});
  EXPECT_EQ(logs.traces(), Names{"train/plugins/profile/2024_01_02_10_00_00/a.xplane.pb"});
}

TEST(TraceFiles, OfPyTorchsHandlerTheNewestOfEachProcess) {
  const Folder logs({"host_12.999.pt.trace.json", "host_12.1000.pt.trace.json.gz",
                     "host_13.900.pt.trace.json", "notes.json"});
  EXPECT_EQ(logs.traces(), (Names{"host_12.1000.pt.trace.json.gz", "host_13.900.pt.trace.json"}));
}

TEST(TraceFiles, AFolderWithoutATraceIsAnErrorThatNamesIt) {
  const Folder logs({"plugins/profile/2024_01_01_10_00_00/a.memory_profile.json.gz"});
  const auto files = trace_files(logs / "plugins");
  ASSERT_FALSE(files.ok());
  EXPECT_NE(files.error().message.find("plugins"), std::string::npos);
  EXPECT_FALSE(files.error().hint.empty());
}

}  // namespace
}  // namespace flatout::timeline
