#include "report/metrics.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "report/run_summary.h"

namespace flatout::report {
namespace {

using model::EntityKind;
using model::Run;
using model::SignalId;

constexpr size_t kMostLabel = 200;    // bytes of a label's value
constexpr size_t kMostEntities = 64;  // of one signal: disks, GPUs
constexpr size_t kMostValues = 64;    // that the job itself reports

struct MetricInfo {
  std::string_view name;
  MetricType type;
  std::string_view help;
};

MetricType type_of(SignalId signal) {
  return model::info(signal).kind == model::SignalKind::kCounter ? MetricType::kCounter
                                                                 : MetricType::kGauge;
}

const std::vector<MetricInfo>& metrics() {
  static const std::vector<MetricInfo> all = {
#define FLATOUT_METRIC(id, name, type, labels, help) {name, MetricType::type, help},
#define FLATOUT_SIGNAL_METRIC(signal, name, scale, label) \
  {name, type_of(SignalId::signal), model::info(SignalId::signal).text},
#include "report/metrics.def"
#undef FLATOUT_METRIC
#undef FLATOUT_SIGNAL_METRIC
  };
  return all;
}

struct SignalMetric {
  SignalId signal;
  MetricId metric;
  double scale;
  std::string_view label;
};

constexpr SignalMetric kSignalMetrics[] = {
#define FLATOUT_METRIC(id, name, type, labels, help)
#define FLATOUT_SIGNAL_METRIC(signal, name, scale, label) \
  {SignalId::signal, MetricId::signal, scale, label},
#include "report/metrics.def"
#undef FLATOUT_METRIC
#undef FLATOUT_SIGNAL_METRIC
};

std::string label(std::string_view name, std::string_view value) {
  std::string out = std::string(name) + "=\"";
  // Control characters, line ends among them, and what is not UTF-8 are made visible by that.
  for (const char c : escape_terminal(value.substr(0, kMostLabel))) {
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out + "\"";
}

// The shortest text that reads back as the same number.
std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// As label values of `le` must be: with a point also where the number is whole.
std::string bound(double value) {
  const std::string text = number(value);
  return text.find_first_of(".I") == std::string::npos ? text + ".0" : text;
}

class Samples {
 public:
  explicit Samples(std::string common) : common_(std::move(common)) {}

  void add(MetricId metric, double value, std::string_view more = "",
           std::string_view suffix = "") {
    const MetricType type = metrics()[static_cast<size_t>(metric)].type;
    if (type == MetricType::kCounter) suffix = "_total";
    if (type == MetricType::kInfo) suffix = "_info";
    std::string labels = common_;
    if (!labels.empty() && !more.empty()) labels += ',';
    out_.push_back({metric, suffix, labels.append(more), value});
  }
  std::vector<Sample> take() { return std::move(out_); }

 private:
  std::string common_;
  std::vector<Sample> out_;
};

void add_run(Samples& out, const Run& run, const RunSummary& about, bool live) {
  out.add(MetricId::kRun, 1,
          label("host", about.host) + "," + label("group", about.group) + "," +
              label("name", about.command));
  out.add(MetricId::kVerdict, 1, label("verdict", about.verdict));
  out.add(MetricId::kRunLive, live ? 1 : 0);
  if (about.begin_unix_s > 0) out.add(MetricId::kRunStart, about.begin_unix_s);
  out.add(MetricId::kRunDuration, to_s(run.end - run.begin));
  if (run.finished && run.wait_status >= 0) {
    out.add(MetricId::kRunExitCode, WIFSIGNALED(run.wait_status) ? 128 + WTERMSIG(run.wait_status)
                                                                 : WEXITSTATUS(run.wait_status));
  }
}

void add_devices(Samples& out, const Run& run) {
  for (const model::DeviceUse& use : run.devices) {
    const std::string gpu = label("gpu", std::to_string(use.sum.device));
    const auto kind = [&](std::string_view of) { return gpu + "," + label("kind", of); };
    out.add(MetricId::kDeviceBusy, use.share(use.sum.busy), gpu);
    out.add(MetricId::kDeviceExposed, use.share(use.sum.exposed_copies), kind("copies"));
    out.add(MetricId::kDeviceExposed, use.share(use.sum.exposed_communication),
            kind("communication"));
    for (size_t i = 0; i < model::kIdleCauses; ++i) {
      const auto cause = static_cast<model::IdleCause>(i);
      out.add(MetricId::kDeviceIdle, use.idle(cause), gpu + "," + label("cause", name(cause)));
    }
  }
}

void add_step_metrics(Samples& out, const Run& run, const StepTotals& totals) {
  if (totals.steps == 0) return;
  out.add(MetricId::kSteps, static_cast<double>(totals.steps));
  uint64_t so_far = 0;
  for (size_t i = 0; i < totals.counts.size(); ++i) {
    so_far += totals.counts[i];
    const double upper = i < StepTotals::kBounds.size() ? StepTotals::kBounds[i] : INFINITY;
    out.add(MetricId::kStepSeconds, static_cast<double>(so_far), label("le", bound(upper)),
            "_bucket");
  }
  out.add(MetricId::kStepSeconds, totals.seconds, "", "_sum");
  out.add(MetricId::kStepSeconds, static_cast<double>(so_far), "", "_count");
  const model::StepSummary& s = run.steps.summary;
  if (s.median.count() > 0) {
    out.add(MetricId::kStepMedian, to_s(s.median));
    out.add(MetricId::kStepP95, to_s(s.p95));
  }
  const auto each_part = [&](MetricId metric, const std::array<double, model::kPartCount>& of) {
    for (size_t i = 0; i < of.size(); ++i) {
      const auto part = static_cast<model::Part>(i);
      // Only traces have it, in place of forward and backward.
      if (part == model::Part::kCompute && of[i] == 0) continue;
      out.add(metric, of[i], label("part", name(part)));
    }
  };
  each_part(MetricId::kStepPartSeconds, totals.part_seconds);
  if (s.median.count() > 0) each_part(MetricId::kStepPartRatio, s.breakdown);
  if (s.samples_per_s > 0) out.add(MetricId::kSamples, s.samples_per_s);
}

void add_findings(Samples& out, const model::Diagnosis& diagnosis) {
  // The same cause may be found twice, with another line; labels must differ.
  const auto is_first = [&](const model::Finding& f) {
    for (const model::Finding& other : diagnosis.findings) {
      if (&other == &f) return true;
      if (other.id == f.id) return false;
    }
    return true;
  };
  const auto each = [&](MetricId metric, auto value_of) {
    for (const model::Finding& f : diagnosis.findings) {
      const std::optional<double> value = value_of(f);
      if (value && is_first(f)) out.add(metric, *value, label("finding", f.id));
    }
  };
  each(MetricId::kFindingGain, [](const model::Finding& f) { return f.gain; });
  each(MetricId::kFindingCost, [](const model::Finding& f) -> std::optional<double> {
    if (!f.cost_ms_per_step) return std::nullopt;
    return *f.cost_ms_per_step * 1e-3;
  });
  each(MetricId::kFindingBytes, [](const model::Finding& f) { return f.cost_bytes; });
  each(MetricId::kFindingConfidence,
       [](const model::Finding& f) { return std::optional<double>(f.confidence); });
}

// Of the job's processes that live.
void add_job(Samples& out, const Run& run) {
  double living = 0, memory = 0, threads = 0;
  for (const model::Process& p : run.processes) {
    if (!p.in_job || p.ended) continue;
    ++living;
    const model::EntityId entity = run.entity(EntityKind::kProcess, p.pid);
    if (entity == model::kNoEntity) continue;
    if (const model::Series* s = run.find(SignalId::kProcRss, entity)) {
      memory += s->last().value_or(0);
    }
    if (const model::Series* s = run.find(SignalId::kProcThreads, entity)) {
      threads += s->last().value_or(0);
    }
  }
  out.add(MetricId::kJobMemory, memory);
  out.add(MetricId::kJobThreads, threads);
  out.add(MetricId::kJobLiving, living);
  std::vector<std::string_view> names;
  for (const model::Series* s : run.all(SignalId::kJobCounter)) {
    if (s->entity >= run.entities.size() || s->empty() || names.size() >= kMostValues) continue;
    const std::string_view name = run.entities[s->entity].name;
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    names.push_back(name);
    out.add(MetricId::kJobValue, s->last().value_or(0), label("name", name));
  }
}

void add_signals(Samples& out, const Run& run) {
  for (const SignalMetric& metric : kSignalMetrics) {
    std::vector<std::string> seen;  // labels must differ, whatever the entities are called
    for (const model::Series* s : run.all(metric.signal)) {
      if (s->empty() || s->entity >= run.entities.size() || seen.size() >= kMostEntities) continue;
      const model::Entity& entity = run.entities[s->entity];
      std::string labels;
      if (!metric.label.empty()) {
        labels = label(metric.label,
                       entity.kind == EntityKind::kGpu ? std::to_string(entity.key) : entity.name);
      }
      if (std::find(seen.begin(), seen.end(), labels) != seen.end()) continue;
      seen.push_back(labels);
      out.add(metric.metric, s->last().value_or(0) * metric.scale, labels);
    }
  }
}

std::string_view type_name(MetricType type, Exposition exposition) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
    case MetricType::kInfo:
      break;
  }
  return exposition == Exposition::kOpenMetrics ? "info" : "gauge";
}

std::string_view unit_of(const MetricInfo& metric) {
  if (metric.type == MetricType::kInfo) return "";
  const std::string_view last = metric.name.substr(metric.name.rfind('_') + 1);
  for (const std::string_view unit : {"seconds", "bytes", "ratio", "hertz", "watts", "celsius"}) {
    if (last == unit) return unit;
  }
  return "";
}

void begin_metric(std::string& out, const MetricInfo& metric, Exposition exposition) {
  std::string name(metric.name);
  if (exposition == Exposition::kPrometheus) {
    if (metric.type == MetricType::kCounter) name += "_total";
    if (metric.type == MetricType::kInfo) name += "_info";
  }
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, metric.help, name,
                     type_name(metric.type, exposition));
  const std::string_view unit = unit_of(metric);
  if (exposition == Exposition::kOpenMetrics && !unit.empty()) {
    out += fmt::format("# UNIT {} {}\n", name, unit);
  }
}

}  // namespace

void add_steps(const Run& run, StepTotals& totals) {
  const auto& steps = run.steps.steps;
  const TimePoint before = totals.until;
  for (const model::Step& step : steps) {
    if (step.end <= before) continue;
    totals.until = std::max(totals.until, step.end);
    if (step.after_gap) continue;  // a part of it was not recorded
    const double length = to_s(step.length());
    const auto bound_of =
        std::lower_bound(StepTotals::kBounds.begin(), StepTotals::kBounds.end(), length);
    ++totals.counts[static_cast<size_t>(bound_of - StepTotals::kBounds.begin())];
    totals.seconds += length;
    for (size_t i = 0; i < step.parts.size(); ++i) {
      totals.part_seconds[i] += to_s(step.parts[i]);
    }
  }
  // What was thinned is counted here: steps keep the job's own numbers.
  if (!steps.empty()) totals.steps = std::max(totals.steps, steps.back().index + 1);
}

std::vector<Sample> run_samples(std::string_view id, const Run& run,
                                const model::Diagnosis& diagnosis, const StepTotals& totals,
                                bool live) {
  const RunSummary about = summarise(run, diagnosis);
  std::string common = label("run", id);
  if (!about.rank.empty()) common += "," + label("rank", about.rank);
  Samples out(std::move(common));
  add_run(out, run, about, live);
  add_step_metrics(out, run, totals);
  add_findings(out, diagnosis);
  add_devices(out, run);
  if (live) {
    add_job(out, run);
    add_signals(out, run);
  }
  return out.take();
}

std::vector<Sample> build_samples(std::string_view version) {
  Samples out("");
  out.add(MetricId::kBuild, 1, label("version", version));
  return out.take();
}

std::string_view content_type(Exposition exposition) {
  return exposition == Exposition::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

std::string render_metrics(std::span<const std::vector<Sample>* const> lists,
                           Exposition exposition) {
  std::string out;
  std::vector<size_t> next(lists.size());  // each list is in the order of the metrics
  for (size_t m = 0; m < metrics().size(); ++m) {
    bool begun = false;
    for (size_t l = 0; l < lists.size(); ++l) {
      const std::vector<Sample>& samples = *lists[l];
      for (; next[l] < samples.size() && static_cast<size_t>(samples[next[l]].metric) == m;
           ++next[l]) {
        const Sample& s = samples[next[l]];
        if (!begun) begin_metric(out, metrics()[m], exposition);
        begun = true;
        out += fmt::format("{}{}", metrics()[m].name, s.suffix);
        if (!s.labels.empty()) out += "{" + s.labels + "}";
        out += " " + number(s.value) + "\n";
      }
    }
  }
  if (exposition == Exposition::kOpenMetrics) out += "# EOF\n";
  return out;
}

}  // namespace flatout::report
