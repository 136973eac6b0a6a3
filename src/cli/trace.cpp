// flatout trace: analysis of traces that other profilers wrote.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/log.h"
#include "base/parallel.h"
#include "base/processors.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "diagnose/trace_findings.h"
#include "recorder/launch.h"
#include "report/trace_html.h"
#include "report/trace_json.h"
#include "report/trace_text.h"
#include "timeline/import_trace.h"
#include "timeline/trace_analysis.h"
#include "timeline/trace_convert.h"
#include "timeline/trace_diff.h"
#include "timeline/trace_files.h"
#include "timeline/trace_hta.h"
#include "timeline/trace_picture.h"

namespace flatout::cli {
namespace {

constexpr size_t kMostSlices = 300'000;  // of a page, which then has some 6 MB

constexpr std::string_view kHelp =
    R"(flatout trace finds what held a job up from its trace alone, of whatever profiler and size.

  flatout trace summary trace.json.gz                 verdict, and where each device's time went
  flatout trace summary rank*.json.gz                 the ranks of one job: who waits for whom
  flatout trace report trace.json.gz -o report.html   the same, and a timeline to zoom into
  flatout trace diff old.json.gz new.json.gz          which kernels and operators got slower
  flatout trace convert trace.xplane.pb -o out.pftrace   for the Perfetto UI
  flatout trace slice huge.json --step 3-5 -o small.json.gz
  flatout trace record -o cuda.json -- python train.py   CUDA's work and NVTX ranges, by CUPTI

Known are Chrome and PyTorch (Kineto) JSON, TensorFlow 1 timelines and RunMetadata, TensorFlow 2 and JAX XPlane, Perfetto, and Nsight Systems' SQLite export; plain or gzipped. Of a run folder its trace is read; - is what comes through a pipe. The format is known by the content, not by the name. Each command has --help.
)";

const Usage kSummary{
    "trace summary",
    "FILE... [options]",
    "Says what holds a job up, from its trace alone; of several ranks, who waits for whom.",
    "  flatout trace summary trace.json.gz\n"
    "  flatout trace summary rank*.json.gz             # the ranks of one job together\n"
    "  flatout trace summary trace.json --shapes       # operators told apart by their shapes\n"
    "  flatout trace summary trace.json --json         # every figure, for scripts",
    {"compat", "shapes"},
    true,
    false,
    false,
    1,
    100'000};

const Usage kReport{
    "trace report",
    "FILE... -o OUT.html [options]",
    "Writes a page with the verdict and a timeline of a trace of any size, to open in a browser.",
    "  flatout trace report trace.json.gz -o report.html\n"
    "  flatout trace report rank*.json.gz -o ranks.html   # on one clock, by their collectives",
    {"output", "compat", "shapes"},
    false,
    false,
    false,
    1,
    64};

const Usage kDiff{
    "trace diff",
    "OLD NEW [options]",
    "Says which kernels, operators and modules got slower or faster, by name and shape.",
    "  flatout trace diff old.json.gz new.json.gz\n"
    "  flatout trace diff old.json.gz new.json.gz --json",
    {},
    true,
    false,
    false,
    2,
    2};

const Usage kRecord{
    "trace record",
    "-o OUT.json -- COMMAND...",
    "Runs a command and records what CUDA does for it (by CUPTI) and its NVTX ranges. "
    "Experimental:\n"
    "CUPTI's part has been tried against a stand-in of CUPTI, and with a small job on one GPU.",
    "  flatout trace record -o cuda.json -- python train.py\n"
    "  flatout trace summary cuda.json",
    {"output"},
    false,
    false,
    true,
    1,
    SIZE_MAX};

const Usage kConvert{
    "trace convert",
    "FILE -o OUT [options]",
    "Writes a trace in another format: Perfetto (.pftrace) or Chrome JSON, by OUT's name or "
    "--format.",
    "  flatout trace convert trace.json.gz -o trace.pftrace   # opens in the Perfetto UI\n"
    "  flatout trace convert host.xplane.pb -o trace.json.gz\n"
    "  flatout trace convert cut.json -o whole.json            # mends what is malformed",
    {"output", "format", "from", "to", "step"},
    true,
    false,
    false,
    1,
    1};

const Usage kSlice{
    "trace slice",
    "FILE -o OUT [options]",
    "Cuts a window of time or steps out of a trace of any size.",
    "  flatout trace slice huge.json --step 3-5 -o small.json.gz\n"
    "  flatout trace slice huge.json --from 1500 --to 1700 -o small.json   # milliseconds",
    {"output", "format", "from", "to", "step"},
    true,
    false,
    false,
    1,
    1};

struct NamedTrace {
  std::string name;  // as it is shown: of a run's trace the folder
  std::string file;
};

/// The traces behind the names that were given: folders may hold several. "-" is what comes in.
Result<std::vector<NamedTrace>> named_traces(const std::vector<std::string>& names) {
  std::vector<NamedTrace> out;
  for (const std::string& name : names) {
    if (name == "-") {
      out.push_back({name, "/dev/stdin"});
      continue;
    }
    const auto files = timeline::trace_files(name);
    if (!files.ok() && names.size() == 1) return files.error();
    if (!files.ok()) out.push_back({name, name});  // told with what the others say
    if (!files.ok()) continue;
    for (const std::string& file : *files) {
      const bool of_run = std::filesystem::path(file).filename() == timeline::kRunTrace;
      out.push_back({of_run ? name : file, file});
    }
  }
  return out;
}

/// The one trace behind a name.
Result<std::string> trace_file(const std::string& name) {
  FLATOUT_TRY(const std::vector<NamedTrace> traces, named_traces({name}));
  if (traces.size() == 1) return traces[0].file;
  return Error{Code::kBadInput,
               fmt::format("{} holds {} traces", escape_terminal(name), traces.size()),
               "name one of them, as " + escape_terminal(traces[0].file)};
}

// What it does, prints and returns is the command's own.
int record(const std::vector<std::string>& arguments) {
  int refused = 0;
  const auto settings = parse(kRecord, arguments, refused);
  if (!settings) return refused;
  if (settings->output.empty())
    return bad_usage("no output is named", "flatout trace record -o OUT.json -- COMMAND");
  std::error_code failed;
  const std::filesystem::path out = std::filesystem::absolute(settings->output, failed);
  if (failed || std::filesystem::exists(out, failed)) {
    return fail(Error{Code::kBadInput,
                      fmt::format("{} exists already", escape_terminal(settings->output)),
                      "name another file, or remove it"});
  }
  const std::string agent = recorder::find_agent().library;
  if (agent.empty())
    return fail(
        Error{Code::kNotFound, "libflatout_agent.so is not beside flatout", "install it again"});
  std::vector<std::string> environment = recorder::current_environment();
  for (const char* name : {"CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"}) {
    if (const char* other = std::getenv(name); other != nullptr && *other != 0 && agent != other)
      log_warning(fmt::format("{} named {}, which is left out", name, escape_terminal(other)));
    recorder::set_variable(environment, name, agent);
  }
  recorder::set_variable(environment, "FLATOUT_CUDA_TRACE", out);
  const int code = run_job(settings->positional, std::move(environment));
  const bool started = code < 125 || code > 127;
  if (started && !std::filesystem::exists(out, failed)) {
    log_warning(fmt::format(
        "{} was not written: the command used neither CUDA nor NVTX; without a GPU `flatout run` "
        "records what the host does",
        escape_terminal(settings->output)));
  }
  return code;
}

void warn_damage(const model::Trace& trace) {
  if (trace.damage.cut_off)
    log_warning(fmt::format("{} is cut off: what is there is used", escape_terminal(trace.file)));
}

// summary and report: what the traces say, as text or as a page with pictures of them.
int summary(const Usage& usage, const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(usage, arguments, code);
  if (!settings) return code;
  const bool page = usage.name == "trace report";
  if (page && settings->output.empty())
    return bad_usage("no output is named", "flatout trace report FILE -o report.html");
  if (!settings->compat.empty() && settings->compat != "hta" && settings->compat != "exact")
    return bad_usage(fmt::format("there is no --compat {}", escape_terminal(settings->compat)),
                     "--compat hta or --compat exact");
  struct One {
    std::optional<model::TraceSummary> summary;
    std::optional<model::TracePicture> picture;
    std::optional<Error> error;
  };
  const auto named = named_traces(settings->positional);
  if (!named.ok()) return fail_input(named.error());
  const size_t files = named->size();
  std::vector<One> all(files);
  timeline::TraceOptions options;
  options.shapes = settings->shapes;
  options.threads = files == 1 ? allowed_processors() : 1;
  for_all(files, allowed_processors(), [&](size_t i) {
    auto trace = timeline::import_trace((*named)[i].file, options);
    if (!trace.ok()) {
      all[i].error = trace.error();
      return;
    }
    trace->file = (*named)[i].name;
    std::vector<model::HtaSummary> hta;
    if (settings->compat == "hta") hta = timeline::hta_summary(timeline::TraceIndex(*trace));
    if (settings->compat != "exact") timeline::snap_epoch_times(*trace);
    const timeline::TraceIndex index(*trace, options.threads);
    all[i].summary = timeline::summarize(index, options.threads);
    if (page) all[i].picture = timeline::draw(index, *all[i].summary, kMostSlices / files);
    all[i].summary->hta = std::move(hta);
  });
  std::vector<model::TraceSummary> traces;
  std::vector<model::TracePicture> pictures;
  std::optional<Error> last;
  for (One& one : all) {
    if (one.error) {
      // One rank's broken file must not hide what the others say.
      if (files > 1) log_warning(one.error->message);
      last = one.error;
    }
    if (one.summary) traces.push_back(std::move(*one.summary));
    if (one.picture) pictures.push_back(std::move(*one.picture));
  }
  if (traces.empty()) return fail_input(*last);
  const model::TraceDiagnosis diagnosis = diagnose::diagnose_traces(traces);
  if (page) {
    timeline::align(pictures, traces);
    const Status put =
        write_text(settings->output, report::render_trace_html(traces, diagnosis, pictures));
    if (!put.ok()) return fail(put.error());
    fmt::print("{}\n", escape_terminal(settings->output));
    return last ? 1 : 0;
  }
  const std::string out =
      settings->json
          ? report::trace_summary_json(traces, diagnosis)
          : report::render_trace_summary(traces, diagnosis, report::options_for(STDOUT_FILENO));
  const Status put = write_text("", out);
  if (!put.ok()) return fail(put.error());
  return last ? 1 : 0;
}

int diff(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kDiff, arguments, code);
  if (!settings) return code;
  timeline::TraceOptions options;
  options.shapes = true;
  options.threads = allowed_processors();
  const auto read = [&](const std::string& name) -> Result<model::Trace> {
    FLATOUT_TRY(const std::string file, trace_file(name));
    return timeline::import_trace(file, options);
  };
  const auto a = read(settings->positional[0]);
  if (!a.ok()) return fail_input(a.error());
  const auto b = read(settings->positional[1]);
  if (!b.ok()) return fail_input(b.error());
  warn_damage(*a);
  warn_damage(*b);
  const model::TraceDiff difference = timeline::diff_traces(*a, *b);
  const Status put = write_text(
      "", settings->json
              ? report::trace_diff_json(difference)
              : report::render_trace_diff(difference, report::options_for(STDOUT_FILENO)));
  return put.ok() ? 0 : fail(put.error());
}

// What the options say, on the trace's own clock. The trace is read for it only where they name a
// window.
Result<timeline::TimeWindow> window_of(const Settings& settings, const model::Trace& trace) {
  timeline::TimeWindow window;
  if (!settings.step.empty()) return timeline::steps_window(trace, settings.step);
  int64_t begin = INT64_MAX;
  for (size_t i = 0; i < trace.size(); ++i) begin = std::min(begin, trace.start[i]);
  if (trace.size() == 0) return window;
  constexpr double kMost = 1e12;  // ms; beyond it is no time of a trace
  if (settings.from > 0)
    window.begin_ns = begin + static_cast<int64_t>(std::min(settings.from, kMost) * 1e6);
  if (settings.to > 0)
    window.end_ns = begin + static_cast<int64_t>(std::min(settings.to, kMost) * 1e6);
  return window;
}

// By the file's name: "" for an ending that says nothing; Chrome's where there is none.
std::string format_of(const std::string& output) {
  std::string name = output.substr(output.rfind('/') + 1);
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  const auto contains = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (contains(".pftrace") || contains(".perfetto")) return "perfetto";
  return name.ends_with(".json") || name.find('.', 1) == std::string::npos ? "chrome" : "";
}

bool is_windowed(const Settings& settings) {
  return !settings.step.empty() || settings.from > 0 || settings.to > 0;
}

bool same_file(const std::string& a, const std::string& b) {
  struct stat one {
  }, other{};
  return ::stat(a.c_str(), &one) == 0 && ::stat(b.c_str(), &other) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/// Whether what is asked for makes no sense: it is said then, and `code` is what to end with.
bool is_refused(const Usage& usage, const Settings& settings, const std::string& input,
                const std::string& format, int& code) {
  const auto refuse = [&](const std::string& what, const std::string& way_out) {
    code = bad_usage(what, way_out);
    return true;
  };
  const std::string& output = settings.output;
  if (output.empty())
    return refuse("no output is named", fmt::format("flatout {} FILE -o OUT", usage.name));
  if (same_file(input, output))
    return refuse("the output is the input itself", "name another file with -o");
  if (format.empty())
    return refuse(
        fmt::format("{} does not say which format it is to have", escape_terminal(output)),
        "--format chrome or perfetto; by itself .json, .json.gz and .pftrace are known");
  if (format != "chrome" && format != "perfetto")
    return refuse(fmt::format("there is no format '{}'", escape_terminal(format)),
                  "chrome or perfetto");
  if (usage.name == "trace slice" && !is_windowed(settings))
    return refuse("no window is named", "--step 3-5, or --from and --to in milliseconds");
  if (settings.to > 0 && settings.to <= settings.from)
    return refuse("the window ends before it begins",
                  "--from 1500 --to 1700: milliseconds after the trace's begin");
  return false;
}

/// The trace that is converted. `copied`: its events are copied from the file itself, and the
/// columns only say where the window is.
Result<model::Trace> import_for(const Settings& settings, const std::string& input, bool copied) {
  timeline::TraceOptions options;
  options.threads = allowed_processors();
  timeline::TraceOptions first = options;
  first.host_slices = UINT64_MAX;
  first.steps_only = copied;
  FLATOUT_TRY(model::Trace trace, timeline::import_trace(input, first));
  // Where the optimizer alone tells the steps, what it did in them says which belong together.
  const bool whole_needed =
      copied && !settings.step.empty() &&
      timeline::TraceIndex(trace).steps_from() == model::TraceStepSource::kOptimizer;
  if (whole_needed) return timeline::import_trace(input, options);
  return trace;
}

int convert(const Usage& usage, const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(usage, arguments, code);
  if (!settings) return code;
  const std::string& name = settings->positional[0];
  const auto named = trace_file(name);
  if (!named.ok()) return fail_input(named.error());
  const std::string format =
      settings->format.empty() ? format_of(settings->output) : settings->format;
  if (is_refused(usage, *settings, *named, format, code)) return code;

  const auto input = timeline::rereadable(*named);
  if (!input.ok()) return fail_input(input.error());
  const auto chrome = timeline::is_chrome(*input);
  if (!chrome.ok()) return fail_input(chrome.error());
  const bool windowed = is_windowed(*settings);
  const bool copied = *chrome && format == "chrome";
  std::optional<model::Trace> trace;
  if (!copied || windowed) {
    auto read = import_for(*settings, *input, copied);
    if (!read.ok()) return fail_input(read.error());
    trace = std::move(*read);
  }
  timeline::TimeWindow window;
  if (windowed) {
    auto wanted = window_of(*settings, *trace);
    if (!wanted.ok()) return fail(wanted.error());
    window = *wanted;
  }
  // Where events are copied as they stand, what is wrong with them stays, too.
  if (!copied && trace->damage.bad_events + trace->damage.bad_numbers > 0)
    log_warning(
        fmt::format("events of {} that cannot be read, or whose times are none, are left out",
                    escape_terminal(name)));
  auto sink = timeline::create_sink(settings->output);
  if (!sink.ok()) return fail(sink.error());
  Result<timeline::Converted> done = timeline::Converted{};
  if (copied) {
    trace.reset();
    auto source = timeline::open_source(*input);
    if (!source.ok()) return fail_input(source.error());
    done = timeline::copy_chrome(**source, **sink, window);
  } else {
    done = format == "perfetto" ? timeline::write_perfetto(*trace, **sink, window)
                                : timeline::write_chrome(*trace, **sink, window);
  }
  if (!done.ok()) return fail_input(done.error());
  if (done->cut_off)
    log_warning(fmt::format("{} is cut off: what is there was used", escape_terminal(name)));
  if (windowed && done->events == done->names)
    log_warning(fmt::format("{} has nothing in that window", escape_terminal(name)));
  const std::string said =
      settings->json
          ? fmt::format("{{\"events\": {}, \"mended\": {}, \"cut_off\": {}}}\n", done->events,
                        done->repaired, done->cut_off)
          : fmt::format("{} events written{}\n", done->events,
                        done->repaired > 0 ? fmt::format(", {} mended", done->repaired) : "");
  const Status put = write_text("", said);
  return put.ok() ? 0 : fail(put.error());
}

}  // namespace

int trace(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::fputs(folded(kHelp).c_str(), stderr);
    return 2;
  }
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  const std::string& what = arguments[0];
  // A limit on the size of files is an error of the write, which says so and leaves no half file.
  if (what != "record") ::signal(SIGXFSZ, SIG_IGN);
  if (what == "summary") return summary(kSummary, rest);
  if (what == "report") return summary(kReport, rest);
  if (what == "diff") return diff(rest);
  if (what == "convert") return convert(kConvert, rest);
  if (what == "slice") return convert(kSlice, rest);
  if (what == "record") return record(rest);
  if (what == "--help" || what == "-h" || what == "help") {
    fmt::print("{}", folded(kHelp));
    return 0;
  }
  const std::string_view meant =
      nearest(what, {"summary", "report", "diff", "convert", "slice", "record"});
  return bad_usage(fmt::format("there is no command 'trace {}'", escape_terminal(what)),
                   meant.empty() ? "flatout trace --help"
                                 : fmt::format("did you mean flatout trace {}?", meant));
}

}  // namespace flatout::cli
