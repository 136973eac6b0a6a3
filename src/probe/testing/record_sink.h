// A Sink that keeps what probes deliver, for tests and for probe_dump.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "model/sink.h"

namespace flatout::probe {

class RecordSink : public model::Sink {
 public:
  model::Run run;
  std::map<std::string, std::string> facts;
  std::map<std::string, model::Missing> missing_signals;
  std::vector<std::pair<int32_t, int>> ends;  // pid, wait status
  uint64_t delivered = 0;

  model::EntityId entity(model::EntityKind kind, int64_t key, std::string_view name,
                         model::EntityId parent) override {
    for (model::EntityId id = 0; id < run.entities.size(); ++id) {
      const model::Entity& e = run.entities[id];
      if (e.kind == kind && e.key == key && e.name == name) return id;
    }
    run.entities.push_back({kind, key, parent, std::string(name)});
    return static_cast<model::EntityId>(run.entities.size() - 1);
  }
  void reading(model::SignalId signal, model::EntityId entity, TimePoint at,
               double value) override {
    ++delivered;
    const auto [it, fresh] = index_.try_emplace({signal, entity}, run.series.size());
    if (fresh) run.series.push_back({signal, entity, {}});
    run.series[it->second].readings.push_back({at, value});
  }
  void missing(const model::Missing& missing) override {
    missing_signals.emplace(missing.signal, missing);
  }
  void process(const model::Process& process) override {
    for (model::Process& known : run.processes) {
      if (known.pid == process.pid && known.start_time_ticks == process.start_time_ticks) {
        known = process;
        return;
      }
    }
    run.processes.push_back(process);
  }
  void process_end(int32_t pid, int wait_status, TimePoint) override {
    ends.emplace_back(pid, wait_status);
  }
  model::ThreadId thread(int32_t, int32_t, std::string_view) override { return 0; }
  model::FrameId frame(std::string_view, std::string_view, uint32_t, model::FrameKind) override {
    return 0;
  }
  model::StackId stack(model::StackId, model::FrameId) override { return 0; }
  void stack_reading(const model::StackReading&) override {}
  void fact(std::string_view key, std::string_view value) override {
    facts[std::string(key)] = std::string(value);
  }

  /// The last value of a signal for the entity (kind of the signal, key); nullopt if none came.
  std::optional<double> last(model::SignalId signal, int64_t key = 0) const {
    for (const model::Series& series : run.series) {
      if (series.signal == signal && run.entities[series.entity].key == key) return series.last();
    }
    return std::nullopt;
  }
  const model::Process* find_process(int32_t pid) const {
    for (const model::Process& process : run.processes) {
      if (process.pid == pid) return &process;
    }
    return nullptr;
  }

 private:
  std::map<std::pair<model::SignalId, model::EntityId>, size_t> index_;
};

}  // namespace flatout::probe
