#include "remedy/trial_json.h"

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace flatout::remedy {
namespace {

using Json = nlohmann::json;

Json of(const model::Finding& f) {
  Json out = {{"id", f.id}, {"title", to_utf8(f.title)}};
  if (f.gain) out["gain"] = *f.gain;
  if (!f.remedies.empty()) {
    out["remedy"] = {to_utf8(f.remedies[0].id), to_utf8(f.remedies[0].text)};
  }
  if (f.cost_ms_per_step) out["cost"] = *f.cost_ms_per_step;
  if (f.where) {
    out["where"] = {to_utf8(f.where->file), f.where->line, to_utf8(f.where->function)};
  }
  return out;
}

model::Finding finding_of(const Json& json) {
  model::Finding out;
  out.id = json.at("id");
  out.title = json.at("title");
  if (json.contains("gain")) out.gain = json["gain"].get<double>();
  if (json.contains("cost")) out.cost_ms_per_step = json["cost"].get<double>();
  if (json.contains("remedy")) {
    out.remedies.push_back({json["remedy"].at(0), json["remedy"].at(1)});
  }
  if (json.contains("where")) {
    const Json& where = json["where"];
    out.where = model::Where{where.at(0), where.at(1), where.at(2)};
  }
  return out;
}

}  // namespace

std::string to_json(const TrialRun& run) {
  const Situation& s = run.situation;
  Json out = {{"seconds", run.seconds},
              {"others", run.others},
              {"warmup_steps", run.warmup_steps},
              {"start_seconds", run.start_seconds},
              {"outside", run.outside},
              {"losses", run.losses},
              {"applied", run.applied},
              {"verdict", run.verdict},
              {"headline", to_utf8(run.headline)},
              {"exit_code", run.exit_code},
              {"output_tail", to_utf8(run.output_tail)},
              {"findings", Json::array()},
              {"cores", s.cores},
              {"online_cores", s.online_cores},
              {"workers", s.workers},
              {"feeding", s.feeding},
              {"loader", s.loader},
              {"torch", s.torch},
              {"gpu", s.gpu},
              {"free_threaded", s.free_threaded},
              {"may_weigh", s.may_weigh},
              {"allocator", s.allocator},
              {"arenas", s.arenas},
              {"pillow", s.pillow},
              {"opencv", s.opencv},
              {"pictures", s.pictures},
              {"convolutions", s.convolutions},
              {"norms", s.norms},
              {"optimizer_share", s.optimizer_share},
              {"input_share", s.input_share},
              {"fuses", s.fuses},
              {"devmem", s.devmem},
              {"warmed", Json::array()}};
  for (const std::string& path : run.warmed) out["warmed"].push_back(to_utf8(path));
  for (const model::Finding& finding : run.findings) out["findings"].push_back(of(finding));
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<TrialRun> trial_from_json(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    TrialRun out;
    out.seconds = json.at("seconds").get<std::vector<double>>();
    out.others = json.at("others");
    out.warmup_steps = json.at("warmup_steps");
    out.start_seconds = json.at("start_seconds");
    out.outside = json.at("outside");
    // A loss may be no number: JSON has null for that.
    for (const Json& loss : json.at("losses")) {
      out.losses.push_back(loss.is_number() ? loss.get<double>()
                                            : std::numeric_limits<double>::quiet_NaN());
    }
    out.applied = json.at("applied").get<std::vector<std::string>>();
    out.verdict = json.at("verdict");
    out.headline = json.at("headline");
    out.exit_code = json.at("exit_code");
    out.output_tail = json.at("output_tail");
    for (const Json& finding : json.at("findings")) out.findings.push_back(finding_of(finding));
    Situation& s = out.situation;
    s.cores = json.at("cores");
    s.online_cores = json.at("online_cores");
    s.workers = json.at("workers");
    s.feeding = json.at("feeding");
    s.loader = json.at("loader");
    s.torch = json.at("torch");
    s.gpu = json.at("gpu");
    s.free_threaded = json.at("free_threaded");
    s.may_weigh = json.at("may_weigh");
    s.allocator = json.at("allocator");
    s.arenas = json.at("arenas");
    s.pillow = json.at("pillow");
    s.opencv = json.at("opencv");
    s.pictures = json.at("pictures");
    s.convolutions = json.at("convolutions");
    s.norms = json.at("norms");
    s.optimizer_share = json.at("optimizer_share");
    s.input_share = json.at("input_share");
    s.fuses = json.at("fuses");
    s.devmem = json.at("devmem");
    out.warmed = json.at("warmed").get<std::vector<std::string>>();
    return out;
  } catch (const Json::exception& error) {
    return Error{Code::kBadInput, std::string("the result of a trial is damaged: ") + error.what(),
                 ""};
  }
}

}  // namespace flatout::remedy
