#include "report/run_summary.h"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/number.h"
#include "base/text.h"
#include "report/json_values.h"
#include "report/words.h"

namespace flatout::report {
namespace {

using Json = nlohmann::ordered_json;
using Fact = std::function<std::string(const std::string&)>;

// What all ranks of a job are started with, by the launchers in the order in which they nest.
std::string group_of(const Fact& fact) {
  if (fact("rank").empty()) return "";
  if (const std::string id = fact("env.SLURM_JOB_ID"); !id.empty()) return "slurm-" + id;
  const std::string id = fact("env.TORCHELASTIC_RUN_ID");
  if (!id.empty() && id != "none") return "torchrun-" + id;
  if (const std::string host = fact("env.MASTER_ADDR"); !host.empty()) {
    return host + ":" + fact("env.MASTER_PORT");
  }
  return fact("command");
}

std::string text_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

double number_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : 0;
}

// An object that is always there, so that what is asked of it is merely missing.
const Json& object_of(const Json& object, const char* key) {
  static const Json none = Json::object();
  const auto it = object.find(key);
  return it != object.end() && it->is_object() ? *it : none;
}

double unix_seconds(const std::string& nanoseconds) {
  return static_cast<double>(parse_number<int64_t>(nanoseconds).value_or(0)) * 1e-9;
}

}  // namespace

RunSummary summarise(const model::Run& run, const model::Diagnosis& diagnosis) {
  const Fact fact = [&](const std::string& key) { return std::string(run.fact(key)); };
  RunSummary out;
  out.command = command_of(run);
  out.host = fact("host.name");
  out.rank = fact("rank");
  out.group = group_of(fact);
  out.begin_unix_s = unix_seconds(fact("run.begin_unix_ns"));
  out.length_s = to_s(run.end - run.begin);
  out.finished = run.finished;
  out.failed = failed(run);
  if (run.finished) out.exit = exit_text(run);
  const model::StepSummary& s = run.steps.summary;
  out.steps = s.count;
  out.median_ms = to_ms(s.median);
  out.p95_ms = to_ms(s.p95);
  out.samples_per_s = s.samples_per_s;
  out.input_wait = s.breakdown[static_cast<size_t>(model::Part::kInputWait)];
  out.verdict = diagnosis.verdict;
  out.headline = diagnosis.findings.empty() ? diagnosis.headline : diagnosis.findings[0].title;
  return out;
}

std::optional<RunSummary> read_summary(std::string_view run_json, std::string_view findings_json) {
  const Json run = Json::parse(run_json, nullptr, false);
  const Json found = Json::parse(findings_json, nullptr, false);
  if (!run.is_object() || !found.is_object() || number_of(run, "schema") != 1 ||
      number_of(found, "schema") != 1) {
    return std::nullopt;
  }
  const Json& facts = object_of(run, "facts");
  const Fact fact = [&](const std::string& key) { return text_of(facts, key.c_str()); };
  RunSummary out;
  out.command = text_of(run, "command");
  out.host = fact("host.name");
  out.rank = fact("rank");
  out.group = group_of(fact);
  out.begin_unix_s = unix_seconds(fact("run.begin_unix_ns"));
  out.length_s = number_of(run, "length_s");
  const Json& exit = object_of(run, "exit");
  const auto finished = exit.find("finished");
  out.finished = finished != exit.end() && *finished == true;
  if (exit.contains("signal") && exit["signal"].is_number()) {
    out.failed = true;
    out.exit = fmt::format("killed by signal {:.0f}", number_of(exit, "signal"));
  } else if (exit.contains("code") && exit["code"].is_number()) {
    out.failed = number_of(exit, "code") != 0;
    out.exit = fmt::format("exit code {:.0f}", number_of(exit, "code"));
  }
  const Json& steps = object_of(found, "steps");
  out.steps = saturate<int64_t>(number_of(steps, "count"));
  out.median_ms = number_of(steps, "median_ms");
  out.p95_ms = number_of(steps, "p95_ms");
  out.samples_per_s = number_of(steps, "samples_per_s");
  out.input_wait = number_of(object_of(found, "breakdown"), "input_wait");
  out.verdict = text_of(found, "verdict");
  out.headline = text_of(found, "headline");
  const auto findings = found.find("findings");
  if (findings != found.end() && findings->is_array() && !findings->empty() &&
      findings->front().is_object()) {
    out.headline = text_of(findings->front(), "title");
  }
  return out;
}

std::string runs_json(std::span<const ListedRun> runs, uint64_t revision) {
  const auto known = [](double value, int digits) {
    return value > 0 ? rounded(value, digits) : Json(nullptr);
  };
  Json out;
  out["revision"] = revision;
  out["runs"] = Json::array();
  for (const ListedRun& run : runs) {
    const RunSummary& s = run.summary;
    out["runs"].push_back({{"id", run.id},
                           {"live", run.live},
                           {"read", run.read},
                           {"command", to_utf8(s.command)},
                           {"host", to_utf8(s.host)},
                           {"rank", to_utf8(s.rank)},
                           {"group", to_utf8(s.group)},
                           {"begin_unix_s", known(s.begin_unix_s, 3)},
                           {"length_s", rounded(s.length_s, 1)},
                           {"finished", s.finished},
                           {"failed", s.failed},
                           {"exit", to_utf8(s.exit)},
                           {"steps", s.steps},
                           {"median_ms", known(s.median_ms, 4)},
                           {"p95_ms", known(s.p95_ms, 4)},
                           {"samples_per_s", known(s.samples_per_s, 3)},
                           {"input_wait", rounded(s.input_wait, 4)},
                           {"verdict", to_utf8(s.verdict)},
                           {"headline", to_utf8(s.headline)}});
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace flatout::report
