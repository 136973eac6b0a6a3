#include "advise/python_packages.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "advise/testing/healthy_machine.h"
#include "probe/testing/fake_tree.h"

namespace flatout::advise {
namespace {

using Folders = std::vector<std::string>;
using probe::FakeTree;

const std::string kPackages = "opt/venv/lib/python3.11/site-packages";

std::vector<Python> find_by(const FakeTree& tree, std::map<std::string, std::string> environment) {
  return find_pythons(tree.root(), [&](const char* name) {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  });
}

std::vector<Framework> read_at(const FakeTree& tree, bool targets = false) {
  return read_frameworks(tree.root(), {11, {kPackages}}, targets);
}

TEST(Pythons, DebiansOwnHasThreeFolders) {
  FakeTree tree;
  tree.link("usr/bin/python3", "python3.11");
  tree.write("usr/bin/python3.11", "");
  const auto found = find_by(tree, {{"PATH", "/nowhere:/usr/bin"}, {"HOME", "/home/u"}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].minor, 11);
  EXPECT_EQ(found[0].folders,
            (Folders{"home/u/.local/lib/python3.11/site-packages",
                     "usr/lib/python3.11/site-packages", "usr/lib64/python3.11/site-packages",
                     "usr/local/lib/python3.11/dist-packages", "usr/lib/python3/dist-packages"}));
}

TEST(Pythons, AVirtualEnvironmentComesFirstAndAlone) {
  FakeTree tree;
  tree.link("srv/venv/bin/python3", "../../../usr/bin/python3.12");
  tree.write("usr/bin/python3.12", "");
  tree.write("srv/venv/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n");
  const std::map<std::string, std::string> environment = {
      {"VIRTUAL_ENV", "/srv/venv"}, {"PATH", "/srv/venv/bin:/usr/bin"}, {"HOME", "/root"}};
  const auto found = find_by(tree, environment);
  ASSERT_EQ(found.size(), 2u);  // by its own variable and by $PATH
  for (const Python& python : found) {
    EXPECT_EQ(python.minor, 12);
    EXPECT_EQ(python.folders, (Folders{"srv/venv/lib/python3.12/site-packages",
                                       "srv/venv/lib64/python3.12/site-packages"}));
  }
  tree.write("srv/venv/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = true\n");
  const Folders with_system = find_by(tree, environment)[0].folders;
  ASSERT_EQ(with_system.size(), 7u);
  EXPECT_EQ(with_system[2], "root/.local/lib/python3.12/site-packages");
  EXPECT_EQ(with_system[6], "usr/lib/python3/dist-packages");
}

TEST(Pythons, CondaAndPyenvAreFollowed) {
  FakeTree tree;
  tree.link("opt/conda/bin/python3", "python3.10");
  tree.write("root/.pyenv/shims/python3", "#!/bin/sh\n");
  tree.write("root/.pyenv/version", "3.9.18\n");
  tree.link("root/.pyenv/versions/3.9.18/bin/python3", "python3.9");
  const auto found =
      find_by(tree, {{"CONDA_PREFIX", "/opt/conda"}, {"PATH", "/root/.pyenv/shims:/usr/bin"}});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].minor, 10);
  EXPECT_EQ(found[0].folders[1], "opt/conda/lib/python3.10/site-packages");
  EXPECT_EQ(found[1].minor, 9);
  EXPECT_EQ(found[1].folders[1], "root/.pyenv/versions/3.9.18/lib/python3.9/site-packages");
}

TEST(Frameworks, SayWhatCudaTheyWereBuiltFor) {
  FakeTree tree;
  tree.write(kPackages + "/tensorflow/python/platform/build_info.py",
             "import collections\nbuild_info = collections.OrderedDict([('cpu_compiler', "
             "'/usr/lib/llvm-17/bin/clang'), ('cuda_compute_capabilities', ['sm_60', 'sm_89', "
             "'compute_90']), ('cuda_version', '12.5.1'), ('cudnn_version', '9'), "
             "('is_cuda_build', True), ('is_rocm_build', False)])\n");
  tree.write(kPackages + "/tensorflow-2.18.0.dist-info/METADATA", "");
  tree.write(kPackages + "/tensorflow_io-0.37.dist-info/METADATA", "");
  tree.write(kPackages + "/jaxlib/version.py", "");
  tree.write(kPackages + "/jaxlib-0.7.1.dist-info/METADATA", "");
  tree.write(kPackages + "/jax_cuda13_plugin/__init__.py", "");
  const auto found = read_at(tree);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name + " " + found[0].version, "TensorFlow 2.18.0");
  EXPECT_EQ(found[0].cuda, "12.5.1");
  EXPECT_EQ(found[0].targets, (Folders{"sm_60", "sm_89", "compute_90"}));
  EXPECT_EQ(found[1].name + " " + found[1].version, "JAX 0.7.1");
  EXPECT_EQ(found[1].cuda, "13");
  // A driver for CUDA 12 runs one of them.
  Machine m = healthy();
  m.frameworks = found;
  m.cuda_version = "12.8";
  const model::CheckUp check = check_up(m);
  const model::Problem* old = find(check, "gpu.driver_too_old");
  ASSERT_NE(old, nullptr);
  EXPECT_TRUE(old->text.starts_with("JAX 0.7.1")) << old->text;
  EXPECT_EQ(find(check, "gpu.cpu_only_build"), nullptr);
}

TEST(Frameworks, ABuildWithoutCudaSaysSo) {
  FakeTree tree;
  tree.write(kPackages + "/tensorflow/python/platform/build_info.py",
             "build_info = collections.OrderedDict([('is_cuda_build', False)])\n");
  tree.write(kPackages + "/tensorflow_cpu-2.18.0.dist-info/METADATA", "");
  const auto found = read_at(tree);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].version, "2.18.0");
  EXPECT_EQ(found[0].cuda, "");
}

// The metadata as of PyTorch 2.5 and 2.13: pins of its own, and by way of CUDA's toolkit.
TEST(Frameworks, SayWhichLibrariesTheyWereBuiltWith) {
  FakeTree tree;
  tree.write(kPackages + "/torch/version.py", "__version__ = '2.13.0+cu130'\ncuda = '13.0'\n");
  tree.write(kPackages + "/torch-2.13.0.dist-info/METADATA",
             "Name: torch\nRequires-Dist: filelock\n"
             "Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.3; platform_system == \"Linux\"\n"
             "Requires-Dist: nvidia-cudnn-cu13==9.20.0.48; platform_system == \"Linux\"\n"
             "Requires-Dist: nvidia-nccl-cu13 (==2.29.7)\n"
             "Requires-Dist: nvidia-nvshmem-cu13==3.4.5; platform_system == \"Linux\"\n\n"
             "Requires-Dist: nvidia-cudnn-cu13==1.0 is only talked about here\n");
  tree.write(kPackages + "/cuda_toolkit-13.0.3.0.dist-info/METADATA",
             "Requires-Dist: nvidia-cublas==13.1.1.3.*; (sys_platform == 'linux') and extra == "
             "'cublas'\n"
             "Requires-Dist: nvidia-cuda-runtime<14,>=13.0.96; extra == 'cudart'\n"
             "Requires-Dist: nvidia-npp==13.0.1.2.*; extra == 'npp'\n");
  for (const char* package :
       {"nvidia_cudnn_cu13-9.1.0.70", "nvidia_nccl_cu13-2.29.7", "nvidia_cublas-13.2.0.1",
        "nvidia_cuda_runtime-13.0.96", "nvidia_npp-12.0.0"}) {
    tree.write(kPackages + "/" + package + ".dist-info/METADATA", "");
  }
  const auto found = read_at(tree);
  ASSERT_EQ(found.size(), 1u);
  std::map<std::string, std::pair<std::string, std::string>> libraries;
  for (const Library& l : found[0].libraries) libraries[l.package] = {l.wanted, l.installed};
  const std::map<std::string, std::pair<std::string, std::string>> expected = {
      {"nvidia-cublas", {"13.1.1.3", "13.2.0.1"}},
      {"nvidia-cuda-runtime", {"13.0.96", "13.0.96"}},
      {"nvidia-cudnn-cu13", {"9.20.0.48", "9.1.0.70"}},
      {"nvidia-nccl-cu13", {"2.29.7", "2.29.7"}}};
  EXPECT_EQ(libraries, expected);  // npp is wanted by nobody, nvshmem is not installed
  Machine m = healthy();
  m.frameworks = found;
  m.cuda_version = "13.0";
  const model::CheckUp check = check_up(m);
  ASSERT_EQ(check.problems.size(), 1u);
  EXPECT_EQ(check.problems[0].text,
            "PyTorch 2.13.0+cu130 was built with nvidia-cudnn-cu13 9.20.0.48, and 9.1.0.70 is "
            "installed.");
}

TEST(Frameworks, PyTorchsLibraryTellsTheGpusItHasCodeFor) {
  FakeTree tree;
  tree.write(kPackages + "/torch/version.py", "__version__ = '2.4.0'\ncuda = '12.1'\n");
  using namespace std::string_literals;
  tree.write(kPackages + "/torch/lib/libtorch_python.so",
             "\x7f"
             "ELF junk\0sm_\0sm_80\0uses sm_70 and more\0"
             "sm_50 sm_80 sm_90a compute_90\0sm_70 sm_x\0"s);
  EXPECT_EQ(read_at(tree, true)[0].targets, (Folders{"sm_50", "sm_80", "sm_90a", "compute_90"}));
  EXPECT_TRUE(read_at(tree, false)[0].targets.empty());
}

TEST(Frameworks, CuptiIsTheWheelsOrTheToolkits) {
  FakeTree tree;
  const std::vector<Python> pythons = {{11, {kPackages}}};
  EXPECT_EQ(find_cupti(tree.root(), pythons), "");
  tree.write("usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12", "");
  EXPECT_EQ(find_cupti(tree.root(), pythons), "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12");
  tree.write(kPackages + "/nvidia/cu13/lib/libcupti.so.13", "");
  EXPECT_EQ(find_cupti(tree.root(), pythons), "/" + kPackages + "/nvidia/cu13/lib/libcupti.so.13");
}

}  // namespace
}  // namespace flatout::advise
