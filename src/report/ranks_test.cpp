#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "model/rank.h"
#include "report/html.h"
#include "report/json.h"
#include "report/test_run.h"
#include "report/text.h"

namespace flatout::report {
namespace {

using namespace testing;  // NOLINT
using Json = nlohmann::ordered_json;

Nanos ms_of(int64_t ms) { return Nanos(ms * 1'000'000); }

/// So many ranks, of which the last is late and the first has been killed.
Diagnosis of_ranks(int count, const std::string& host) {
  auto report = std::make_shared<model::RankReport>();
  report->common_steps = 90;
  report->step = ms_of(61);
  report->exposed = ms_of(2);
  for (int i = 0; i < count; ++i) {
    model::Rank& r = report->ranks.emplace_back();
    r.number = i;
    r.host = host;
    r.own = ms_of(i + 1 == count ? 59 : 40);
    r.waiting = ms_of(61) - r.own;
    r.late = i + 1 == count;
    r.finished = true;
    r.wait_status = i == 0 ? SIGKILL : 0;
  }
  report->ranks.back().cause = "cpu.noisy_neighbour";
  report->absent = {count};
  Diagnosis d = decode_diagnosis();
  d.ranks = std::move(report);
  return d;
}

TEST(RanksReport, JsonHasTheJobAndEachRank) {
  const Json j = Json::parse(findings_json(decode_bound_run(), of_ranks(3, "n1")));
  EXPECT_EQ(j["job"]["ranks"], 3);
  EXPECT_EQ(j["job"]["absent"], Json::array({3}));
  EXPECT_EQ(j["job"]["exposed_ms"], 2.0);
  ASSERT_EQ(j["ranks"].size(), 3u);
  EXPECT_EQ(j["ranks"][2]["cause"], "cpu.noisy_neighbour");
  EXPECT_EQ(j["ranks"][2]["own_ms"], 59.0);
  EXPECT_TRUE(j["ranks"][1]["cause"].is_null());
  EXPECT_EQ(j["ranks"][0]["wait_status"], SIGKILL);
  EXPECT_FALSE(
      Json::parse(findings_json(decode_bound_run(), decode_diagnosis())).contains("ranks"));
}

TEST(RanksReport, TextNamesTheLateOneFirst) {
  const std::string text = render_text(decode_bound_run(), of_ranks(3, "n1"), {});
  const size_t late = text.find("rank 2 on n1: works 59"),
               other = text.find("rank 1 on n1: works 40");
  ASSERT_NE(late, std::string::npos) << text;
  ASSERT_NE(other, std::string::npos) << text;
  EXPECT_LT(late, other);
  EXPECT_NE(text.find("killed by SIGKILL"), std::string::npos);
  EXPECT_NE(text.find("3 recorded, 1 not"), std::string::npos);
}

TEST(RanksReport, StaysUsableWithAThousand) {
  const Diagnosis d = of_ranks(1000, "n1");
  const std::string html = render_html(decode_bound_run(), d);
  EXPECT_NE(html.find("936 more ranks"), std::string::npos);
  EXPECT_LT(html.size(), render_html(decode_bound_run(), decode_diagnosis()).size() + 500'000);
  const std::string text = render_text(decode_bound_run(), d, {});
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 80);
}

TEST(RanksReport, HostileNamesOfHostsStayText) {
  const Diagnosis d = of_ranks(3, hostile_name());
  const std::string html = render_html(decode_bound_run(), d);
  EXPECT_EQ(html.find("<script>alert"), std::string::npos);
  EXPECT_EQ(html.find('\x1b'), std::string::npos);
  EXPECT_EQ(render_text(decode_bound_run(), d, {}).find('\x1b'), std::string::npos);
  EXPECT_TRUE(Json::accept(findings_json(decode_bound_run(), d)));
}

}  // namespace
}  // namespace flatout::report
