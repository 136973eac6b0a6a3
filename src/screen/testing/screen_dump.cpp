// screen_dump ROOT [WIDTH HEIGHT [KEYS]]: the screen of a tree of /proc files after some keys, as
// plain text. screen_dump ROOT --bench LOOKS [threads]: what a look and a drawing cost, in CPU
// time.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/cpu_time.h"
#include "screen/render.h"
#include "screen/sampler.h"
#include "screen/session.h"

namespace {

using namespace flatout;
using namespace flatout::screen;

int bench(const SamplerOptions& options, int looks, bool threads) {
  Sampler sampler(options);
  Session session(options.root, 0, 1);
  session.resize(200, 60);
  Nanos look{}, add{}, draw{};
  size_t rows = 0;
  for (int i = 0; i <= looks; ++i) {
    const Nanos begin = thread_cpu();
    auto snapshot = sampler.look({.threads = threads});
    const Nanos looked = thread_cpu();
    session.add(std::move(snapshot));
    const Nanos added = thread_cpu();
    rows = session.rows().size();
    (void)render(session, true);
    if (i == 0) continue;  // reads what later looks need not
    look += looked - begin;
    add += added - looked;
    draw += thread_cpu() - added;
  }
  fmt::print("{{\"rows\": {}, \"look_ms\": {:.3f}, \"sort_ms\": {:.3f}, \"draw_ms\": {:.3f}}}\n",
             rows, to_ms(look) / looks, to_ms(add) / looks, to_ms(draw) / looks);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: screen_dump ROOT [WIDTH HEIGHT [KEYS] | --bench LOOKS [threads]]\n", stderr);
    return 2;
  }
  SamplerOptions options;
  options.root = fs::Root(argv[1]);
  options.nvml = "";
  if (argc > 3 && std::string_view(argv[2]) == "--bench") {
    return bench(options, std::atoi(argv[3]), argc > 4);
  }
  Sampler sampler(options);
  Session session(options.root, 0, 1);
  session.resize(argc > 3 ? std::atoi(argv[2]) : 80, argc > 3 ? std::atoi(argv[3]) : 24);
  session.add(sampler.look({}));
  for (const char c : std::string_view(argc > 4 ? argv[4] : "")) {
    session.key(static_cast<Key>(c));
    session.add(sampler.look(session.wanted()));
  }
  std::fputs(render(session, true).canvas.text().c_str(), stdout);
  return 0;
}
