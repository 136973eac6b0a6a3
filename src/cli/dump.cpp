// attach --dump --json: what every thread does right now.
#include <map>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/outputs.h"

namespace flatout::cli {

std::string stacks_json(const model::Run& run) {
  using Json = nlohmann::ordered_json;
  std::map<model::ThreadId, const model::StackReading*> last;
  for (const model::StackReading& reading : run.readings) {
    const model::StackReading*& slot = last[reading.thread];
    // A reading without a stack was torn, or has none: an earlier one says more.
    if (slot == nullptr || reading.stack != 0 || slot->stack == 0) slot = &reading;
  }
  Json threads = Json::array();
  for (const auto& [id, reading] : last) {
    const model::Thread& thread = run.threads[id];
    const model::Process& process = run.processes[thread.process];
    Json frames = Json::array();
    for (model::StackId at = reading->stack; at != 0; at = run.stacks[at].parent) {
      const model::Frame& frame = run.frames[run.stacks[at].frame];
      frames.push_back({{"function", to_utf8(run.string(frame.function))},
                        {"file", to_utf8(run.string(frame.file))},
                        {"line", frame.line}});
    }
    threads.push_back({{"pid", process.pid},
                       {"process", to_utf8(process.name)},
                       {"tid", thread.tid},
                       {"thread", to_utf8(thread.name)},
                       {"state", std::string(name(reading->state))},
                       {"holds_gil", (reading->flags & model::kHoldsGil) != 0},
                       {"frames", std::move(frames)}});
  }
  return Json{{"schema", 1}, {"threads", std::move(threads)}}.dump(2) + "\n";
}

}  // namespace flatout::cli
