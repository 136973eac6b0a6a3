#include "feed/bench.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/fs.h"
#include "base/processors.h"
#include "base/text.h"

namespace flatout::feed {
namespace {

using namespace std::chrono_literals;

Nanos process_cpu() {
  timespec ts{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return Nanos(int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec);
}

double pss_mb() {
  const auto text = fs::Root().read("proc/self/smaps_rollup");
  if (!text.ok()) return 0;
  std::string_view rest = *text;
  std::string_view line;
  while (next_line(rest, line)) {
    if (next_word(line) != "Pss:") continue;
    return static_cast<double>(parse_number<uint64_t>(next_word(line)).value_or(0)) * 1024 / 1e6;
  }
  return 0;
}

}  // namespace

Result<BenchResult> run_bench(const std::string& path, LoaderOptions options, int epochs) {
  options.allow_empty = true;  // labels do not matter here
  BenchResult result;
  TimePoint begin = MonotonicClock::now();
  Nanos cpu_before = process_cpu();
  FLATOUT_TRY(auto source, open_source(path));
  FLATOUT_TRY(const auto loader, Loader::open(std::move(source), options));
  TimePoint looked = begin;
  uint64_t images = 0;
  for (int i = 0; i < epochs; ++i) {
    BenchEpoch epoch;
    for (;;) {
      FLATOUT_TRY(const std::shared_ptr<Batch> batch, loader->next());
      if (!batch) break;
      const TimePoint now = MonotonicClock::now();
      if (epoch.images == 0) epoch.first_batch_ms = to_ms(now - begin);
      epoch.images += static_cast<uint64_t>(batch->count);
      if (now - looked > 200ms || epoch.images == static_cast<uint64_t>(batch->count)) {
        result.peak_pss_mb = std::max(result.peak_pss_mb, pss_mb());
        looked = now;
      }
    }
    const TimePoint end = MonotonicClock::now();
    const Nanos cpu = process_cpu();
    const double n = static_cast<double>(epoch.images);
    epoch.images_per_s = n / to_s(end - begin);
    epoch.cpu_ms_per_image = to_ms(cpu - cpu_before) / n;
    begin = end;
    cpu_before = cpu;
    images += epoch.images;
    result.epochs.push_back(epoch);
  }
  result.peak_pss_mb = std::max(result.peak_pss_mb, pss_mb());
  result.report = loader->report();
  result.processors = static_cast<int>(allowed_processors());
  const double last_ms = result.epochs.back().cpu_ms_per_image;
  if (last_ms > 0) result.limit_images_per_s = result.processors * 1000 / last_ms;
  const double n = static_cast<double>(std::max<uint64_t>(result.report.made, 1));
  for (const auto& [name, cpu] : result.report.stages())
    result.stages.push_back({std::string(name), to_ms(cpu) / n});
  return result;
}

std::string bench_json(const BenchResult& result) {
  nlohmann::ordered_json out;
  out["epochs"] = nlohmann::ordered_json::array();
  for (const BenchEpoch& epoch : result.epochs) {
    out["epochs"].push_back({{"images", epoch.images},
                             {"images_per_s", epoch.images_per_s},
                             {"cpu_ms_per_image", epoch.cpu_ms_per_image},
                             {"first_batch_ms", epoch.first_batch_ms}});
  }
  out["peak_pss_mb"] = result.peak_pss_mb;
  out["stages"] = nlohmann::ordered_json::array();
  for (const BenchStage& stage : result.stages)
    out["stages"].push_back({{"name", stage.name}, {"cpu_ms_per_image", stage.cpu_ms_per_image}});
  out["processors"] = result.processors;
  out["limit_images_per_s"] = result.limit_images_per_s;
  if (result.dataloader) {
    const DataLoaderBench& d = *result.dataloader;
    out["dataloader"] = {{"images", d.images},
                         {"workers", d.workers},
                         {"images_per_s", d.images_per_s},
                         {"cpu_ms_per_image", d.cpu_ms_per_image},
                         {"versions", d.versions}};
  } else {
    out["dataloader"] = nullptr;
  }
  out["outcomes"] = nlohmann::ordered_json::object();
  for (int i = 0; i < kOutcomes; ++i) {
    const uint64_t count = result.report.outcomes[static_cast<size_t>(i)];
    if (count > 0) out["outcomes"][std::string(outcome_name(static_cast<Outcome>(i)))] = count;
  }
  return out.dump(2) + "\n";
}

std::string bench_text(const BenchResult& result) {
  std::string out = "epoch   images   images/s   CPU ms/image   first batch\n";
  for (size_t i = 0; i < result.epochs.size(); ++i) {
    const BenchEpoch& epoch = result.epochs[i];
    out += fmt::format("{:>5}   {:>6}   {:>8.0f}   {:>12.3f}   {:>8.1f} ms\n", i + 1, epoch.images,
                       epoch.images_per_s, epoch.cpu_ms_per_image, epoch.first_batch_ms);
  }
  out += "\n";
  for (const BenchStage& stage : result.stages)
    out += fmt::format("{:<8} {:.3f} CPU ms/image\n", stage.name, stage.cpu_ms_per_image);
  if (result.peak_pss_mb > 0)
    out += fmt::format("memory   {:.0f} MB at most\n", result.peak_pss_mb);
  out += fmt::format("limit    {:.0f} images/s: what {} do at most\n", result.limit_images_per_s,
                     result.processors == 1 ? std::string("1 processor can")
                                            : fmt::format("{} processors can", result.processors));
  if (result.dataloader) {
    const DataLoaderBench& d = *result.dataloader;
    out += fmt::format("\nDataLoader, {} workers ({}): {:.0f} images/s, {:.3f} CPU ms/image\n",
                       d.workers, escape_terminal(d.versions), d.images_per_s, d.cpu_ms_per_image);
  }
  if (result.report.replaced > 0 || !result.report.bad.empty()) {
    const auto& outcomes = result.report.outcomes;
    out += fmt::format("\n{} samples were bad, and {} replaced:\n",
                       std::accumulate(outcomes.begin() + 1, outcomes.end(), uint64_t{0}),
                       result.report.replaced);
    for (const BadSample& bad : result.report.bad)
      out += fmt::format("  {}: {} ({})\n", escape_terminal(bad.file),
                         outcome_name(bad.verdict.outcome), escape_terminal(bad.verdict.detail));
  }
  return out;
}

}  // namespace flatout::feed
