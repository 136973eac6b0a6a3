#include "report/html.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "report/flame.h"
#include "report/golden.h"
#include "report/html_data.h"
#include "report/test_run.h"

namespace flatout::report {
namespace {

using namespace testing;  // NOLINT
using Json = nlohmann::json;

std::string data_of(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = html.find(open) + open.size();
  return html.substr(begin, html.find("</script>", begin) - begin);
}

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(Html, NamesInTheDataCannotBecomeMarkupOrScripts) {
  HtmlOptions options;
  model::Comparison c = slower_comparison();
  c.headline = c.old_name = c.changes[0].what = c.changes[0].before = hostile_name();
  options.comparison = &c;
  const std::string html = render_html(hostile_run(), hostile_diagnosis(), options);
  // Our scripts and no other; the hostile text is there, but escaped.
  EXPECT_EQ(count(html, "<script"), 6u);
  EXPECT_EQ(count(html, "</script>"), 6u);
  EXPECT_EQ(html.find("<b>\xEF\xBF\xBD"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;alert(1)"), std::string::npos);
  EXPECT_EQ(html.find('\x1b'), std::string::npos);
  EXPECT_EQ(html.find("\xE2\x80\xAE"), std::string::npos);
  EXPECT_TRUE(Json::accept(data_of(html)));
}

TEST(Html, AllowsOnlyItsOwnScriptsAndLoadsNothing) {
  const std::string html = render_html(decode_bound_run(), decode_diagnosis());
  EXPECT_NE(html.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(count(html, "'sha256-"), 7u);
  EXPECT_EQ(html.find("unsafe-inline"), std::string::npos);
  EXPECT_EQ(html.find(" src="), std::string::npos);
  EXPECT_EQ(html.find("<link"), std::string::npos);
}

TEST(Html, SaysTheVerdictInPlainMarkup) {
  const std::string html = render_html(decode_bound_run(), decode_diagnosis());
  EXPECT_NE(html.find("<h1>Decoding images bounds the loader</h1>"), std::string::npos);
  EXPECT_NE(html.find("<code>data.py:41</code> in <code>__getitem__</code>"), std::string::npos);
  EXPECT_NE(html.find("2.0x"), std::string::npos);
}

TEST(Html, ADamagedRecordingSaysSo) {
  model::Run run = decode_bound_run();
  run.missing.push_back({"recording", "3 damaged places were skipped", ""});
  EXPECT_NE(render_html(run, decode_diagnosis()).find("The recording is incomplete: 3 damaged"),
            std::string::npos);
}

TEST(Html, SaysWhatEachDeviceWorkedOnAndWaitedFor) {
  model::Run run = decode_bound_run();
  EXPECT_EQ(render_html(run, decode_diagnosis()).find("id=\"devices\""), std::string::npos);
  run.devices.push_back(one_device());
  const std::string html = render_html(run, decode_diagnosis());
  EXPECT_NE(html.find("GPU 0: busy 60 % of 2.00 s recorded"), std::string::npos);
  EXPECT_NE(html.find("kernels <b>50 %</b>"), std::string::npos);
  EXPECT_NE(html.find("nothing but copies <b>10 %</b>"), std::string::npos);
  EXPECT_NE(html.find("waits for the next batch <b>30 %</b>"), std::string::npos);
  EXPECT_EQ(html.find("waits for its own streams"), std::string::npos);
  EXPECT_NE(html.find("href=\"#devices\""), std::string::npos);
}

TEST(Html, AnEmptyRunStillMakesAPage) {
  const std::string html = render_html(model::Run{}, Diagnosis{});
  EXPECT_NE(html.find("Healthy"), std::string::npos);
  EXPECT_TRUE(Json::accept(data_of(html)));
}

TEST(Html, ALongRunStaysSmall) {
  const model::Run run = decode_bound_run(5000);
  const std::string html = render_html(run, decode_diagnosis());
  EXPECT_LT(html.size(), 3u << 20);
  const Json data = Json::parse(data_of(html));
  EXPECT_LE(data["steps"]["t"].size(), 1500u);
  // The longest step survives thinning.
  double longest = 0;
  for (const Step& s : run.steps.steps) longest = std::max(longest, to_ms(s.length()));
  double drawn = 0;
  for (const Json& ms : data["steps"]["ms"]) drawn = std::max(drawn, ms.get<double>());
  EXPECT_NEAR(drawn, longest, 0.1);
  EXPECT_EQ(data["lanes"]["windows"].size(), 4u);
  EXPECT_LE(count(html, "class=\"f "), 2500u);
}

TEST(Html, CurvesAreRatesOfTheirCounters) {
  const model::Run run = decode_bound_run();
  const Json data = Json::parse(chart_data(run, make_profile(run)));
  const Json& cpu = data["charts"]["list"][0];
  EXPECT_EQ(cpu["id"], "cpu");
  // The loop and both workers use 24 ms and two times nearly a whole step of each step's time.
  double sum = 0;
  int n = 0;
  for (const Json& v : cpu["curves"][0]["v"]) {
    if (!v.is_null()) {
      sum += v.get<double>();
      ++n;
    }
  }
  EXPECT_NEAR(sum / n, 2.33, 0.1);
}

TEST(Flame, FoldedStacksAreAsTheGoldenFile) {
  expect_golden("stacks.folded", folded_stacks(decode_bound_run(20)));
}

TEST(Flame, SvgIsAsTheGoldenFile) { expect_golden("flame.svg", flame_svg(decode_bound_run(20))); }

TEST(Flame, HostileNamesStayText) {
  const std::string svg = flame_svg(hostile_run());
  EXPECT_EQ(count(svg, "<script"), 1u);
  EXPECT_EQ(count(svg, "]]>"), 1u);
  EXPECT_EQ(svg.find('\x1b'), std::string::npos);
  const std::string folded = folded_stacks(hostile_run());
  for (const char c : folded) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n');
}

TEST(Flame, SharesAddUpToTheParent) {
  const Profile p = make_profile(decode_bound_run());
  for (const ProfileNode& node : p.nodes) {
    double sum = 0;
    for (const uint32_t child : node.children) sum += p.nodes[child].total_us;
    EXPECT_LE(sum, node.total_us + 1e-6);
  }
  EXPECT_TRUE(p.groups.at(0).training);
  EXPECT_EQ(p.groups.at(1).name, "pt_data_worker (2)");
}

TEST(Flame, KeepsTheLargestNodesOfAHugeProfile) {
  RunBuilder b;
  const ThreadId t = b.thread(b.process(1, "job", true), 1, "main");
  const StackId hot = b.stack({"main@a.py:1", "hot@a.py:2"});
  for (int i = 0; i < 500; ++i) {
    b.reading(i, t, hot, ThreadState::kOnCpuPython);
    b.reading(i, t, b.stack({"main@a.py:1", "cold@a.py:" + std::to_string(i + 10)}),
              ThreadState::kOnCpuPython);
  }
  const Profile p = make_profile(b.run, 50);
  EXPECT_EQ(p.nodes.size(), 50u);
  EXPECT_EQ(p.nodes[p.nodes[p.nodes[1].children[0]].children[0]].name, "hot (a.py:2)");
}

TEST(Speedscope, HasAProfilePerThreadWithWeights) {
  const Json j = Json::parse(speedscope_json(decode_bound_run(20)));
  EXPECT_EQ(j["$schema"], "https://www.speedscope.app/file-format-schema.json");
  ASSERT_EQ(j["profiles"].size(), 3u);
  for (const Json& p : j["profiles"]) {
    EXPECT_EQ(p["type"], "sampled");
    EXPECT_EQ(p["samples"].size(), p["weights"].size());
    double sum = 0;
    for (const Json& w : p["weights"]) sum += w.get<double>();
    EXPECT_DOUBLE_EQ(sum, p["endValue"].get<double>());
    for (const Json& sample : p["samples"]) {
      for (const Json& frame : sample) EXPECT_LT(frame.get<size_t>(), j["shared"]["frames"].size());
    }
  }
  EXPECT_TRUE(Json::accept(speedscope_json(hostile_run())));
  EXPECT_TRUE(Json::accept(speedscope_json(model::Run{})));
}

// Not a test of its own: makes the pages that tests/e2e/test_report.py opens in a browser.
TEST(Html, WritesPagesForTheBrowser) {
  const char* folder = std::getenv("FLATOUT_PAGES");
  if (folder == nullptr) GTEST_SKIP() << "FLATOUT_PAGES names no folder (tests/e2e sets it)";
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(std::string(folder) + "/" + name, std::ios::binary) << text;
  };
  model::Run changing = decode_bound_run();
  const Step& s = changing.steps.steps[100];
  changing.steps.changes = {{100, s.begin, nanos(43.5e6), nanos(61.3e6)}};
  const model::Comparison c = slower_comparison();
  HtmlOptions compare;
  compare.comparison = &c;
  write("decode.html", render_html(changing, decode_diagnosis(), compare));
  Diagnosis healthy;
  healthy.headline = "Healthy: nothing costs more than 5 % of a step.";
  write("healthy.html", render_html(decode_bound_run(), healthy));
  write("empty.html", render_html(model::Run{}, Diagnosis{"none", "", {}}));
  write("hostile.html", render_html(hostile_run(), hostile_diagnosis(), compare));
  write("hour.html", render_html(decode_bound_run(5000), decode_diagnosis()));
  write("flame.svg", flame_svg(decode_bound_run()));
  write("hostile.svg", flame_svg(hostile_run()));
}

}  // namespace
}  // namespace flatout::report
