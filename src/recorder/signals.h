// Signals of a program that stands between a user and a job in one process group.
// What the terminal sends reaches the job by itself; what was sent to flatout alone is passed on.
// To tell kill(flatout) from kill(-group), a sentinel process in the same group waits for signals
// too: a signal that it gets as well was sent to the group.
#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "recorder/event_loop.h"
#include "recorder/launch.h"

namespace flatout::recorder {

struct SignalHandlers {
  std::function<void()> child;            // a child changed its state
  std::function<void()> before_stop;      // flatout is about to be stopped (Ctrl-Z)
  std::function<void()> continued;        // it goes on
  std::function<void(int)> asked_to_end;  // attach only: Ctrl-C, SIGTERM, SIGHUP
};

class SignalRelay {
 public:
  /// `relay`: for `run`; else for `attach`, where signals end flatout only. Call before any thread
  /// is started: the mask is the process's.
  static Result<std::unique_ptr<SignalRelay>> open(EventLoop& loop, bool relay,
                                                   SignalHandlers handlers);
  ~SignalRelay();
  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;

  const InheritedSignals& inherited() const { return inherited_; }
  /// Signals go to this child from now on; 0: to nobody.
  void set_job(int32_t pid) { job_ = pid; }
  /// Whether SIGINT came to this process, by Ctrl-C or from somebody.
  bool interrupted() const { return interrupted_; }
  int32_t sentinel() const { return sentinel_; }
  /// Passes on what has waited long enough for the sentinel to object.
  void tick(TimePoint now);
  /// When tick() is next needed.
  TimePoint deadline() const;

 private:
  struct Waiting {
    int signal = 0;
    bool queued = false;  // sent with a value
    int value = 0;
    TimePoint due;
  };

  SignalRelay(EventLoop& loop, bool relay, SignalHandlers handlers);
  void start_sentinel();
  void on_signals();
  void on_signal(const signalfd_siginfo& info);
  void on_sentinel();
  void pass_on(const Waiting& waiting);
  void stop_self(int signal);

  EventLoop& loop_;
  bool relay_;
  SignalHandlers handlers_;
  InheritedSignals inherited_{};
  bool interrupted_ = false;
  int fd_ = -1;
  int32_t job_ = 0;
  int32_t sentinel_ = 0;
  int sentinel_pipe_ = -1;
  std::vector<Waiting> waiting_;
  std::vector<TimePoint> group_seen_;  // by signal: when the sentinel last got it
};

}  // namespace flatout::recorder
