// What a Python has installed, as its files tell: nothing is imported or run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/fs.h"

namespace flatout::advise {

/// A Python and the folders that it imports from, in its order, relative to the root.
struct Python {
  int minor = 0;  // of 3.x; 0 where no name tells
  std::vector<std::string> folders;
};

/// A library of NVIDIA's that a framework wants, and what is installed beside it.
struct Library {
  std::string package;            // "nvidia-cudnn-cu12"
  std::string wanted, installed;  // versions; wanted: the oldest that its metadata allows
};

/// A framework as it is installed in the Python that would run.
struct Framework {
  std::string name, version;
  std::string package;  // that Python imports: "torch"
  std::string cuda;     // that it was built for: "12.8", or "12" alone; empty for a build without
  std::vector<Library> libraries = {};    // those that are installed as packages, too
  std::vector<std::string> targets = {};  // GPUs it has code for: "sm_80", "compute_90"
};

/// The Pythons that a shell may start, first the one that it would: of $VIRTUAL_ENV, $CONDA_PREFIX,
/// and the first python3 in $PATH. `environment`: as std::getenv.
std::vector<Python> find_pythons(const fs::Root& root,
                                 const std::function<const char*(const char*)>& environment);

/// PyTorch, TensorFlow and JAX. `targets`: also say which GPUs PyTorch has code for, for which a
/// library of some 30 MB is read.
std::vector<Framework> read_frameworks(const fs::Root& root, const Python& python, bool targets);

/// The file of CUPTI that a job of this Python would find, from a wheel or CUDA's own folders; ""
/// if none.
std::string find_cupti(const fs::Root& root, const std::vector<Python>& pythons);

}  // namespace flatout::advise
