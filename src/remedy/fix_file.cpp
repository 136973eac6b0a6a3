#include "remedy/fix_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/fs.h"
#include "base/stats.h"
#include "base/text.h"
#include "recorder/launch.h"
#include "remedy/fix_words.h"

namespace flatout::remedy {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;
constexpr size_t kMostBytes = 1 << 26;

Json rounded(double value, double scale = 1e4) {
  return std::isfinite(value) ? Json(std::round(value * scale) / scale) : Json(nullptr);
}

Json milliseconds(const std::vector<std::vector<double>>& runs) {
  Json out = Json::array();
  for (const auto& run : runs) {
    Json steps = Json::array();
    for (const double seconds : run) steps.push_back(rounded(1e3 * seconds, 1e3));
    out.push_back(std::move(steps));
  }
  return out;
}

Json of(const Decision& decision) {
  const bool judged = decision.pairs > 0;
  return {{"verdict", name(decision.verdict)},
          {"gain", judged ? rounded(decision.gain) : Json(nullptr)},
          {"low", judged ? rounded(decision.low) : Json(nullptr)},
          {"high", judged ? rounded(decision.high) : Json(nullptr)},
          {"pairs", decision.pairs},
          {"others_cores_without", rounded(decision.others_a)},
          {"others_cores_with", rounded(decision.others_b)}};
}

Json of(const Setting& setting) {
  return {{"environment", setting.environment},
          {"agent", setting.agent},
          {"allocator", setting.allocator},
          {"prefix", setting.prefix}};
}

Json of(const Attempt& attempt) {
  Json out = of(attempt.decision);
  out["remedy"] = attempt.candidate.remedy->id;
  out["what"] = attempt.what;
  out["finding"] =
      attempt.candidate.finding.empty() ? Json(nullptr) : Json(attempt.candidate.finding);
  out["predicted_gain"] =
      attempt.candidate.predicted ? rounded(*attempt.candidate.predicted) : Json(nullptr);
  out["class"] = name(attempt.candidate.remedy->effect);
  out["losses"] = name(attempt.losses);
  out["kept"] = attempt.kept;
  out["note"] = to_utf8(attempt.note);
  out["risk"] = attempt.candidate.remedy->risk;
  out["code"] = attempt.code;
  out["apply"] = of(attempt.setting);
  out["shell"] = shell_lines(attempt);
  out["dockerfile"] = dockerfile_lines(attempt.setting);
  out["slurm"] = slurm_lines(attempt.setting);
  out["steps_ms_without"] = milliseconds(attempt.a_seconds);
  out["steps_ms_with"] = milliseconds(attempt.b_seconds);
  return out;
}

// For ENV in a Dockerfile, which is not read by a shell.
std::string docker_quoted(const std::string& value) {
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\' || c == '$') out += '\\';
    out += c;
  }
  return out + "\"";
}

bool is_variable(const std::string& name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0) return false;
  return std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

// The environment that does what the setting says, the allocator included.
std::map<std::string, std::string> environment_of(const Setting& setting) {
  std::map<std::string, std::string> out = setting.environment;
  if (setting.allocator) {
    const std::string library = recorder::find_agent().allocator;
    if (!library.empty()) out["LD_PRELOAD"] = library;
  }
  return out;
}

}  // namespace

std::string fix_json(const std::vector<std::string>& command, const Outcome& outcome,
                     bool isolated) {
  const TrialRun& base = outcome.baseline;
  Json findings = Json::array();
  for (const model::Finding& finding : base.findings) {
    findings.push_back(
        {{"id", finding.id}, {"gain", finding.gain ? rounded(*finding.gain) : Json(nullptr)}});
  }
  Json words = Json::array();
  for (const std::string& word : command) words.push_back(to_utf8(word));
  Json out = {{"schema", kSchema},
              {"command", words},
              {"baseline",
               {{"verdict", base.verdict},
                {"steps", base.seconds.size()},
                {"ms_per_step", rounded(1e3 * mean(base.seconds))},
                {"findings", findings}}},
              {"trials", Json::array()},
              {"kept", outcome.kept},
              {"together", outcome.together ? of(*outcome.together) : Json(nullptr)},
              {"apply", of(outcome.setting)},
              {"not_tried", outcome.not_tried},
              {"unanswered", Json::array()},
              {"files_isolated", isolated},
              {"interrupted", outcome.stopped},
              {"out_of_time", outcome.out_of_time}};
  for (const Attempt& attempt : outcome.attempts) out["trials"].push_back(of(attempt));
  for (const model::Finding* finding : unanswered(outcome)) {
    out["unanswered"].push_back({{"id", finding->id}, {"gain", rounded(*finding->gain)}});
  }
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Setting> setting_from_json(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  const auto bad = [](const std::string& what) {
    return Error{Code::kBadInput, "not a fix.json of flatout: " + what,
                 "flatout fix -- COMMAND... writes one"};
  };
  if (json.is_discarded() || !json.is_object()) return bad("it is no JSON object");
  if (json.value("schema", Json()) != kSchema) return bad(fmt::format("schema is not {}", kSchema));
  try {
    const Json& apply = json.at("apply");
    Setting out;
    out.environment = apply.at("environment").get<std::map<std::string, std::string>>();
    out.agent = apply.at("agent").get<std::map<std::string, std::string>>();
    out.allocator = apply.at("allocator").get<bool>();
    out.prefix = apply.at("prefix").get<std::vector<std::string>>();
    for (const auto& [name, value] : out.environment) {
      if (!is_variable(name) || value.find('\0') != std::string::npos)
        return bad("a variable has no name");
    }
    for (const auto& [name, value] : out.agent) {
      if (!is_variable(name) ||
          value.find_first_of(std::string_view(",\0", 2)) != std::string::npos) {
        return bad("an agent setting has no name");
      }
    }
    for (const std::string& word : out.prefix) {
      if (word.find('\0') != std::string::npos) return bad("a word holds a NUL");
    }
    return out;
  } catch (const Json::exception&) {
    return bad("\"apply\" is not as it should be");
  }
}

Result<Setting> read_fix_file(const std::string& path) {
  auto text = fs::Root(path.starts_with('/') ? "/" : ".").read(path, kMostBytes);
  if (!text.ok()) return std::move(text).error();
  auto setting = setting_from_json(*text);
  if (setting.ok()) return setting;
  return Error{setting.error().code, escape_terminal(path) + ": " + setting.error().message,
               setting.error().hint};
}

std::vector<std::string> shell_lines(const Setting& setting) {
  std::vector<std::string> out;
  for (const auto& [name, value] : environment_of(setting)) {
    out.push_back("export " + name + "=" + quoted(value));
  }
  if (!setting.prefix.empty()) {
    std::string line;
    for (const std::string& word : setting.prefix) {
      line += shell_word(word) + " ";
    }
    out.push_back(line + "COMMAND");
  }
  return out;
}

std::vector<std::string> shell_lines(const Attempt& attempt) {
  std::vector<std::string> out = shell_lines(attempt.setting);
  std::string line(attempt.candidate.remedy->shell);
  constexpr std::string_view kFolder = "FOLDER";
  constexpr size_t kMostNamed = 8;  // more are for whoever knows what they have in common
  const size_t at = line.find(kFolder);
  if (at != std::string::npos && !attempt.warmed.empty() && attempt.warmed.size() <= kMostNamed) {
    std::string named;
    for (const std::string& path : attempt.warmed)
      named += (named.empty() ? "" : " ") + quoted(path);
    line.replace(at, kFolder.size(), named);
  }
  if (!line.empty()) out.push_back(std::move(line));
  return out;
}

std::vector<std::string> dockerfile_lines(const Setting& setting) {
  std::vector<std::string> out;
  for (const auto& [name, value] : environment_of(setting))
    out.push_back("ENV " + name + "=" + docker_quoted(value));
  return out;
}

std::vector<std::string> slurm_lines(const Setting& setting) {
  return shell_lines(setting);  // in the batch script, before srun: it hands its environment on
}

std::string env_file(const Setting& setting) {
  std::string out(kEnvFileMark);
  out += " In a shell: set -a; . ./flatout.env; set +a\n";
  for (const auto& [name, value] : environment_of(setting))
    out += name + "=" + quoted(value) + "\n";
  if (!setting.agent.empty()) {
    out +=
        "# Within the job (" + agent_words(setting) + "): flatout run --with fix.json -- COMMAND\n";
  }
  return out;
}

}  // namespace flatout::remedy
