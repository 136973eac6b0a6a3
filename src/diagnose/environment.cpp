#include "diagnose/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/contains.h"
#include "base/text.h"

namespace flatout::diagnose {

namespace {

struct Row {
  std::string_view name;
  std::string_view
      values;  // those that slow a job down, with '|' between; "*word": that contains it;
               // "!0": any but 0 and none at all
  std::string_view what;
};

constexpr std::string_view kVectors = "keeps kernels from this CPU's wider vector instructions";
constexpr std::string_view kChecks = "checks or fills each block of memory";

constexpr auto kRows = std::to_array<Row>({
    {"ATEN_CPU_CAPABILITY", "default", kVectors},
    {"ONEDNN_MAX_CPU_ISA", "SSE41|AVX", kVectors},
    {"DNNL_MAX_CPU_ISA", "SSE41|AVX", kVectors},
    {"MKL_ENABLE_INSTRUCTIONS", "SSE4_2|AVX", kVectors},
    {"TF_ENABLE_ONEDNN_OPTS", "0", "keeps TensorFlow from oneDNN's kernels"},
    {"GLIBC_TUNABLES", "*mmap_threshold|*trim_threshold|*malloc.perturb|*malloc.check|*hwcaps",
     "changes how memory is allocated or which routines the C library uses"},
    {"MALLOC_PERTURB_", "!0", kChecks},
    {"MALLOC_CHECK_", "!0", kChecks},
    {"PYTHONMALLOC", "debug|malloc_debug|pymalloc_debug", kChecks},
    {"PYTHONDEVMODE", "!0", kChecks},
    {"PYTHONTRACEMALLOC", "!0", "keeps a stack for each block of memory"},
    {"PYTHONASYNCIODEBUG", "!0", "keeps a stack for each task"},
    {"CUDA_LAUNCH_BLOCKING", "1", "waits for each kernel"},
    {"PYTORCH_NO_CUDA_MEMORY_CACHING", "!0", "asks the driver for each block of device memory"},
    {"TORCH_SHOW_DISPATCH_TRACE", "!0", "prints each operation"},
    {"TORCH_DISTRIBUTED_DEBUG", "DETAIL", "checks each collective on all ranks"},
    {"NCCL_DEBUG", "TRACE", "writes down each collective"},
    {"PYTORCH_JIT", "0", "runs compiled code uncompiled"},
    {"TORCHDYNAMO_DISABLE", "1", "runs compiled code uncompiled"},
    {"TORCH_COMPILE_DISABLE", "1", "runs compiled code uncompiled"},
    {"JAX_DISABLE_JIT", "1|true|True", "runs compiled code uncompiled"},
    {"JAX_DEBUG_NANS", "1|true|True", "looks for NaN in each result"},
});

bool slows(std::string_view values, std::string_view value) {
  if (value.empty()) return false;
  if (values == "!0") return value != "0";
  return std::ranges::any_of(split(values, '|'), [&](std::string_view one) {
    return one.starts_with('*') ? contains(value, one.substr(1)) : one == value;
  });
}

}  // namespace

bool slows_by_purpose(std::string_view fact, std::string_view value) {
  constexpr std::string_view kPrefix = "env.";
  if (!fact.starts_with(kPrefix)) return false;
  const auto row = std::ranges::find(kRows, fact.substr(kPrefix.size()), &Row::name);
  return row != kRows.end() && slows(row->values, value);
}

std::string environment_remark(const model::Run& run) {
  std::string out;
  for (const Row& row : kRows) {
    const std::string_view value = run.fact("env." + std::string(row.name));
    if (!slows(row.values, value)) continue;
    out += fmt::format("{}{}={} ({})", out.empty() ? "Set in the environment: " : ", ", row.name,
                       escape_terminal(value), row.what);
  }
  return out.empty() ? out : out + ".";
}

}  // namespace flatout::diagnose
