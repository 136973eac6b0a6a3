#include "devmem/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include <nlohmann/json.hpp>

#include "base/contains.h"
#include "base/text.h"
#include "devmem/error_blocks.h"
#include "devmem/explain_torch.h"

namespace flatout::devmem {
namespace {

constexpr size_t kWrapped = 4 << 10;  // of a message behind its block

using Phrases = std::vector<std::string_view>;  // any of them

struct Rule {
  std::string_view kind, finding;
  double sure;
  std::vector<Phrases> needs;  // all of these
  Phrases unless;
  std::string_view text;
  std::vector<Advice> advice;
};

std::vector<Phrases> phrases_of(std::initializer_list<std::string_view> needs) {
  std::vector<Phrases> out;
  for (const std::string_view alternatives : needs) out.push_back(split(alternatives, '|'));
  return out;
}

const std::vector<Rule>& rules() {
#define FLATOUT_UNPACK(...) __VA_ARGS__
#define FLATOUT_OOM_RULE(kind, finding, sure, needs, unless, text, ...)              \
  {kind, finding,      sure, phrases_of({FLATOUT_UNPACK needs}), split(unless, '|'), \
   text, {__VA_ARGS__}},
  static const std::vector<Rule> table = {
#include "devmem/explain_rules.def"
  };
#undef FLATOUT_OOM_RULE
#undef FLATOUT_UNPACK
  return table;
}

bool holds_any(std::string_view text, const Phrases& phrases) {
  return std::any_of(phrases.begin(), phrases.end(), [&](std::string_view phrase) {
    return !phrase.empty() && contains(text, phrase);
  });
}

bool fits(const Rule& rule, std::string_view text) {
  return std::all_of(rule.needs.begin(), rule.needs.end(),
                     [&](const Phrases& need) { return holds_any(text, need); }) &&
         !holds_any(text, rule.unless);
}

const Rule* rule_of(std::string_view block) {
  const auto rule =
      std::find_if(rules().begin(), rules().end(), [&](const Rule& r) { return fits(r, block); });
  return rule == rules().end() ? nullptr : &*rule;
}

Explanation explanation_of(const Rule& rule) {
  return {std::string(rule.kind),
          std::string(rule.finding),
          rule.sure,
          std::string(rule.text),
          {},
          rule.advice};
}

// PyTorch's message in a block of `text`, whose figures may stand in the lines behind it.
std::optional<TorchFigures> torch_message(std::string_view block, std::string_view text) {
  if (!contains(block, "out of memory")) return std::nullopt;
  const size_t begin = static_cast<size_t>(block.data() - text.data());
  const auto message = parse_torch_message(text.substr(begin, block.size() + kWrapped));
  if (!message) return std::nullopt;
  return TorchFigures{*message};
}

// The line of an assertion that says what it expected, and not what happened.
bool is_expectation(std::string_view block) {
  const size_t at = block.find("AssertionError: ");
  if (at == block.npos) return false;
  const std::string_view line = block.substr(at, block.substr(at).find('\n'));
  for (const std::string_view words : {"out of memory", "OUT_OF_MEMORY", "_STATUS_"}) {
    const size_t said = line.find(words);
    if (said != line.npos) return is_expected(line, said);
  }
  return false;
}

Explanation unknown() {
  Explanation none;
  none.kind = "unknown";
  none.text = "Nothing in it says that memory ran out.";
  return none;
}

}  // namespace

// The last error is the one that ended the job; what did not fail tells only where nothing did.
Explanation explain_text(std::string_view text) {
  const Rule* best = nullptr;
  const std::vector<std::string_view> blocks = error_blocks(text);
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    if (is_expectation(*block)) continue;
    if (auto figures = torch_message(*block, text)) {
      figures->is_expanding = sets_expandable_segments(text);
      return explain_torch(*figures);
    }
    const Rule* const rule = rule_of(*block);
    if (rule == nullptr) continue;
    const bool failed = rule->kind != "tf_not_a_failure";
    if (failed || best == nullptr) best = rule;
    if (failed) break;
  }
  return best != nullptr ? explanation_of(*best) : unknown();
}

Explanation explain_error(std::string_view text, size_t at, bool is_expanding) {
  const char* const place = text.data() + std::min(at, text.size());
  for (const std::string_view block : error_blocks(text)) {
    if (place >= block.data() + block.size()) continue;
    if (auto figures = torch_message(block, text)) {
      figures->is_expanding = is_expanding;
      return explain_torch(*figures);
    }
    const Rule* const rule = rule_of(block);
    return rule != nullptr ? explanation_of(*rule) : unknown();
  }
  return unknown();
}

bool may_be_snapshot(std::string_view head) {
  if (head.size() < 2) return false;
  if (static_cast<uint8_t>(head[0]) == 0x80) return static_cast<uint8_t>(head[1]) <= 5;
  // Protocols 0 and 1, with the number under which the outermost dictionary or list is kept.
  return head.starts_with("(dp") || head.starts_with("(lp") || head.starts_with("}q") ||
         head.starts_with("]q");
}

bool is_snapshot(std::string_view bytes) {
  return may_be_snapshot(bytes) && (static_cast<uint8_t>(bytes[0]) == 0x80 || bytes.ends_with('.'));
}

Result<Explanation> explain(std::string_view bytes) {
  if (is_snapshot(bytes)) return explain_snapshot(bytes);
  return explain_text(bytes);
}

std::string explanation_json(const Explanation& e) {
  using Json = nlohmann::ordered_json;
  const auto text_or_null = [](const std::string& s) {
    return s.empty() ? Json(nullptr) : Json(to_utf8(s));
  };
  Json holders = Json::array(), advice = Json::array();
  for (const Holder& h : e.holders)
    holders.push_back({{"what", to_utf8(h.what)}, {"bytes", h.bytes}});
  for (const Advice& a : e.advice)
    advice.push_back({{"text", a.text}, {"remedy", text_or_null(a.remedy)}});
  const Json out = {{"kind", e.kind},     {"finding", text_or_null(e.finding)},
                    {"sure", e.sure},     {"text", to_utf8(e.text)},
                    {"holders", holders}, {"advice", advice}};
  return out.dump(1) + "\n";
}

std::string explanation_text(const Explanation& e) {
  std::string out =
      fmt::format("{}{}\n{}\n", e.kind, e.finding.empty() ? "" : fmt::format(" ({})", e.finding),
                  escape_terminal(e.text));
  for (const Holder& h : e.holders)
    out += fmt::format("  {:>10}  {}\n", format_bytes(static_cast<double>(h.bytes)),
                       escape_terminal(h.what));
  for (const Advice& a : e.advice)
    out += fmt::format(
        "- {}{}\n", a.text,
        a.remedy.empty() ? "" : fmt::format(" {}", a.remedy.substr(a.remedy.find(':') + 1)));
  return out;
}

}  // namespace flatout::devmem
