// The stacks of a run for people and other tools: SVG flame graph, folded stacks, speedscope.
#pragma once

#include <string>

#include "model/run.h"
#include "report/profile.h"

namespace flatout::report {

/// A self-contained SVG: groups of threads on top, callees below them. Warm: on a core; cool: the
/// thread waited, and a last frame says for what. With a script inside for zoom and search; without
/// scripts it still shows the whole.
std::string flame_svg(const model::Run& run);

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
