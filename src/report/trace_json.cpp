#include "report/trace_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "report/json_values.h"
#include "report/trace_words.h"

namespace flatout::report {

using Json = nlohmann::ordered_json;
using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr size_t kTopKernels = 15;
constexpr size_t kMostWaits = 1000;

Json us(int64_t ns) { return rounded(static_cast<double>(ns) / 1e3, 3); }
Json percent(int64_t part, int64_t whole) {
  return whole > 0 ? rounded(100.0 * static_cast<double>(part) / static_cast<double>(whole), 3)
                   : Json(nullptr);
}

std::string_view name_of(KernelType type) {
  switch (type) {
    case KernelType::kCommunication:
      return "comm";
    case KernelType::kMemory:
      return "mem";
    case KernelType::kCompute:
      break;
  }
  return "comp";
}

void add_times(Json& out, const DeviceTimes& t) {
  out["span_us"] = us(t.span);
  out["busy_us"] = us(t.busy);
  out["idle_us"] = us(t.idle());
  out["idle_pct"] = percent(t.idle(), t.span);
  out["compute_us"] = us(t.compute);
  out["compute_pct"] = percent(t.compute, t.span);
  out["non_compute_us"] = us(t.busy - t.compute);
  out["comm_us"] = us(t.communication);
  out["mem_us"] = us(t.memory);
  out["exposed_comm_us"] = us(t.exposed_communication());
  out["comm_comp_overlap_pct"] = percent(t.overlap, t.communication);
}

Json idle_value(const IdleBlame& idle) {
  return {{"host_wait_us", us(idle.host_wait)},
          {"kernel_wait_us", us(idle.kernel_wait)},
          {"other_us", us(idle.other)}};
}

Json device_value(const DeviceSummary& d) {
  Json out;
  out["name"] = to_utf8(d.name);
  add_times(out, d.times);
  out["gaps"] = idle_value(d.idle);
  out["gaps"]["input_wait_us"] = us(d.idle.input_wait);
  // Of host_wait_us: these three; of other_us unknown_us, and of that the last two.
  out["gaps"]["sync_wait_us"] = us(d.sync_wait);
  out["gaps"]["launch_bound_us"] = us(d.short_wait);
  out["gaps"]["collective_wait_us"] = us(d.collective_wait);
  out["gaps"]["unknown_us"] = us(d.unknown);
  out["gaps"]["unknown_input_us"] = us(d.unknown_input);
  out["gaps"]["unknown_sync_us"] = us(d.unknown_sync);
  out["n_gaps"] = d.gaps;
  out["streams"] = Json::object();
  for (const StreamSummary& s : d.streams) {
    Json stream = {{"n", s.events}};
    stream.update(idle_value(s.idle));
    stream["queue_max"] = s.queue_max;
    stream["queue_time_mean"] = s.queue_mean ? rounded(*s.queue_mean, 4) : Json(nullptr);
    stream["uncorrelated"] = s.uncorrelated;
    out["streams"][std::to_string(s.stream)] = std::move(stream);
  }
  out["launch"] = {{"n", d.launch.count},
                   {"cpu_us", us(d.launch.host)},
                   {"gpu_us", us(d.launch.device)},
                   {"delay_us", us(d.launch.delay)},
                   {"kernels_shorter_than_launch", d.launch.shorter_than_launch},
                   {"delay_gt_100us", d.launch.late}};
  out["launch"]["calls"] = Json::array();
  for (const LaunchCall& c : d.launch.calls) {
    out["launch"]["calls"].push_back({{"name", to_utf8(c.name)},
                                      {"n", c.count},
                                      {"events", c.events},
                                      {"cpu_us", us(c.host)},
                                      {"delay_us", us(c.delay)}});
  }
  out["top_kernels"] = Json::array();
  for (size_t i = 0; i < d.kernels.size() && i < kTopKernels; ++i) {
    const KernelStat& k = d.kernels[i];
    out["top_kernels"].push_back(
        {{"type", name_of(k.type)},
         {"name", to_utf8(k.name)},
         {"sum_us", us(k.sum)},
         {"count", k.count},
         {"max_us", us(k.max)},
         {"min_us", us(k.min)},
         {"operator", k.owner.empty() ? Json(nullptr) : Json(to_utf8(k.owner))}});
  }
  out["copies"] = Json::array();
  for (const CopySummary& c : d.copies) {
    Json copy = {{"name", to_utf8(c.name)},
                 {"count", c.all_count},
                 {"time_us", us(c.all_time)},
                 {"bytes", c.count > 0 ? Json(c.bytes) : Json(nullptr)}};
    copy["gb_per_s"] = c.time > 0
                           ? rounded(static_cast<double>(c.bytes) / static_cast<double>(c.time), 4)
                           : Json(nullptr);
    out["copies"].push_back(std::move(copy));
  }
  const auto blames = [](const std::vector<HostBlame>& all) {
    Json list = Json::array();
    for (const HostBlame& h : all) list.push_back({{"name", to_utf8(h.name)}, {"us", us(h.time)}});
    return list;
  };
  out["host_during_gaps"] = blames(d.host.slices);
  out["lines_during_gaps"] = blames(d.host.lines);
  const auto owners = [](const std::vector<OwnerStat>& all) {
    Json list = Json::array();
    for (const OwnerStat& o : all)
      list.push_back({{"name", to_utf8(o.name)}, {"device_us", us(o.time)}, {"count", o.count}});
    return list;
  };
  out["owners"] = {{"device_us", us(d.owners.time)},
                   {"operators", owners(d.owners.operators)},
                   {"modules", owners(d.owners.modules)}};
  return out;
}

Json path_value(const CriticalPath& p) {
  Json out = {{"step", p.step.empty() ? Json(nullptr) : Json(to_utf8(p.step))},
              {"length_us", us(p.length)}};
  for (size_t i = 0; i < kPathParts; ++i)
    out["parts"][std::string(key_of(static_cast<PathPart>(i))) + "_us"] = us(p.parts[i]);
  out["pieces"] = Json::array();
  for (const CriticalPath::Piece& piece : p.pieces)
    out["pieces"].push_back(
        {{"part", key_of(piece.part)}, {"name", to_utf8(piece.name)}, {"us", us(piece.time)}});
  out["what_if"] = Json::array();
  for (const CriticalPath::WhatIf& w : p.what_if) {
    out["what_if"].push_back({{"without", key_of(w.part)},
                              {"kernel", w.name.empty() ? Json(nullptr) : Json(to_utf8(w.name))},
                              {"length_us", us(w.length)},
                              {"saved_us", us(p.length - w.length)}});
  }
  return out;
}

Json damage_value(const TraceDamage& d) {
  return {{"cut_off", d.cut_off},   {"bad_events", d.bad_events}, {"bad_numbers", d.bad_numbers},
          {"unpaired", d.unpaired}, {"left_out", d.dropped},      {"text", to_utf8(d.text)}};
}

// By pandas' names.
Json description_value(const HtaSummary::Description& d, double unit = 1) {
  const auto value = [&](double x) { return d.count > 0 ? Json(rounded(x * unit, 6)) : Json(); };
  return {{"count", d.count},
          {"mean", value(d.mean)},
          {"std", d.deviation ? value(*d.deviation) : Json()},
          {"min", value(d.min)},
          {"25%", value(d.quartile1)},
          {"50%", value(d.median)},
          {"75%", value(d.quartile3)},
          {"max", value(d.max)}};
}

Json trace_value(const TraceSummary& t) {
  Json out;
  out["format"] = t.format;
  out["rank"] = t.rank >= 0 ? Json(t.rank) : Json(nullptr);
  out["bytes"] = t.bytes;
  out["events"] = t.events;
  out["x_events_by_cat"] = Json::object();
  for (const auto& [category, count] : t.slices_by_category)
    out["x_events_by_cat"][to_utf8(category)] = count;
  out["gpu_events"] = t.device_events;
  out["steps_from"] = std::string(model::name(t.steps_from));
  out["steps"] = Json::array();
  for (const TraceStepSummary& s : t.steps) {
    Json step = {
        {"name", to_utf8(s.name)}, {"wall_us", us(s.wall)}, {"input_wait_us", us(s.input_wait)}};
    for (const auto& [device, times] : s.devices)
      add_times(step["devices"][std::to_string(device)], times);
    out["steps"].push_back(std::move(step));
  }
  if (!t.devices.empty()) out["devices"] = Json::object();
  for (const DeviceSummary& d : t.devices)
    out["devices"][std::to_string(d.device)] = device_value(d);
  out["host"] = {{"span_us", us(t.host.span)},
                 {"operators_us", us(t.host.operators)},
                 {"input_wait_us", us(t.host.input_wait)},
                 {"collective_wait_us", us(t.host.collective_wait)},
                 {"operators", t.host.operator_count}};
  for (const HtaSummary& h : t.hta) {
    // Its own names, and its two digits.
    const auto share = [&](int64_t part) {
      return h.kernel_time > 0
                 ? rounded(100.0 * static_cast<double>(part) / static_cast<double>(h.kernel_time),
                           2)
                 : Json(nullptr);
    };
    Json& hta = out["hta"][std::to_string(h.device)];
    hta["idle_time(us)"] = us(h.idle_time);
    hta["compute_time(us)"] = us(h.compute_time);
    hta["non_compute_time(us)"] = us(h.non_compute_time);
    hta["kernel_time(us)"] = us(h.kernel_time);
    hta["idle_time_pctg"] = share(h.idle_time);
    hta["compute_time_pctg"] = share(h.compute_time);
    hta["non_compute_time_pctg"] = share(h.non_compute_time);
    hta["comp_comm_overlap_pctg"] = h.communication_time > 0
                                        ? rounded(100.0 * static_cast<double>(h.overlap) /
                                                      static_cast<double>(h.communication_time),
                                                  2)
                                        : Json(nullptr);
    const HtaSummary::Launches& l = h.launches;
    hta["cuda_kernel_launch_stats"] = {{"count", l.count},
                                       {"cpu_duration", description_value(l.host, 1e-3)},
                                       {"gpu_duration", description_value(l.device, 1e-3)},
                                       {"launch_delay", description_value(l.delay, 1e-3)},
                                       {"short_kernels", l.shorter},
                                       {"runtime_outliers_gt50us", l.slow},
                                       {"launch_delay_outliers_gt100us", l.late}};
    hta["gpu_kernel_breakdown"] = {{"kernel_types", h.types}, {"kernels", Json::array()}};
    for (const HtaSummary::Kernel& k : h.kernels) {
      hta["gpu_kernel_breakdown"]["kernels"].push_back(
          {{"name", k.name},
           {"kernel_type", k.communication ? "COMMUNICATION" : "COMPUTATION"},
           {"sum (us)", us(k.sum)},
           {"max (us)", rounded(k.each.max * 1e-3, 3)},
           {"min (us)", rounded(k.each.min * 1e-3, 3)},
           {"mean (us)", rounded(k.each.mean * 1e-3, 6)},
           {"stddev", rounded(k.each.deviation.value_or(0) * 1e-3, 6)}});
    }
    hta["memory_bw_summary"] = Json::object();
    for (const auto& [kind, d] : h.bandwidth) hta["memory_bw_summary"][kind] = description_value(d);
    for (const HtaSummary::Stream& stream : h.streams) {
      const std::string id = std::to_string(stream.stream);
      hta["idle_time_breakdown"][id] = {{"host_wait", us(stream.host_wait)},
                                        {"kernel_wait", us(stream.kernel_wait)},
                                        {"other", us(stream.other)}};
      if (stream.queue) hta["queue_length_summary"][id] = description_value(*stream.queue);
    }
  }
  if (t.path) out["critical_path"] = path_value(*t.path);
  out["launches"] = t.launches;
  out["unrecorded_launches"] = t.unrecorded_launches;
  out["incomplete"] = t.damage.cut_off || t.incomplete();
  out["damage"] = damage_value(t.damage);
  return out;
}

}  // namespace

std::string trace_summary_json(const std::vector<TraceSummary>& traces,
                               const TraceDiagnosis& diagnosis) {
  Json out;
  out["schema"] = 1;
  out["verdict"] = diagnosis.verdict;
  out["headline"] = to_utf8(diagnosis.headline);
  out["findings"] = Json::array();
  for (const Finding& f : diagnosis.findings) out["findings"].push_back(finding_value(f));
  out["stragglers"] = Json::array();
  for (const Straggler& s : diagnosis.stragglers)
    out["stragglers"].push_back(
        {{"rank", s.rank}, {"delay_us", us(s.delay)}, {"waiting", s.waiting}});
  out["waits"] = Json::array();
  for (size_t i = 0; i < diagnosis.waits.size() && i < kMostWaits; ++i) {
    const RankWait& w = diagnosis.waits[i];
    out["waits"].push_back({{"rank", w.rank}, {"for", w.for_rank}, {"us", us(w.time)}});
  }
  out["traces"] = Json::object();
  for (const TraceSummary& t : traces) out["traces"][to_utf8(t.file)] = trace_value(t);
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string trace_diff_json(const TraceDiff& diff) {
  Json out;
  out["schema"] = 1;
  out["steps"] = {{"count_a", diff.steps_a},
                  {"count_b", diff.steps_b},
                  {"mean_us_a", us(diff.step_a)},
                  {"mean_us_b", us(diff.step_b)}};
  out["per_step"] = diff.steps_a > 0 && diff.steps_b > 0;
  const auto list = [](const std::vector<TraceChange>& changes) {
    Json all = Json::array();
    for (const TraceChange& c : changes) {
      all.push_back({{"name", to_utf8(c.name)},
                     {"kind", c.kind},
                     {"at", c.place.empty() ? Json(nullptr) : Json(to_utf8(c.place))},
                     {"a_us", us(c.a)},
                     {"b_us", us(c.b)},
                     {"count_a", c.count_a},
                     {"count_b", c.count_b}});
    }
    return all;
  };
  out["slower"] = list(diff.slower);
  out["faster"] = list(diff.faster);
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace flatout::report
