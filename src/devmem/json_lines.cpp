// Our compact trace: a JSON object a line. {"op":"meta","name":...} first, then
// {"op":"a","id":1,"size":512[,"stream":0,"t":ns,"site":"f.py:3","pre":1]}, {"op":"f","id":1} and
// {"op":"mark"} where a step begins, {"op":"oom","size":512[,"site"]} where a request was refused.
// Unknown ops are skipped.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "devmem/call_site.h"
#include "devmem/trace.h"

namespace flatout::devmem {
namespace {

using Json = nlohmann::json;

Error bad_line(size_t number, std::string_view what) {
  return {Code::kBadInput, fmt::format("line {}: {}", number, what),
          "a trace is lines like {\"op\":\"a\",\"id\":1,\"size\":512} and {\"op\":\"f\",\"id\":1}"};
}

bool whole_number(const Json& object, const char* key, uint64_t& value) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_integer()) return false;
  value = it->get<uint64_t>();
  return it->is_number_unsigned() || it->get<int64_t>() >= 0;
}

/// "_ZN5Model7forwardEv+0x2a" as "Model::forward()+0x2a": the C library's side of a recording knows
/// mangled names only.
std::string plain_site(std::string site) {
  if (!site.starts_with("_Z")) return site;
  const size_t plus = std::min(site.rfind('+'), site.size());
  return plain_name(site.substr(0, plus)) + site.substr(plus);
}

}  // namespace

Result<Trace> read_json_lines(std::string_view bytes, std::string_view name) {
  TraceBuilder builder(name);
  std::string_view line;
  for (size_t number = 1; next_line(bytes, line); ++number) {
    line = trim(line);
    if (line.empty()) continue;
    const Json object = Json::parse(line, nullptr, false);
    if (!object.is_object()) return bad_line(number, "not a JSON object, or cut off");
    const auto op = object.find("op");
    if (op == object.end() || !op->is_string()) return bad_line(number, "it has no \"op\"");
    const auto& kind = op->get_ref<const std::string&>();
    uint64_t id = 0, size = 0, stream = 0;
    const auto site = object.find("site");
    const std::string who =
        site != object.end() && site->is_string() ? plain_site(site->get<std::string>()) : "";
    if (kind == "a") {
      if (!whole_number(object, "id", id)) return bad_line(number, "it has no whole \"id\"");
      if (!whole_number(object, "size", size) || size > kMostBytes)
        return bad_line(number, "its \"size\" is no number of bytes");
      if (object.contains("stream") && !whole_number(object, "stream", stream))
        return bad_line(number, "its \"stream\" is no whole number");
      if (builder.is_live(id)) return bad_line(number, fmt::format("id {} is live already", id));
      object.contains("pre") ? builder.allocate_before(id, size, stream, who)
                             : builder.allocate(id, size, stream, who);
    } else if (kind == "f") {
      if (!whole_number(object, "id", id)) return bad_line(number, "it has no whole \"id\"");
      builder.free(id);
    } else if (kind == "oom") {
      if (!whole_number(object, "size", size))
        return bad_line(number, "its \"size\" is no number of bytes");
      builder.refuse(size, who);
    } else if (kind == "mark") {
      builder.mark();
    } else if (kind == "meta" && object.contains("name") && object["name"].is_string()) {
      builder.rename(object["name"].get_ref<const std::string&>());
    }
  }
  return builder.take();
}

}  // namespace flatout::devmem
