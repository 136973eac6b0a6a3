// flatout devmem: device memory under several allocators, and why it ran out.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "devmem/batch.h"
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
  flatout devmem explain train.log             why it ran out, who holds what, and what would help
  flatout devmem limit 8GiB -- python train.py a hard limit for any CUDA program

Read are PyTorch memory snapshots (torch.cuda.memory._dump_snapshot), traces of torch.profiler with
profile_memory=True, logs of RMM, the dumps that TensorFlow writes when memory runs out, and Flatout's
own JSON lines; plain or gzipped. Each command has --help.
)";

const Usage kReplay{
    "devmem replay",
    "FILE... [options]",
    "Replays a job's requests for device memory under every allocator policy.",
    "  flatout devmem replay snapshot.pickle\n"
    "  flatout devmem replay --card 24GiB snapshot.pickle    # would it fit there?\n"
    "  flatout devmem replay --html memory.html snapshot.pickle   # who held what when\n"
    "  flatout devmem replay trace.jsonl.gz --json           # every figure, for scripts",
    {"card", "html", "verbose"},
    true,
    false,
    false,
    1,
    100'000};

const Usage kBatch{
    "devmem batch",
    "--card SIZE BATCH=FILE [BATCH=FILE] [options]",
    "Predicts the largest batch that fits on a card, under each allocator, from one or two runs.",
    "  flatout devmem batch --card 24GiB 8=small.pickle 16=larger.pickle\n"
    "  flatout devmem batch --card 24GiB 8=small.pickle             # from one run: at least so "
    "many\n"
    "  flatout devmem batch --card 80GiB --beside 2GiB 8=a.json 16=b.json --json",
    {"card", "beside", "verbose"},
    true,
    false,
    false,
    1,
    2};

const Usage kExplain{"devmem explain",
                     "[FILE] [options]",
                     "Explains why device memory ran out: from a log, an error message or a "
                     "PyTorch memory snapshot.",
                     "  flatout devmem explain train.log\n"
                     "  python train.py 2>&1 | flatout devmem explain         # standard input\n"
                     "  flatout devmem explain snapshot.pickle --json",
                     {"verbose"},
                     true,
                     false,
                     false,
                     0,
                     1};

// Longer files are beyond what is worth holding in memory.
constexpr size_t kMostFileBytes = size_t{8} << 30;

Result<std::string> read_file(const std::string& path) {
  FLATOUT_TRY(const auto source, timeline::open_source(path));
  FLATOUT_TRY(std::string bytes, timeline::read_all(*source, kMostFileBytes));
  if (source->damaged()) return Error{Code::kBadInput, "its gzip stream is cut off or damaged", ""};
  return bytes;
}

// The file's last name without what says how it is packed.
std::string name_of(std::string_view path) {
  path = path.substr(path.rfind('/') + 1);
  for (const std::string_view end : {".gz", ".jsonl", ".json", ".pickle", ".pkl", ".csv"})
    if (path.ends_with(end) && path.size() > end.size()) path.remove_suffix(end.size());
  return std::string(path);
}

Result<std::vector<devmem::Trace>> read_traces(const std::string& path) {
  FLATOUT_TRY(const std::string bytes, read_file(path));
  return devmem::read_traces(bytes, name_of(path));
}

// Says what is wrong with which file; returns the exit code.
int fail(Error error, const std::string& path) {
  if (error.message.find(path) == std::string::npos)
    error.message = fmt::format("{}: {}", escape_terminal(path), error.message);
  log_error(error.message, error.hint);
  return error.code == Code::kBadInput ? 2 : 1;
}

int replay(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kReplay, arguments, code);
  if (!settings) return code;
  devmem::ReplayOptions options;
  if (!settings->card.empty()) {
    const auto card = parse_bytes(settings->card);
    if (!card || *card < devmem::kPageBytes)
      return bad_usage(fmt::format("'{}' is no size of a card", escape_terminal(settings->card)),
                       "--card 24GiB, or in bytes");
    options.card = *card;
  }
  std::vector<devmem::Replay> replays;
  std::vector<model::MemoryHistory> histories;
  for (const std::string& file : settings->positional) {
    const auto traces = read_traces(file);
    if (!traces.ok()) return fail(traces.error(), file);
    for (const devmem::Trace& trace : *traces) {
      if (trace.skipped > 0)
        log_warning(
            fmt::format("{}: {} records fit nowhere (no such block, or no bytes) and are skipped",
                        escape_terminal(file), trace.skipped));
      for (devmem::Replay& r : devmem::replay_all(trace, options)) replays.push_back(std::move(r));
      if (!settings->html.empty()) histories.push_back(devmem::memory_history(trace, options.card));
    }
  }
  if (!histories.empty()) {
    const Status drawn = write_text(settings->html, report::render_memory_html(histories));
    if (!drawn.ok()) return fail(drawn.error(), settings->html);
  }
  const Status put =
      write_text("", settings->json ? devmem::replay_json(replays) : devmem::replay_table(replays));
  return put.ok() ? 0 : fail(put.error(), "");
}

// "8=small.pickle": the trace of the device that took most.
Result<devmem::BatchRun> read_batch_run(const std::string& word) {
  const size_t equals = word.find('=');
  const auto batch = parse_number<uint64_t>(std::string_view(word).substr(0, equals));
  if (equals == std::string::npos || !batch || *batch == 0 ||
      *batch > devmem::BatchModel::kMostSamples)
    return Error{Code::kBadInput,
                 fmt::format("'{}' does not say of which batch size it is", escape_terminal(word)),
                 "BATCH=FILE, as 16=snapshot.pickle"};
  const std::string path = word.substr(equals + 1);
  auto traces = read_traces(path);
  if (!traces.ok()) {
    Error error = traces.error();
    if (error.message.find(path) == std::string::npos)
      error.message = fmt::format("{}: {}", escape_terminal(path), error.message);
    return error;
  }
  const auto most = std::max_element(
      traces->begin(), traces->end(),
      [](const devmem::Trace& a, const devmem::Trace& b) { return a.peak_live < b.peak_live; });
  if (most == traces->end() || most->blocks == 0)
    return Error{Code::kBadInput,
                 fmt::format("{}: nothing asks for memory in it", escape_terminal(path)), ""};
  return devmem::BatchRun{*batch, std::move(*most)};
}

int batch(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kBatch, arguments, code);
  if (!settings) return code;
  const auto card = parse_bytes(settings->card);
  if (!card || *card < devmem::kPageBytes)
    return bad_usage(settings->card.empty() ? std::string("devmem batch needs the size of the card")
                                            : fmt::format("'{}' is no size of a card",
                                                          escape_terminal(settings->card)),
                     "--card 24GiB, or in bytes");
  const auto beside = parse_bytes(settings->beside);
  if (!beside || *beside >= *card)
    return bad_usage(fmt::format("'{}' beside the allocator leaves nothing of the card",
                                 escape_terminal(settings->beside)),
                     "--beside 768MiB, or in bytes; less than --card");
  std::vector<devmem::BatchRun> runs;
  std::vector<uint64_t> from;
  for (const std::string& word : settings->positional) {
    auto run = read_batch_run(word);
    if (!run.ok()) return fail(run.error(), "");
    from.push_back(run->batch);
    runs.push_back(std::move(*run));
  }
  const auto model = runs.size() == 1
                         ? Result<devmem::BatchModel>(devmem::BatchModel(std::move(runs[0])))
                         : devmem::BatchModel::make(std::move(runs[0]), std::move(runs[1]));
  if (!model.ok()) return fail(model.error(), "");
  const auto answer = devmem::largest_batches(*model, *card, *beside, std::move(from));
  const Status put =
      write_text("", settings->json ? devmem::batch_json(answer) : devmem::batch_text(answer));
  return put.ok() ? 0 : fail(put.error(), "");
}

int explain_memory(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kExplain, arguments, code);
  if (!settings) return code;
  const std::string file = settings->positional.empty() ? "/dev/stdin" : settings->positional[0];
  const auto bytes = read_file(file);
  if (!bytes.ok()) return fail(bytes.error(), file);
  const auto explanation = devmem::explain(*bytes);
  if (!explanation.ok()) return fail(explanation.error(), file);
  const Status put = write_text("", settings->json ? devmem::explanation_json(*explanation)
                                                   : devmem::explanation_text(*explanation));
  return put.ok() ? 0 : fail(put.error(), "");
}

}  // namespace

int devmem(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::fputs(std::string(kHelp).c_str(), stderr);
    return 2;
  }
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  const std::string& what = arguments[0];
  if (what == "replay") return replay(rest);
  if (what == "batch") return batch(rest);
  if (what == "explain") return explain_memory(rest);
  if (what == "limit") return devmem_limit(rest);
  if (what == "--help" || what == "-h" || what == "help") {
    fmt::print("{}", kHelp);
    return 0;
  }
  const std::string_view meant = nearest(what, {"replay", "batch", "explain", "limit"});
  return bad_usage(fmt::format("there is no command 'devmem {}'", escape_terminal(what)),
                   meant.empty() ? "flatout devmem --help"
                                 : fmt::format("did you mean flatout devmem {}?", meant));
}

}  // namespace flatout::cli
