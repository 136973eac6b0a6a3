// All threads' last stacks as text (`flatout attach --dump`).
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "report/text.h"
#include "report/words.h"

namespace flatout::report {
namespace {

using model::Run;
using model::StackReading;

constexpr size_t kMaxFrames = 256;

void thread_block(const Run& run, const StackReading& reading, const TextOptions& options,
                  std::string& out) {
  static const model::Thread kUnknown;
  const model::Thread& thread =
      reading.thread < run.threads.size() ? run.threads[reading.thread] : kUnknown;
  Line head{{"  thread "},
            {fmt::format("{}", thread.tid), Paint::kBold},
            {" " + clean(thread.name, options)},
            {std::string("  ") + std::string(label(reading.state)), Paint::kWarn}};
  if ((reading.flags & model::kHoldsGil) != 0) head.push_back({", holds the GIL", Paint::kAccent});
  if ((reading.flags & model::kGcRunning) != 0) {
    head.push_back({", garbage collection runs", Paint::kAccent});
  }
  out += render(head, options.color) + "\n";
  model::StackId node = reading.stack;
  for (size_t depth = 0; node != 0 && node < run.stacks.size() && depth < kMaxFrames; ++depth) {
    const model::FrameId id = run.stacks[node].frame;
    const model::Frame frame = id < run.frames.size() ? run.frames[id] : model::Frame{};
    std::string file = clean(run.string(frame.file), options);
    if (frame.line > 0) file += fmt::format(":{}", frame.line);
    const std::string function = clean(run.string(frame.function), options);
    out += render({{"      "},
                   {function.empty() ? "?" : function},
                   {file.empty() ? "" : "  (" + file + ")", Paint::kDim}},
                  options.color) +
           "\n";
    node = run.stacks[node].parent;
  }
  if (reading.stack == 0) {
    out += render({{"      (no stack could be read)", Paint::kDim}}, options.color) + "\n";
  }
}

}  // namespace

std::string render_stacks(const Run& run, const TextOptions& options) {
  std::map<model::ProcessId, std::vector<const StackReading*>> by_process;
  {
    std::vector<const StackReading*> last(run.threads.size(), nullptr);
    for (const StackReading& r : run.readings) {
      if (r.thread < last.size()) last[r.thread] = &r;
    }
    for (size_t i = 0; i < last.size(); ++i) {
      if (last[i] != nullptr) by_process[run.threads[i].process].push_back(last[i]);
    }
  }
  std::string out;
  for (const auto& [id, readings] : by_process) {
    static const model::Process kUnknown;
    const model::Process& p = id < run.processes.size() ? run.processes[id] : kUnknown;
    const std::string command = clean(p.command.empty() ? p.name : p.command, options);
    const std::string pid = fmt::format("process {}", p.pid);
    const size_t room = options.width > pid.size() + 12 ? options.width - pid.size() - 2 : 10;
    out +=
        render({{pid, Paint::kBold}, {"  " + fit(command, room, options.unicode)}}, options.color) +
        "\n";
    for (const StackReading* r : readings) thread_block(run, *r, options, out);
    out += "\n";
  }
  return out.empty() ? "no stacks were read\n" : out;
}

}  // namespace flatout::report
