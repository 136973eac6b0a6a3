// flatout heap: who allocates host memory, and who never frees it.
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/fs.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "heap/process_heap.h"
#include "heap/report.h"
#include "heap/requests.h"
#include "recorder/launch.h"
#include "recorder/recorder.h"
#include "report/flame.h"
#include "timeline/byte_sink.h"

namespace flatout::cli {
namespace {

const Usage kHeap{
    "heap",
    "[options] -- COMMAND...",
    "Runs a job and says which of its lines allocate host memory, and which never free it. The "
    "exit "
    "code is the job's own.",
    "  flatout heap -- python train.py              # live, peak and growth by file and line\n"
    "  flatout heap --leaks -- python train.py      # only what grows all the time\n"
    "  flatout heap --full -- ./train               # every allocation instead of a sample\n"
    "  flatout heap --json=heap.json -- python train.py\n"
    "  flatout heap --record=t.jsonl -- python train.py   # each large request, for devmem replay",
    {"leaks", "full", "record", "out", "quiet", "keep_runs", "keep_mb"},
    true,
    true,
    true,
    1,
    1'000'000};

constexpr size_t kMostRecord = size_t{1} << 30;  // bytes read of one
constexpr size_t kMostNamed = 16;                // processes whose lines are looked up

// A folder for what the processes write, gone with this.
class Records {
 public:
  static Result<Records> open() {
    const char* parent = ::getenv("TMPDIR");
    std::string path =
        std::string(parent != nullptr && parent[0] == '/' ? parent : "/tmp") + "/flatout-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr)
      return fs::error_from_errno(errno,
                                  "cannot make a folder in " + path.substr(0, path.rfind('/')));
    return Records(std::move(path));
  }
  ~Records() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Records(Records&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;
  Records& operator=(Records&&) = delete;

  std::string pattern() const { return path_ + "/heap.%p"; }

  std::vector<heap::Record> read() const {
    std::vector<heap::Record> out;
    const fs::Root root(path_);
    for (const std::string& name : root.list("").value_or({})) {
      if (name.ends_with(".tmp")) continue;
      const auto text = root.read(name, kMostRecord);
      if (!text.ok()) continue;
      auto record = heap::parse_record(*text);
      if (record.ok()) out.push_back(std::move(*record));
    }
    return out;
  }

 private:
  explicit Records(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Sets what the job is to inherit. Errors: kNotFound, kUnsupported.
Status prepare(const Records& records, const Settings& settings) {
  const bool recording = !settings.record.empty(), debug = settings.full || recording;
  std::string library = recorder::find_agent().allocator;
  if (debug && !library.empty()) {
    library = library.substr(0, library.rfind('/')) + "/libflatout_malloc_debug.so";
    if (::access(library.c_str(), R_OK) != 0) library.clear();
  }
  if (library.empty()) {
    return Error{Code::kNotFound,
                 debug ? "libflatout_malloc_debug.so is not beside flatout"
                       : "libflatout_malloc.so is not beside flatout",
                 "install it again"};
  }
  if (library.find_first_of(": ") != std::string::npos) {
    return Error{Code::kUnsupported,
                 "LD_PRELOAD cannot name a path with a blank or a colon: " + library,
                 "install flatout elsewhere"};
  }
  std::vector<std::string> environment = recorder::current_environment();
  recorder::add_preload(environment, library);
  ::setenv("LD_PRELOAD", recorder::variable(environment, "LD_PRELOAD").c_str(), 1);
  ::setenv("FLATOUT_MALLOC_HEAP", records.pattern().c_str(), 1);
  if (debug) ::setenv("FLATOUT_MALLOC_CHECK", "0", 1);
  if (recording) {
    std::error_code ignored;  // the job may work in another folder
    const auto file = std::filesystem::absolute(settings.record, ignored);
    ::setenv("FLATOUT_MALLOC_RECORD", file.c_str(), 1);
    if (!settings.full) return {};  // nothing small is looked at
    ::setenv("FLATOUT_MALLOC_SAMPLE", "1", 1);
  }
  // CPython's allocator of small objects takes memory by the arena: its lines would all be one's.
  ::setenv("PYTHONMALLOC", "malloc", 0);
  return {};
}

// Where each step begins or ends, ns.
std::vector<uint64_t> step_times(const model::Run& run, TimePoint model::Step::*at) {
  std::vector<uint64_t> out;
  for (const model::Step& step : run.steps.steps) {
    out.push_back(static_cast<uint64_t>(to_ns(step.*at)));
  }
  return out;
}

// The process with the largest peak first.
std::vector<heap::ProcessHeap> read_heaps(const Records& records, const model::Run& run,
                                          heap::Profiles& profiles) {
  std::vector<heap::ProcessHeap> out;
  for (heap::Record& record : records.read()) {
    heap::ProcessHeap heap;
    heap.record = std::move(record);
    out.push_back(std::move(heap));
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.record.peak_bytes > b.record.peak_bytes;
  });
  const std::vector<uint64_t> steps = step_times(run, &model::Step::end);
  const int32_t training =
      run.training_process < run.processes.size() ? run.processes[run.training_process].pid : 0;
  for (size_t i = 0; i < out.size(); ++i) {
    heap::ProcessHeap& h = out[i];
    for (const model::Process& process : run.processes) {
      if (process.pid == h.record.pid) h.command = process.name;
    }
    if (h.record.written_ns != 0)
      h.written = time_point_ns(static_cast<int64_t>(h.record.written_ns)) - run.begin;
    if (i >= kMostNamed) continue;
    const bool stepped = training == 0 ? i == 0 : h.record.pid == training;
    heap::look_up(h, stepped ? steps : std::vector<uint64_t>{}, i == 0 ? &profiles : nullptr);
  }
  return out;
}

void finish_recording(const std::string& path, const model::Run& run) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    log_warning("the job made no request of 4 KiB or more that could be recorded");
    return;
  }
  if (!run.steps.steps.empty() && run.training_process < run.processes.size()) {
    const Status marked = heap::mark_steps(path, run.processes[run.training_process].pid,
                                           step_times(run, &model::Step::begin));
    if (!marked.ok()) log_warning(marked.error().message + ": its steps are not marked");
  }
  fmt::print(stderr, "\nRequests of host memory: flatout devmem replay {}\n",
             escape_terminal(path));
}

/// The flame graph of the peak: who had how much of it.
std::string heap_svg(const heap::ProcessHeap& heap, const std::vector<heap::TreeNode>& tree) {
  std::vector<report::FlameNode> nodes;
  for (const heap::TreeNode& t : tree) {
    const auto peak = static_cast<double>(t.peak_bytes), live = static_cast<double>(t.live_bytes);
    const double whole = static_cast<double>(tree[0].peak_bytes);
    const double kept = peak > 0 ? std::min(1.0, live / peak) : 0;
    nodes.push_back({t.name,
                     fmt::format("{}{}{}: {} at the peak, {} of all; {} at the end", t.name,
                                 t.file.empty() ? "" : ", ", t.file, format_bytes(peak),
                                 format_percent(whole > 0 ? peak / whole : 0), format_bytes(live)),
                     fmt::format("c{}", std::lround(5 * kept)), peak, t.children});
  }
  return report::flame_svg(
      nodes, {fmt::format("Host memory of pid {}{} at its peak: {}", heap.record.pid,
                          heap.command.empty() ? "" : " (" + heap.command + ")",
                          format_bytes(static_cast<double>(heap.record.peak_bytes))),
              "warm: still in use at the end; cool: freed by then.", "No allocation was seen."});
}

Status write_files(const std::string& folder, const heap::ProcessHeap& first,
                   const std::string& json, const heap::Profiles& profiles) {
  FLATOUT_TRY_STATUS(fs::write_atomically(folder + "/heap.json", json));
  FLATOUT_TRY_STATUS(fs::write_atomically(folder + "/heap.svg", heap_svg(first, profiles.tree)));
  FLATOUT_TRY(const auto sink, timeline::create_sink(folder + "/heap.pb.gz"));
  sink->write(profiles.pprof);
  return sink->finish();
}

}  // namespace

int heap(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kHeap, arguments, code);
  if (!settings) return code;
  std::error_code ignored;
  if (!settings->record.empty() && std::filesystem::exists(settings->record, ignored)) {
    return bad_usage(fmt::format("{} is there already", escape_terminal(settings->record)),
                     "--record with the name of a new file");
  }
  const auto records = Records::open();
  if (!records.ok()) return fail(records.error());
  if (const Status ready = prepare(*records, *settings); !ready.ok()) {
    log_error(ready.error().message, ready.error().hint);
    return 125;
  }
  recorder::Options options;
  options.command = job_command(*settings, arguments);
  options.out = settings->out;
  options.status = false;
  options.stdout_to_stderr = settings->json;
  auto opened = recorder::Recorder::open(options);
  Status started = opened.ok() ? (*opened)->start() : Status(opened.error());
  if (!started.ok()) return start_failed(started.error(), options.command);
  recorder::Recorder& recorder = **opened;
  recorder.record([](model::Run&) { return recorder::StatusText{}; });
  model::Run& run = recorder.run();
  const model::Diagnosis diagnosis = judge(run);
  const std::string& folder = recorder.folder().path;
  if (recorder.on_disk()) {
    const Status put = write_verdict(folder, run, diagnosis);
    if (!put.ok()) log_warning(put.error().message);
  }

  heap::Profiles profiles;
  const std::vector<heap::ProcessHeap> heaps = read_heaps(*records, run, profiles);
  const std::string json = heap::report_json(heaps);
  if (heaps.empty()) {
    log_warning(
        "no process of the job left a record of its heap: it allocated next to nothing, is linked "
        "statically, or was killed early");
  } else {
    heap::ReportOptions report;
    report.leaks = settings->leaks;
    if (!settings->quiet) std::fputs(heap::report_text(heaps, report).c_str(), stderr);
    if (recorder.on_disk()) {
      const Status put = write_files(folder, heaps.front(), json, profiles);
      if (!put.ok()) log_warning(put.error().message);
      if (put.ok() && !settings->quiet)
        fmt::print(stderr,
                   "\nFlame graph: {0}/heap.svg; for pprof and speedscope: {0}/heap.pb.gz\n",
                   escape_terminal(folder));
    }
  }
  if (settings->json || !settings->json_file.empty()) {
    const Status put = write_text(settings->json_file, json);
    if (!put.ok()) log_warning(put.error().message);
  }
  if (!settings->record.empty()) finish_recording(settings->record, run);
  prune(recorder, *settings);
  return job_code(recorder.wait_status(), recorder.interrupted());
}

}  // namespace flatout::cli
