// Files compiled into the library (see CMakeLists.txt), with the SHA-256 of what is inlined into
// the page, so that its policy allows exactly these scripts and styles.
#pragma once

#include <string_view>

namespace flatout::report {

std::string_view asset_chart_js();
std::string_view asset_flame_css();
std::string_view asset_flame_js();
std::string_view asset_lanes_js();
std::string_view asset_page_css();
std::string_view asset_page_js();
/// Hexadecimal SHA-256 of the asset above.
std::string_view asset_chart_js_sha256();
std::string_view asset_flame_css_sha256();
std::string_view asset_flame_js_sha256();
std::string_view asset_lanes_js_sha256();
std::string_view asset_page_css_sha256();
std::string_view asset_page_js_sha256();

}  // namespace flatout::report
