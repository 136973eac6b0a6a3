// Ranks that train together meet in every step's collectives and leave them together, so a step
// takes as long as the last one's own work: its length less what it waits in collectives. Whose own
// work is longer than the others' holds them up; what even the last one spends in collectives is
// communication that nothing hides.
#include "diagnose/ranks.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>

#include "base/contains.h"
#include "base/stats.h"
#include "base/text.h"
#include "diagnose/findings.h"
#include "diagnose/rank_steps.h"

namespace flatout::diagnose {

using model::Diagnosis;
using model::Finding;
using model::Part;
using model::Rank;
using model::RankReport;
using model::RankState;

namespace {

// Waiting in collectives below this share of a step is none.
constexpr double kSomeWaiting = 0.005;
// Who comes well before the last one is not whom the others wait for.
constexpr double kAlsoLate = 0.5;
// Part of a rank's lateness that its own finding must make up to be the cause.
constexpr double kExplains = 0.3;
constexpr double kMoreSamples = 1.05;
// What strikes the ranks in turn costs so much more than one's own.
constexpr double kInTurn = 1.15;
// Of what a rank does alone: less often it may be a beginning or an end.
constexpr int64_t kFewTimes = 3;
constexpr double kAtOnce = 0.1;  // seconds: launchers look no sooner for a rank that has ended
// Part of a step that lateness without a cause must cost: a core shared with whoever waits by
// polling, a core that is slower, cost some.
constexpr double kUnexplained = 0.1;
// A rank's silence that is a hang: in medians and in longest steps. The rest of what is known then
// (a rank that is stopped or gone while others wait for it) makes it safe to say so this early.
constexpr double kSilentMedians = 8, kSilentLongest = 1.5;
constexpr double kHangMedians = 10, kHangSeconds = 5;  // where no rank is missing

double seconds(Nanos d) { return to_s(d); }

class RankDetector {
 public:
  explicit RankDetector(std::vector<Rank> ranks) : report_(std::make_shared<RankReport>()) {
    report_->ranks = std::move(ranks);
    find_absent();
    steps_ = common_steps(report_->ranks);
    meets_ = steps_.count() > 0 && sum_up();
  }

  Diagnosis take() {
    find_crash();
    find_hang();
    if (meets_) {
      find_straggler();
      find_alone();
      find_exposed();
    }
    find_own();
    Diagnosis out;
    sort_by_gain(findings_);
    out.findings = std::move(findings_);
    conclude(out);
    out.ranks = std::move(report_);
    return out;
  }

 private:
  std::vector<Rank>& ranks() { return report_->ranks; }

  void find_absent() {
    int32_t world = 0;
    for (const Rank& r : ranks()) world = std::max(world, std::min(r.world, 1 << 20));
    std::vector<bool> here(static_cast<size_t>(world), false);
    for (const Rank& r : ranks()) {
      if (r.number >= 0 && r.number < world) here[static_cast<size_t>(r.number)] = true;
    }
    for (int32_t n = 0; n < world; ++n) {
      if (!here[static_cast<size_t>(n)]) report_->absent.push_back(n);
    }
  }

  /// Means over the common steps. False where nobody waits for anybody.
  bool sum_up() {
    report_->common_steps = static_cast<int64_t>(steps_.count());
    length_ = mean(steps_.length);
    report_->step = nanos(length_ * 1e9);
    size_t waiting = 0;
    for (size_t r = 0; r < ranks().size(); ++r) {
      ranks()[r].own = nanos(mean(steps_.own[r]) * 1e9);
      ranks()[r].waiting = nanos(mean(steps_.waiting[r]) * 1e9);
      waiting += mean(steps_.waiting[r]) > kSomeWaiting * length_;
    }
    return 2 * waiting >= ranks().size();
  }

  // ---- who holds up the others ----

  void find_straggler() {
    const size_t n = ranks().size();
    if (n < 2) return;
    std::vector<double> usual;  // of each step: the median rank's own work
    std::vector<double> of_step(n);
    for (size_t k = 0; k < steps_.count(); ++k) {
      for (size_t r = 0; r < n; ++r) of_step[r] = steps_.own[r][k];
      // Of an even number the lower one: of two ranks the faster is the usual.
      const auto middle = of_step.begin() + static_cast<std::ptrdiff_t>((n - 1) / 2);
      std::nth_element(of_step.begin(), middle, of_step.end());
      usual.push_back(*middle);
    }
    std::vector<double> late(n);
    std::vector<Sure> sure(n);
    double worst = 0;
    std::vector<double> beyond(steps_.count());
    for (size_t r = 0; r < n; ++r) {
      for (size_t k = 0; k < beyond.size(); ++k) {
        // Of two ranks the other one; not what is left when the faster of the step is taken off.
        beyond[k] = steps_.own[r][k] - (n == 2 ? steps_.own[1 - r][k] : usual[k]);
      }
      // Also where it is late since the middle only.
      sure[r] = std::max(surely_above(beyond, length_),
                         surely_above(std::span(beyond).subspan(beyond.size() / 2), length_));
      late[r] = sure[r] != Sure::kNo ? mean(beyond) : 0;
      worst = std::max(worst, late[r]);
    }
    if (worst < kWorthSaying * length_) return;
    std::vector<size_t> who;
    for (size_t r = 0; r < n; ++r) {
      if (late[r] >= kAlsoLate * worst) who.push_back(r);
    }
    if (2 * who.size() > n) return;
    for (const size_t r : who) ranks()[r].late = true;
    // Without their lateness the last of the others would end each step.
    double saved = 0;
    for (size_t k = 0; k < steps_.count(); ++k) {
      double last = 0, last_other = 0;
      for (size_t r = 0; r < n; ++r) {
        last = std::max(last, steps_.own[r][k]);
        if (!ranks()[r].late) last_other = std::max(last_other, steps_.own[r][k]);
      }
      saved += last - last_other;
    }
    saved /= static_cast<double>(steps_.count());
    std::sort(who.begin(), who.end(), [&](size_t a, size_t b) { return late[a] > late[b]; });
    for (const Rank& r : ranks()) {
      if (!r.late) others_.push_back(&r);
    }
    const Rank& latest = ranks()[who[0]];
    const Finding* own = own_cause(latest, late[who[0]]);
    const bool explained = own != nullptr || has_more_samples(latest);
    const bool worth = saved >= (explained ? kWorthSaying : kUnexplained) * length_;
    if (!worth || (!explained && sure[who[0]] != Sure::kOneInThousand)) {
      for (const size_t r : who) ranks()[r].late = false;
      return;
    }
    add_straggler(who, own, late[who[0]], saved);
  }

  /// `own`: the cause of the first of them.
  void add_straggler(const std::vector<size_t>& who, const Finding* own, double late,
                     double saved) {
    std::vector<int32_t> numbers;
    numbers.reserve(who.size());
    for (const size_t r : who) numbers.push_back(ranks()[r].number);
    std::sort(numbers.begin(), numbers.end());
    Rank& rank = ranks()[who[0]];
    Finding& f = add("dist.straggler",
                     fmt::format("Rank{} {} {} up the others", numbers.size() == 1 ? "" : "s",
                                 numbers_text(numbers), numbers.size() == 1 ? "holds" : "hold"),
                     0.9, saved);
    const auto n = static_cast<int64_t>(steps_.count());
    const std::string source = fmt::format("rank {}", rank.number);
    if (own != nullptr) {
      rank.cause = own->id;
      f.title += ": " + own->title;
      f.where = own->where;
      evidence(f,
               fmt::format("what holds it up is {}, {} of its step", own->id,
                           ms(*own->cost_ms_per_step * 1e-3)),
               *own->cost_ms_per_step, "ms", source, n);
    }
    const double work = seconds(rank.own), waits = seconds(rank.waiting);
    evidence(f, fmt::format("rank {} works {} a step", rank.number, ms(work)), work * 1e3, "ms",
             "timeline", n);
    evidence(f, fmt::format("that is {} longer than the usual rank", ms(late)), late * 1e3, "ms",
             "timeline", n);
    evidence(f, fmt::format("it waits {} in collectives", ms(waits)), waits * 1e3, "ms", "timeline",
             n);
    double waited = 0;
    for (const Rank* r : others_) waited += seconds(r->waiting);
    waited /= static_cast<double>(others_.size());
    evidence(f, fmt::format("the others wait {}", ms(waited)), waited * 1e3, "ms", "timeline", n);
    show_samples(rank, f);
    show_part(rank, f, n);
    show_line(rank, f, late, n);
    if (own != nullptr) {
      for (const model::Suggestion& s : own->remedies) f.remedies.push_back(s);
    }
    remedy(f, "rank", "Look at that rank alone: its input, its host, its neighbours.");
    if (own != nullptr) {
      for (const model::Evidence& e : own->evidence) {
        f.evidence.push_back({e.text, e.value, e.unit, source + ", " + e.source, e.readings});
      }
    }
  }

  /// The finding of the rank's own that the others do not have as much of, for the work they do:
  /// a neighbour that slows all of them slows most who has most to do.
  const Finding* own_cause(const Rank& rank, double late) {
    const double work = seconds(rank.own);
    const Finding* best = nullptr;
    double most = kExplains * late;
    for (const Finding& f : rank.findings) {
      if (!f.cost_ms_per_step || f.id.starts_with("dist.")) continue;
      std::vector<double> shares;
      for (const Rank* r : others_) {
        double cost = 0;
        for (const Finding& o : r->findings) {
          if (o.id == f.id) cost = o.cost_ms_per_step.value_or(0) * 1e-3;
        }
        shares.push_back(cost / std::max(seconds(r->own), 1e-9));
      }
      double more = *f.cost_ms_per_step * 1e-3 - median(shares) * work;
      // Others may have it without it being worth a finding there.
      if (f.where) more = std::min(more, more_at(rank, *f.where).value_or(more));
      if (more <= most) continue;
      most = more;
      best = &f;
    }
    return best;
  }

  static const model::RankLine* line_at(const Rank& rank, const model::Where& where) {
    const auto same =
        std::find_if(rank.lines.begin(), rank.lines.end(), [&](const model::RankLine& l) {
          return l.where.file == where.file && l.where.line == where.line;
        });
    return same == rank.lines.end() ? nullptr : &*same;
  }
  /// Seconds a step that the usual one of the others spends at a line.
  double usual_at(const model::Where& where) const {
    std::vector<double> theirs;
    for (const Rank* r : others_) {
      const model::RankLine* line = line_at(*r, where);
      theirs.push_back(line == nullptr ? 0 : line->seconds);
    }
    return median(theirs);
  }
  /// By how much a rank spends more at a line than the others do; nullopt: not known of one.
  std::optional<double> more_at(const Rank& rank, const model::Where& where) const {
    const model::RankLine* own = line_at(rank, where);
    if (own == nullptr) return std::nullopt;
    return own->seconds - usual_at(where);
  }

  double usual_samples() const {
    std::vector<double> samples;
    for (const Rank* r : others_) samples.push_back(r->samples);
    return median(samples);
  }
  bool has_more_samples(const Rank& rank) const {
    const double usual = usual_samples();
    return usual > 0 && rank.samples >= kMoreSamples * usual;
  }

  void show_samples(const Rank& rank, Finding& f) {
    if (!has_more_samples(rank)) return;
    const double usual = usual_samples();
    evidence(f, fmt::format("its step has {} samples", format_number(rank.samples)), rank.samples,
             "samples", "agent.loader", 1);
    evidence(f, fmt::format("those of the others have {}", format_number(usual)), usual, "samples",
             "agent.loader", 1);
    remedy(f, "balance", "Give each rank as much data: equal batches, shards of one size.");
  }

  void show_part(const Rank& rank, Finding& f, int64_t n) {
    size_t which = model::kPartCount;
    double most = 0, is = 0, usual = 0;
    for (size_t p = 0; p < model::kPartCount; ++p) {
      if (static_cast<Part>(p) == Part::kCommunication) continue;
      std::vector<double> theirs;
      for (const Rank* r : others_) theirs.push_back(r->parts[p]);
      const double middle = median(theirs);
      if (rank.parts[p] - middle <= most) continue;
      most = rank.parts[p] - middle;
      which = p;
      is = rank.parts[p];
      usual = middle;
    }
    if (which == model::kPartCount) return;
    std::string part(name(static_cast<Part>(which)));
    std::replace(part.begin(), part.end(), '_', ' ');
    evidence(f, fmt::format("its {} takes {} a step", part, ms(is)), is * 1e3, "ms", "timeline", n);
    evidence(f, fmt::format("the {} of the others {}", part, ms(usual)), usual * 1e3, "ms",
             "timeline", n);
  }

  /// The line of the user's that takes so much longer on this rank than on the others.
  void show_line(const Rank& rank, Finding& f, double late, int64_t n) {
    const model::RankLine* worst = nullptr;
    double most = kExplains * late, usual = 0;
    for (const model::RankLine& line : rank.lines) {
      const double middle = usual_at(line.where);
      if (line.seconds - middle <= most) continue;
      most = line.seconds - middle;
      worst = &line;
      usual = middle;
    }
    if (worst == nullptr) return;
    evidence(f,
             fmt::format("{}:{} takes {} a step", escape_terminal(worst->where.file),
                         worst->where.line, ms(worst->seconds)),
             worst->seconds * 1e3, "ms", "stacks", n);
    evidence(f, fmt::format("on the others {}", ms(usual)), usual * 1e3, "ms", "stacks", n);
    if (!f.where) f.where = worst->where;
  }

  // ---- who does something alone, between steps, while the others wait ----

  static const model::RankStep* step_of(const std::vector<model::RankStep>& steps, int64_t index) {
    const auto at =
        std::lower_bound(steps.begin(), steps.end(), index,
                         [](const model::RankStep& s, int64_t wanted) { return s.index < wanted; });
    return at != steps.end() && at->index == index ? &*at : nullptr;
  }

  void find_alone() {
    std::vector<double> usual;  // waiting in a step, by rank
    for (const std::vector<double>& waiting : steps_.waiting) usual.push_back(median(waiting));
    for (const Rank& rank : ranks()) {
      double waited = 0;
      int64_t times = 0, looked = 0;
      for (const model::RankStep& s : rank.aside) {
        // What each of the others waited at least, beyond what it usually does.
        double least = std::numeric_limits<double>::max();
        for (size_t r = 0; r < ranks().size(); ++r) {
          const Rank& other = ranks()[r];
          if (&other == &rank) continue;
          const model::RankStep* step = step_of(other.judged, s.index);
          // It does the same, or that step was not kept.
          const bool too = step == nullptr && step_of(other.aside, s.index) != nullptr;
          if (step != nullptr) least = std::min(least, seconds(step->waiting) - usual[r]);
          if (too) least = 0;
        }
        if (least == std::numeric_limits<double>::max()) continue;
        ++looked;
        if (least < length_) continue;
        waited += least;
        ++times;
      }
      if (times < kFewTimes || 2 * times < looked) continue;
      const double all =
          waited / static_cast<double>(looked) * static_cast<double>(rank.aside.size());
      const double cost = all / static_cast<double>(std::max<int64_t>(rank.steps.count, 1));
      if (cost >= kWorthSaying * (length_ + cost)) add_alone(rank, cost, times);
    }
  }

  /// The common steps are those that it did not lengthen.
  void add_alone(const Rank& rank, double cost, int64_t times) {
    Finding& f = add("dist.straggler",
                     fmt::format("The others wait while rank {} does something alone between steps",
                                 rank.number),
                     0.8, 0);
    f.cost_ms_per_step = cost * 1e3;
    f.gain = (length_ + cost) / length_;
    f.where = rank.aside_at;
    evidence(f, fmt::format("the others wait {} for it, spread over all steps", ms(cost)),
             cost * 1e3, "ms", "timeline", times);
    evidence(f, fmt::format("that was {} times", times), static_cast<double>(times), "times",
             "timeline", times);
    remedy(f, "share_out",
           "Validation, sampling or saving that only one rank does: share it out among the ranks, "
           "or let a process of its own do it.");
  }

  // ---- what collectives cost everybody ----

  /// A collective of Python's objects that takes most: it can be left out, with what its line makes
  /// for it, and those of the gradients stay.
  struct Objects {
    double share = 1;  // of all collectives
    double made = 0;   // seconds a step
  };
  static Objects gathered_objects(const Rank& rank) {
    if (!rank.meets_at || rank.collectives.empty()) return {};
    if (!contains(rank.collectives.front().name, "object")) return {};
    double all = 0;
    for (const model::RankCollective& c : rank.collectives) all += c.seconds;
    const model::RankLine* line = line_at(rank, *rank.meets_at);
    return {rank.collectives.front().seconds / all, line == nullptr ? 0 : line->seconds};
  }

  void find_exposed() {
    std::vector<double> least(steps_.count(), std::numeric_limits<double>::max());
    for (const std::vector<double>& waiting : steps_.waiting) {
      for (size_t k = 0; k < least.size(); ++k) least[k] = std::min(least[k], waiting[k]);
    }
    const double exposed = mean(least);
    report_->exposed = nanos(exposed * 1e9);
    if (ranks().size() < 2 || exposed < kWorthSaying * length_ ||
        surely_above(least, length_) == Sure::kNo)
      return;
    const Rank& rank = ranks().front();
    const auto [share, made] = gathered_objects(rank);
    Finding& f = add("dist.exposed_communication", "Collectives are not hidden behind compute",
                     0.85, share * exposed + made);
    const auto n = static_cast<int64_t>(steps_.count());
    evidence(f, fmt::format("the last rank, too, spends {} a step in collectives", ms(exposed)),
             exposed * 1e3, "ms", "timeline", n);
    evidence(f, fmt::format("that is {} of the step", format_percent(exposed / length_)),
             exposed / length_, "ratio", "timeline", n);
    if (made > 0) {
      evidence(f, fmt::format("making what it gathers takes {} at its line", ms(made)), made * 1e3,
               "ms", "stacks", n);
    }
    f.where = rank.meets_at;
    for (size_t i = 0; i < rank.collectives.size() && i < 3; ++i) {
      const model::RankCollective& c = rank.collectives[i];
      if (c.seconds < kSomeWaiting * length_ || c.name.empty()) continue;
      evidence(f,
               fmt::format("{} takes rank {} {} a step", escape_terminal(c.name), rank.number,
                           ms(c.seconds)),
               c.seconds * 1e3, "ms", "agent.distributed", n);
    }
    remedy(f, "overlap",
           "Begin collectives earlier and let them run beside compute: smaller "
           "buckets, asynchronous operations.");
    remedy(f, "less", "Send less: lower precision, gradients of several batches at once.");
  }

  // ---- what ended the job, or stands still ----

  static bool crashed(const Rank& rank) {
    return std::any_of(rank.findings.begin(), rank.findings.end(),
                       [](const Finding& f) { return f.ended_the_job && f.id != "stall.hang"; });
  }

  /// Whether all were asked to end at once, as a scheduler, a launcher or a user does it. Who is
  /// the first to die of that says nothing.
  bool ended_from_outside() const {
    const std::vector<Rank>& all = report_->ranks;
    TimePoint first = TimePoint::max(), last = TimePoint::min();
    for (const Rank& r : all) {
      if (!r.finished || r.wait_status != all[0].wait_status) return false;
      first = std::min(first, r.end + r.clock);
      last = std::max(last, r.end + r.clock);
    }
    const int status = all[0].wait_status;
    return all.size() > 1 && WIFSIGNALED(status) &&
           (WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGINT) &&
           seconds(last - first) < kAtOnce;
  }

  /// Who failed first: the others fail since they miss it.
  void find_crash() {
    const Rank* first = nullptr;
    for (const Rank& r : ranks()) {
      if (!crashed(r)) continue;
      if (first == nullptr || r.end + r.clock < first->end + first->clock) first = &r;
    }
    if (first == nullptr) return;
    crashed_first_ = first->number;
    if (ended_from_outside()) {
      const auto n = static_cast<int64_t>(ranks().size());
      for (const Finding& f : first->findings) {
        if (!f.ended_the_job || f.id == "stall.hang") continue;
        findings_.push_back(f);
        findings_.back().title = fmt::format("All {} ranks: {}", n, f.title);
        evidence(findings_.back(), fmt::format("{} ranks ended by it at once", n),
                 static_cast<double>(n), "ranks", "probe.processes", n);
      }
      return;
    }
    for (const Finding& f : first->findings) {
      if (!f.ended_the_job || f.id == "stall.hang") continue;
      findings_.push_back(f);
      findings_.back().title = fmt::format("Rank {}: {}", first->number, f.title);
      evidence(findings_.back(), fmt::format("rank {} failed first", first->number), first->number,
               "rank", "probe.processes", static_cast<int64_t>(ranks().size()));
    }
  }

  /// Whether its process ended while others went on waiting for at least `silence`.
  static bool gone(const Rank& rank, TimePoint until, double silence) {
    return rank.finished && seconds(until - (rank.end + rank.clock)) >= silence;
  }

  void find_hang() {
    const bool ended_well = std::all_of(ranks().begin(), ranks().end(), [](const Rank& r) {
      return r.finished && r.wait_status == 0;
    });
    if (ended_well) return;
    std::vector<const Rank*> waiting;
    TimePoint until{};
    std::vector<double> silences, medians;
    double longest = 0;
    for (const Rank& r : ranks()) {
      if (r.state != RankState::kInCollective) continue;
      waiting.push_back(&r);
      until = std::max(until, r.end + r.clock);
      silences.push_back(seconds(r.end - r.last_step_end));
      medians.push_back(seconds(r.steps.median));
      longest = std::max(longest, seconds(r.longest_step));
    }
    if (waiting.empty()) return;
    const double silent = median(silences), usual = median(medians);
    if (usual <= 0 || silent < kSilentMedians * usual || silent < kSilentLongest * longest) return;
    std::vector<const Rank*> missing;
    for (const Rank& r : ranks()) {
      if (r.state == RankState::kInCollective && !gone(r, until, 0.5 * silent)) continue;
      // It may be validating or saving: that is work, and the others are right to wait.
      if (r.state == RankState::kWorking && !gone(r, until, 0.5 * silent)) return;
      missing.push_back(&r);
    }
    if (missing.empty() && report_->absent.empty() &&
        (silent < kHangMedians * usual || silent < kHangSeconds)) {
      return;
    }
    add_hang(waiting, missing, until, silent, usual);
  }

  void add_hang(const std::vector<const Rank*>& waiting, const std::vector<const Rank*>& missing,
                TimePoint until, double silent, double usual) {
    // A hung job is ended by a signal in the end: that was no crash.
    std::erase_if(findings_, [&](const Finding& f) {
      return f.id == "crash.signal" && (missing.empty() || !gone(*missing[0], until, 0.5 * silent));
    });
    std::vector<int32_t> numbers;
    numbers.reserve(missing.size());
    for (const Rank* r : missing) numbers.push_back(r->number);
    std::string title = "The ranks wait in collectives, and none comes out";
    if (!numbers.empty()) {
      title = fmt::format("Rank{} {} {} missing: the others wait in a collective",
                          numbers.size() == 1 ? "" : "s", numbers_text(numbers),
                          numbers.size() == 1 ? "is" : "are");
    } else if (!report_->absent.empty()) {
      title = fmt::format("The ranks wait in a collective; of rank {} there is no recording",
                          numbers_text(report_->absent));
    }
    Finding f;
    f.id = "stall.hang";
    f.title = std::move(title);
    f.confidence = missing.empty() ? 0.8 : 0.95;
    f.ended_the_job = true;
    for (const Rank* r : missing) {
      if (r->at && !f.where) f.where = r->at;
    }
    if (!f.where) f.where = waiting[0]->at;
    size_t shown = 0;
    for (const Rank* r : missing) {
      if (++shown > 8) break;
      evidence(f, fmt::format("rank {} {}", r->number, stands(*r, until, silent)), r->number,
               "rank", "stacks", 1);
    }
    evidence(f, fmt::format("{} ranks wait", waiting.size()), static_cast<double>(waiting.size()),
             "ranks", "stacks", static_cast<int64_t>(waiting.size()));
    evidence(f, fmt::format("no step for {}", ms(silent)), silent * 1e3, "ms", "timeline", 1);
    evidence(f, fmt::format("a step usually takes {}", ms(usual)), usual * 1e3, "ms", "timeline",
             waiting[0]->steps.count);
    evidence(f, fmt::format("the last one was step {}", waiting[0]->last_step),
             static_cast<double>(waiting[0]->last_step), "step", "timeline", 1);
    remedy(f, "stacks", "Look at the missing rank: its stacks, its host, its log.");
    // Who waited for it in vain fails in the end, too; that is no cause.
    const bool own_end = std::any_of(missing.begin(), missing.end(),
                                     [&](const Rank* r) { return r->number == crashed_first_; });
    findings_.insert(own_end ? findings_.end() : findings_.begin(), std::move(f));
  }

  static std::string stands(const Rank& rank, TimePoint until, double silent) {
    const std::string place =
        rank.at ? fmt::format(" at {}:{}", escape_terminal(rank.at->file), rank.at->line) : "";
    if (gone(rank, until, 0.5 * silent)) {
      if (rank.wait_status > 0 && WIFSIGNALED(rank.wait_status)) {
        const char* signal = sigabbrev_np(WTERMSIG(rank.wait_status));
        return fmt::format("was killed by SIG{}", signal != nullptr ? signal : "?");
      }
      return rank.wait_status == 0 ? "has ended: it had fewer steps to do" : "has ended";
    }
    switch (rank.state) {
      case RankState::kStopped:
        return "is stopped" + place;
      case RankState::kBlocked:
        return "waits for something else" + place;
      default:
        return "was not seen any more" + place;
    }
  }

  // ---- what ranks have found by themselves ----

  void find_own() {
    std::map<std::string, std::vector<std::pair<const Rank*, const Finding*>>> by_id;
    for (const Rank& r : ranks()) {
      for (const Finding& f : r.findings) {
        if (!f.ended_the_job) by_id[f.id].emplace_back(&r, &f);
      }
    }
    for (auto& [id, found] : by_id) {
      std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
        return a.second->gain.value_or(0) < b.second->gain.value_or(0);
      });
      if (2 * found.size() > ranks().size()) {
        findings_.push_back(*found[found.size() / 2].second);
        if (meets_) add_up(found, findings_.back());
        continue;
      }
      // Of a rank that keeps step with the others only lateness costs anything.
      const auto& [rank, finding] = found.back();
      if (meets_ && finding->gain) continue;
      findings_.push_back(*finding);
      findings_.back().title = fmt::format("Rank {}: {}", rank->number, finding->title);
    }
  }

  /// What strikes now one rank and now another costs all of them each time: without it a step is
  /// as long as the longest of what is left.
  void add_up(const std::vector<std::pair<const Rank*, const Finding*>>& found, Finding& f) {
    std::vector<std::vector<double>> left = steps_.own;
    for (const auto& [rank, finding] : found) {
      std::vector<double>& own = left[static_cast<size_t>(rank - ranks().data())];
      const auto struck = struck_by(own, finding->cost_ms_per_step.value_or(0) * 1e-3);
      if (!struck) return;
      for (size_t k = 0; k < own.size(); ++k) own[k] -= struck->steps[k] ? struck->by : 0;
    }
    double saved = 0;
    for (size_t k = 0; k < steps_.count(); ++k) {
      double last = 0, last_left = 0;
      for (size_t r = 0; r < left.size(); ++r) {
        last = std::max(last, steps_.own[r][k]);
        last_left = std::max(last_left, left[r][k]);
      }
      saved += last - last_left;
    }
    saved = std::min(saved / static_cast<double>(steps_.count()), 0.999 * length_);
    if (saved < kInTurn * *f.cost_ms_per_step * 1e-3) return;
    evidence(
        f,
        fmt::format("it strikes the ranks in turn, each {} a step", ms(*f.cost_ms_per_step * 1e-3)),
        *f.cost_ms_per_step, "ms", "timeline", static_cast<int64_t>(steps_.count()));
    f.cost_ms_per_step = saved * 1e3;
    f.gain = length_ / (length_ - saved);
  }

  Finding& add(std::string id, std::string title, double confidence, double saved) {
    saved = std::min(saved, 0.999 * length_);
    Finding f;
    f.id = std::move(id);
    f.title = std::move(title);
    f.confidence = confidence;
    f.cost_ms_per_step = saved * 1e3;
    f.gain = length_ / (length_ - saved);
    return findings_.emplace_back(std::move(f));
  }

  void conclude(Diagnosis& out) {
    if (!out.findings.empty()) {
      const Finding& first = out.findings.front();
      out.verdict = first.id;
      out.headline = first.title;
      if (first.cost_ms_per_step) {
        out.headline += ": " + ms(*first.cost_ms_per_step * 1e-3) + " of each step";
      }
      out.headline += ".";
      return;
    }
    const bool enough = std::any_of(ranks().begin(), ranks().end(), [](const Rank& r) {
      return r.finished || r.judged.size() >= 5;
    });
    if (!enough) {
      out.verdict = "none";
      out.headline = "Not enough steps to judge yet.";
    } else {
      out.headline = fmt::format("Healthy: nothing costs the {} ranks more than 5 % of the step.",
                                 ranks().size());
    }
  }

  std::shared_ptr<RankReport> report_;
  CommonSteps steps_;
  double length_ = 0;  // of the mean common step, seconds
  bool meets_ = false;
  int32_t crashed_first_ = -1;
  std::vector<const Rank*> others_;  // that are not late, once it is known who is
  std::vector<Finding> findings_;
};

}  // namespace

std::string numbers_text(const std::vector<int32_t>& numbers) {
  constexpr size_t kShown = 4;
  std::string out;
  const size_t shown = numbers.size() <= kShown + 1 ? numbers.size() : kShown;
  for (size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == shown && shown == numbers.size();
    out += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", numbers[i]);
  }
  if (shown < numbers.size()) out += fmt::format(" and {} more", numbers.size() - shown);
  return out;
}

Diagnosis diagnose_ranks(std::vector<Rank> ranks) { return RankDetector(std::move(ranks)).take(); }

}  // namespace flatout::diagnose
