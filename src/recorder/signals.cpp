#include "recorder/signals.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fs.h"

namespace flatout::recorder {
namespace {

// A signal to the group is given to its members one after another: so long apart at most.
constexpr Nanos kGroupSpread = std::chrono::milliseconds(100);

bool stops(int signal) { return signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU; }

sigset_t relayed_signals() {
  sigset_t set;
  sigfillset(&set);
  // These mean that flatout itself is broken, or cannot be blocked.
  for (const int signal :
       {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
    sigdelset(&set, signal);
  }
  return set;
}

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCONT, SIGTSTP, SIGCHLD}) {
    sigaddset(&set, signal);
  }
  return set;
}

// The sentinel: waits for signals and says which. It ends with flatout, however that ends.
[[noreturn]] void be_sentinel(int pipe, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NAME, "fl-signals");
  if (::getppid() != parent) ::_exit(0);
  const int limit = 1024;
  for (int fd = 0; fd < limit; ++fd) {
    if (fd != pipe) ::close(fd);  // not to hold the job's pipes and terminal open
  }
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  for (;;) {
    siginfo_t info;
    const int signal = ::sigwaitinfo(&all, &info);
    if (signal <= 0) continue;
    const auto byte = static_cast<unsigned char>(signal);
    if (::write(pipe, &byte, 1) < 0 && errno == EPIPE) ::_exit(0);
  }
}

}  // namespace

SignalRelay::SignalRelay(EventLoop& loop, bool relay, SignalHandlers handlers)
    : loop_(loop), relay_(relay), handlers_(std::move(handlers)), group_seen_(NSIG + 1) {}

Result<std::unique_ptr<SignalRelay>> SignalRelay::open(EventLoop& loop, bool relay,
                                                       SignalHandlers handlers) {
  std::unique_ptr<SignalRelay> out(new SignalRelay(loop, relay, std::move(handlers)));
  const sigset_t set = relay ? relayed_signals() : ending_signals();
  ::sigprocmask(SIG_BLOCK, &set, &out->inherited_.mask);
  // Children must be waited for, whatever whoever started us does with its own.
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &standard, &out->inherited_.child);
  ::sigaction(SIGPIPE, nullptr, &out->inherited_.pipe);
  if (!relay) {
    standard.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &standard, nullptr);
  }
  if (relay) out->start_sentinel();
  out->fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (out->fd_ < 0) return fs::error_from_errno(errno, "cannot watch for signals");
  FLATOUT_TRY_STATUS(
      loop.add(out->fd_, EPOLLIN, [raw = out.get()](uint32_t) { raw->on_signals(); }));
  return out;
}

SignalRelay::~SignalRelay() {
  if (fd_ >= 0) {
    loop_.remove(fd_);
    ::close(fd_);
  }
  if (sentinel_pipe_ >= 0) {
    loop_.remove(sentinel_pipe_);
    ::close(sentinel_pipe_);
  }
  if (sentinel_ > 0) {
    ::kill(sentinel_, SIGKILL);
    ::waitpid(sentinel_, nullptr, 0);
  }
}

void SignalRelay::start_sentinel() {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
  const pid_t self = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) be_sentinel(pipe[1], self);
  ::close(pipe[1]);
  if (pid < 0 || !loop_.add(pipe[0], EPOLLIN, [this](uint32_t) { on_sentinel(); }).ok()) {
    ::close(pipe[0]);
    return;
  }
  sentinel_ = pid;
  sentinel_pipe_ = pipe[0];
}

void SignalRelay::on_sentinel() {
  unsigned char signals[64];
  const ssize_t got = ::read(sentinel_pipe_, signals, sizeof signals);
  if (got == 0) {  // killed: by whom it may be, we go on without
    loop_.remove(sentinel_pipe_);
    ::close(sentinel_pipe_);
    sentinel_pipe_ = -1;
    return;
  }
  const TimePoint now = MonotonicClock::now();
  for (ssize_t i = 0; i < got; ++i) {
    const int signal = signals[i];
    if (signal < NSIG) group_seen_[static_cast<size_t>(signal)] = now;
    std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.signal == signal; });
  }
}

void SignalRelay::on_signals() {
  signalfd_siginfo info;
  while (::read(fd_, &info, sizeof info) == sizeof info) on_signal(info);
}

void SignalRelay::on_signal(const signalfd_siginfo& info) {
  const int signal = static_cast<int>(info.ssi_signo);
  if (signal == SIGCHLD) return handlers_.child();
  if (signal == SIGCONT) handlers_.continued();
  if (signal == SIGINT) interrupted_ = true;
  if (!relay_) {
    if (stops(signal)) return stop_self(signal);
    if (signal != SIGCONT) handlers_.asked_to_end(signal);
    return;
  }
  // From the kernel (terminal, timers, limits; a broken pipe names ourselves): the job gets its
  // own. From the job itself: never sent back to it.
  const bool by_someone = info.ssi_code <= 0 && static_cast<pid_t>(info.ssi_pid) != ::getpid() &&
                          (job_ == 0 || static_cast<int32_t>(info.ssi_pid) != job_);
  if (by_someone) {
    const TimePoint now = MonotonicClock::now();
    const bool to_group =
        sentinel_pipe_ >= 0 && now - group_seen_[static_cast<size_t>(signal)] < 2 * kGroupSpread;
    if (!to_group) {
      waiting_.push_back({signal, info.ssi_code == SI_QUEUE, info.ssi_int,
                          sentinel_pipe_ >= 0 ? now + kGroupSpread : now});
      tick(now);
    }
  }
  if (stops(signal)) stop_self(signal);
}

void SignalRelay::tick(TimePoint now) {
  std::vector<Waiting> due;
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (waiting.due > now) return false;
    due.push_back(waiting);
    return true;
  });
  for (const Waiting& waiting : due) pass_on(waiting);
}

TimePoint SignalRelay::deadline() const {
  TimePoint first = TimePoint::max();
  for (const Waiting& waiting : waiting_) first = std::min(first, waiting.due);
  return first;
}

void SignalRelay::pass_on(const Waiting& waiting) {
  if (job_ <= 0) return;
  if (waiting.queued) {
    sigval value{};
    value.sival_int = waiting.value;
    if (::sigqueue(job_, waiting.signal, value) == 0) return;
  }
  ::kill(job_, waiting.signal);
}

void SignalRelay::stop_self(int signal) {
  // What was sent to us alone goes to the job before we stand still.
  tick(TimePoint::max());
  handlers_.before_stop();
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  // The default action, not SIGSTOP: in an orphaned process group, where nobody could let us go on,
  // it does nothing.
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace flatout::recorder
