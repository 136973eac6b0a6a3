#include "serve/site.h"

#include <gtest/gtest.h>

#include <random>

#include "serve/testing/fake_runs.h"

namespace flatout::serve {
namespace {

const std::string kToken = "abcdefgh-0123456789";

class SiteTest : public ::testing::Test {
 protected:
  SiteTest() {
    runs.add("train", false);
    runs.add("other", true);
    store.look(MonotonicClock::now());
  }
  static Request get(const std::string& target, const std::string& host = "127.0.0.1:8610") {
    return {"GET", target, {{"Host", host}}};
  }
  Site open_site() { return Site(store, {}); }
  Site closed_site() { return Site(store, {kToken}); }
  static std::string header(const Response& response, const std::string& name) {
    for (const auto& [key, value] : response.headers) {
      if (key == name) return value;
    }
    return "";
  }

  testing::FakeRuns runs;
  RunStore store{{runs.folder()}, runs, "0.1.0"};
};

TEST_F(SiteTest, AnswersWhatItHas) {
  Site site = open_site();
  for (const char* path :
       {"/", "/runs.json", "/metrics", "/run/train", "/run/train/body", "/run/train/run.json",
        "/run/train/findings.json", "/run/other", "/compare?old=other&new=train",
        "/compare.json?old=other&new=train", "/healthz"}) {
    const Response response = site.respond(get(path));
    EXPECT_EQ(response.status, 200) << path;
    ASSERT_TRUE(response.body) << path;
    EXPECT_FALSE(response.body->empty()) << path;
  }
  EXPECT_TRUE(site.respond(get("/events")).events);
  EXPECT_TRUE(site.respond(get("/run/other/events")).events);
}

TEST_F(SiteTest, NothingElseCanBeReadByAnyPath) {
  std::ofstream(runs.path("train") + "/run.json") << "secret";
  std::ofstream(runs.folder() + "/secret.txt") << "secret";
  Site site = open_site();
  for (const char* path : {"/run/",
                           "/run/../secret.txt",
                           "/run/train/../../secret.txt",
                           "/run/train/series.bin",
                           "/run/%2e%2e/secret.txt",
                           "/run/..%2fsecret.txt",
                           "/run/train%2f..%2fsecret.txt",
                           "/../../../../etc/passwd",
                           "//etc/passwd",
                           "/etc/passwd",
                           "/run//etc/passwd",
                           "/run/train/",
                           "/run/train/..",
                           "/run/.",
                           "/run/..",
                           "/run/train%00",
                           "/run/latest",
                           "file:///etc/passwd",
                           "",
                           "?",
                           "*",
                           "/runs.json/..",
                           "/run/train\\..\\secret.txt",
                           "/compare?old=../secret.txt&new=train",
                           "/compare?old=&new=",
                           "/compare",
                           "/compare.json?old=train"}) {
    const Response response = site.respond(get(path));
    EXPECT_EQ(response.status, 404) << path;
    ASSERT_TRUE(response.body) << path;
    EXPECT_EQ(response.body->find("secret"), std::string::npos) << path;
  }
}

TEST_F(SiteTest, AnswersOnlyToNamesThatLeadToThisMachine) {
  Site site = open_site();
  for (const char* host : {"127.0.0.1", "127.0.0.1:8610", "127.8.9.1", "localhost", "LocalHost:80",
                           "localhost.", "a.localhost", "[::1]", "[::1]:8610"}) {
    EXPECT_EQ(site.respond(get("/runs.json", host)).status, 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8610", "127.0.0.1.evil.example",
                           "localhost.evil.example", "10.0.0.1", "0.0.0.0", "[::]", "[::1",
                           "[::1]x", "", " ", "127.1", "0x7f000001", "2130706433"}) {
    EXPECT_EQ(site.respond(get("/runs.json", host)).status, 403) << host;
  }
  Request two = get("/runs.json");
  two.headers.emplace_back("host", "evil.example");
  EXPECT_EQ(site.respond(two).status, 400);
  EXPECT_EQ(site.respond({"GET", "/runs.json", {}}).status, 400);
}

// As a proxy is asked: the host of the address counts, not the header.
TEST_F(SiteTest, AWholeAddressIsAnsweredLikeItsPath) {
  Site site = open_site();
  EXPECT_EQ(*site.respond(get("http://localhost/healthz")).body, "ok\n");
  EXPECT_EQ(site.respond(get("http://127.0.0.1:8610")).status, 200);
  EXPECT_EQ(site.respond(get("http://[::1]:8610/runs.json?x=1")).status, 200);
  EXPECT_EQ(site.respond(get("http://localhost/none")).status, 404);
  EXPECT_EQ(site.respond(get("http://elsewhere/run/train")).status, 403);
  EXPECT_EQ(site.respond(get("http://localhost@evil.example/runs.json")).status, 403);
  EXPECT_EQ(site.respond({"GET", "http://localhost/healthz", {}}).status, 400);
}

TEST_F(SiteTest, NothingCanBeChanged) {
  Site site = open_site();
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "X"}) {
    Request request = get("/");
    request.method = method;
    EXPECT_EQ(site.respond(request).status, 405) << method;
  }
}

TEST_F(SiteTest, WithATokenWhoLacksItLearnsNothing) {
  Site site = closed_site();
  for (const char* path : {"/", "/runs.json", "/metrics", "/events", "/run/train", "/run/none",
                           "/nothing", "/?token=", "/?token=abcdefgh-012345678",
                           "/?token=abcdefgh-01234567890", "/?Token=abcdefgh-0123456789"}) {
    const Response response = site.respond(get(path, "any.name.at.all"));
    EXPECT_EQ(response.status, 401) << path;
    EXPECT_EQ(response.body->find("train"), std::string::npos) << path;
  }
  EXPECT_EQ(site.respond(get("/healthz")).status, 200);
  for (const std::string& value :
       std::vector<std::string>{"Bearer", "Bearer ", "Basic " + kToken, kToken, "Bearer x"}) {
    Request request = get("/runs.json");
    request.headers.emplace_back("Authorization", value);
    EXPECT_EQ(site.respond(request).status, 401) << value;
  }
  Request request = get("/runs.json", "any.name.at.all");
  request.headers.emplace_back("Authorization", "Bearer " + kToken);
  EXPECT_EQ(site.respond(request).status, 200);
}

TEST_F(SiteTest, ALinkWithTheTokenGivesACookieAndLosesTheToken) {
  Site site = closed_site();
  const Response link = site.respond(get("/run/train?token=" + kToken));
  EXPECT_EQ(link.status, 303);
  EXPECT_EQ(header(link, "Location"), "/run/train");
  const std::string set = header(link, "Set-Cookie");
  EXPECT_EQ(set.find(kToken), std::string::npos);
  EXPECT_NE(set.find("HttpOnly"), std::string::npos);
  EXPECT_EQ(set.find("Secure"), std::string::npos);
  Site encrypted(store, {kToken, true});
  EXPECT_TRUE(
      header(encrypted.respond(get("/?token=" + kToken)), "Set-Cookie").ends_with("; Secure"));
  Request next = get("/run/train");
  next.headers.emplace_back("Cookie", "a=b; " + set.substr(0, set.find(';')) + "; c=d");
  EXPECT_EQ(site.respond(next).status, 200);
  EXPECT_EQ(closed_site().respond(next).status, 401);  // another server's cookie
  // Never to another server.
  for (const char* path : {"//evil.example", "/\\evil.example", "https://evil.example"}) {
    EXPECT_EQ(header(site.respond(get(path + ("?token=" + kToken))), "Location"), "/") << path;
  }
}

TEST_F(SiteTest, AnotherSitesPageMayOnlyLeadHere) {
  Site site = open_site();
  Request request = get("/runs.json");
  request.headers.emplace_back("Sec-Fetch-Site", "cross-site");
  request.headers.emplace_back("Sec-Fetch-Mode", "no-cors");
  EXPECT_EQ(site.respond(request).status, 403);
  request.headers.back().second = "navigate";
  EXPECT_EQ(site.respond(request).status, 200);
  request.headers = {
      {"Host", "localhost"}, {"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Mode", "cors"}};
  EXPECT_EQ(site.respond(request).status, 200);
}

TEST_F(SiteTest, EveryAnswerSaysWhatABrowserMayDoWithIt) {
  Site open = open_site(), closed = closed_site();
  for (Site* site : {&open, &closed}) {
    for (const char* path : {"/", "/run/train", "/run/train/body", "/metrics", "/none"}) {
      const Response response = site->respond(get(path));
      const std::string policy = header(response, "Content-Security-Policy");
      EXPECT_NE(policy.find("default-src 'none'"), std::string::npos) << path;
      EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos) << path;
      EXPECT_EQ(policy.find("unsafe"), std::string::npos) << path;
      EXPECT_EQ(header(response, "X-Content-Type-Options"), "nosniff") << path;
      EXPECT_EQ(header(response, "Cross-Origin-Resource-Policy"), "same-origin") << path;
      EXPECT_EQ(header(response, "Access-Control-Allow-Origin"), "") << path;
      EXPECT_EQ(header(response, "Cache-Control"), "no-store") << path;
    }
  }
}

TEST_F(SiteTest, GivesMetricsInTheFormatThatIsAskedFor) {
  EXPECT_EQ(preferred_exposition(""), report::Exposition::kPrometheus);
  EXPECT_EQ(preferred_exposition("*/*"), report::Exposition::kPrometheus);
  EXPECT_EQ(preferred_exposition("application/openmetrics-text; version=1.0.0"),
            report::Exposition::kOpenMetrics);
  // Prometheus 2.42's own.
  EXPECT_EQ(preferred_exposition("application/openmetrics-text;version=1.0.0,"
                                 "application/openmetrics-text;version=0.0.1;q=0.75,"
                                 "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"),
            report::Exposition::kOpenMetrics);
  EXPECT_EQ(preferred_exposition("text/plain;version=0.0.4;q=0.7,"
                                 "application/openmetrics-text;q=0.3"),
            report::Exposition::kPrometheus);
  EXPECT_EQ(preferred_exposition("application/openmetrics-text;q=0"),
            report::Exposition::kPrometheus);
  Site site = open_site();
  Request request = get("/metrics");
  request.headers.emplace_back("Accept", "application/openmetrics-text");
  const Response response = site.respond(request);
  EXPECT_EQ(response.type, report::content_type(report::Exposition::kOpenMetrics));
  EXPECT_TRUE(response.body->ends_with("# EOF\n"));
}

TEST_F(SiteTest, EventsTellEachChangeAndTheEnd) {
  Site site = open_site();
  Response response = site.respond(get("/run/other/events"));
  ASSERT_TRUE(response.events);
  EXPECT_EQ(response.type, "text/event-stream");
  const auto first = response.events->next(Nanos(0));
  ASSERT_TRUE(first);
  EXPECT_NE(first->find("event: state\ndata: {\"revision\":"), std::string::npos);
  EXPECT_NE(first->find("\"live\":true"), std::string::npos);
  EXPECT_EQ(response.events->next(Nanos(0)), "");
  runs.at("other").changed = true;
  runs.at("other").run.info["run.end_ns"] = "1";
  store.look_at_all();
  EXPECT_NE(response.events->next(Nanos(0))->find("\"live\":false"), std::string::npos);
  EXPECT_EQ(response.events->next(Nanos(0)), std::nullopt);
}

TEST(Token, IsLongAndNeedsNoEscaping) {
  EXPECT_TRUE(is_good_token(kToken));
  EXPECT_TRUE(is_good_token("Zm9vYmFyMTIzNDU2Nzg5-_.~"));
  for (const std::string bad : {"", "short", "with blank 0123456789", "with%20escape0123456789",
                                "with+plus/0123456789=", "tab\t012345678901234"}) {
    EXPECT_FALSE(is_good_token(bad)) << bad;
  }
}

// Requests of random pieces of real ones: none may crash, or get more than an answer.
TEST_F(SiteTest, SurvivesRequestsOfRandomPieces) {
  std::mt19937 random(1);
  const auto pick = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  const std::vector<std::string> pieces = {"/",
                                           "/run/",
                                           "train",
                                           "other",
                                           "..",
                                           "%2e",
                                           "%00",
                                           "?",
                                           "&",
                                           "token",
                                           "=",
                                           "old",
                                           "new",
                                           "/metrics",
                                           "/events",
                                           "/body",
                                           "\xff",
                                           std::string(1, 0),
                                           "compare",
                                           ".json",
                                           ";",
                                           ":",
                                           "[",
                                           "]",
                                           "localhost",
                                           "127.0.0.1",
                                           "Bearer ",
                                           kToken,
                                           std::string(5000, 'a')};
  const std::vector<std::string> names = {
      "Host", "host", "Cookie", "Authorization", "Accept", "Sec-Fetch-Site", "Sec-Fetch-Mode", "X"};
  Site open = open_site(), closed = closed_site();
  const auto text = [&] {
    std::string out;
    for (size_t n = pick(8); n > 0; --n) out += pieces[pick(pieces.size())];
    return out;
  };
  for (int i = 0; i < 20'000; ++i) {
    Request request{"GET", text(), {}};
    for (size_t n = pick(4); n > 0; --n) {
      request.headers.emplace_back(names[pick(names.size())], text());
    }
    if (pick(2) == 0) request.headers.emplace_back("Host", "localhost");
    const Response response = (pick(2) == 0 ? open : closed).respond(request);
    EXPECT_TRUE(response.status >= 200 && response.status < 500);
    EXPECT_TRUE(response.body || response.events);
  }
}

}  // namespace
}  // namespace flatout::serve
