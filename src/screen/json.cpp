#include "screen/json.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "model/step.h"
#include "probe/reading.h"
#include "screen/rows.h"

namespace flatout::screen {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json rate(float bytes_per_s) {
  return bytes_per_s < 0 ? Json(nullptr) : Json(static_cast<double>(bytes_per_s));
}

Json waiting(const Waiting& w) {
  return {{"some_ratio", or_null(w.some)}, {"full_ratio", or_null(w.full)}};
}

Json core(const Core& c) {
  return {{"user_ratio", c.user},
          {"system_ratio", c.system},
          {"iowait_ratio", c.iowait},
          {"steal_ratio", c.steal}};
}

Json memory(const Memory& m) {
  return {{"total_bytes", m.total},
          {"used_bytes", m.used()},
          {"free_bytes", m.free},
          {"available_bytes", m.available},
          {"buffers_bytes", m.buffers},
          {"cached_bytes", m.cached},
          {"shared_bytes", m.shmem},
          {"slab_reclaimable_bytes", m.slab_reclaimable},
          {"dirty_bytes", m.dirty},
          {"writeback_bytes", m.writeback},
          {"swap_total_bytes", m.swap_total},
          {"swap_free_bytes", m.swap_free},
          {"huge_pages", m.huge_pages},
          {"huge_pages_free", m.huge_free},
          {"huge_page_bytes", m.huge_page_bytes},
          {"transparent_huge_bytes", m.transparent_huge},
          {"cgroup_limit_bytes", or_null(m.group_limit)},
          {"cgroup_used_bytes", or_null(m.group_used)},
          {"cgroup_cache_bytes", or_null(m.group_cache)}};
}

Json gpu(const Gpu& g) {
  const probe::GpuReading& now = g.now;
  Json processes = Json::array();
  for (const probe::GpuProcess& p : now.processes) {
    processes.push_back({{"pid", p.pid},
                         {"memory_bytes", or_null(p.memory_bytes)},
                         {"gpu_instance", or_null(p.gpu_instance)},
                         {"compute_instance", or_null(p.compute_instance)}});
  }
  Json instances = Json::array();
  for (const probe::MigInstance& part : now.instances) {
    instances.push_back({{"gpu_instance", part.gpu_instance},
                         {"compute_instance", part.compute_instance},
                         {"profile", to_utf8(part.profile)},
                         {"mem_used_bytes", or_null(part.mem_used_bytes)},
                         {"mem_total_bytes", or_null(part.mem_total_bytes)}});
  }
  return {{"index", now.index},
          {"name", to_utf8(g.name)},
          {"error", to_utf8(now.error)},
          {"util_ratio", or_null(now.util_ratio)},
          {"mem_util_ratio", or_null(now.mem_util_ratio)},
          {"mem_used_bytes", or_null(now.mem_used_bytes)},
          {"mem_total_bytes", or_null(now.mem_total_bytes)},
          {"clock_sm_hz", or_null(now.clock_sm_hz)},
          {"clock_sm_max_hz", or_null(now.clock_sm_max_hz)},
          {"power_w", or_null(now.power_w)},
          {"power_limit_w", or_null(now.power_limit_w)},
          {"temperature_c", or_null(now.temperature_c)},
          {"throttle_reasons", or_null(now.throttle_reasons)},
          {"pcie_tx_bytes_per_s", or_null(now.pcie_tx_bytes_per_s)},
          {"pcie_rx_bytes_per_s", or_null(now.pcie_rx_bytes_per_s)},
          {"ecc_errors", or_null(now.ecc_errors)},
          {"processes", processes},
          {"mig_instances", instances}};
}

Json job(const Job& j) {
  Json out = {{"pid", j.pid},
              {"framework", j.framework},
              {"name", to_utf8(j.name)},
              {"processes", j.processes},
              {"threads", j.threads},
              {"cores", j.cores},
              {"rss_bytes", j.rss_bytes},
              {"gpu_bytes", j.gpu_bytes},
              {"read_bytes_per_s", or_null(j.read_bytes_per_s)},
              {"folder", to_utf8(j.folder)},
              {"steps_per_s", or_null(j.steps_per_s)},
              {"suspect", j.suspect},
              {"where", to_utf8(j.where)}};
  Json& breakdown = out["breakdown"] = Json::object();
  for (size_t i = 0; i < model::kPartCount; ++i) {
    breakdown[std::string(model::name(static_cast<model::Part>(i)))] = j.breakdown[i];
  }
  return out;
}

Json task(const Task& t, const Snapshot& s, UserNames& users) {
  const Disk* disk = s.disk_of(t);
  return {{"pid", t.pid},
          {"ppid", t.ppid},
          {"user", to_utf8(users.name(t.uid))},
          {"state", std::string(1, t.state)},
          {"priority", t.priority},
          {"nice", t.nice},
          {"threads", t.threads},
          {"cpu_ratio", static_cast<double>(t.cores)},
          {"cpu_s", static_cast<double>(t.cpu_ticks) * probe::tick_ns() * 1e-9},
          {"rss_bytes", t.rss_bytes},
          {"virtual_bytes", t.virtual_bytes},
          {"read_bytes_per_s", rate(t.read_bytes_per_s)},
          {"write_bytes_per_s", rate(t.write_bytes_per_s)},
          {"disk", disk == nullptr ? Json(nullptr) : Json(to_utf8(disk->name))},
          {"gpu_bytes", t.gpu_bytes},
          {"name", to_utf8(t.comm.data())},
          {"command", t.command == nullptr ? "" : to_utf8(*t.command)}};
}

}  // namespace

std::string snapshot_json(const Snapshot& s, UserNames& users, int32_t only_pid) {
  Json cores = Json::array(), disks = Json::array(), gpus = Json::array(), jobs = Json::array(),
       processes = Json::array();
  for (const Core& c : s.cores) {
    Json one = {{"cpu", c.cpu}};
    one.update(core(c));
    cores.push_back(std::move(one));
  }
  for (const Disk& d : s.disks) {
    disks.push_back({{"name", to_utf8(d.name)},
                     {"busy_ratio", d.busy},
                     {"read_bytes_per_s", d.read_bytes_per_s},
                     {"write_bytes_per_s", d.write_bytes_per_s},
                     {"requests_per_s", d.requests_per_s},
                     {"latency_s", or_null(d.latency_s)},
                     {"in_flight", d.in_flight}});
  }
  for (const Gpu& g : s.gpus) gpus.push_back(gpu(g));
  for (const Job& j : s.jobs) jobs.push_back(job(j));
  RowChoice choice;
  choice.sort = Column::kPid;
  choice.kernel = true;
  choice.root = only_pid;
  for (const Row& row : choose_rows(s, choice, users)) {
    if (!row.task->is_thread()) processes.push_back(task(*row.task, s, users));
  }
  const Json out = {{"unix_s", static_cast<double>(s.unix_ns) * 1e-9},
                    {"interval_s", s.interval_s},
                    {"host", to_utf8(s.host)},
                    {"uptime_s", s.uptime_s},
                    {"load", s.load},
                    {"tasks", s.tasks},
                    {"threads", s.task_threads},
                    {"runnable", s.runnable},
                    {"blocked", s.blocked},
                    {"zombies", s.zombies},
                    {"cpu", core(s.all)},
                    {"pressure",
                     {{"cpu", waiting(s.cpu_waiting)},
                      {"io", waiting(s.io_waiting)},
                      {"memory", waiting(s.memory_waiting)}}},
                    {"cores", cores},
                    {"memory", memory(s.memory)},
                    {"disks", disks},
                    {"gpus", gpus},
                    {"jobs", jobs},
                    {"processes", processes}};
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace flatout::screen
