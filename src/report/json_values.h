// Parts of the JSON documents that the HTML report embeds too.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model/comparison.h"
#include "model/finding.h"
#include "model/run.h"

namespace flatout::report {

/// Rounded to `digits` after the point; null where it is not finite.
nlohmann::ordered_json rounded(double value, int digits);
nlohmann::ordered_json maybe(const std::optional<double>& value, int digits);
nlohmann::ordered_json breakdown_values(const model::StepSummary& summary);
nlohmann::ordered_json finding_value(const model::Finding& finding);
nlohmann::ordered_json missing_value(const model::Run& run);
nlohmann::ordered_json comparison_value(const model::Comparison& comparison);
/// As text that can stand inside a <script> element: ASCII, without '<', '>' and '&'.
std::string script_text(const nlohmann::ordered_json& value);

}  // namespace flatout::report
