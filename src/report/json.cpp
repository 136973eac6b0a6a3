#include "report/json.h"

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "model/rank.h"
#include "report/json_values.h"
#include "report/words.h"

namespace flatout::report {

using Json = nlohmann::ordered_json;
using model::Run;

Json rounded(double value, int digits) {
  if (!std::isfinite(value)) return nullptr;
  const double scale = std::pow(10.0, digits);
  const double out = std::round(value * scale) / scale;
  return std::isfinite(out) ? Json(out) : Json(value);
}

Json maybe(const std::optional<double>& value, int digits) {
  return value ? rounded(*value, digits) : Json(nullptr);
}

Json breakdown_values(const model::StepSummary& summary) {
  // Four digits each; what rounding lost or added goes to the largest, so that they add up to 1.
  constexpr int64_t kOne = 10000;
  std::array<int64_t, model::kPartCount> units{};
  double total = 0;
  for (const double share : summary.breakdown) {
    total += std::isfinite(share) && share > 0 ? share : 0;
  }
  if (total > 0) {
    int64_t sum = 0;
    for (size_t i = 0; i < units.size(); ++i) {
      const double share = summary.breakdown[i];
      units[i] = std::isfinite(share) && share > 0
                     ? std::llround(share / total * static_cast<double>(kOne))
                     : 0;
      sum += units[i];
    }
    *std::max_element(units.begin(), units.end()) += kOne - sum;
  }
  Json out = Json::object();
  for (size_t i = 0; i < units.size(); ++i) {
    const auto part = static_cast<model::Part>(i);
    if (part == model::Part::kCompute && units[i] == 0) continue;  // only traces have it
    out[std::string(name(part))] = static_cast<double>(units[i]) / static_cast<double>(kOne);
  }
  return out;
}

namespace {

Json where_value(const std::optional<model::Where>& where) {
  if (!where) return nullptr;
  return {{"file", to_utf8(where->file)},
          {"line", where->line},
          {"function", to_utf8(where->function)}};
}

}  // namespace

Json finding_value(const model::Finding& f) {
  Json out;
  out["id"] = to_utf8(f.id);
  out["title"] = to_utf8(f.title);
  out["confidence"] = rounded(f.confidence, 3);
  out["cost_ms_per_step"] = maybe(f.cost_ms_per_step, 4);
  out["cost_bytes"] = maybe(f.cost_bytes, 0);
  out["gain"] = maybe(f.gain, 4);
  out["where"] = where_value(f.where);
  out["evidence"] = Json::array();
  for (const model::Evidence& e : f.evidence) {
    out["evidence"].push_back({{"text", to_utf8(e.text)},
                               {"value", rounded(e.value, 6)},
                               {"unit", to_utf8(e.unit)},
                               {"source", to_utf8(e.source)},
                               {"readings", e.readings}});
  }
  out["remedies"] = Json::array();
  for (const model::Suggestion& r : f.remedies) {
    out["remedies"].push_back({{"id", to_utf8(r.id)}, {"text", to_utf8(r.text)}});
  }
  return out;
}

Json missing_value(const Run& run) {
  Json out = Json::array();
  for (const model::Missing& m : run.missing) {
    out.push_back(
        {{"signal", to_utf8(m.signal)}, {"reason", to_utf8(m.reason)}, {"hint", to_utf8(m.hint)}});
  }
  return out;
}

namespace {

std::string document(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json ms(Nanos d) { return rounded(to_ms(d), 4); }

/// What each device of the training process did while it was recorded, in shares of that time.
Json devices_value(const Run& run) {
  Json out = Json::array();
  for (const model::DeviceUse& use : run.devices) {
    Json idle = Json::object();
    for (size_t i = 0; i < model::kIdleCauses; ++i) {
      const auto cause = static_cast<model::IdleCause>(i);
      idle[std::string(name(cause))] = rounded(use.idle(cause), 4);
    }
    out.push_back({{"device", use.sum.device},
                   {"recorded_s", rounded(to_s(use.recorded), 3)},
                   {"busy", rounded(use.share(use.sum.busy), 4)},
                   {"compute", rounded(use.share(use.sum.compute), 4)},
                   {"exposed_copies", rounded(use.share(use.sum.exposed_copies), 4)},
                   {"exposed_communication", rounded(use.share(use.sum.exposed_communication), 4)},
                   {"idle", std::move(idle)},
                   {"kernels", use.sum.kernels},
                   {"lost_records", use.sum.lost}});
  }
  return out;
}

Json steps_value(const Run& run) {
  const model::StepSummary& s = run.steps.summary;
  Json out;
  out["count"] = s.count;
  out["warmup"] = s.warmup;
  const bool known = s.count > 0 && s.median.count() > 0;
  out["median_ms"] = known ? ms(s.median) : Json(nullptr);
  out["p95_ms"] = known ? ms(s.p95) : Json(nullptr);
  out["samples_per_s"] = s.samples_per_s > 0 ? rounded(s.samples_per_s, 3) : Json(nullptr);
  return out;
}

Json speed_changes_value(const Run& run) {
  Json out = Json::array();
  for (const model::SpeedChange& c : run.steps.changes) {
    out.push_back({{"step", c.index},
                   {"at_s", rounded(to_s(c.at - run.begin), 3)},
                   {"before_ms", ms(c.before)},
                   {"after_ms", ms(c.after)}});
  }
  return out;
}

Json drift_value(const Run& run) {
  if (!run.steps.drift) return nullptr;
  return {{"first_ms", ms(run.steps.drift->first)}, {"last_ms", ms(run.steps.drift->last)}};
}

Json exit_value(const Run& run) {
  Json out{{"finished", run.finished}, {"code", nullptr}, {"signal", nullptr}};
  if (run.finished && run.wait_status >= 0) {
    if (WIFSIGNALED(run.wait_status)) {
      out["signal"] = WTERMSIG(run.wait_status);
    } else {
      out["code"] = WEXITSTATUS(run.wait_status);
    }
  }
  return out;
}

Json processes_value(const Run& run) {
  constexpr size_t kMost = 1000;  // a job that forks all the time has many; the first tell enough
  Json out = Json::array();
  for (const model::Process& p : run.processes) {
    if (!p.in_job || out.size() >= kMost) continue;
    Json one{{"pid", p.pid},
             {"ppid", p.ppid},
             {"name", to_utf8(p.name)},
             {"command", to_utf8(p.command)},
             {"main", p.main},
             {"python", p.python},
             {"start_s", rounded(to_s(p.start - run.begin), 3)},
             {"end_s", p.ended ? rounded(to_s(p.end - run.begin), 3) : Json(nullptr)},
             {"wait_status", p.wait_status >= 0 ? Json(p.wait_status) : Json(nullptr)}};
    out.push_back(std::move(one));
  }
  return out;
}

// Processes outside the job that used the most CPU while it ran.
Json neighbours_value(const Run& run) {
  struct Neighbour {
    double cpu_s;
    model::EntityId entity;
  };
  std::vector<Neighbour> list;
  for (const model::Series* s : run.all(model::SignalId::kOtherCpu)) {
    const std::optional<double> used = s->increase(run.begin, run.end);
    if (used && *used > 0) list.push_back({*used * 1e-9, s->entity});
  }
  std::sort(list.begin(), list.end(),
            [](const Neighbour& a, const Neighbour& b) { return a.cpu_s > b.cpu_s; });
  if (list.size() > 20) list.resize(20);
  Json out = Json::array();
  for (const Neighbour& n : list) {
    if (n.entity >= run.entities.size()) continue;
    const model::Entity& e = run.entities[n.entity];
    out.push_back({{"pid", e.key}, {"name", to_utf8(e.name)}, {"cpu_s", rounded(n.cpu_s, 3)}});
  }
  return out;
}

// What watching cost: flatout's own CPU time and memory, and the agent's counters in each process.
Json self_value(const Run& run) {
  using model::SignalId;
  const auto number = [](const model::Series* s) {
    return s && !s->empty() ? rounded(s->last().value_or(0), 0) : Json(nullptr);
  };
  Json out{{"cpu_ns", nullptr}, {"peak_rss_bytes", nullptr}, {"agents", Json::array()}};
  for (const model::Series* s : run.all(SignalId::kSelfCpu)) out["cpu_ns"] = number(s);
  for (const model::Series* s : run.all(SignalId::kSelfRss)) {
    out["peak_rss_bytes"] = maybe(s->max(run.begin, run.end), 0);
  }
  for (const model::Series* s : run.all(SignalId::kAgentHooks)) {
    if (s->entity >= run.entities.size()) continue;
    const model::Series* longest = run.find(SignalId::kAgentMax, s->entity);
    out["agents"].push_back(
        {{"pid", run.entities[s->entity].key},
         {"hooks", number(s)},
         {"time_ns", number(run.find(SignalId::kAgentTime, s->entity))},
         {"longest_ns", longest ? maybe(longest->max(run.begin, run.end), 0) : Json(nullptr)},
         {"interrupted", number(run.find(SignalId::kAgentInterrupted, s->entity))},
         {"interrupted_ns", number(run.find(SignalId::kAgentInterruptedTime, s->entity))},
         {"dropped", number(run.find(SignalId::kAgentDropped, s->entity))}});
  }
  return out;
}

Json signals_value(const Run& run) {
  std::map<model::SignalId, std::pair<int64_t, int64_t>> counts;  // series, readings
  for (const model::Series& s : run.series) {
    auto& [series, readings] = counts[s.signal];
    ++series;
    readings += static_cast<int64_t>(s.readings.size());
  }
  Json out = Json::array();
  for (const auto& [id, count] : counts) {
    if (id >= model::SignalId::kCount) continue;
    out.push_back({{"name", model::info(id).name},
                   {"unit", model::info(id).unit},
                   {"series", count.first},
                   {"readings", count.second}});
  }
  return out;
}

Json rank_value(const model::Rank& r) {
  Json out{{"rank", r.number},
           {"host", to_utf8(r.host)},
           {"pid", r.pid},
           {"folder", to_utf8(r.folder)},
           {"steps", r.steps.count},
           {"median_ms", ms(r.steps.median)},
           {"own_ms", ms(r.own)},
           {"waiting_ms", ms(r.waiting)},
           {"late", r.late},
           {"cause", r.cause.empty() ? Json(nullptr) : Json(to_utf8(r.cause))},
           {"finished", r.finished},
           {"wait_status", r.wait_status >= 0 ? Json(r.wait_status) : Json(nullptr)},
           {"state", name(r.state)},
           {"at", where_value(r.at)},
           {"last_step", r.last_step},
           {"clock_ms", ms(r.clock)},
           {"restarts", r.restarts}};
  out["findings"] = Json::array();
  for (const model::Finding& f : r.findings) out["findings"].push_back(to_utf8(f.id));
  return out;
}

// "job": what the ranks have in common; "ranks": each of them, by number.
void add_ranks(const model::RankReport& report, Json& out) {
  out["job"] = {{"ranks", report.ranks.size()},
                {"absent", report.absent},
                {"common_steps", report.common_steps},
                {"step_ms", ms(report.step)},
                {"exposed_ms", ms(report.exposed)}};
  out["ranks"] = Json::array();
  for (const model::Rank& r : report.ranks) out["ranks"].push_back(rank_value(r));
}

}  // namespace

std::string script_text(const nlohmann::ordered_json& value) {
  const std::string text =
      value.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '<':
        safe += "\\u003c";
        break;
      case '>':
        safe += "\\u003e";
        break;
      case '&':
        safe += "\\u0026";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string findings_json(const Run& run, const model::Diagnosis& diagnosis) {
  Json out;
  out["schema"] = 1;
  out["verdict"] = to_utf8(diagnosis.verdict);
  out["steps"] = steps_value(run);
  out["breakdown"] = breakdown_values(run.steps.summary);
  out["findings"] = Json::array();
  for (const model::Finding& f : diagnosis.findings) out["findings"].push_back(finding_value(f));
  out["missing"] = missing_value(run);
  // Beyond the contract's keys, at the end.
  out["headline"] = to_utf8(diagnosis.headline);
  if (!diagnosis.remark.empty()) out["remark"] = to_utf8(diagnosis.remark);
  out["speed_changes"] = speed_changes_value(run);
  out["drift"] = drift_value(run);
  out["devices"] = devices_value(run);
  if (diagnosis.ranks != nullptr) add_ranks(*diagnosis.ranks, out);
  return document(out);
}

std::string run_json(const Run& run) {
  Json out;
  out["schema"] = 1;
  out["command"] = to_utf8(command_of(run));
  out["length_s"] = rounded(to_s(run.end - run.begin), 3);
  out["exit"] = exit_value(run);
  out["facts"] = Json::object();
  for (const auto& [key, value] : run.info) out["facts"][to_utf8(key)] = to_utf8(value);
  out["steps"] = steps_value(run);
  out["breakdown"] = breakdown_values(run.steps.summary);
  out["speed_changes"] = speed_changes_value(run);
  out["drift"] = drift_value(run);
  out["processes"] = processes_value(run);
  out["survivors"] = Json::array();
  for (const model::Process* p : survivors(run)) {
    out["survivors"].push_back({{"pid", p->pid}, {"name", to_utf8(p->name)}});
  }
  out["neighbours"] = neighbours_value(run);
  out["self"] = self_value(run);
  out["signals"] = signals_value(run);
  out["stack_readings"] = run.readings.size();
  out["slices"] = run.slices.size();
  out["gaps"] = run.gaps.size();
  out["missing"] = missing_value(run);
  return document(out);
}

/// 95 % of `name`_ms.
void put_interval(Json& out, const std::string& name, const Interval& interval) {
  out[name + "_low_ms"] = rounded(interval.low, 4);
  out[name + "_high_ms"] = rounded(interval.high, 4);
}

Json side_value(const std::string& name, int64_t steps, double median_ms, double mean_ms,
                const Interval& interval) {
  const bool known = steps > 0;
  Json out{{"name", to_utf8(name)},
           {"steps", steps},
           {"median_ms", known ? rounded(median_ms, 4) : Json(nullptr)}};
  put_interval(out, "median", interval);
  out["mean_ms"] = known ? rounded(mean_ms, 4) : Json(nullptr);
  return out;
}

Json part_value(const model::PartChange& p) {
  Json out{{"part", name(p.part)},
           {"old_ms", rounded(p.old_ms, 4)},
           {"new_ms", rounded(p.new_ms, 4)},
           {"difference_ms", rounded(p.new_ms - p.old_ms, 4)}};
  put_interval(out, "difference", p.moved_ms);
  out["share"] = rounded(p.share, 4);
  out["reasons"] = Json::array();
  for (const model::Reason& r : p.reasons) {
    out["reasons"].push_back({{r.finding ? "finding" : "change", to_utf8(r.what)},
                              {"text", to_utf8(r.text)},
                              {"share_ms", maybe(r.share_ms, 4)}});
  }
  return out;
}

Json finding_change_value(const model::FindingChange& f) {
  Json out{{"id", to_utf8(f.id)}, {"title", to_utf8(f.title)}};
  out["old_ms"] = maybe(f.old_ms, 4);
  if (f.old_ms) put_interval(out, "old", f.old_interval);
  out["new_ms"] = maybe(f.new_ms, 4);
  if (f.new_ms) put_interval(out, "new", f.new_interval);
  return out;
}

Json changes_value(const std::vector<model::Change>& changes) {
  Json out = Json::array();
  for (const model::Change& change : changes) {
    out.push_back({{"what", to_utf8(change.what)},
                   {"text", to_utf8(change.text)},
                   {"before", to_utf8(change.before)},
                   {"after", to_utf8(change.after)},
                   {"share_ms", maybe(change.share_ms, 4)}});
  }
  return out;
}

Json comparison_value(const model::Comparison& c) {
  Json out;
  out["schema"] = 1;
  out["verdict"] = c.verdict;
  out["headline"] = to_utf8(c.headline);
  out["old"] = side_value(c.old_name, c.old_steps, c.old_median_ms, c.old_mean_ms, c.old_interval);
  out["new"] = side_value(c.new_name, c.new_steps, c.new_median_ms, c.new_mean_ms, c.new_interval);
  out["rank"] = c.rank ? Json(*c.rank) : Json(nullptr);
  out["by"] = c.by_mean ? "mean" : "median";
  out["difference_ms"] = rounded(c.difference_ms, 4);
  put_interval(out, "difference", c.difference);
  out["ratio"] = rounded(c.ratio, 4);
  out["ratio_low"] = rounded(c.ratio_interval.low, 4);
  out["ratio_high"] = rounded(c.ratio_interval.high, 4);
  out["mean_ratio"] = rounded(c.mean_ratio, 4);
  out["mean_ratio_low"] = rounded(c.mean_ratio_interval.low, 4);
  out["mean_ratio_high"] = rounded(c.mean_ratio_interval.high, 4);
  out["parts"] = Json::array();
  for (const model::PartChange& p : c.parts) out["parts"].push_back(part_value(p));
  out["findings"] = Json::array();
  for (const model::FindingChange& f : c.findings) {
    out["findings"].push_back(finding_change_value(f));
  }
  out["changes"] = changes_value(c.changes);
  out["other"] = changes_value(c.other);
  out["unexplained_ms"] = rounded(c.unexplained_ms, 4);
  out["appeared"] = Json::array();
  for (const model::Finding& f : c.appeared) out["appeared"].push_back(finding_value(f));
  out["vanished"] = Json::array();
  for (const model::Finding& f : c.vanished) out["vanished"].push_back(finding_value(f));
  return out;
}

std::string comparison_json(const model::Comparison& comparison) {
  return document(comparison_value(comparison));
}

}  // namespace flatout::report
