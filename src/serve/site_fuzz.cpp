// Any request gets one of our answers, and none that a token should have kept is given without.
#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "base/text.h"
#include "serve/site.h"
#include "serve/testing/fake_runs.h"

// The first line is the target, "NAME: VALUE" in each further one.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout;         // NOLINT: a fuzzer
  using namespace flatout::serve;  // NOLINT
  static testing::FakeRuns runs;
  static RunStore store({runs.folder()}, runs, "0.1.0");
  static Site open(store, {}), closed(store, {"abcdefgh-0123456789"});
  if (runs.opened == 0) {
    runs.add("train", false);
    store.look(MonotonicClock::now());
  }
  std::string_view rest(reinterpret_cast<const char*>(data), size), line;
  Request request{"GET", "", {}};
  if (next_line(rest, line)) request.target = line;
  while (next_line(rest, line)) {
    const size_t colon = line.find(": ");
    if (colon == std::string_view::npos) continue;
    request.headers.emplace_back(line.substr(0, colon), line.substr(colon + 2));
  }
  for (Site* site : {&open, &closed}) {
    const Response response = site->respond(request);
    FLATOUT_CHECK(response.status >= 200 && response.status < 500);
    FLATOUT_CHECK(response.body != nullptr || response.events != nullptr);
    const bool has_token =
        std::string_view(reinterpret_cast<const char*>(data), size).find("abcdefgh") !=
        std::string_view::npos;
    FLATOUT_CHECK(site == &open || has_token || response.status != 200 || *response.body == "ok\n");
  }
  return 0;
}
