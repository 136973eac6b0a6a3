#include "diagnose/graph_pipeline.h"

#include <algorithm>

#include "base/contains.h"
#include "base/text.h"
#include "diagnose/blame.h"

namespace flatout::diagnose {

namespace {

constexpr size_t kFields = 6;  // of a stage
constexpr size_t kMostStages = 256;

/// Of tensorflow/core/framework/model.proto, NodeClass: ASYNC_INTERLEAVE_MANY, ASYNC_KNOWN_RATIO,
/// ASYNC_UNKNOWN_RATIO.
bool works_ahead(int64_t node_class) {
  return node_class == 2 || node_class == 4 || node_class == 6;
}

}  // namespace

const GraphStage& GraphPipeline::heaviest() const {
  return *std::ranges::max_element(stages, {}, &GraphStage::seconds);
}

bool GraphPipeline::ahead() const {
  const GraphStage* const most = &heaviest();
  return std::ranges::any_of(stages, [&](const GraphStage& s) { return &s <= most && s.ahead; });
}

const GraphStage* GraphPipeline::find(std::string_view part) const {
  const auto found =
      std::ranges::find_if(stages, [&](const GraphStage& s) { return contains(s.name, part); });
  return found == stages.end() ? nullptr : &*found;
}

GraphPipeline graph_pipeline(const model::Run& run) {
  GraphPipeline out;
  const std::vector<std::string_view> lines = split(run.fact("tf.data.stages"), '\n');
  const auto batches = lines.empty() ? std::nullopt : parse_number<double>(lines.front());
  if (!batches || *batches <= 0 || lines.size() > kMostStages) return out;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string_view> fields = split(lines[i], '\t');
    if (fields.size() != kFields) return {};
    const auto ns = parse_number<double>(fields[1]);
    const auto node_class = parse_number<int64_t>(fields[3]),
               threads = parse_number<int64_t>(fields[4]);
    if (!ns || *ns < 0 || !node_class || !threads) return {};
    GraphStage stage{.name = std::string(fields[0]), .seconds = *ns * 1e-9 / *batches};
    stage.ahead = works_ahead(*node_class);
    stage.threads = static_cast<int>(std::clamp<int64_t>(*threads, 1, 4096));
    stage.where = parse_place(fields[5]);
    out.seconds += stage.seconds;
    out.stages.push_back(std::move(stage));
  }
  return out;
}

}  // namespace flatout::diagnose
