#include "diagnose/denormals.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/findings.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;

namespace {

constexpr double kLonger =
    1.15;  // times that kernels take what they took, from which they got slower
// Of what they take longer since, that one pass over these takes, at least.
constexpr double kSomeOfIt = 0.04;
// Times that one of these takes what another number takes are many: less says that the CPU minds
// little, or that they are flushed to zero.
constexpr double kSlowEach = 0.2e-9;

/// "4249600 elements of 2 tensors, emb.weight, 3.10 ns each".
struct Denormals {
  double elements = 0, tensors = 0, each = 0;
  std::string_view largest;
};

Denormals denormals_of(const model::Run& run) {
  std::string_view text = run.fact("denormals");
  constexpr std::string_view kEnd = " ns each";
  const size_t first = text.find(", "), last = text.rfind(", ");
  if (first == std::string_view::npos || first == last || !text.ends_with(kEnd)) return {};
  const auto words = split(text.substr(0, first), ' ');
  if (words.size() != 5) return {};
  const std::string_view each = text.substr(last + 2, text.size() - kEnd.size() - last - 2);
  return {parse_number<double>(words[0]).value_or(0), parse_number<double>(words[3]).value_or(0),
          parse_number<double>(each).value_or(0) * 1e-9, text.substr(first + 2, last - first - 2)};
}

bool computes(const Cell& c) {
  return c.role == Role::kTrainer && c.act == Act::kNative && c.part != Part::kInputWait &&
         c.part != Part::kCheckpoint && (c.traits & kNotComputing) == 0;
}

}  // namespace

std::optional<Finding> find_denormals(const RunView& view, const RunView* fast,
                                      const RunView* slow) {
  const Denormals seen = denormals_of(view.run());
  if (seen.elements <= 0 || seen.each < kSlowEach || !view.has_steps()) return std::nullopt;
  const double computing = view.per_step(Role::kTrainer, computes);
  const double once = std::min(seen.elements * seen.each / torch_threads(view.run()), computing);
  double before = 0, after = 0;
  if (fast != nullptr && slow != nullptr) {
    // As usual then: the last of them may be slow already.
    before = fast->per_step(Role::kTrainer, computes) *
             std::min(1.0, fast->steps().median / fast->steps().mean);
    after = slow->per_step(Role::kTrainer, computes);
  }
  const bool slower = before > 0 && after > kLonger * before && once > kSomeOfIt * (after - before);
  const double cost = slower ? std::max(once, computing - before) : once;
  Findings findings(view);
  Finding* f = findings.add("cpu.denormals", "Numbers too small for normal arithmetic slow it down",
                            slower ? 0.85 : 0.7,
                            WhatIf(view).saved_by({.trainer = cost, .trainer_cpu = cost}));
  if (f == nullptr) return std::nullopt;
  f->where = (slower ? slow : &view)->where(computes);
  const std::string of =
      seen.tensors > 1 ? fmt::format("{:.0f} tensors (most of {})", seen.tensors, seen.largest)
                       : std::string(seen.largest);
  evidence(*f,
           fmt::format("{} elements of {} are below the smallest normal number",
                       format_number(seen.elements), escape_terminal(of)),
           seen.elements, "elements", "agent.denormals", 1);
  evidence(*f, fmt::format("each takes {:.1f} ns longer than another one", seen.each * 1e9),
           seen.each * 1e9, "ns", "agent.denormals", 1);
  if (slower) {
    const int64_t n = slow->readings(computes);
    evidence(*f, fmt::format("kernels took {} a step while the job was fast", ms(before)),
             before * 1e3, "ms", "stacks", fast->readings(computes));
    evidence(*f, fmt::format("they took {} when it was slow", ms(after)), after * 1e3, "ms",
             "stacks", n);
  } else {
    evidence(*f, fmt::format("one pass over them takes {} longer, at least", ms(once)), once * 1e3,
             "ms", "agent.denormals", 1);
  }
  remedy(*f, "flush_denormal",
         "Flush them to zero: torch.set_flush_denormal(True) before anything is computed (threads "
         "take it over when they start); in C++ -ffast-math or _MM_SET_FLUSH_ZERO_MODE in each "
         "thread.");
  remedy(*f, "decay",
         "Or let nothing decay so far: an epsilon, a clamp, states of rows that are "
         "no longer trained reset to zero.");
  return std::move(*f);
}

}  // namespace flatout::diagnose
