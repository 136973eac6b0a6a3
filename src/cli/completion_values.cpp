#include "cli/completion_values.h"

#include <algorithm>
#include <iterator>

#include "model/finding_ids.h"
#include "remedy/catalogue.h"
#include "train/inject.h"

namespace flatout::cli {
namespace {

using Kind = Values::Kind;

template <class List, class Text>
std::vector<std::string> texts_of(const List& list, Text text) {
  std::vector<std::string> out;
  out.reserve(std::size(list));
  for (const auto& one : list) out.emplace_back(text(one));
  return out;
}

Values fail_on(std::string_view command) {
  if (command == "compare") return {Kind::kWords, {"slower=5%"}};
  Values out{Kind::kWords, {"any"}};
  if (command != "run") return out;
  for (const std::string_view id : model::finding_ids()) out.words.emplace_back(id);
  return out;
}

Values causes() {
  Values out{Kind::kWords, texts_of(train::causes(), [](const auto& c) { return c.id; })};
  out.words.emplace_back("list");
  return out;
}

}  // namespace

Values values_of(const Usage& usage, const Flag& option) {
  struct Known {
    std::string_view command, option;  // command "": of all
    Values values;
  };
  static const std::vector<Known> known = {
      {"", "inject", causes()},
      {"report", "format", {Kind::kWords, {"html", "json", "svg", "speedscope", "text"}}},
      {"trace convert", "format", {Kind::kWords, {"chrome", "perfetto"}}},
      {"", "model", {Kind::kWords, {"small", "large", "lenet", "resnet20"}}},
      {"", "optimizer", {Kind::kWords, {"sgd", "adam"}}},
      {"", "compat", {Kind::kWords, {"hta", "exact"}}},
      {"", "mode", {Kind::kWords, {"exact", "scaled"}}},
      {"", "order", {Kind::kWords, {"name", "feed:"}}},
      {"",
       "skip",
       {Kind::kWords, texts_of(remedy::catalogue(), [](const auto& r) { return r.id; })}},
      {"", "listen", {Kind::kWords, {"127.0.0.1", "::1", "0.0.0.0", "::"}}},
      {"", "out", {Kind::kFolder, {}}},
      {"merge", "output", {Kind::kFolder, {}}},
      {"", "budget", {Kind::kNothing, {}}},
      {"", "meet", {Kind::kNothing, {}}},
      {"", "device_memory", {Kind::kNothing, {}}},
      {"", "card", {Kind::kNothing, {}}},
      {"", "step", {Kind::kNothing, {}}},
  };
  if (option.name == "fail_on") return fail_on(usage.name);
  if (option.is_number) return {Kind::kNothing, {}};
  const auto found = std::find_if(known.begin(), known.end(), [&](const Known& k) {
    return k.option == option.name && (k.command.empty() || k.command == usage.name);
  });
  return found == known.end() ? Values{} : found->values;
}

Values words_of(const Usage& usage) {
  if (usage.takes_command) return {Kind::kCommand, {}};
  if (usage.name == "completion") return {Kind::kWords, {"bash", "zsh", "fish"}};
  constexpr std::string_view kOfRuns[] = {"report", "compare", "merge", "serve"};
  if (std::find(std::begin(kOfRuns), std::end(kOfRuns), usage.name) != std::end(kOfRuns)) {
    return {Kind::kRunFolder, {}};
  }
  if (usage.name == "top" || usage.name == "attach") return {Kind::kPid, {}};
  if (usage.max_positional == 0) return {Kind::kNothing, {}};
  return {usage.name == "manual" ? Kind::kFolder : Kind::kFile, {}};
}

}  // namespace flatout::cli
