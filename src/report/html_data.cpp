#include "report/html_data.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "report/curves.h"
#include "report/json_values.h"
#include "report/lanes.h"
#include "report/words.h"

namespace flatout::report {
namespace {

using Json = nlohmann::ordered_json;
using model::Run;
using model::Step;

constexpr size_t kMostSteps = 1500;
constexpr size_t kMostPartBuckets = 300;
constexpr size_t kMostEvents = 200;

// Values as people may see them: what controls a terminal or the direction of text is made visible.
std::string shown(std::string_view s) {
  constexpr size_t kMost = 200;
  return escape_terminal(s.size() > kMost ? s.substr(0, kMost) : s);
}

double seconds(const Run& run, TimePoint t) { return to_s(t - run.begin); }

// Four significant digits are finer than a pixel.
Json number(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == 0) return 0;
  const double scale = std::pow(10.0, 3 - std::floor(std::log10(std::fabs(value))));
  const double out = std::round(value * scale) / scale;
  return std::isfinite(out) ? Json(out) : Json(value);
}

// Indices of the steps to draw: all, or of each bucket the shortest and the longest.
std::vector<size_t> thinned(const std::vector<Step>& steps) {
  std::vector<size_t> out;
  if (steps.size() <= kMostSteps) {
    for (size_t i = 0; i < steps.size(); ++i) out.push_back(i);
    return out;
  }
  const size_t buckets = kMostSteps / 2;
  for (size_t b = 0; b < buckets; ++b) {
    const size_t first = steps.size() * b / buckets;
    const size_t last = steps.size() * (b + 1) / buckets;
    size_t low = first;
    size_t high = first;
    for (size_t i = first; i < last; ++i) {
      if (steps[i].length() < steps[low].length()) low = i;
      if (steps[i].length() > steps[high].length()) high = i;
    }
    out.push_back(std::min(low, high));
    if (low != high) out.push_back(std::max(low, high));
  }
  return out;
}

Json steps_data(const Run& run) {
  Json t = Json::array();
  Json ms = Json::array();
  Json index = Json::array();
  Json kind = Json::array();
  const std::vector<Step>& steps = run.steps.steps;
  const Nanos median = run.steps.summary.median;
  for (const size_t i : thinned(steps)) {
    const Step& s = steps[i];
    t.push_back(rounded(seconds(run, s.end), 4));
    ms.push_back(number(to_ms(s.length())));
    index.push_back(s.index);
    // One kind a step, the most telling first.
    const bool slow = median.count() > 0 && s.length() > 2 * median;
    kind.push_back(s.warmup                                       ? "warmup"
                   : s.part(model::Part::kCheckpoint).count() > 0 ? "checkpoint"
                   : s.validation                                 ? "validation"
                   : slow                                         ? "slow"
                                                                  : "step");
  }
  return {{"t", t},
          {"ms", ms},
          {"index", index},
          {"kind", kind},
          {"all", steps.size()},
          {"median_ms", number(to_ms(median))}};
}

// Mean time of each part per step, over buckets of steps.
Json parts_data(const Run& run) {
  const std::vector<Step>& steps = run.steps.steps;
  Json out;
  out["t"] = Json::array();
  out["parts"] = Json::array();
  if (steps.empty()) return out;
  const size_t buckets = std::min(steps.size(), kMostPartBuckets);
  std::array<Json, model::kPartCount> values;
  std::array<bool, model::kPartCount> used{};
  for (Json& v : values) v = Json::array();
  for (size_t b = 0; b < buckets; ++b) {
    const size_t first = steps.size() * b / buckets;
    const size_t last = std::max(steps.size() * (b + 1) / buckets, first + 1);
    out["t"].push_back(rounded(seconds(run, steps[last - 1].end), 4));
    for (size_t p = 0; p < model::kPartCount; ++p) {
      Nanos sum{};
      for (size_t i = first; i < last; ++i) sum += steps[i].parts[p];
      used[p] = used[p] || sum.count() > 0;
      values[p].push_back(number(to_ms(sum) / static_cast<double>(last - first)));
    }
  }
  for (size_t p = 0; p < model::kPartCount; ++p) {
    if (!used[p]) continue;
    const auto part = static_cast<model::Part>(p);
    out["parts"].push_back({{"name", name(part)}, {"label", label(part)}, {"ms", values[p]}});
  }
  return out;
}

Json events_data(const Run& run) {
  Json out = Json::array();
  for (const model::SpeedChange& c : run.steps.changes) {
    out.push_back(
        {{"t", rounded(seconds(run, c.at), 3)},
         {"kind", "change"},
         {"text", "from step " + std::to_string(c.index) + " on " + format_duration(c.after) +
                      " instead of " + format_duration(c.before)}});
  }
  for (const Step& s : run.steps.steps) {
    if (out.size() >= kMostEvents) break;
    if (s.epoch_start) {
      out.push_back(
          {{"t", rounded(seconds(run, s.begin), 3)}, {"kind", "epoch"}, {"text", "epoch"}});
    }
  }
  for (const model::Gap& g : run.gaps) {
    if (out.size() >= 2 * kMostEvents) break;
    out.push_back({{"t", rounded(seconds(run, g.begin), 3)},
                   {"end", rounded(seconds(run, g.end), 3)},
                   {"kind", "gap"},
                   {"text", "not recorded"}});
  }
  return out;
}

Json charts_data(const Run& run) {
  const Buckets buckets = make_buckets(run);
  Json charts = Json::array();
  for (const Chart& chart : make_charts(run, buckets)) {
    Json curves = Json::array();
    for (const Curve& c : chart.curves) {
      Json values = Json::array();
      for (const double v : c.values) values.push_back(number(v));
      curves.push_back({{"label", shown(c.label)}, {"limit", c.limit}, {"v", values}});
    }
    charts.push_back({{"id", chart.id},
                      {"title", shown(chart.title)},
                      {"unit", chart.unit},
                      {"curves", curves}});
  }
  return {{"dt", to_s(buckets.width)}, {"n", buckets.count}, {"list", charts}};
}

Json states_data(const Profile& profile) {
  constexpr size_t kMost = 16;
  Json names = Json::array();
  for (size_t i = 0; i < static_cast<size_t>(model::ThreadState::kCount); ++i) {
    const auto state = static_cast<model::ThreadState>(i);
    names.push_back({{"name", name(state)}, {"label", label(state)}});
  }
  Json groups = Json::array();
  for (const ThreadGroup& g : profile.groups) {
    if (groups.size() >= kMost) break;
    Json us = Json::array();
    for (const double v : g.us) us.push_back(number(v));
    groups.push_back({{"name", shown(g.name)}, {"training", g.training}, {"us", us}});
  }
  return {{"states", names}, {"groups", groups}};
}

Json lanes_data(const Run& run) {
  const Lanes lanes = make_lanes(run);
  Json windows = Json::array();
  for (const LaneWindow& w : lanes.windows) {
    Json rows = Json::array();
    for (const Lane& lane : w.lanes) {
      Json slices = Json::array();
      for (const LaneSlice& s : lane.slices) {
        const bool batch = s.kind == model::SliceKind::kFetch && s.value2 >= 0;
        Json one = Json::array({rounded(seconds(run, s.begin), 5), rounded(seconds(run, s.end), 5),
                                static_cast<int>(s.kind)});
        if (batch) one.push_back(s.value2);
        slices.push_back(std::move(one));
      }
      rows.push_back({{"name", shown(lane.name)}, {"slices", std::move(slices)}});
    }
    windows.push_back({{"title", w.title},
                       {"begin", rounded(seconds(run, w.begin), 5)},
                       {"end", rounded(seconds(run, w.end), 5)},
                       {"lanes", std::move(rows)}});
  }
  return {{"windows", windows}, {"left_out", lanes.threads_left_out}};
}

}  // namespace

std::string chart_data(const Run& run, const Profile& profile) {
  Json out;
  out["length_s"] = rounded(to_s(run.end - run.begin), 3);
  out["steps"] = steps_data(run);
  out["parts"] = parts_data(run);
  out["events"] = events_data(run);
  out["charts"] = charts_data(run);
  out["threads"] = states_data(profile);
  out["lanes"] = lanes_data(run);
  return script_text(out);
}

}  // namespace flatout::report
