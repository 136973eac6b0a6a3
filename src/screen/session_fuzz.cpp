// Hostile names and any keys: whatever a process calls itself, no cell of the screen may hold a
// character that controls a terminal, and no key may break the view.
#include <cstdlib>
#include <cstring>

#include "screen/render.h"
#include "screen/session.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout;
  using namespace flatout::screen;
  if (size < 8) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 4, size - 4);
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->at = time_point_ns(1'000'000'000);
  snapshot->interval_s = 1;
  snapshot->host = text;
  snapshot->memory.total = 1 << 30;
  snapshot->cores.resize(data[2]);
  snapshot->disks.resize(1);
  snapshot->disks[0].name = text;
  snapshot->jobs.resize(data[3] % 4);
  for (Job& job : snapshot->jobs) job.name = job.where = job.folder = job.suspect = text;
  Gpu gpu;
  gpu.name = gpu.now.error = text;
  snapshot->gpus.push_back(gpu);
  const auto command = std::make_shared<const std::string>(text);
  for (int i = 1; i < 8; ++i) {
    Task task;
    task.pid = task.tid = i;
    task.ppid = static_cast<int32_t>(data[4 + i % 4] % 9);
    task.command = command;
    task.disk = static_cast<int16_t>(i - 2);  // among them none, and one that is not there
    task.read_bytes_per_s = 1;
    std::memcpy(task.comm.data(), text.data(), std::min(text.size(), task.comm.size() - 1));
    snapshot->task_list.push_back(task);
  }
  Details details;
  details.pid = 1;
  details.command = {std::string(text)};
  details.environment = {{std::string(text), std::string(text)}};
  details.files.push_back({1, std::string(text), {}, {}, {}});
  details.python.functions.push_back({std::string(text), std::string(text), 1, 0, 0, 0, 0, 0, 0});
  details.native = {std::string(text), 1, 2, 1, details.python.functions};
  details.autogroup = text;
  snapshot->details = std::make_shared<const Details>(details);

  Session session(fs::Root("/nonexistent"), 0, 1);
  session.resize(data[0], data[1]);
  session.add(snapshot);
  for (size_t i = 4; i < size && i < 64; ++i) {
    session.key(data[i] < 0x80 ? data[i] : key::kUp + (data[i] - 0x80u) % 0x20u);
    const Frame frame = render(session, i % 2 == 0);
    for (int y = 0; y < frame.canvas.height(); ++y) {
      for (int x = 0; x < frame.canvas.width(); ++x) {
        const char32_t c = frame.canvas.at(x, y).character;
        if ((c != 0 && c < 0x20) || (c >= 0x7F && c < 0xA0) || c > 0x10FFFF) std::abort();
        if (c >= 0x7F && i % 2 != 0) std::abort();
      }
    }
  }
  return 0;
}
