#include "report/flame.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"
#include "report/assets.h"
#include "report/terminal.h"
#include "report/words.h"

namespace flatout::report {
namespace {

constexpr double kWidth = 1200;
constexpr double kRow = 18;
constexpr double kCharacter = 6.6;  // of the 11 px monospace font

// Fills light enough for dark text; class names are in page/flame.css.
std::string node_class(const ProfileNode& node) {
  if (node.is_state) return fmt::format("w w-{}", name(node.state));
  const double share = node.total_us > 0 ? node.on_cpu_us / node.total_us : 0;
  return fmt::format("c{}", std::clamp(static_cast<int>(std::lround(share * 5)), 0, 5));
}

/// Safe inside SVG text and attributes: control characters become visible first.
std::string safe(std::string_view s) { return escape_html(escape_terminal(s)); }

std::string shown(const FlameNode& node, double width) {
  const auto room = static_cast<size_t>(std::max(0.0, (width - 6) / kCharacter));
  return room < 3 ? "" : escape_html(fit(escape_terminal(node.name), room, true));
}

std::vector<FlameNode> flame_nodes(const Profile& profile) {
  std::vector<FlameNode> out;
  const double whole = profile.nodes.empty() ? 0 : profile.nodes[0].total_us;
  for (const ProfileNode& node : profile.nodes) {
    const double share = whole > 0 ? node.total_us / whole : 0;
    std::string detail = fmt::format(
        "{}{}{}: {} of all, {}; on a core {} of it", node.name, node.file.empty() ? "" : ", ",
        node.file, format_percent(share), format_duration(nanos(node.total_us * 1e3)),
        format_percent(node.total_us > 0 ? node.on_cpu_us / node.total_us : 0));
    out.push_back({node.name, std::move(detail), node_class(node), node.total_us, node.children});
  }
  return out;
}

struct Placed {
  uint32_t node;
  double x;  // share of the whole
  size_t depth;
};

// Depth first, children from left to right by size, so that a parent stands before its children.
std::vector<Placed> place(const std::vector<FlameNode>& nodes) {
  std::vector<Placed> out;
  if (nodes.empty() || nodes[0].size <= 0) return out;
  const double whole = nodes[0].size;
  std::vector<Placed> todo{{0, 0, 0}};
  while (!todo.empty()) {
    const Placed at = todo.back();
    todo.pop_back();
    out.push_back(at);
    double x = at.x;
    const size_t first = todo.size();
    for (const uint32_t child : nodes[at.node].children) {
      todo.push_back({child, x, at.depth + 1});
      x += nodes[child].size / whole;
    }
    std::reverse(todo.begin() + static_cast<std::ptrdiff_t>(first), todo.end());
  }
  return out;
}

std::string body(const std::vector<FlameNode>& nodes, size_t& depth) {
  std::string out;
  const double whole = nodes.empty() ? 0 : nodes[0].size;
  depth = 0;
  for (const Placed& p : place(nodes)) {
    const FlameNode& node = nodes[p.node];
    const double share = node.size / whole;
    const double width = share * kWidth;
    depth = std::max(depth, p.depth + 1);
    out += fmt::format(
        "<g class=\"f {}\" data-x=\"{:.6f}\" data-w=\"{:.6f}\" data-d=\"{}\" data-n=\"{}\">"
        "<title>{}</title><rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"/>"
        "<text x=\"{:.2f}\" y=\"{}\">{}</text></g>\n",
        node.css, p.x, share, p.depth, safe(node.name), safe(node.detail), p.x * kWidth,
        static_cast<double>(p.depth) * kRow, std::max(width - 0.5, 0.3), kRow - 1, p.x * kWidth + 3,
        static_cast<double>(p.depth) * kRow + 12.5, shown(node, width));
  }
  return out;
}

}  // namespace

std::string_view flame_css() { return asset_flame_css().text; }
std::string_view flame_js() { return asset_flame_js().text; }

std::string flame_svg_fragment(const Profile& profile) {
  size_t depth = 0;
  const std::string rows = body(flame_nodes(profile), depth);
  if (depth == 0) return "";
  return fmt::format(
      "<svg class=\"flame\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" "
      "width=\"100%\" role=\"img\" tabindex=\"0\" aria-label=\"Flame graph of all threads: warm "
      "is on a core, cool is waiting\">\n{}</svg>",
      kWidth, static_cast<double>(depth) * kRow + 2, rows);
}

std::string flame_svg(const std::vector<FlameNode>& nodes, const FlameText& text) {
  size_t depth = 0;
  const std::string rows = body(nodes, depth);
  const double top = 48;
  const double height = static_cast<double>(depth) * kRow + top + 8;
  std::string out = fmt::format(
      "<svg class=\"flame-page\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" "
      "width=\"{}\" height=\"{}\" role=\"img\">\n<title>{}</title>\n<style>{}</style>\n"
      "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n"
      "<text class=\"head\" x=\"8\" y=\"20\">{}</text>\n"
      "<text class=\"hint\" x=\"8\" y=\"38\">{} Click a frame to zoom, the top one to go back; "
      "Ctrl-F or / to search.</text>\n"
      "<text class=\"found\" x=\"{}\" y=\"38\" text-anchor=\"end\"></text>\n",
      kWidth, height, kWidth, height, safe(text.head), flame_css(),
      escape_html(fit(escape_terminal(text.head), 150, true)), safe(text.hint), kWidth - 8);
  if (depth == 0) {
    out += fmt::format("<text class=\"hint\" x=\"8\" y=\"64\">{}</text>\n", safe(text.empty));
  }
  out += fmt::format(
      "<svg class=\"flame\" x=\"0\" y=\"{}\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\" "
      "tabindex=\"0\">\n{}</svg>\n",
      top, kWidth, height - top, kWidth, height - top, rows);
  // The script is ours and contains no "]]>".
  out += "<script><![CDATA[\n" + std::string(flame_js()) + "\n]]></script>\n</svg>\n";
  return out;
}

std::string flame_svg(const model::Run& run) {
  return flame_svg(flame_nodes(make_profile(run)),
                   {command_of(run), "warm: on a core; cool: waiting.", "No stacks were read."});
}

}  // namespace flatout::report
