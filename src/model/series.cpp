#include "model/series.h"

#include <algorithm>

namespace flatout::model {
namespace {

auto first_at_or_after(const std::vector<Reading>& readings, TimePoint t) {
  return std::lower_bound(readings.begin(), readings.end(), t,
                          [](const Reading& r, TimePoint when) { return r.at < when; });
}

}  // namespace

std::optional<double> Series::last() const {
  if (readings.empty()) return std::nullopt;
  return readings.back().value;
}

std::optional<double> Series::at(TimePoint t) const {
  if (readings.empty()) return std::nullopt;
  const auto after = first_at_or_after(readings, t);
  if (after == readings.end()) return readings.back().value;
  if (after == readings.begin() || after->at == t) return after->value;
  const Reading& before = *(after - 1);
  if (info(signal).kind != SignalKind::kCounter || after->value < before.value) return before.value;
  const double share = to_s(t - before.at) / to_s(after->at - before.at);
  return before.value + (after->value - before.value) * share;
}

std::optional<double> Series::increase(TimePoint from, TimePoint to) const {
  if (readings.size() < 2 || readings.front().at >= to || readings.back().at <= from) {
    return std::nullopt;
  }
  double sum = 0;
  double previous = *at(from);
  for (auto it = first_at_or_after(readings, from); it != readings.end() && it->at < to; ++it) {
    sum += std::max(0.0, it->value - previous);
    previous = it->value;
  }
  return sum + std::max(0.0, *at(to) - previous);
}

std::optional<double> Series::most_increase(TimePoint from, TimePoint to) const {
  const auto after = first_at_or_after(readings, to);
  auto before = first_at_or_after(readings, from);
  if (before == readings.begin() || after == readings.end()) return std::nullopt;
  --before;
  return increase(before->at, after->at);
}

std::vector<double> Series::values(TimePoint from, TimePoint to) const {
  std::vector<double> out;
  for (auto it = first_at_or_after(readings, from); it != readings.end() && it->at <= to; ++it) {
    out.push_back(it->value);
  }
  return out;
}

std::optional<double> Series::max(TimePoint from, TimePoint to) const {
  const std::vector<double> v = values(from, to);
  if (v.empty()) return std::nullopt;
  return *std::max_element(v.begin(), v.end());
}

std::optional<double> Series::min(TimePoint from, TimePoint to) const {
  const std::vector<double> v = values(from, to);
  if (v.empty()) return std::nullopt;
  return *std::min_element(v.begin(), v.end());
}

}  // namespace flatout::model
