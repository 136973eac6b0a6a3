// The frame of a self-contained HTML page: no request ever leaves it, and a policy inside allows
// only our own scripts and styles (by hash), so no name in the data can run as code.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "report/assets.h"

namespace flatout::report {

struct Page {
  std::string html;
  std::string policy;  // its Content-Security-Policy, for servers that send it as a header too
};

/// `body` goes before the scripts. `title` is escaped, `body` is markup. `connects`: the scripts
/// may ask the server that the page came from, and no other.
Page make_page(std::string_view title, std::initializer_list<Asset> styles,
               std::initializer_list<Asset> scripts, std::string_view body, bool connects = false);

/// The page's head on the page: what it is of, and some facts as markup <li>...</li>.
std::string top_html(std::string_view subject, std::string_view facts);

}  // namespace flatout::report
