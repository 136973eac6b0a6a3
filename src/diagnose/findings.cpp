#include "diagnose/findings.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/text.h"

namespace flatout::diagnose {

namespace {

// What the training thread does after it has waited on an idle core is slower: caches and clock
// rates have gone down. Of some forty jobs whose waits were taken away what was left of the step
// got 3 to 50 % faster, by less than in proportion to the share of waits: a fifth of the step costs
// half as much as four fifths.
constexpr double kCold = 0.25;

// What will end the job so soon comes before every gain: there is hardly a step left to be faster.
constexpr double kAtOnce = 600.0;  // seconds
// And what will end it within this time ranks as if it made each step so much slower.
constexpr double kSoon = 3600.0, kEnd = 1.5;

/// Causes that the training thread waits for, rather than works at. Of saves it is measured what
/// the steps behind them take longer.
bool is_waited_for(std::string_view id) {
  if (id == "stall.checkpoint") return false;
  return id.starts_with("input.") || id.starts_with("stall.") || id == "cpu.process_churn" ||
         id == "mem.pressure";
}

}  // namespace

double Findings::left_of(double step, double saved, double waits, double busier) const {
  const double idle = view_.cpu().idle_known ? std::clamp(view_.cpu().idle - busier, 0.0, 1.0) : 0;
  const double own = std::max(0.0, step - std::max(saved, waits));  // what it does itself
  const double warmer = kCold * idle * std::sqrt(std::min(saved, waits) / step) * own;
  return step - saved - warmer;
}

model::Finding* Findings::add(std::string_view id, std::string title, double confidence,
                              double saved) {
  const bool steps = view_.has_steps();
  if (view_.steps().count > 0 && !steps) return nullptr;  // too few steps to judge
  const double step = steps ? view_.steps().mean : 1.0;
  if (!(saved > (steps ? kWorthSaying : kWorthSayingBlind) * step)) return nullptr;
  saved = std::min(saved, 0.999 * step);
  model::Finding f;
  f.id = id;
  f.title = std::move(title);
  f.confidence = confidence;
  if (steps) f.cost_ms_per_step = saved * 1e3;
  if (steps || (view_.knows_waits() && id.starts_with("input."))) {
    double left = step - saved;
    if (is_waited_for(id)) {
      const double waits = view_.per_step(Role::kTrainer, [](const Cell& c) {
        return !on_cpu(c.act) && c.act != Act::kRunQueue && c.act != Act::kIdle;
      });
      // More workers do the same work in less time.
      const bool more = id == "input.too_few_workers";
      left = left_of(step, saved, waits, more ? view_.cpu().job * (step / left - 1) : 0);
    }
    f.gain = step / left;
  }
  findings_.push_back(std::move(f));
  return &findings_.back();
}

model::Finding& Findings::add_outside(std::string_view id, std::string title, double confidence) {
  model::Finding f;
  f.id = id;
  f.title = std::move(title);
  f.confidence = confidence;
  findings_.push_back(std::move(f));
  return findings_.back();
}

model::Finding& Findings::add_fatal(std::string_view id, std::string title, double confidence) {
  model::Finding& f = add_outside(id, std::move(title), confidence);
  f.ended_the_job = true;
  return f;
}

double Findings::cost(std::string_view id) const {
  for (const model::Finding& f : findings_) {
    if (f.id == id) return f.cost_ms_per_step.value_or(0) * 1e-3;
  }
  return 0;
}

bool Findings::has(std::string_view id) const {
  return std::any_of(findings_.begin(), findings_.end(),
                     [&](const model::Finding& f) { return f.id == id; });
}

void Findings::drop(std::string_view id) {
  std::erase_if(findings_, [&](const model::Finding& f) { return f.id == id; });
}

std::vector<model::Finding> Findings::take() {
  std::vector<model::Finding> all(std::make_move_iterator(findings_.begin()),
                                  std::make_move_iterator(findings_.end()));
  findings_.clear();
  return all;
}

void sort_by_gain(std::vector<model::Finding>& findings) {
  const auto weight = [](const model::Finding& f) {
    const double ends = f.ends_in_s.value_or(HUGE_VAL);
    if (ends < kAtOnce) return HUGE_VAL;
    return std::max(f.gain.value_or(0), ends < kSoon ? kEnd : 0);
  };
  std::stable_sort(findings.begin(), findings.end(),
                   [&](const model::Finding& a, const model::Finding& b) {
                     if (a.ended_the_job != b.ended_the_job) return a.ended_the_job;
                     return weight(a) > weight(b);
                   });
}

void evidence(model::Finding& f, std::string text, double value, std::string unit,
              std::string source, int64_t readings) {
  f.evidence.push_back({std::move(text), value, std::move(unit), std::move(source), readings});
}

std::string ms(double seconds) { return format_duration(nanos(seconds * 1e9)); }

std::string per_step_text(const RunView& view, double seconds) {
  return ms(seconds) + (view.has_steps() ? " a step" : " of each second");
}

bool same_line(const std::optional<model::Where>& a, const std::optional<model::Where>& b) {
  return a && b && a->file == b->file && a->line == b->line;
}

std::string while_nothing_works(const RunView& view) {
  constexpr double kSomething = 0.3;  // cores
  const CpuView& cpu = view.cpu();
  const double unit = view.has_steps() ? view.steps().mean : 1.0;
  const double trains =
      view.per_step(Role::kTrainer, [](const Cell& c) { return on_cpu(c.act); }) / unit + cpu.pool;
  return cpu.idle_known && cpu.busy - trains > kSomething ? "" : " while nothing works";
}

void remedy(model::Finding& f, std::string id, std::string text) {
  f.remedies.push_back({std::move(id), std::move(text)});
}

void unlock(const RunView& view, model::Finding& f, std::string otherwise) {
  if (view.free_threaded())
    remedy(f, "gil_off",
           "Set PYTHON_GIL=0: this Python needs no GIL, but an extension that does not declare "
           "itself safe without it switched it on (Python warns which).");
  remedy(f, "processes", std::move(otherwise));
}

}  // namespace flatout::diagnose
