// Files compiled into the library (see CMakeLists.txt).
#pragma once

#include <string_view>

namespace flatout::report {

struct Asset {
  std::string_view text;
  std::string_view sha256;  // hexadecimal: a page's policy allows exactly these scripts and styles
};

Asset asset_chart_js();
Asset asset_fix_css();
Asset asset_flame_css();
Asset asset_flame_js();
Asset asset_lanes_js();
Asset asset_live_js();
Asset asset_memory_css();
Asset asset_page_css();
Asset asset_page_js();
Asset asset_runs_css();
Asset asset_runs_js();
Asset asset_theme_js();
Asset asset_trace_css();
Asset asset_trace_js();

}  // namespace flatout::report
