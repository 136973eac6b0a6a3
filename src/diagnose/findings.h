// Collects what the detectors find: cost, gain and the threshold below which nothing is said.
#pragma once

#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "diagnose/view.h"
#include "model/finding.h"

namespace flatout::diagnose {

// A cause that costs less of the step than this is not worth a word (findings.md, "healthy").
inline constexpr double kWorthSaying = 0.05;
// The same where no steps are known, so that the cost is only a share of the time.
inline constexpr double kWorthSayingBlind = 0.2;
// Readings that a cost must rest on, where it rests on readings alone.
inline constexpr int64_t kFewReadings = 5;

class Findings {
 public:
  explicit Findings(const RunView& view) : view_(view) {}

  /// A cause without which a step would take `saved` seconds less (a share of the time where there
  /// are no steps). nullptr where that is not worth saying.
  model::Finding* add(std::string_view id, std::string title, double confidence, double saved);
  /// A cause without a cost per step.
  model::Finding& add_outside(std::string_view id, std::string title, double confidence);
  /// A cause that ended the job.
  model::Finding& add_fatal(std::string_view id, std::string title, double confidence);

  /// What is left of a step of so many seconds that no longer has `saved` of them, and that of
  /// `waits` on an idle core. `busier`: cores that work then and are idle now.
  double left_of(double step, double saved, double waits, double busier = 0) const;
  bool has(std::string_view id) const;
  /// Seconds per step that a finding says; 0 if it is not there.
  double cost(std::string_view id) const;
  void drop(std::string_view id);
  const std::list<model::Finding>& all() const { return findings_; }
  /// All of them, in the order in which they were added; none are left.
  std::vector<model::Finding> take();

 private:
  const RunView& view_;
  std::list<model::Finding> findings_;  // where one is dropped, the others stay where they are
};

/// What ended the job first, then by gain; what will end it soon ranks as if it cost much.
void sort_by_gain(std::vector<model::Finding>& findings);

/// `text` says `value` in words; the number in it is the number beside it.
void evidence(model::Finding& f, std::string text, double value, std::string unit,
              std::string source, int64_t readings = 0);
void remedy(model::Finding& f, std::string id, std::string text);
/// What there is to do about the interpreter's lock; `otherwise`: in a Python that always has it.
void unlock(const RunView& view, model::Finding& f, std::string otherwise);
/// Seconds in words: "12.4 ms".
std::string ms(double seconds);
/// "12.5 ms a step"; without steps "12.5 ms of each second".
std::string per_step_text(const RunView& view, double seconds);
/// " while nothing works"; "" where something on the machine does, beside the training thread and
/// those that compute for it.
std::string while_nothing_works(const RunView& view);

/// Whether both are known, and the same line of the same file.
bool same_line(const std::optional<model::Where>& a, const std::optional<model::Where>& b);

// Of the job's time, what lies between the steps from which it is worth asking why.
inline constexpr double kMuchBetween = 0.2;

// The detectors, one file a group. Each looks at the view and adds what it finds.
void detect_crash(const RunView& view, Findings& findings);
void detect_input(const RunView& view, Findings& findings);
void detect_validation(const RunView& view, Findings& findings);
/// Why validations and rollouts take long, where they take much of the job's time.
std::vector<model::Finding> find_in_passes(const RunView& view);
/// Makes gains of the steps those of the whole time, where much of it lies between them.
void spread_gains(const RunView& view, std::vector<model::Finding>& findings);
/// Where nothing else was found though the steps wait for batches.
void detect_late_batches(const RunView& view, Findings& findings);
void detect_cpu(const RunView& view, Findings& findings);
void detect_precision(const RunView& view, Findings& findings);
void detect_padding(const RunView& view, Findings& findings);
/// What a step does besides training; not what is told already.
void detect_side_work(const RunView& view, Findings& findings);
void detect_interpreter(const RunView& view, Findings& findings);
/// Many tiny operations; not what is told already.
void detect_python_bound(const RunView& view, Findings& findings);
/// Tracers and profilers of Python that were left on.
void detect_watchers(const RunView& view, Findings& findings);
/// TensorFlow that runs operation by operation.
void detect_eager(const RunView& view, Findings& findings);
/// Keras' fit, evaluate or predict, called for a batch or a sample.
void detect_fit_calls(const RunView& view, Findings& findings);
void detect_processes(const RunView& view, Findings& findings);
/// Whether children that nobody reaps left no pid for the job, which ended by it: that is then
/// told.
bool detect_pids_end(const RunView& view, Findings& findings);
void detect_lock(const RunView& view, Findings& findings);
/// Backward passes that go again through what earlier ones of the same step went through.
void detect_retained(const RunView& view, Findings& findings);
void detect_allocator(const RunView& view, Findings& findings);
/// What the job ends by soon.
void detect_growth(const RunView& view, Findings& findings);
void detect_memory(const RunView& view, Findings& findings);
void detect_stalls(const RunView& view, Findings& findings);
void detect_device(const RunView& view, Findings& findings);
/// Whether the device ended the job, which is then told: no memory left, or lost.
bool detect_device_end(const RunView& view, Findings& findings);
void detect_hang(const RunView& view, Findings& findings);
void detect_stolen(const RunView& view, Findings& findings);    // where nothing else was found
void detect_periodic(const RunView& view, Findings& findings);  // last: what others left unnamed

}  // namespace flatout::diagnose
