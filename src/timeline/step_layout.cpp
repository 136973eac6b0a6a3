#include "timeline/step_layout.h"

#include <algorithm>
#include <map>
#include <utility>

#include "timeline/beside_training.h"
#include "timeline/painter.h"
#include "timeline/step_evidence.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

// A forward pass without gradients is one too, where it belongs to the step.
SliceKind telling(SliceKind kind) {
  return kind == SliceKind::kValidation ? SliceKind::kForward : kind;
}

bool is_major(SliceKind kind) {
  kind = telling(kind);
  return kind == SliceKind::kInputWait || kind == SliceKind::kForward ||
         kind == SliceKind::kBackward || kind == SliceKind::kOptimizer;
}

/// The number that at least 60 % of `counts` are; 0 if there is none.
size_t usual(const std::vector<size_t>& counts) {
  std::map<size_t, size_t> times;
  for (const size_t count : counts) ++times[count];
  const auto most = std::ranges::max_element(times, {}, [](const auto& t) { return t.second; });
  return most != times.end() && most->second * 10 >= counts.size() * 6 ? most->first : 0;
}

// Phases that look like validation and come in one of so many steps, and so many times, are none.
constexpr size_t kOften = 5, kMinOften = 8;

// What a step does before its first backward pass, counted: validation shows as more of it.
struct Shape {
  size_t cycles = 0;  // a wait for input, then a forward pass
  size_t forwards = 0;
  size_t waits = 0;
  size_t validations = 0;  // of the forward passes, those marked as validation
};

struct Span {
  size_t from, to;  // of painted
};

class StepBuilder {
 public:
  StepBuilder(const Run& run, ThreadId thread, std::span<const Slice> slices)
      : run_(run), thread_(thread), slices_(slices), painted_(paint(slices)) {
    double forward = 0, backward = 0;
    for (const Painted& p : painted_) {
      if (p.kind == SliceKind::kForward) forward += to_s(p.end - p.begin);
      if (p.kind == SliceKind::kBackward) backward += to_s(p.end - p.begin);
      phases_ = phases_ || (is_major(p.kind) && p.kind != SliceKind::kInputWait);
    }
    // A loss function alone may be a module: a forward pass takes a good part of its backward.
    real_forward_ = forward > 0 && forward >= 0.15 * backward;
    for (const Slice& slice : slices) {
      if (slice.kind == SliceKind::kEpoch) epochs_.push_back(slice.end);
    }
    std::ranges::sort(epochs_);
  }

  Layout build(const std::vector<StepEnd>& ends) {
    if (ends.empty()) return {};
    set_intervals(ends);
    const std::vector<Step> passes = cut_validation();
    Layout out;
    out.moments = lay_out();
    out.steps = std::exchange(steps_, passes);
    out.pieces = std::exchange(pieces_, {});
    if (std::ranges::any_of(painted_, [](const Painted& p) { return is_major(p.kind); }))
      out.moments.clear();
    if (!steps_.empty()) lay_out();
    out.passes = std::move(steps_);
    return out;
  }

 private:
  /// Gives all time of the steps to their parts.
  std::vector<Moment> lay_out() {
    open_.clear();
    for (size_t i = 0; i < steps_.size(); ++i) explain(i);
    OpenTimeContext context{thread_, real_forward_, phases_};
    if (!phases_) {
      context.team = beside_training(run_, thread_).computes_in_team();
      context.native = !run_.processes[run_.threads[thread_].process].python;
    }
    std::vector<Moment> moments = judge_open_times(run_, painted_, context, open_);
    merge();
    flag_stops_and_epochs();
    return moments;
  }

  Span span_of(TimePoint begin, TimePoint end) const {
    const auto from = std::ranges::upper_bound(painted_, begin, {}, &Painted::end);
    const auto to = std::ranges::lower_bound(painted_, end, {}, &Painted::begin);
    const auto index = [&](auto it) { return static_cast<size_t>(it - painted_.begin()); };
    return {index(from), std::max(index(from), index(to))};
  }

  // The first step has no step before it: it begins with what it waits for.
  TimePoint first_begin(TimePoint end) const {
    const Span span = span_of(TimePoint{}, end);
    TimePoint begin = end;
    for (size_t i = span.to; i-- > span.from;) {
      const Painted& p = painted_[i];
      if (begin - p.end > std::chrono::seconds(1)) break;  // what came long before is set-up
      begin = p.begin;
    }
    return begin;
  }

  void set_intervals(const std::vector<StepEnd>& ends) {
    TimePoint begin = ends.front().index < 0 ? ends.front().at : first_begin(ends.front().at);
    bool after_gap = false;
    size_t gap = 0;
    for (const StepEnd& end : ends) {
      while (gap < run_.gaps.size() && run_.gaps[gap].end <= begin) ++gap;
      const bool in_gap = gap < run_.gaps.size() && run_.gaps[gap].begin < end.at;
      if (in_gap) {
        after_gap = true;  // of this one only the end is known
      } else if (begin < end.at) {
        Step step;
        step.index = end.index;
        step.begin = begin;
        step.end = end.at;
        step.after_gap = after_gap || end.lost;
        steps_.push_back(step);
        after_gap = false;
      }
      begin = end.at;
    }
  }

  Shape shape_of(const Step& step) const {
    Shape shape;
    bool waiting = false;
    SliceKind last{};
    const Span span = span_of(step.begin, step.end);
    for (size_t i = span.from; i < span.to; ++i) {
      if (!is_major(painted_[i].kind)) continue;
      shape.validations += painted_[i].kind == SliceKind::kValidation;
      const SliceKind kind = telling(painted_[i].kind);
      if (kind == SliceKind::kBackward || kind == SliceKind::kOptimizer) break;
      if (kind == SliceKind::kInputWait) {
        if (last != kind) ++shape.waits;
        waiting = true;
      } else {
        ++shape.forwards;
        shape.cycles += waiting;
        waiting = false;
      }
      last = kind;
    }
    return shape;
  }

  // A validation phase is neither part of a step nor a stall: the step begins after it. It shows as
  // forward passes (marked as validation or not) that no backward pass follows, more of them than a
  // step usually has: a teacher or a generator without gradients is part of every step.
  // Gives what was cut off, in passes.
  std::vector<Step> cut_validation() {
    std::vector<size_t> counts[4];
    std::vector<Shape> shapes;
    for (const Step& step : steps_) {
      const Shape shape = shapes.emplace_back(shape_of(step));
      counts[0].push_back(shape.cycles);
      counts[1].push_back(shape.forwards);
      counts[2].push_back(shape.waits);
      counts[3].push_back(shape.validations);
    }
    const Shape common{usual(counts[0]), usual(counts[1]), usual(counts[2]), usual(counts[3])};
    std::vector<std::pair<Step*, TimePoint>> cuts;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const TimePoint cut = validation_end(steps_[i], shapes[i], common);
      if (cut > steps_[i].begin && cut < steps_[i].end) cuts.emplace_back(&steps_[i], cut);
    }
    // A policy that is asked again after every few updates is part of the training.
    if (cuts.size() >= kMinOften && cuts.size() * kOften >= steps_.size()) return {};
    std::vector<Step> passes;
    for (const auto& [step, cut] : cuts) {
      if (!step->after_gap) add_passes(step->begin, cut, passes);
      step->begin = cut;
      step->validation = true;
    }
    return passes;
  }

  // Some of the forward passes may be one slice, so that they look unlike: each piece is a tenth of
  // the phase, or one of them where that is more.
  void add_passes(TimePoint begin, TimePoint end, std::vector<Step>& passes) const {
    const Span span = span_of(begin, end);
    const Nanos least = (end - begin) / 10;
    for (size_t i = span.from; i < span.to; ++i) {
      if (telling(painted_[i].kind) != SliceKind::kForward) continue;
      if (painted_[i].end < begin + least) continue;
      Step pass;
      pass.index = static_cast<int64_t>(passes.size());
      pass.begin = begin;
      pass.end = begin = std::min(painted_[i].end, end);
      passes.push_back(pass);
    }
  }

  TimePoint validation_end(const Step& step, const Shape& shape, const Shape& common) const {
    // So many come before the step's own.
    const auto surplus = [](size_t count, size_t most, size_t own) {
      return count > most ? count - own : 0;
    };
    Shape extra;
    extra.validations = surplus(shape.validations, common.validations, common.validations);
    if (common.cycles > 0) {
      extra.cycles = surplus(shape.cycles, common.cycles, common.cycles);
    } else if (common.forwards > 0) {
      extra.forwards = surplus(shape.forwards, 2 * common.forwards, common.forwards);
    } else if (common.waits > 0 && shape.forwards == 0) {
      extra.waits = surplus(shape.waits, 2 * common.waits + 1, common.waits);
    }
    if (extra.cycles + extra.forwards + extra.waits + extra.validations == 0) return {};

    Shape seen;
    bool waiting = false;
    SliceKind last{};
    TimePoint cut{};
    const Span span = span_of(step.begin, step.end);
    for (size_t i = span.from; i < span.to; ++i) {
      const Painted& p = painted_[i];
      if (!is_major(p.kind)) continue;
      const SliceKind kind = telling(p.kind);
      if (kind == SliceKind::kBackward || kind == SliceKind::kOptimizer) break;
      if (kind == SliceKind::kInputWait) {
        if (last != kind) ++seen.waits;
        if (extra.waits > 0 && seen.waits <= extra.waits) cut = p.end;
        waiting = true;
      } else {
        ++seen.forwards;
        seen.cycles += waiting;
        seen.validations += p.kind == SliceKind::kValidation;
        waiting = false;
        if ((extra.cycles > 0 && seen.cycles <= extra.cycles) ||
            (extra.forwards > 0 && seen.forwards <= extra.forwards) ||
            (p.kind == SliceKind::kValidation && seen.validations <= extra.validations)) {
          cut = p.end;
        }
      }
      last = kind;
    }
    return after_exhausted(cut, step.end);
  }

  // The wait that only found the validation's loader empty belongs to the validation too.
  TimePoint after_exhausted(TimePoint cut, TimePoint end) const {
    const Span span = span_of(cut, end);
    for (size_t i = span.from; i < span.to; ++i) {
      const Painted& p = painted_[i];
      if (p.begin < cut || !is_major(p.kind)) continue;
      const auto epoch = std::ranges::lower_bound(epochs_, p.begin);
      const bool exhausted =
          p.kind == SliceKind::kInputWait && epoch != epochs_.end() && *epoch <= p.end;
      return exhausted ? *epoch : cut;
    }
    return cut;
  }

  void add(size_t step, TimePoint begin, TimePoint end, Part part) {
    if (begin >= end) return;
    steps_[step].part(part) += end - begin;
    pieces_.push_back({begin, end, part});
  }

  // Gives the painted time of a step to its parts, and what lies between by what is around it.
  void explain(size_t index) {
    const Step step = steps_[index];
    const Span span = span_of(step.begin, step.end);
    size_t compute = span.to;  // the first backward pass, else the optimizer
    for (size_t i = span.from; i < span.to && compute == span.to; ++i) {
      if (painted_[i].kind == SliceKind::kBackward) compute = i;
    }
    for (size_t i = span.from; i < span.to && compute == span.to; ++i) {
      if (painted_[i].kind == SliceKind::kOptimizer) compute = i;
    }
    bool wait_ahead = false;
    for (size_t i = span.from; i < compute; ++i) {
      wait_ahead = wait_ahead || painted_[i].kind == SliceKind::kInputWait;
    }

    // next_major[i]: the next telling piece at or after i; kStep stands for the step's end.
    std::vector<SliceKind> next_major(span.to - span.from + 1, SliceKind::kStep);
    for (size_t i = span.to; i-- > span.from;) {
      const size_t k = i - span.from;
      next_major[k] = is_major(painted_[i].kind) ? telling(painted_[i].kind) : next_major[k + 1];
    }
    SliceKind last = SliceKind::kStep;  // the last telling piece; kStep: none yet
    TimePoint at = step.begin;
    for (size_t i = span.from; i <= span.to; ++i) {
      const TimePoint until = i < span.to ? std::max(at, painted_[i].begin) : step.end;
      if (until > at) {
        explain_gap(index, at, until, last, next_major[i - span.from], wait_ahead);
      }
      if (i == span.to) break;
      const Painted& p = painted_[i];
      const TimePoint end = std::min(p.end, step.end);
      add(index, until, end, part_of(p.kind));
      at = std::max(at, end);
      if (is_major(p.kind)) last = telling(p.kind);
      if (p.kind == SliceKind::kInputWait) wait_ahead = false;
    }
  }

  void explain_gap(size_t index, TimePoint begin, TimePoint end, SliceKind last, SliceKind next,
                   bool wait_ahead) {
    const auto open = [&](bool after_input) {
      open_.push_back({begin, end, static_cast<uint32_t>(index), after_input});
    };
    if (!phases_) return open(false);
    switch (last) {
      case SliceKind::kStep:  // since the optimizer of the step before
        return wait_ahead ? add(index, begin, end, Part::kOther) : open(false);
      case SliceKind::kInputWait:
        if (next == SliceKind::kInputWait) return add(index, begin, end, Part::kInputWait);
        return open(true);
      case SliceKind::kForward:
        if (next == SliceKind::kInputWait || next == SliceKind::kStep) break;
        return add(index, begin, end, Part::kForward);
      default:  // after a backward pass or one of several optimizers
        if (next == SliceKind::kBackward) return add(index, begin, end, Part::kForward);
        break;
    }
    add(index, begin, end, Part::kOther);
  }

  // The open times become pieces, in the order in which a loop does these things.
  void merge() {
    for (const OpenTime& open : open_) {
      const TimePoint input = open.begin + open.other;
      const TimePoint rest = input + open.input;
      add(open.step, open.begin, input, Part::kOther);
      add(open.step, input, rest, Part::kInputWait);
      add(open.step, rest, open.end, phases_ ? Part::kForward : Part::kCompute);
    }
    std::ranges::sort(pieces_, {}, &PartPiece::begin);
    size_t out = 0;
    for (const PartPiece& piece : pieces_) {
      if (out > 0 && pieces_[out - 1].end == piece.begin && pieces_[out - 1].part == piece.part) {
        pieces_[out - 1].end = piece.end;
      } else {
        pieces_[out++] = piece;
      }
    }
    pieces_.resize(out);
  }

  void flag_stops_and_epochs() {
    const auto step_at = [&](TimePoint at) -> Step* {
      const auto it = std::ranges::upper_bound(steps_, at, {}, &Step::end);
      return it != steps_.end() && it->begin < at ? &*it : nullptr;
    };
    std::map<Step*, int64_t> stopped_us;
    for (const StackReading& reading : run_.readings) {
      if (reading.thread != thread_ || reading.state != ThreadState::kStopped) continue;
      if (Step* step = step_at(reading.at)) stopped_us[step] += reading.weight_us;
    }
    for (const auto& [step, us] : stopped_us) {
      if (us * 20'000 > step->length().count()) step->after_gap = true;  // more than 5 %
    }
    for (const Slice& slice : slices_) {
      if (slice.kind != SliceKind::kProfiler) continue;
      auto step = std::ranges::upper_bound(steps_, slice.begin, {}, &Step::end);
      for (; step != steps_.end() && step->begin < slice.end; ++step) step->after_gap = true;
    }
    for (const Slice& slice : slices_) {
      if (slice.kind != SliceKind::kLoaderStart && slice.kind != SliceKind::kEpoch) continue;
      if (Step* step = step_at(slice.end)) step->epoch_start = true;
    }
  }

  const Run& run_;
  ThreadId thread_;
  std::span<const Slice> slices_;
  std::vector<Painted> painted_;
  std::vector<TimePoint> epochs_;
  bool phases_ = false;
  bool real_forward_ = false;
  std::vector<Step> steps_;
  std::vector<OpenTime> open_;
  std::vector<PartPiece> pieces_;
};

}  // namespace

Layout lay_out_steps(const Run& run, ThreadId thread, std::span<const Slice> slices,
                     const std::vector<StepEnd>& ends) {
  return StepBuilder(run, thread, slices).build(ends);
}

}  // namespace flatout::timeline
