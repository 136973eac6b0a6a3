#include "model/source_files.h"

#include <algorithm>
#include <array>

#include "base/contains.h"

namespace flatout::model {
namespace {

constexpr std::array<std::string_view, 7> kLoggers = {
    "tensorboard", "tensorboardX", "wandb", "mlflow", "tqdm", "loguru", "rich"};
// Packages of models and what trains them. What of them makes batches is as any library that does.
constexpr std::array<std::string_view, 7> kOnFrameworks = {
    "torchvision", "torchaudio", "timm", "diffusers", "deepspeed", "torch_geometric", "apex"};
constexpr std::array<std::string_view, 7> kMakesBatches = {
    "/transforms/",           "/datasets/", "/data/", "/io/", "/loader/", "/sampler/",
    "/torchaudio/functional/"};
constexpr std::string_view kPackages = "-packages/";

}  // namespace

bool is_installed(std::string_view file) {
  return contains(file, "/site-packages/") || contains(file, "/dist-packages/");
}

bool is_agent(std::string_view file) {
  return contains(file, "/flatout/agent/") || file.starts_with("flatout/agent/");
}

bool in_package(std::string_view file, std::string_view package) {
  const size_t at = file.rfind(kPackages);
  if (at == std::string_view::npos) return false;
  file.remove_prefix(at + kPackages.size());
  return file.starts_with(package) && file.substr(package.size()).starts_with('/');
}

bool in_framework(std::string_view file) {
  if (contains_any(file, {"/torch/", "/tensorflow/", "/keras/", "/jax/", "/jaxlib/", "/mxnet/",
                          "/flax/", "/lightning/", "/pytorch_lightning/", "/accelerate/",
                          "/transformers/", "/functorch/"})) {
    return true;
  }
  const auto within = [&](std::string_view package) { return in_package(file, package); };
  return std::ranges::any_of(kOnFrameworks, within) && !contains_any(file, kMakesBatches);
}

bool in_logging_library(std::string_view file) {
  return contains(file, "/logging/__init__.py") || contains(file, "/logging/handlers.py") ||
         contains(file, "/torch/utils/tensorboard/") ||
         std::any_of(kLoggers.begin(), kLoggers.end(),
                     [&](std::string_view name) { return in_package(file, name); });
}

bool hands_out_items(std::string_view function, bool generator) {
  return generator || function == "__iter__" || function == "__next__" || function == "track";
}

bool parses_text(std::string_view function) {
  for (const std::string_view part :
       {"std::istream", "std::basic_istream<", "std::num_get<", "std::getline", "std::from_chars",
        "std::__convert_to_v", "std::__cxx11::sto", "__gnu_cxx::__stoa<", "std::regex_", "strto",
        "sscanf", "nlohmann::", "rapidjson::", "simdjson::"}) {
    if (contains(function, part)) return true;
  }
  return function == "atoi" || function == "atol" || function == "atof";
}

bool writes_stream(std::string_view function) {
  static constexpr std::array<std::string_view, 5> kStreams = {
      "std::ostream", "std::basic_ostream<", "std::__ostream_insert", "std::endl", "::xsputn("};
  static constexpr std::array<std::string_view, 10> kCalls = {
      "printf",  "fprintf", "vfprintf", "puts",   "fputs",
      "putchar", "fputc",   "fflush",   "fwrite", "fwrite_unlocked"};
  // Within the C library: "_IO_new_do_write", "_IO_file_xsputn".
  static constexpr std::array<std::string_view, 2> kInside = {"_write", "_xsputn"};
  if (function.starts_with("_IO_")) {
    function.remove_prefix(4);
    if (contains_any(function, kInside)) return true;
  }
  return contains_any(function, kStreams) || std::ranges::find(kCalls, function) != kCalls.end();
}

}  // namespace flatout::model
