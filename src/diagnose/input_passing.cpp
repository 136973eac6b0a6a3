// Passing batches on: what makers and the training thread take to hand them over.
#include <algorithm>
#include <utility>

#include "diagnose/input_causes.h"

namespace flatout::diagnose {

using model::Part;

namespace {

constexpr double kUnpickle = 2.0;  // times what pickling took: more than that is no unpickling
// In the queue of producers that idle: in any way, and with batches that have come.
constexpr double kMostOfStep = 0.3, kMuchOfStep = 0.2;
constexpr double kHandles = 0.25;  // of that time on a core, from which passing on is work
constexpr double kPasses = 0.5;    // the same, with what those who send take meanwhile

/// What a step spends on handing batches over, in seconds.
class Passing {
 public:
  Passing(const RunView& view, const BatchTimes& times);
  bool is_nothing() const { return passing_ + handling_ <= 0 && !has_come_; }
  InputCause cause() const;

 private:
  void look_at_queue();
  void add_both_sides(Relief& relief) const;
  // Taking a batch out of the queue is passing it, too: the training thread unpickles it, and frees
  // the objects of the one before at the same line.
  Profile::Filter takes_over() const {
    return [line = line_](const Cell& c) {
      return takes(c) && ((c.traits & kInQueue) != 0 || (line != 0 && c.user == line));
    };
  }
  static bool takes(const Cell& c) {
    return c.role == Role::kTrainer && c.part == Part::kInputWait && on_cpu(c.act);
  }

  const RunView& view_;
  const BatchTimes& times_;
  model::FrameId line_ = 0;  // at which most of it is done
  double in_queue_ = 0;      // waiting or working
  double handling_ = 0;      // of the training thread, on a core
  double passing_ = 0;       // of those who make batches, per batch
  bool has_come_ = false;    // batches that were made in time
  bool between_ = false;     // neither side has much to do: what lies between them holds both up
  bool taking_ = false;      // handing over is more than putting together
};

Passing::Passing(const RunView& view, const BatchTimes& times) : view_(view), times_(times) {
  const auto hot = view.profile().hottest(
      [](const Cell& c) { return takes(c) && (c.traits & kInQueue) != 0; }, view.run());
  if (hot) line_ = hot->frame;
  if (view.loader().kind == LoaderKind::kProcesses) {
    handling_ = view.per_step(Role::kTrainer, takes_over());
  }
  look_at_queue();
  // Few readings may say more, but it takes about as long as pickling, which is measured.
  if (times.handover > 0 && !between_) {
    handling_ = std::min(handling_, kUnpickle * times.handover);
  }
  taking_ = between_ || handling_ + times.handover > times.collate;
  // Whatever makes a batch, it is handed over.
  passing_ = times.collate + (taking_ ? times.handover : 0);
}

/// Producers that idle while the step waits in their queue for most of its time: what lies between
/// them, hundreds of descriptors for as many little tensors, holds both up.
void Passing::look_at_queue() {
  in_queue_ = view_.per_step(Role::kTrainer, [](const Cell& c) {
    return c.part == Part::kInputWait && (c.traits & kInQueue) != 0 && c.act != Act::kRunQueue;
  }) * (1 - std::min(1.0, view_.cpu().others / std::max(view_.cpu().usable, 1e-9)));
  // A pipe holds little: who sends much waits for the training thread to take it, and the other way
  // round.
  const double sending = view_.per_step(Role::kProducer, [](const Cell& c) {
    return c.part == Part::kInputWait && (c.traits & kInQueue) != 0 && on_cpu(c.act);
  });
  has_come_ = taken_over(view_) > kPasses * in_queue_;
  const bool passes =
      has_come_ || handling_ > kHandles * in_queue_ || handling_ + sending > kPasses * in_queue_;
  const double least = has_come_ ? kMuchOfStep : kMostOfStep;
  between_ = view_.loader().kind == LoaderKind::kProcesses &&
             view_.loader().busy < kProducersBusy && in_queue_ > least * view_.steps().mean &&
             passes;
}

/// What both sides take on a core for it goes with it, in whichever thread. Most of that is too
/// short for readings: they say what else is done.
void Passing::add_both_sides(Relief& relief) const {
  const auto works = [](const Cell& c) { return on_cpu(c.act); };
  const double samples = view_.per_step(Role::kProducerPool, works) +
                         view_.per_step(Role::kProducer, [&](const Cell& c) {
                           return works(c) && makes_samples(view_, c);
                         });
  const double trains =
      view_.per_step(Role::kPool, works) +
      view_.per_step(Role::kTrainer,
                     [&, own = takes_over()](const Cell& c) { return works(c) && !own(c); }) +
      view_.per_step(Role::kHelper, [&](const Cell& c) {
        return works(c) && !c.aside && (c.traits & kInQueue) == 0;
      });
  const double step = view_.steps().mean, producers = view_.cpu().producers;
  relief.fetch_cpu = std::max(0.0, producers * step - samples) / batches_per_step(view_);
  relief.trainer_cpu = std::max(0.0, (view_.cpu().job - producers) * step - trains);
}

InputCause Passing::cause() const {
  const Profile::Filter collates = [&view = view_](const Cell& c) {
    return makes_batches(view, c) && !makes_samples(view, c);
  };
  // Threads of the training process that only pass batches on take cores and the lock from it.
  const double beside = view_.per_step(Role::kHelper, [](const Cell& c) {
    return !c.aside && (c.traits & kInQueue) != 0 && on_cpu(c.act);
  });
  const double handling = taking_ ? handling_ : 0;
  Relief relief{.fetch = passing_,
                .fetch_cpu = cpu_among(view_, times_, passing_),
                .trainer = gil_for_passing(view_),
                .trainer_cpu = handling + beside,
                .handling = handling,
                .uneven = between_ ? in_queue_ - handling_ : 0};
  if (between_) add_both_sides(relief);
  // Who puts so much into a batch is to blame, where that is code of the user's.
  const bool at_loop = taking_ && !(between_ && view_.where(collates));
  return {"input.collate", "Putting batches together and passing them on bounds the loader", relief,
          between_ ? std::max(in_queue_, times_.total) : passing_ + handling_,
          at_loop ? takes_over() : collates};
}

}  // namespace

double taken_over(const RunView& view) {
  return view.per_step(Role::kTrainer, [](const Cell& c) {
    return c.part == Part::kInputWait && (c.traits & kTakesOver) != 0 && c.act != Act::kRunQueue;
  });
}

double batches_per_step(const RunView& view) {
  const double batches = static_cast<double>(view.loader().batches);
  const double steps = static_cast<double>(view.steps().count);
  return batches > 0 && steps > 0 ? batches / steps : 1;
}

std::optional<InputCause> passing_cause(const RunView& view, const BatchTimes& times) {
  const Passing passing(view, times);
  if (passing.is_nothing()) return std::nullopt;
  return passing.cause();
}

}  // namespace flatout::diagnose
