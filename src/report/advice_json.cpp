#include "report/advice_json.h"

#include "base/text.h"
#include "report/json_values.h"

namespace flatout::report {

using Json = nlohmann::ordered_json;
using namespace model;  // NOLINT: the nouns of the whole room

namespace {

std::string dump(const Json& value) {
  return value.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string explanation_json(const Explanation& e) {
  Json out;
  out["kind"] = e.kind;
  out["finding"] = e.finding.empty() ? Json(nullptr) : Json(e.finding);
  out["sure"] = rounded(e.sure, 2);
  out["text"] = to_utf8(e.text);
  out["holders"] = Json::array();
  for (const Holder& holder : e.holders) {
    out["holders"].push_back({{"what", to_utf8(holder.what)},
                              {"bytes", holder.bytes ? Json(*holder.bytes) : Json(nullptr)}});
  }
  out["advice"] = Json::array();
  for (const Suggestion& s : e.advice) {
    out["advice"].push_back({{"text", to_utf8(s.text)}, {"remedy", s.id}});
  }
  out["now"] = Json::array();
  for (const std::string& now : e.now) out["now"].push_back(to_utf8(now));
  out["seen"] = Json::array();
  for (const SeenLine& seen : e.seen) {
    out["seen"].push_back({{"line", seen.number}, {"text", to_utf8(seen.text)}});
  }
  out["also"] = e.also;
  out["lines"] = e.lines;
  out["bytes"] = e.bytes;
  return dump(out);
}

std::string check_up_json(const CheckUp& check_up) {
  Json out;
  out["ok"] = check_up.ok();
  out["problems"] = Json::array();
  for (const Problem& p : check_up.problems) {
    out["problems"].push_back(
        {{"id", p.id}, {"text", to_utf8(p.text)}, {"hint", to_utf8(p.hint)}, {"fails", p.fails}});
  }
  out["machine"] = Json::object();
  for (const auto& [key, value] : check_up.machine) out["machine"][key] = to_utf8(value);
  return dump(out);
}

}  // namespace flatout::report
