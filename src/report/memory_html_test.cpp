#include "report/memory_html.h"

#include <gtest/gtest.h>

namespace flatout::report {
namespace {

TEST(MemoryHtml, ShowsBandsThePeakAndWhatWasRefusedAndEscapesNames) {
  model::MemoryHistory h;
  h.name = "<script>alert(1)</script>";
  h.operations = 3;
  h.bands = {{"model.py:3 <b>", {100, 200, 50}, 200, 200}, {"other.py:1", {0, 40, 40}, 40, 40}};
  h.peak = 240;
  h.peak_column = 1;
  h.failures = {{2, 4096, 90, "train.py:9 step"}};
  h.card = 230;
  h.beyond_the_card = 1;
  const std::string page = render_memory_html({h});
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("3 <b>"), std::string::npos);
  EXPECT_NE(page.find("class=\"band1\""), std::string::npos);
  EXPECT_NE(page.find("4.00 KiB more were refused when 90 B were live, at train.py:9 step"),
            std::string::npos);
  EXPECT_NE(page.find("no allocator fits"), std::string::npos);
  EXPECT_EQ(page.find("http"), page.find("http-equiv")) << "it loads nothing";
}

TEST(MemoryHtml, ManyRefusalsAtATimeAreOneLine) {
  model::MemoryHistory h;
  h.failures.assign(1000, {0, 4096, 90, "train.py:9 step"});
  h.failures.push_back({1, 4096, 90, "train.py:10 step"});
  const std::string page = render_memory_html({h});
  size_t lines = 0;
  for (size_t at = 0; (at = page.find("class=\"failure\"", at)) != page.npos; ++at) ++lines;
  EXPECT_EQ(lines, 2u);
}

TEST(MemoryHtml, AHistoryOfNothingIsAPage) {
  EXPECT_NE(render_memory_html({model::MemoryHistory{}}).find("<svg class=\"memory\""),
            std::string::npos);
}

}  // namespace
}  // namespace flatout::report
