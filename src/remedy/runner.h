// Runs of the real job for the search: scratch folders, the budget, Ctrl-C.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "remedy/scratch.h"
#include "remedy/search.h"

namespace flatout::remedy {

class JobRunner : public Runner {
 public:
  /// Makes a scratch folder, removes those that killed ones left behind, and sees whether files can
  /// be isolated. From here on SIGINT, SIGTERM
  /// and SIGHUP stop the search. Errors: kIo where no scratch folder can be made.
  static Result<std::unique_ptr<JobRunner>> open(std::vector<std::string> command,
                                                 double budget_seconds, Judge judge,
                                                 std::function<void(const std::string&)> tell,
                                                 Watch watch = nullptr);

  /// Why the user's files cannot be covered by an overlay; "" where they can.
  const std::string& why_not_isolated() const { return why_not_isolated_; }
  /// The budget counts from here.
  void start_clock() { begin_ = MonotonicClock::now(); }

  Result<TrialRun> run(const Setting& setting, const Length& length, bool show_output) override;
  double seconds_left() override;
  bool stopped() override;
  void tell(const std::string& text) override { tell_(text); }
  int runs() const { return runs_; }
  ~JobRunner() override;
  JobRunner(const JobRunner&) = delete;
  JobRunner& operator=(const JobRunner&) = delete;

 private:
  JobRunner(std::vector<std::string> command, double budget_seconds, Judge judge,
            std::function<void(const std::string&)> tell, Watch watch)
      : command_(std::move(command)),
        budget_(budget_seconds),
        judge_(std::move(judge)),
        tell_(std::move(tell)),
        watch_(std::move(watch)) {}

  void let_go_of_files();
  void take_input();

  std::vector<std::string> command_;
  double budget_;
  Judge judge_;
  std::function<void(const std::string&)> tell_;
  Watch watch_;
  std::unique_ptr<Scratch> scratch_;
  std::string why_not_isolated_;
  TimePoint begin_ = MonotonicClock::now();
  int runs_ = 0;
  int input_ = -1;
  int64_t input_from_ = 0;
  bool cold_ = false;             // the first run waited for the disk
  std::set<std::string> opened_;  // files that runs of the job opened for reading
};

}  // namespace flatout::remedy
