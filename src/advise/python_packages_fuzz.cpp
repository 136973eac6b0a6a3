// Any bytes are the files of a package: reading them must not crash.
#include <cstdint>
#include <string_view>

#include "advise/python_packages.h"
#include "base/result.h"
#include "probe/testing/fake_tree.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout::advise;  // NOLINT: a fuzzer
  static const flatout::probe::FakeTree tree;
  static const char* const kFiles[] = {"venv/pyvenv.cfg",
                                       "p/torch/version.py",
                                       "p/torch-1.dist-info/METADATA",
                                       "p/cuda_toolkit-1.dist-info/METADATA",
                                       "p/torch/lib/libtorch_python.so",
                                       "p/tensorflow/python/platform/build_info.py",
                                       "p/jaxlib/version.py",
                                       "p/nvidia_a-1.dist-info/METADATA"};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const char* file : kFiles) tree.write(file, text);
  const auto pythons =
      find_pythons(tree.root(), [](const char*) -> const char* { return "/venv"; });
  FLATOUT_CHECK(pythons.size() == 2);
  FLATOUT_CHECK(read_frameworks(tree.root(), {11, {"p"}}, true).size() == 3);
  return 0;
}
