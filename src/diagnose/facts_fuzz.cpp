// What a job says of itself is hostile: messages, tracebacks, places and names of containers go
// through every detector.
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "base/text.h"
#include "diagnose/diagnose.h"
#include "diagnose/testing/run_builder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout;
  using namespace flatout::diagnose;
  if (size < 2) return 0;
  RunBuilder b;
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  // One fact a line, "key value"; the rest of a text that begins with an exclamation mark is a
  // traceback of several lines.
  std::string_view rest = text, line;
  while (next_line(rest, line)) {
    if (line.starts_with('!')) {
      const std::string all = std::string(line.substr(1)) + "\n" + std::string(rest);
      for (const char* key : {"exception.message", "exception.traceback", "fault.stack"})
        b.run().info[key] = all;
      break;
    }
    const std::string key(next_word(line));
    if (!key.empty()) b.run().info[key] = std::string(line);
  }
  const Line hostile{text.substr(0, 64), text.substr(0, 256), 3};
  for (int i = 0; i < 24; ++i) {
    b.step({{Part::kInputWait, 5, {ThreadState::kPoll, {hostile}}},
            {Part::kForward, 10, {ThreadState::kOnCpuPython, {kMain, hostile}}}},
           i < 2);
  }
  b.ramp(SignalId::kProcRssAnon, b.process_entity(100), 1 << 20, 1 << 30)
      .gauge(SignalId::kMemAvailable, b.host(), 1 << 28);
  const model::Diagnosis d = diagnose::diagnose(b.build(data[0] % 2 != 0, data[1] << 8 | data[0]));
  for (const model::Finding& f : d.findings) {
    if (f.id.empty() || f.title.empty() || f.confidence <= 0 || f.confidence > 1) std::abort();
  }
  return 0;
}
