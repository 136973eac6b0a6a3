#include "report/html_page.h"

#include <fmt/format.h>

#include "report/html_parts.h"

namespace flatout::report {
namespace {

// 'sha256-<base64>' of a Content-Security-Policy from the hexadecimal digest.
std::string csp_hash(std::string_view hex) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto nibble = [](char c) -> uint32_t {
    return static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  };
  std::string out = "'sha256-";
  // 64 hexadecimal digits: ten times 6 digits (3 bytes) and 4 more (2 bytes).
  for (size_t i = 0; i < hex.size(); i += 6) {
    uint32_t bits = 0;
    const size_t n = std::min<size_t>(6, hex.size() - i);
    for (size_t k = 0; k < 6; ++k) bits = bits << 4 | (k < n ? nibble(hex[i + k]) : 0);
    const size_t digits = n / 2 + 1;
    for (size_t k = 0; k < 4; ++k) out += k < digits ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out + "'";
}

std::string hashes(std::initializer_list<Asset> assets) {
  std::string out;
  for (const Asset& asset : assets) out += " " + csp_hash(asset.sha256);
  return out;
}

}  // namespace

Page make_page(std::string_view title, std::initializer_list<Asset> styles,
               std::initializer_list<Asset> scripts, std::string_view body, bool connects) {
  Page page;
  page.policy = fmt::format(
      "default-src 'none'; base-uri 'none'; form-action 'none'; style-src{}; script-src{}{}",
      hashes(styles), hashes(scripts), connects ? "; connect-src 'self'" : "");
  std::string& out = page.html;
  out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta name=\"referrer\" content=\"no-referrer\">\n<title>{} – flatout</title>\n",
      page.policy, html_text(title));
  for (const Asset& style : styles) out += fmt::format("<style>{}</style>\n", style.text);
  out += "</head>\n<body>\n";
  out += body;
  for (const Asset& script : scripts) out += fmt::format("<script>{}</script>\n", script.text);
  out += "</body>\n</html>\n";
  return page;
}

std::string top_html(std::string_view subject, std::string_view facts) {
  return fmt::format(
      "<header class=\"top\"><div class=\"wrap\"><div class=\"brand\"><b>flatout</b>"
      "<button id=\"theme\" type=\"button\" aria-label=\"Switch between dark and light\">◐</button>"
      "</div>\n<p class=\"command\"><code>{}</code></p>\n<ul "
      "class=\"run\">{}</ul></div></header>\n",
      html_text(subject), facts);
}

}  // namespace flatout::report
