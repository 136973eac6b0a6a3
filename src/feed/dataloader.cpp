#include "feed/dataloader.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/text.h"

extern char** environ;

namespace flatout::feed {
namespace {

// Workers are still there when their CPU time is asked for, so it is read from /proc.
constexpr const char* kScript = R"PY(
import json, os, sys, time
path, size, batch, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
import torch, torchvision
from torchvision import transforms as t
from torchvision.datasets import ImageFolder

def ticks(pid):
    try:
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    except OSError:
        return 0

def cpu():
    mine = os.getpid()
    children = open(f"/proc/{mine}/task/{mine}/children").read().split()
    return sum(map(ticks, [mine, *children])) / os.sysconf("SC_CLK_TCK")

torch.set_num_threads(1)
torch.manual_seed(0)
data = ImageFolder(path, t.Compose([t.RandomResizedCrop(size), t.RandomHorizontalFlip(), t.ToTensor(),
                                    t.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]))
most = min(len(data), 1024)
data = torch.utils.data.Subset(data, torch.randperm(len(data))[:most].tolist())
loader = torch.utils.data.DataLoader(data, batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
for _ in loader:  # the first epoch starts the workers
    pass
begin, used = time.perf_counter(), cpu()
count = sum(len(labels) for _, labels in loader)
print(json.dumps({"images": count, "images_per_s": count / (time.perf_counter() - begin), "cpu_ms_per_image": (cpu() - used) * 1000 / count,
                  "versions": f"torch {torch.__version__}, torchvision {torchvision.__version__}"}))
)PY";

std::string read_all(int fd) {
  std::string out;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return out;
    out.append(buffer.data(), static_cast<size_t>(got));
  }
}

std::string last_line(std::string_view text) {
  const std::string_view trimmed = trim(text);
  return escape_terminal(trimmed.substr(trimmed.rfind('\n') + 1));
}

}  // namespace

Result<DataLoaderBench> run_dataloader(const std::string& python, const std::string& path, int size,
                                       int batch, int workers) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return Error{Code::kIo, "no pipe could be made", ""};
  std::string words[] = {python,
                         "-c",
                         kScript,
                         path,
                         std::to_string(size),
                         std::to_string(batch),
                         std::to_string(workers)};
  std::array<char*, std::size(words) + 1> arguments{};
  for (size_t i = 0; i < std::size(words); ++i) arguments[i] = words[i].data();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // What it prints and what it complains of: the last line is one or the other.
  posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], 2);
  pid_t pid = 0;
  const int failed =
      ::posix_spawnp(&pid, python.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  const std::string said = failed == 0 ? read_all(pipe[0]) : "";
  ::close(pipe[0]);
  if (failed != 0)
    return Error{Code::kNotFound, "there is no interpreter " + escape_terminal(python),
                 "--python names one that has torchvision"};
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  const std::string last = last_line(said);
  const auto json = nlohmann::json::parse(last, nullptr, false);
  if (status != 0 || !json.is_object())
    return Error{Code::kUnsupported, "the DataLoader could not be measured: " + last,
                 "--python names an interpreter that has torchvision; the data are a folder with a "
                 "folder for each class"};
  DataLoaderBench out;
  out.images = json.value("images", uint64_t{0});
  out.workers = workers;
  out.images_per_s = json.value("images_per_s", 0.0);
  out.cpu_ms_per_image = json.value("cpu_ms_per_image", 0.0);
  out.versions = json.value("versions", "");
  return out;
}

}  // namespace flatout::feed
