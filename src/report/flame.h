// The stacks of a run for people and other tools: SVG flame graph, folded stacks, speedscope.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/run.h"
#include "report/profile.h"

namespace flatout::report {

/// A self-contained SVG: groups of threads on top, callees below them. Warm: on a core; cool: the
/// thread waited, and a last frame says for what. With a script inside for zoom and search; without
/// scripts it still shows the whole.
std::string flame_svg(const model::Run& run);

/// One frame of a graph of anything that adds up.
struct FlameNode {
  std::string name;
  std::string detail;  // for the tooltip
  std::string css;     // class in page/flame.css; c0 (cool) to c5 (warm)
  double size = 0;     // with all below
  std::vector<uint32_t> children;
};
struct FlameText {
  std::string head, hint;
  std::string empty;  // what stands there where there is nothing
};
/// Such a graph as a self-contained SVG. Node 0 is the whole; the texts are not escaped yet.
std::string flame_svg(const std::vector<FlameNode>& nodes, const FlameText& text);

/// The same without script and style, for embedding into a page that has them.
std::string flame_svg_fragment(const Profile& profile);
/// Style sheet and script of the graph, shared by the SVG and the HTML report.
std::string_view flame_css();
std::string_view flame_js();

/// stacks.folded: "group;outer;inner;[waits for disk] microseconds", a line per stack, sorted.
std::string folded_stacks(const model::Run& run);

/// https://www.speedscope.app/file-format-schema.json: a sampled profile per thread, in us.
std::string speedscope_json(const model::Run& run);

}  // namespace flatout::report
