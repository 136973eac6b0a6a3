#include "recorder/code_facts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "probe/testing/record_sink.h"
#include "recorder/test_folder.h"

namespace flatout::recorder {
namespace {
using Facts = std::map<std::string, std::string>;

void write(const std::string& path, std::string_view text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

Facts told(const TestFolder& folder, std::vector<std::string> command,
           std::vector<std::string> environment = {}) {
  probe::RecordSink sink;
  CodeFacts(fs::Root("/"))
      .tell_program({std::move(command), std::move(environment), folder.path()}, sink);
  return sink.facts;
}

TEST(CodeFacts, AnEditedModuleBesideTheScriptIsTold) {
  const TestFolder folder;
  write(folder / "train.py", "import data, nets.small\n");
  write(folder / "data.py", "SIZE = 32\n");
  write(folder / "nets/small.py", "DEPTH = 2\n");
  write(folder / "notes.txt", "no code\n");
  write(folder / ".venv/pyvenv.cfg", "");
  write(folder / "env/pyvenv.cfg", "");
  write(folder / "env/lib/other.py", "not the user's\n");
  const Facts before = told(folder, {"python", "-u", "train.py", "--size", "32"});
  EXPECT_EQ(before.at("code.file"), folder / "train.py");
  EXPECT_EQ(before.size(), 4u);  // and a hash of each of the three
  write(folder / "data.py", "SIZE = 64\n");
  const Facts after = told(folder, {"python", "-u", "train.py", "--size", "32"});
  for (const auto& [key, value] : before) {
    EXPECT_EQ(after.at(key) != value, key == "code.hash.data.py") << key;
  }
}

TEST(CodeFacts, AModuleIsLookedForWherePythonDoes) {
  const TestFolder folder;
  write(folder / "lib/pkg/__init__.py", "");
  write(folder / "lib/pkg/train.py", "import pkg.data\n");
  write(folder / "lib/pkg/data.py", "SIZE = 32\n");
  write(folder / "unrelated.py", "");
  const Facts facts = told(folder, {"torchrun", "--nproc_per_node", "2", "-m", "pkg.train"},
                           {"PYTHONPATH=/nowhere:" + (folder / "lib")});
  EXPECT_EQ(facts.at("code.file"), folder / "lib/pkg/train.py");
  EXPECT_TRUE(facts.contains("code.hash.data.py"));
  EXPECT_TRUE(facts.contains("code.hash.train.py"));
  EXPECT_FALSE(facts.contains("code.hash.unrelated.py"));
}

TEST(CodeFacts, ALauncherThatIsAModuleIsNotTheProgram) {
  const TestFolder folder;
  write(folder / "train.py", "");
  EXPECT_EQ(told(folder, {"python", "-m", "torch.distributed.run", "train.py"}).at("code.file"),
            folder / "train.py");
}

TEST(CodeFacts, AProgramIsItsOwnCode) {
  const TestFolder folder;
  write(folder / "train", "machine code");
  EXPECT_EQ(told(folder, {folder / "train", "--steps", "3"}).at("code.file"), folder / "train");
  EXPECT_TRUE(told(folder, {"train"}).empty());  // from $PATH: not this one
}

TEST(CodeFacts, AFolderWithoutEndIsLeft) {
  const TestFolder folder;
  write(folder / "train.py", "");
  for (int i = 0; i < 400; ++i) write(folder / ("m" + std::to_string(i) + ".py"), "x = 1\n");
  EXPECT_EQ(told(folder, {"python", "train.py"}).size(), 1u + 256u);
}

TEST(CodeFacts, StacksTellModulesElsewhereAndPackagesByTheirFolders) {
  const TestFolder folder;
  const std::string packages = folder / "venv/lib/python3.11/site-packages";
  for (const char* name : {"numpy-2.1.0.dist-info", "nvidia_cudnn_cu12-9.1.0.70.dist-info", "torch",
                           "broken.dist-info"}) {
    std::filesystem::create_directories(packages + "/" + name);
  }
  write(packages + "/torch/nn.py", "not the user's\n");
  write(folder / "elsewhere/mine.py", "x = 1\n");
  model::Run run;
  for (const std::string& file : {packages + "/torch/nn.py", folder / "elsewhere/mine.py"}) {
    model::Frame frame;
    frame.file = static_cast<model::StringId>(run.strings.size());
    run.strings.push_back(file);
    run.frames.push_back(frame);
  }
  probe::RecordSink sink;
  CodeFacts code(fs::Root("/"));
  code.tell_seen(run, sink);
  const Facts& facts = sink.facts;
  EXPECT_EQ(facts.at("package.numpy"), "2.1.0");
  EXPECT_EQ(facts.at("package.nvidia-cudnn-cu12"), "9.1.0.70");
  EXPECT_TRUE(facts.contains("code.hash." + (folder / "elsewhere/mine.py")));
  EXPECT_EQ(facts.size(), 3u);
}

}  // namespace
}  // namespace flatout::recorder
