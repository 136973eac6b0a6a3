// Which facts, measured changes and findings can explain that one run is slower than another, what
// they are called, and which parts of the step they bear on. What is not listed explains nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "model/step.h"

namespace flatout::diagnose {

/// Parts of the step, one bit each.
using Parts = uint32_t;
constexpr Parts bit(model::Part p) { return Parts{1} << static_cast<uint32_t>(p); }
inline constexpr Parts kAllParts = (Parts{1} << model::kPartCount) - 1;

/// A fact (or a change that compare() measures) that can explain a slow-down.
struct FactKind {
  size_t rank = 0;   // lower ones explain more slow-downs
  std::string text;  // "file system of the working folder"
  Parts bears_on = kAllParts;
  std::string group;  // of several facts with any name: "package."; "" of a single one
};

/// nullopt: it differs between any two runs, or explains nothing.
std::optional<FactKind> fact_kind(std::string_view key);

/// What a finding of this id makes longer; 0 for what ends a job.
Parts parts_of_finding(std::string_view id);

}  // namespace flatout::diagnose
