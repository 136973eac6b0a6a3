// flatout devmem batch: the largest batch that fits on a card, and from which one on throughput no
// longer grows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/memory_file.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "devmem/batch.h"
#include "diagnose/batch_curve.h"
#include "timeline/import_folder.h"

namespace flatout::cli {
namespace {

using diagnose::BatchCurve;
using diagnose::BatchPoint;

const Usage kBatch{
    "devmem batch",
    "BATCH=FILE|RUN... [--card SIZE] [options]",
    "Predicts from a few short runs the largest batch that fits on a card, and how throughput "
    "grows with the batch.",
    "  flatout devmem batch --card 24GiB 8=small.pickle 16=larger.pickle\n"
    "  flatout devmem batch --card 24GiB 8=small.pickle     # from one run: at least so many\n"
    "  flatout devmem batch 8=flatout-runs/one 32=flatout-runs/other   # folders of flatout run",
    {"card", "beside"},
    true,
    false,
    false,
    1,
    100};

constexpr double kLittle = 0.1;  // of a step; from there on the fixed part hardly counts
constexpr size_t kMostRows = 24;

struct Word {
  uint64_t batch = 0;
  std::string path;
};

Result<Word> parse_word(const std::string& word) {
  const size_t equals = word.find('=');
  const auto batch = parse_number<uint64_t>(std::string_view(word).substr(0, equals));
  if (equals == std::string::npos || !batch || *batch == 0 ||
      *batch > devmem::BatchModel::kMostSamples)
    return Error{Code::kBadInput,
                 fmt::format("'{}' does not say of which batch size it is", escape_terminal(word)),
                 "BATCH=FILE, as 16=snapshot.pickle or 16=flatout-runs/latest"};
  return Word{*batch, word.substr(equals + 1)};
}

// kBadInput is for the command line alone.
Error unreadable(Error error, const std::string& path) {
  if (error.code == Code::kBadInput) error.code = Code::kIo;
  return with_path(std::move(error), path);
}

// The trace of the device that took most.
Result<devmem::BatchRun> read_memory(const Word& word) {
  auto traces = read_memory_traces(word.path);
  if (!traces.ok()) return unreadable(traces.error(), word.path);
  const auto most = std::max_element(
      traces->begin(), traces->end(),
      [](const devmem::Trace& a, const devmem::Trace& b) { return a.peak_live < b.peak_live; });
  if (most == traces->end() || most->blocks == 0)
    return unreadable({Code::kBadInput, "nothing asks for memory in it", ""}, word.path);
  return devmem::BatchRun{word.batch, std::move(*most)};
}

// What the job's loader told may be a rank's or a part's share of the label: nothing is refused.
void check_label(const model::Run& run, const Word& word) {
  const model::StepSummary& steps = run.steps.summary;
  const auto a_step = static_cast<uint64_t>(std::llround(steps.samples_per_s * to_s(steps.mean)));
  const auto a_batch = parse_number<uint64_t>(run.fact("loader.batch_size"));
  if (a_step == 0 || a_step == word.batch || a_batch == word.batch) return;
  log_warning(fmt::format("{} is taken for a run with a batch of {}, but its steps had {} samples",
                          escape_terminal(word.path), word.batch, a_step));
}

Result<BatchPoint> read_times(const Word& word) {
  const auto run = timeline::read_run_folder(word.path);
  if (!run.ok()) return unreadable(run.error(), word.path);
  const BatchPoint point = diagnose::batch_point(*run, word.batch);
  if (point.steps == 0)
    return unreadable(
        {Code::kBadInput, "has too few steps to say how fast it was", "let it run for longer"},
        word.path);
  check_label(*run, word);
  return point;
}

Result<devmem::BatchAnswer> memory_answer(const std::vector<Word>& words,
                                          const Settings& settings) {
  if (settings.card.empty())
    return Error{Code::kBadInput, "the size of the card is needed to say what fits on it",
                 "--card 24GiB, or in bytes"};
  FLATOUT_TRY(const uint64_t card, read_card(settings.card));
  const auto beside = parse_bytes(size_words(settings.beside));
  if (!beside || *beside >= card)
    return Error{Code::kBadInput,
                 fmt::format("'{}' beside the allocator leaves nothing of the card",
                             escape_terminal(settings.beside)),
                 "--beside 768MiB, or in bytes; less than --card"};
  if (words.size() > 2)
    return Error{Code::kBadInput, "more than two recordings of memory",
                 "one or two, with different batch sizes"};
  std::vector<devmem::BatchRun> runs;
  std::vector<uint64_t> from;
  for (const Word& word : words) {
    FLATOUT_TRY(devmem::BatchRun run, read_memory(word));
    from.push_back(word.batch);
    runs.push_back(std::move(run));
  }
  if (runs.size() == 1)
    return devmem::largest_batches(devmem::BatchModel(std::move(runs[0])), card, *beside, from);
  FLATOUT_TRY(const devmem::BatchModel model,
              devmem::BatchModel::make(std::move(runs[0]), std::move(runs[1])));
  return devmem::largest_batches(model, card, *beside, from);
}

Result<BatchCurve> curve_of(const std::vector<Word>& words) {
  std::vector<BatchPoint> points;
  for (const Word& word : words) {
    FLATOUT_TRY(const BatchPoint point, read_times(word));
    points.push_back(point);
  }
  const bool differ = std::any_of(points.begin(), points.end(), [&](const BatchPoint& p) {
    return p.batch != points.front().batch;
  });
  if (!differ)
    return Error{Code::kBadInput, "runs with one batch size do not say how a step grows with it",
                 "record the job with two batch sizes: 8=RUN 32=RUN"};
  return diagnose::fit_batch_curve(std::move(points));
}

// The measured batch sizes and powers of two up to where the fixed part hardly counts.
std::vector<uint64_t> rows_of(const BatchCurve& curve) {
  std::vector<uint64_t> out;
  for (const BatchPoint& p : curve.points) out.push_back(p.batch);
  const auto last = static_cast<double>(out.back());
  const double until = std::max(2 * last, 2 * curve.batch_at(kLittle));
  for (uint64_t batch = 1; static_cast<double>(batch) <= until && out.size() < kMostRows;
       batch *= 2)
    if (batch >= curve.points.front().batch) out.push_back(batch);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::string duration(double seconds) { return format_duration(nanos(seconds * 1e9)); }

std::string curve_text(const BatchCurve& curve) {
  std::string out =
      fmt::format("A step takes {} and {} for each sample (the fixed part: {} to {}, 95 %)\n\n",
                  duration(curve.fixed_s), duration(curve.per_sample_s),
                  duration(curve.fixed_interval.low), duration(curve.fixed_interval.high));
  out += fmt::format("  {:>8} {:>12} {:>12} {:>12}\n", "batch", "step", "measured", "samples/s");
  for (const uint64_t batch : rows_of(curve)) {
    const auto measured = std::find_if(curve.points.begin(), curve.points.end(),
                                       [&](const BatchPoint& p) { return p.batch == batch; });
    const auto samples = static_cast<double>(batch);
    out += fmt::format("  {:>8} {:>12} {:>12} {:>12.0f}\n", batch, duration(curve.step_s(samples)),
                       measured == curve.points.end() ? "" : duration(measured->step_s),
                       curve.samples_per_s(samples));
  }
  if (curve.per_sample_s <= 0) {
    out += "\nNo sample costs time: throughput grows with the batch as far as was measured.\n";
  } else if (curve.fixed_s <= 0) {
    out += "\nNo part of a step is fixed: throughput does not grow with the batch.\n";
  } else {
    out += fmt::format(
        "\nFrom a batch of {:.0f} on the fixed part is less than {} of a step, and throughput "
        "grows "
        "by no more than that: its limit is {:.0f} samples/s.\n",
        std::ceil(curve.batch_at(kLittle)), format_percent(kLittle), 1 / curve.per_sample_s);
  }
  return out;
}

nlohmann::ordered_json curve_json(const BatchCurve& curve) {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const BatchPoint& p : curve.points)
    points.push_back({{"batch", p.batch}, {"step_ms", p.step_s * 1e3}, {"steps", p.steps}});
  return {{"fixed_ms", curve.fixed_s * 1e3},
          {"fixed_ms_interval", {curve.fixed_interval.low * 1e3, curve.fixed_interval.high * 1e3}},
          {"per_sample_ms", curve.per_sample_s * 1e3},
          {"batch_where_fixed_is_a_tenth", curve.batch_at(kLittle)},
          {"points", points}};
}

int said(const Error& error) {
  log_error(error.message, error.hint);
  return error.code == Code::kBadInput ? 2 : 1;
}

}  // namespace

int devmem_batch(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kBatch, arguments, code);
  if (!settings) return code;
  std::vector<Word> files, folders;
  for (const std::string& argument : settings->positional) {
    const auto word = parse_word(argument);
    if (!word.ok()) return said(word.error());
    std::error_code ignored;
    const bool is_run = std::filesystem::is_directory(word->path, ignored);
    (is_run ? folders : files).push_back(*word);
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  std::string out;
  if (!files.empty()) {
    const auto answer = memory_answer(files, *settings);
    if (!answer.ok()) return said(answer.error());
    json = devmem::batch_json(*answer);
    out = devmem::batch_text(*answer);
  }
  if (!folders.empty()) {
    const auto curve = curve_of(folders);
    if (!curve.ok()) return said(curve.error());
    json["time"] = curve_json(*curve);
    out += (out.empty() ? "" : "\n") + curve_text(*curve);
  }
  const Status put = write_text("", settings->json ? json.dump(1) + "\n" : out);
  return put.ok() ? 0 : said(put.error());
}

}  // namespace flatout::cli
