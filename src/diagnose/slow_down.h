// A job that gets slower within its run: at once, or little by little.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "diagnose/view.h"
#include "model/finding.h"

namespace flatout::diagnose {

/// Steps from one change of speed to another, or the last quarter of steps that take longer little
/// by little.
struct SlowDown {
  bool known = false;         // or the job did not slow down
  bool gradual = false;       // the first quarter's steps are the fast ones
  int64_t fast_until = 0;     // steps before this one are fast,
  int64_t from = 0;           // from this one on slow,
  int64_t until = INT64_MAX;  // and fast again from this one on
  TimePoint at;               // when they began to be slow
  Nanos before{}, after{};
};

/// The change that cost the job most: from the usual speed before it to a slower one that lasts.
SlowDown slow_down(const model::Run& run);

/// "From step 40 on (2 s after the start) steps take 30 ms instead of 20 ms".
std::string change_text(const model::Run& run, const SlowDown& slow);

/// What a slow-down is put down to.
struct PutDownTo {
  std::string id;                    // of a finding; "": nothing that is known
  std::optional<model::Where> line;  // behind it, where that is most of what it costs now
  std::string place;                 // ", most of it at ...": where the time goes
};

/// Judges the slow steps against the fast ones, by `find`: what only they show joins the findings
/// of the whole run, `all`, and what changed costs no more than they take longer.
PutDownTo judge_slow_down(const RunView& view, const SlowDown& slow,
                          const std::function<std::vector<model::Finding>(const RunView&)>& find,
                          std::vector<model::Finding>& all);

/// The finding that stands for this one: of the same cause, or for the same line's part of the
/// input, which the whole run may show in another light than its slow steps. nullptr: none.
const model::Finding* already_told(const std::vector<model::Finding>& findings,
                                   const model::Finding& f);

}  // namespace flatout::diagnose
