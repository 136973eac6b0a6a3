// flatout devmem: device memory under several allocators, and why it ran out.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "advise/explain_memory.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/memory_file.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "devmem/explain.h"
#include "devmem/history.h"
#include "devmem/replay.h"
#include "devmem/trace.h"
#include "report/memory_html.h"
#include "timeline/byte_source.h"

namespace flatout::cli {
namespace {

constexpr std::string_view kHelp =
    R"(flatout devmem says how much device memory a job needs under which allocator and why it ran out, and limits it.

  flatout devmem replay snapshot.pickle        peak and smallest card: TensorFlow's, PyTorch's and Flatout's allocators
  flatout devmem replay --card 24GiB *.jsonl.gz   would it fit there?
  flatout devmem batch --card 24GiB 8=a.pickle 16=b.pickle   the largest batch that fits there
  flatout devmem batch 8=RUN 16=RUN            how a step grows with the batch, from two run folders
  flatout devmem explain train.log             why it ran out, who holds what, and what would help
  flatout devmem limit 8GiB -- python train.py a hard limit for any CUDA program

Read are PyTorch memory snapshots (torch.cuda.memory._dump_snapshot), traces of torch.profiler with profile_memory=True, logs of RMM, the dumps that TensorFlow writes when memory runs out, and Flatout's own JSON lines; plain or gzipped. Each command has --help.
)";

const Usage kReplay{
    "devmem replay",
    "FILE... [options]",
    "Replays a job's requests for device memory under every allocator policy.",
    "  flatout devmem replay snapshot.pickle\n"
    "  flatout devmem replay --card 24GiB snapshot.pickle    # would it fit there?\n"
    "  flatout devmem replay --html memory.html snapshot.pickle   # who held what when\n"
    "  flatout devmem replay trace.jsonl.gz --json           # every figure, for scripts",
    {"card", "html"},
    true,
    false,
    false,
    1,
    100'000};

const Usage kExplain{"devmem explain",
                     "[FILE] [options]",
                     "Explains why device memory ran out: from a log, an error message or a "
                     "PyTorch memory snapshot.",
                     "  flatout devmem explain train.log\n"
                     "  python train.py 2>&1 | flatout devmem explain         # standard input\n"
                     "  flatout devmem explain snapshot.pickle --json",
                     {},
                     true,
                     false,
                     false,
                     0,
                     1};

// Says what is wrong with which file; returns the exit code.
int fail(const Error& error, const std::string& path) { return fail_input(with_path(error, path)); }

int replay(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kReplay, arguments, code);
  if (!settings) return code;
  devmem::ReplayOptions options;
  if (!settings->card.empty()) {
    const auto card = read_card(settings->card);
    if (!card.ok()) return bad_usage(card.error().message, card.error().hint);
    options.card = *card;
  }
  std::vector<devmem::Replay> replays;
  std::vector<model::MemoryHistory> histories;
  size_t failed = 0;
  for (const std::string& file : settings->positional) {
    const auto traces = read_memory_traces(file);
    if (!traces.ok()) {
      // One bad file must not hide what the others say.
      fail(traces.error(), file);
      ++failed;
      continue;
    }
    for (const devmem::Trace& trace : *traces) {
      if (trace.skipped > 0)
        log_warning(
            fmt::format("{}: {} records fit nowhere (no such block, or no bytes) and are skipped",
                        escape_terminal(file), trace.skipped));
      for (devmem::Replay& r : devmem::replay_all(trace, options)) replays.push_back(std::move(r));
      if (!settings->html.empty()) histories.push_back(devmem::memory_history(trace, options.card));
    }
  }
  if (failed == settings->positional.size()) return 1;
  if (!histories.empty()) {
    const Status drawn = write_text(settings->html, report::render_memory_html(histories));
    if (!drawn.ok()) return fail(drawn.error(), settings->html);
  }
  const Status put =
      write_text("", settings->json ? devmem::replay_json(replays) : devmem::replay_table(replays));
  if (!put.ok()) return fail(put.error(), "");
  return failed > 0 ? 1 : 0;
}

advise::OpenLog opener_of(const std::string& path) {
  return [path]() -> Result<advise::ReadBytes> {
    FLATOUT_TRY(auto opened, timeline::open_source(path));
    const std::shared_ptr<timeline::ByteSource> source = std::move(opened);
    return advise::ReadBytes([source](char* to, size_t size) -> Result<size_t> {
      FLATOUT_TRY(const size_t got, source->read(to, size));
      if (got == 0 && source->damaged()) return damaged_gzip();
      return got;
    });
  };
}

// A snapshot is held in memory, a log is not.
Result<devmem::Explanation> explain_file(const std::string& file) {
  FLATOUT_TRY(const std::string path, timeline::rereadable(file));
  const advise::OpenLog open = opener_of(path);
  FLATOUT_TRY(const advise::ReadBytes read, open());
  std::string head(devmem::kSnapshotHead, '\0');
  FLATOUT_TRY(const size_t got, read(head.data(), head.size()));
  head.resize(got);
  if (devmem::may_be_snapshot(head)) {
    FLATOUT_TRY(const std::string bytes, read_memory_file(path));
    if (devmem::is_snapshot(bytes)) return devmem::explain_snapshot(bytes);
  }
  return advise::explain_memory(open);
}

int explain_memory(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kExplain, arguments, code);
  if (!settings) return code;
  const std::string file = settings->positional.empty() ? "/dev/stdin" : settings->positional[0];
  if (settings->positional.empty()) tell_standard_input("a log or an error message");
  const Result<devmem::Explanation> explanation = explain_file(file);
  if (!explanation.ok()) return fail(explanation.error(), file);
  const Status put = write_text("", settings->json ? devmem::explanation_json(*explanation)
                                                   : devmem::explanation_text(*explanation));
  return put.ok() ? 0 : fail(put.error(), "");
}

}  // namespace

int devmem(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::fputs(folded(kHelp).c_str(), stderr);
    return 2;
  }
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  const std::string& what = arguments[0];
  if (what == "replay") return replay(rest);
  if (what == "batch") return devmem_batch(rest);
  if (what == "explain") return explain_memory(rest);
  if (what == "limit") return devmem_limit(rest);
  if (what == "--help" || what == "-h" || what == "help") {
    std::fputs(folded(kHelp).c_str(), stdout);
    return 0;
  }
  const std::string_view meant = nearest(what, {"replay", "batch", "explain", "limit"});
  return bad_usage(fmt::format("there is no command 'devmem {}'", escape_terminal(what)),
                   meant.empty() ? "flatout devmem --help"
                                 : fmt::format("did you mean flatout devmem {}?", meant));
}

}  // namespace flatout::cli
