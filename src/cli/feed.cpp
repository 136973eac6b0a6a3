// flatout feed: the input pipeline from the command line.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/left_over.h"
#include "base/log.h"
#include "base/number.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "feed/bench.h"
#include "feed/pack.h"
#include "feed/tar_index.h"
#include "feed/verify.h"

namespace flatout::cli {
namespace {

constexpr std::string_view kHelp =
    R"(flatout feed measures and checks data sets of pictures with Flatout's own input pipeline.

  flatout feed bench train/                 CPU time per picture, and pictures per second
  flatout feed bench --mode scaled train/   with JPEG decoded at reduced size where that is enough
  flatout feed verify train/                which files are damaged, and how
  flatout feed pack train/ --output train.fpack    all of it in one file, with a seek index
  flatout feed index shards/                tables of tar shards, so that they open at once

In a training script: flatout.feed.Loader (docs/feed.md). Each command has --help.
)";

const Usage kBench{
    "feed bench",
    "PATH [options]",
    "Runs a data set through random-resized-crop, flip and normalise, and says what it costs.",
    "  flatout feed bench train/\n"
    "  flatout feed bench --json --size 224 --batch 64 --threads 2 --epochs 2 train/\n"
    "  flatout feed bench --python python3 train/    # and what torch's DataLoader gives",
    {"size", "batch", "threads", "epochs", "mode", "seed", "python"},
    true,
    false,
    false,
    1,
    1};

const Usage kVerify{"feed verify",
                    "PATH [options]",
                    "Decodes every file below a folder and says what became of it.",
                    "  flatout feed verify train/\n"
                    "  flatout feed verify --json train/ > outcomes.jsonl\n"
                    "  flatout feed verify --fail-on any train/      # exit with 3 if one is bad",
                    {"threads", "fail_on"},
                    true,
                    false,
                    false,
                    1,
                    1};

const Usage kPack{
    "feed pack",
    "PATH --output FILE [options]",
    "Packs a data set into one file as it is, with labels, checksums and a seek index beside it.",
    "  flatout feed pack train/ --output train.fpack\n"
    "  flatout feed pack 'shards/train-{000..146}.tar' --output train.fpack",
    {"output", "threads", "fail_on"},
    true,
    false,
    false,
    1,
    1};

const Usage kIndex{
    "feed index",
    "PATH [options]",
    "Writes the table of each tar shard beside it, so that a loader opens it at once.",
    "  flatout feed index shards/\n"
    "  flatout feed index 'shards/train-{000..146}.tar'",
    {},
    true,
    false,
    false,
    1,
    1};

// True where it is one of verify's and pack's.
bool is_fail_on(const std::string& fail_on) { return fail_on.empty() || fail_on == "any"; }

int bad_fail_on(const std::string& fail_on) {
  return bad_usage(fmt::format("there is no --fail-on {}", escape_terminal(fail_on)),
                   "--fail-on any");
}

std::string line_of(const feed::BadSample& bad) {
  return fmt::format("{}: {} ({})\n", escape_terminal(bad.file),
                     feed::outcome_name(bad.verdict.outcome), escape_terminal(bad.verdict.detail));
}

// Labels of what is read otherwise are those of torchvision's ImageFolder with allow_empty=True.
void tell_empty_classes(const feed::Source& source) {
  const std::vector<std::string> empty = source.empty_classes();
  for (size_t i = 0; i < empty.size() && i < 5; ++i)
    log_warning(fmt::format("there is no picture in the class folder {}: it keeps its number",
                            escape_terminal(empty[i])));
  if (empty.size() > 5) log_warning(fmt::format("nor in {} more", empty.size() - 5));
}

int bench(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kBench, arguments, code);
  if (!settings) return code;
  feed::LoaderOptions options;
  options.batch = saturate<int>(settings->batch);
  options.threads = saturate<int>(settings->threads);
  options.seed = static_cast<uint64_t>(settings->seed);
  options.augment.width = options.augment.height = saturate<int>(settings->size);
  if (settings->mode != "exact" && settings->mode != "scaled")
    return bad_usage(fmt::format("there is no --mode {}", escape_terminal(settings->mode)),
                     "--mode exact or --mode scaled");
  options.mode = settings->mode == "scaled" ? feed::Mode::kScaled : feed::Mode::kExact;
  auto result = feed::run_bench(settings->positional[0], options, saturate<int>(settings->epochs));
  if (!result.ok()) return fail_input(result.error());
  if (!settings->python.empty()) {
    const int workers = options.threads > 0 ? options.threads : result->processors;
    auto dataloader = feed::run_dataloader(settings->python, settings->positional[0],
                                           options.augment.width, options.batch, workers);
    if (!dataloader.ok()) return fail(dataloader.error());
    result->dataloader = std::move(*dataloader);
  }
  const Status put =
      write_text("", settings->json ? feed::bench_json(*result) : feed::bench_text(*result));
  return put.ok() ? 0 : fail(put.error());
}

int verify(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kVerify, arguments, code);
  if (!settings) return code;
  if (!is_fail_on(settings->fail_on)) return bad_fail_on(settings->fail_on);
  uint64_t files = 0, bad = 0;
  const Status status =
      feed::verify(settings->positional[0], saturate<int>(settings->threads),
                   [&](const feed::Verified& verified) -> Status {
                     ++files;
                     bad += verified.verdict.ok() ? 0 : 1;
                     if (settings->json)
                       return write_text("", feed::verified_json(verified) + "\n");
                     if (verified.verdict.ok()) return {};
                     return write_text("", line_of({verified.file, verified.verdict}));
                   });
  if (!status.ok()) return fail_input(status.error());
  if (files == 0) {
    return fail_input(Error{Code::kNotFound,
                            "there is no file in " + escape_terminal(settings->positional[0]), ""});
  }
  const Status put = settings->json
                         ? Status()
                         : write_text("", fmt::format("{} files, {} of them bad\n", files, bad));
  if (!put.ok()) return fail(put.error());
  return bad > 0 && settings->fail_on == "any" ? 3 : 0;
}

int pack(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kPack, arguments, code);
  if (!settings) return code;
  if (settings->output.empty())
    return bad_usage("the packed file needs a name", "--output train.fpack");
  if (!is_fail_on(settings->fail_on)) return bad_fail_on(settings->fail_on);
  const auto source = feed::open_source(settings->positional[0]);
  if (!source.ok()) return fail_input(source.error());
  tell_empty_classes(**source);
  // Of packing that was killed: as large as what it had packed.
  fs::remove_left_over(settings->output + ".tmp", fs::kDigits, std::chrono::seconds(10));
  nlohmann::ordered_json bad = nlohmann::ordered_json::array();
  Status put;
  const auto result = feed::pack(
      **source, settings->output, saturate<int>(settings->threads),
      [&](const feed::BadSample& sample) {
        bad.push_back({{"file", to_utf8(sample.file)},
                       {"outcome", std::string(feed::outcome_name(sample.verdict.outcome))},
                       {"detail", to_utf8(sample.verdict.detail)}});
        if (!settings->json && put.ok()) put = write_text("", line_of(sample));
      });
  if (!result.ok()) return fail_input(result.error());
  const bool failed = !bad.empty() && settings->fail_on == "any";
  if (settings->json) {
    const nlohmann::ordered_json out = {{"samples", result->samples},
                                        {"bytes", result->bytes},
                                        {"indexed", result->indexed},
                                        {"bad", std::move(bad)}};
    put = write_text("", out.dump(2) + "\n");
  } else if (put.ok()) {
    put = write_text(
        "", fmt::format("{} samples, {}, {} of them with a seek index\n", result->samples,
                        format_bytes(static_cast<double>(result->bytes)), result->indexed));
  }
  if (!put.ok()) return fail(put.error());
  return failed ? 3 : 0;
}

int index(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kIndex, arguments, code);
  if (!settings) return code;
  const auto tars = feed::list_tars(settings->positional[0]);
  if (!tars.ok()) return fail_input(tars.error());
  uint64_t members = 0;
  Status put;
  nlohmann::ordered_json bad = nlohmann::ordered_json::array();
  for (const std::string& tar : *tars) {
    const auto written = feed::write_tar_index(tar);
    if (!written.ok()) return fail_input(written.error());
    members += written->members;
    if (written->verdict.ok()) continue;
    bad.push_back({{"file", to_utf8(tar)},
                   {"outcome", std::string(feed::outcome_name(written->verdict.outcome))},
                   {"detail", to_utf8(written->verdict.detail)}});
    if (!settings->json && put.ok()) put = write_text("", line_of({tar, written->verdict}));
  }
  if (settings->json) {
    const nlohmann::ordered_json out = {
        {"archives", tars->size()}, {"members", members}, {"bad", std::move(bad)}};
    put = write_text("", out.dump(2) + "\n");
  } else if (put.ok()) {
    put = write_text("", fmt::format("{} archives with {} members\n", tars->size(), members));
  }
  return put.ok() ? 0 : fail(put.error());
}

}  // namespace

int feed(const std::vector<std::string>& arguments) {
  const std::string first = arguments.empty() ? "" : arguments[0];
  const std::vector<std::string> rest(arguments.begin() + (arguments.empty() ? 0 : 1),
                                      arguments.end());
  if (first == "bench") return bench(rest);
  if (first == "verify") return verify(rest);
  if (first == "pack") return pack(rest);
  if (first == "index") return index(rest);
  if (first == "--help" || first == "-h") {
    std::fputs(folded(kHelp).c_str(), stdout);
    return 0;
  }
  if (first.empty()) {
    std::fputs(folded(kHelp).c_str(), stderr);
    return 2;
  }
  return bad_usage(fmt::format("there is no command 'feed {}'", escape_terminal(first)),
                   "flatout feed --help");
}

}  // namespace flatout::cli
