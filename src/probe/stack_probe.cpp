#include "probe/stack_probe.h"

#include <algorithm>
#include <charconv>

#include "base/cpu_time.h"
#include "base/text.h"
#include "probe/loop_counter.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::probe {

using model::ThreadState;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr uint32_t kMaxLooked = 768;  // threads looked at in a tick; more take turns
constexpr size_t kMaxListed = 20000;  // threads of one process
constexpr Nanos kListPeriod = milliseconds(500);
constexpr Nanos kIdleAfter = milliseconds(500);
constexpr Nanos kIdlePeriod = seconds(1);  // between readings of an idle pool's thread
constexpr int kOpensPerTick = 3;
constexpr int kNativesPerTick = 8;
constexpr Nanos kNativeAfter = seconds(1);  // a process's age before its symbols are read
constexpr int kMaxFailures = 8;  // Python readings in a row, before the process is looked at anew
constexpr size_t kMostWithLoops = 3;  // processes: launchers come before the one that trains
constexpr Nanos kLoopAfter = milliseconds(500);  // a program without Python has found its loop
constexpr Nanos kAwaitedFor = seconds(2);  // by a main thread that leaves the training to another
constexpr size_t kMostUnderPython = 2;  // processes: each has some 18 MB of unwind tables resident
constexpr double kNativeShare = 0.003;  // of a core, for native code under Python
constexpr double kNativeBurstNs = 30e6;
// A thread that is sampled while it runs pays for that at each switch between it and another: some
// microsecond to stop and start the kernel's timer. Share of a core for that, of each thread.
constexpr double kSwitchNs = 1500;
constexpr double kSwitchShare = 0.001, kSwitchBurstNs = 2e6;
constexpr AddressRange kGilSize{0, 256};  // struct _gil_runtime_state: 208 to 232 bytes

bool sleeping(char state) { return state == 'S' || state == 'D' || state == 'T' || state == 't'; }

}  // namespace

struct StackProbe::ThreadEntry {
  int32_t tid = 0;
  int32_t inner_tid = 0;  // as the job itself sees it
  ThreadFiles files;
  std::string name;
  model::ThreadId id = 0;
  bool named = false;
  bool gone = false;
  bool changed = true;    // in this tick
  bool moved = true;      // its Python stack is another than in the last reading
  bool attached = false;  // PythonThread::attached
  Nanos ran{}, window{};  // CPU time since it was last looked at, and how long ago that was
  TimePoint looked{};

  uint64_t on_cpu = 0, delay = 0, slices = 0;
  bool has_schedstat = false;
  char letter = '?';
  RunnableShare share;
  TimePoint parked_since{};

  std::vector<PythonFrame> frames;
  uint64_t native_pc = 0, native_sp = 0;  // of the stack, where it is a blocked native one
  model::StackId stood_in = 0;            // the last of these, in which state, and in which call
  ThreadState stood_as = ThreadState::kUnknown;
  int64_t stood_call = -1;
  bool native_tried = false;
  bool native_running = false;  // the stack is a sample of it running
  NativePlace place = NativePlace::kElsewhere;
  // Who switches often is sampled in short pieces of time, and was meanwhile where it was last.
  double switch_credit_ns = kSwitchBurstNs;
  bool sampled = false, rests = false;
  NativePlace ran_at = NativePlace::kElsewhere;
  model::StackId ran_in = 0;
  model::StackId stack = 0;
  model::StackId deep = 0;  // the same with the native code under it; 0: not known in this reading
  int barren = 0;           // samples in a row without native code
  ThreadState state = ThreadState::kUnknown;
  uint8_t flags = 0;
  int16_t syscall = -1;
  Nanos owed{};  // time not yet delivered

  /// It went on before its native stack was copied: what is there now is of something else.
  void stand_as_before(const std::optional<SyscallInfo>& call) {
    const bool same = state == stood_as && (!call || call->number == stood_call);
    stack = same ? stood_in : 0;
    native_pc = native_sp = 0;
    native_running = false;
  }
};

struct StackProbe::ProcessEntry {
  int32_t pid = 0;
  uint64_t start_ticks = 0;
  std::string exe;
  std::vector<ThreadEntry> threads;  // by tid
  size_t turn = 0;                   // where the next tick goes on, with too many threads
  TimePoint next_list{};
  int32_t inner_pid = 0;  // another than pid in a pid namespace of its own, as in a container
  bool seen = false;

  std::unique_ptr<PythonReader> python;
  bool hopeless = false;  // no Python, or no permission: asked no more until it execs
  int attempts = 0;
  TimePoint next_open{};
  int failures = 0;
  bool fresh = true;  // no Python reading yet
  std::vector<AddressRange> gil;
  std::unordered_map<uint64_t, model::FrameId> frames;
  std::unique_ptr<LoopCounter> loops;
  std::unique_ptr<NativeLoop> native_loop;
  int32_t loop_thread = 0;  // whose loop that is: the main one's, or of one that it awaits
  int32_t awaited = 0;      // the thread that the main one waits for to end, 0: none
  TimePoint awaited_since{};
  uint32_t loops_before = 0;                  // of other threads
  std::unique_ptr<NativeStacks> native;       // of a process without Python
  std::unique_ptr<PlaceWatch> places;         // of one with Python
  std::unique_ptr<PythonNativeStacks> under;  // the same
  TimePoint first_seen{};

  void close_samplers(int32_t tid) {
    if (native != nullptr) native->forget(tid);
    if (places != nullptr) places->forget(tid);
    if (under != nullptr) under->forget(tid);
  }
};

StackProbe::StackProbe(const Scope& scope, bool once)
    : scope_(scope),
      once_(once),
      files_(FileBudget::from_limit()),
      names_(scope.root, once),
      native_credit_ns_(kNativeBurstNs) {}
StackProbe::~StackProbe() = default;

void StackProbe::tick(TimePoint now, Nanos weight, model::Sink& sink) {
  const Nanos begin = thread_cpu();
  cost_ = {};
  ticks_++;
  budget_ = kMaxLooked;
  opens_left_ = kOpensPerTick;
  natives_left_ = kNativesPerTick;
  native_credit_ns_ = std::min(
      kNativeBurstNs, native_credit_ns_ + static_cast<double>(weight.count()) * kNativeShare);
  names_.start_tick();
  for (auto& [pid, process] : processes_) process->seen = false;
  // Each tick starts at another process, so that the budget reaches all of them in turn.
  const auto& jobs = scope_.job->processes();
  for (size_t i = 0; i < jobs.size(); i++) {
    const JobProcess& job = *jobs[(i + ticks_) % jobs.size()];
    auto& process = processes_[job.pid];
    if (process == nullptr || process->start_ticks != job.start_time_ticks) {
      process = std::make_unique<ProcessEntry>();
      process->pid = process->loop_thread = job.pid;
      process->start_ticks = job.start_time_ticks;
      process->first_seen = now;
      process->inner_pid = inner_number("proc/" + std::to_string(job.pid) + "/status", job.pid);
    }
    process->seen = true;
    tick_process(job, *process, now, weight, sink);
  }
  std::erase_if(processes_, [](const auto& entry) { return !entry.second->seen; });
  cost_.cpu = thread_cpu() - begin;
}

void StackProbe::tick_process(const JobProcess& job, ProcessEntry& process, TimePoint now,
                              Nanos weight, model::Sink& sink) {
  if (process.exe != job.exe) {  // exec: nothing learned before holds
    if (!process.exe.empty()) process.first_seen = now;
    process.exe = job.exe;
    process.python.reset();
    process.native.reset();
    process.native_loop.reset();
    process.loop_thread = process.pid;
    process.awaited = 0;
    process.places.reset();
    process.under.reset();
    process.hopeless = false;
    process.attempts = 0;
    process.next_open = now;
    process.next_list = now;
  }
  if (now >= process.next_list) list_threads(process, now);
  if (process.python == nullptr) open_python(job, process, now, sink);

  bool any = process.fresh;
  const size_t count = process.threads.size();
  cost_.threads += static_cast<uint32_t>(count);
  const size_t looked = std::min<size_t>(count, budget_);
  if (looked < count) {
    sink.missing({"stacks.threads",
                  "the job has more threads than are read at once: they take turns",
                  "fewer threads, or a smaller sampling rate"});
  }
  for (ThreadEntry& thread : process.threads) {
    thread.owed += weight;
    thread.changed = false;
  }
  const size_t first = looked < count ? process.turn : 0;
  for (size_t i = 0; i < looked; i++) {
    ThreadEntry& thread = process.threads[(first + i) % count];
    any = look(process, thread, now) || any;
  }
  if (looked < count) process.turn = (first + looked) % count;
  budget_ -= static_cast<uint32_t>(looked);
  cost_.looked += static_cast<uint32_t>(looked);

  if (any && process.python != nullptr) read_python(process, now, sink);
  for (size_t i = 0; i < looked; i++) {
    ThreadEntry& thread = process.threads[(first + i) % count];
    if (thread.changed && (thread.flags & model::kIdleWorker) != 0 && thread.owed > weight) {
      // It was idle until now: that time is not what it does next.
      give(thread, now - weight, thread.owed - weight, sink);
    }
    if (thread.changed) read_state(process, thread, now, sink);
    deliver(process, thread, now, sink);
  }
  tell_native_loop(process, now, sink);
  for (const ThreadEntry& thread : process.threads) {
    if (thread.gone) process.close_samplers(thread.tid);
  }
  if (std::erase_if(process.threads, [](const ThreadEntry& t) { return t.gone; }) != 0) {
    process.next_list = now;
  }
}

/// The number of a process or thread in its innermost pid namespace, which is what its Python
/// knows.
int32_t StackProbe::inner_number(const std::string& status_path, int32_t outer) const {
  std::string status;
  if (!scope_.root.read_into(status_path, status, 8192).ok()) return outer;
  return parse_inner_pid(status).value_or(outer);
}

/// Brings the list of threads up to date.
void StackProbe::list_threads(ProcessEntry& process, TimePoint now) {
  process.next_list = now + kListPeriod;
  auto names = scope_.root.list("proc/" + std::to_string(process.pid) + "/task");
  if (!names.ok()) return;
  tids_.clear();
  for (const std::string& name : *names) {
    if (const auto tid = parse_number<int32_t>(name)) tids_.push_back(*tid);
    if (tids_.size() >= kMaxListed) break;
  }
  std::sort(tids_.begin(), tids_.end());
  const size_t ended = std::erase_if(process.threads, [&](const ThreadEntry& t) {
    if (std::binary_search(tids_.begin(), tids_.end(), t.tid)) return false;
    process.close_samplers(t.tid);
    return true;
  });
  // Where threads live for a moment only, those of the next tick are others.
  if (ended != 0) process.next_list = now;
  size_t at = 0;
  std::vector<ThreadEntry> added;
  for (const int32_t tid : tids_) {
    while (at < process.threads.size() && process.threads[at].tid < tid) at++;
    if (at < process.threads.size() && process.threads[at].tid == tid) continue;
    added.emplace_back();
    added.back().tid = added.back().inner_tid = tid;
    if (process.inner_pid != process.pid) {
      added.back().inner_tid = inner_number(
          "proc/" + std::to_string(process.pid) + "/task/" + std::to_string(tid) + "/status", tid);
    }
  }
  if (added.empty()) return;
  for (ThreadEntry& thread : added) process.threads.push_back(std::move(thread));
  std::sort(process.threads.begin(), process.threads.end(),
            [](const ThreadEntry& a, const ThreadEntry& b) { return a.tid < b.tid; });
}

bool StackProbe::wants_native(const ProcessEntry& process, TimePoint now) const {
  return scope_.root.is_real() && (once_ || now - process.first_seen >= kNativeAfter);
}

/// Whether the native code under a thread's Python frames may be read in this tick.
bool StackProbe::may_look_under(const ProcessEntry& process, const ThreadEntry& thread) const {
  if (process.python == nullptr || thread.frames.empty()) return false;
  if (once_) return true;
  if (native_credit_ns_ <= 0) return false;
  if (process.under != nullptr) return true;
  const auto count = std::count_if(processes_.begin(), processes_.end(), [](const auto& entry) {
    return entry.second->under != nullptr;
  });
  return static_cast<size_t>(count) < kMostUnderPython;
}

/// True if the thread may have done something since it was last read.
bool StackProbe::look(ProcessEntry& process, ThreadEntry& thread, TimePoint now) {
  // Idle pools are looked at every so often only.
  if ((thread.flags & model::kIdleWorker) != 0 &&
      (ticks_ + static_cast<uint64_t>(thread.tid)) % 8 != 0) {
    return false;
  }
  std::array<char, 1024> buffer;
  const auto text = thread.files.read(scope_.root, process.pid, thread.tid, ThreadFiles::kSchedstat,
                                      buffer, files_);
  if (!text.ok()) {
    if (text.error().code == Code::kGone) thread.gone = true;
    thread.has_schedstat = false;
    thread.changed = !thread.gone;
    return thread.changed;
  }
  std::string_view rest = *text;
  const uint64_t on_cpu = parse_number<uint64_t>(next_word(rest)).value_or(0);
  const uint64_t delay = parse_number<uint64_t>(next_word(rest)).value_or(0);
  const uint64_t slices = parse_number<uint64_t>(trim(rest)).value_or(0);
  const bool same = thread.has_schedstat && on_cpu == thread.on_cpu && delay == thread.delay &&
                    slices == thread.slices;
  // A thread that sleeps since before its process's symbols were read has no stack yet.
  const bool due = (process.hopeless || may_look_under(process, thread)) && !thread.native_tried &&
                   wants_native(process, now);
  thread.changed = !same || !sleeping(thread.letter) || due;
  thread.ran = Nanos(static_cast<int64_t>(on_cpu - thread.on_cpu));
  thread.window = now - thread.looked;
  if (thread.has_schedstat) charge_switches(process, thread, slices - thread.slices);
  thread.looked = now;
  thread.on_cpu = on_cpu;
  thread.delay = delay;
  thread.slices = slices;
  thread.has_schedstat = true;
  if (!same || !sleeping(thread.letter)) thread.parked_since = now;
  return thread.changed;
}

void StackProbe::charge_switches(ProcessEntry& process, ThreadEntry& thread, uint64_t switches) {
  const double earned = static_cast<double>(thread.window.count()) * kSwitchShare;
  const double spent = thread.sampled ? static_cast<double>(switches) * kSwitchNs : 0;
  thread.switch_credit_ns = std::min(kSwitchBurstNs, thread.switch_credit_ns + earned - spent);
  if (thread.rests) {
    thread.rests = thread.switch_credit_ns < kSwitchBurstNs / 2;
  } else if (thread.sampled && thread.switch_credit_ns < 0) {
    thread.rests = true;
    thread.sampled = false;
    process.close_samplers(thread.tid);
  }
}

void StackProbe::open_python(const JobProcess& job, ProcessEntry& process, TimePoint now,
                             model::Sink& sink) {
  if (process.hopeless || now < process.next_open || opens_left_ <= 0) return;
  opens_left_--;
  process.attempts++;
  auto reader = PythonReader::open(scope_.root, process.pid, finder_);
  if (reader.ok()) {
    process.python = std::move(*reader);
    process.fresh = true;
    process.failures = 0;
    process.frames.clear();
    for (ThreadEntry& thread : process.threads) {
      thread.frames.clear();
      thread.stack = thread.deep = 0;
    }
    return;
  }
  const Error& error = reader.error();
  if (error.code == Code::kDenied || error.code == Code::kUnsupported) {
    sink.missing({"stacks.python", error.message, error.hint});
    process.hopeless = true;
    return;
  }
  // Not Python, or not yet: an interpreter needs some milliseconds to start.
  // A single look has no time for that.
  const int attempts = once_ ? 1 : 6;
  if (process.attempts >= attempts && !job.python) {
    process.hopeless = true;
    return;
  }
  process.next_open = now + milliseconds(20) * (1 << std::min(process.attempts, 7));
}

void StackProbe::read_python(ProcessEntry& process, TimePoint now, model::Sink& sink) {
  tids_.clear();
  for (const ThreadEntry& thread : process.threads) tids_.push_back(thread.inner_tid);
  cost_.python++;
  const bool loops = count_loops_ && may_count_loops(process);
  process.python->read_loops_of(loops ? process.inner_pid : 0);
  const Status status = process.python->read(reading_, tids_);
  if (!status.ok()) {
    cost_.torn++;
    if (status.error().code == Code::kDenied) {
      sink.missing({"stacks.python", status.error().message, status.error().hint});
      process.hopeless = true;
      process.python.reset();
    } else if (++process.failures >= kMaxFailures) {
      process.python.reset();  // it may have been replaced by exec
      process.attempts = 0;
      process.next_open = now + milliseconds(100);
    }
    return;
  }
  process.failures = 0;
  process.fresh = false;
  join(process, sink);
  if (loops) tell_loops(process, now, sink);
}

bool StackProbe::may_count_loops(const ProcessEntry& process) const {
  const auto has_loop = [](const ProcessEntry& one) {
    return one.loops != nullptr || (one.native_loop != nullptr && one.native_loop->counts());
  };
  if (has_loop(process)) return true;
  const auto count = std::count_if(processes_.begin(), processes_.end(),
                                   [&](const auto& entry) { return has_loop(*entry.second); });
  return static_cast<size_t>(count) < kMostWithLoops;
}

void StackProbe::tell_loops(ProcessEntry& process, TimePoint now, model::Sink& sink) {
  for (const PythonThread& thread : reading_.threads) {
    if (thread.tid != process.inner_pid || thread.torn || thread.loops.empty()) continue;
    if (process.loops == nullptr) process.loops = std::make_unique<LoopCounter>();
    for (const LoopRounds& loop :
         process.loops->update(outside_iterators(thread, *process.python))) {
      const PythonCode& code = process.python->code(loop.code);
      const int64_t key = int64_t{process.pid} << 32 | int64_t{loop.depth} << 16 | loop.slot;
      const std::string name =
          code.function + " (" + code.file + ":" + std::to_string(code.first_line) + ")";
      const model::EntityId entity =
          sink.entity(model::EntityKind::kLoop, key, name, process_entity(sink, process.pid));
      sink.reading(model::SignalId::kLoopRounds, entity, now, static_cast<double>(loop.rounds));
    }
  }
}

/// Where the main thread does nothing but wait for another one to end, that one trains.
void StackProbe::note_awaited(ProcessEntry& process, const std::optional<SyscallInfo>& call,
                              std::span<const symbols::NativeFrame> frames, TimePoint now) {
  process.awaited = 0;
  const bool joins = std::ranges::any_of(frames, [](const symbols::NativeFrame& frame) {
    return frame.function == "pthread_join" || frame.function == "std::thread::join";
  });
  const auto awaited = call && joins ? awaited_thread(*call) : std::nullopt;
  if (!awaited) return;
  const auto it = std::ranges::find(process.threads, *awaited, &ThreadEntry::inner_tid);
  if (it == process.threads.end()) return;
  process.awaited = it->tid;
  process.awaited_since = now;
}

void StackProbe::follow_awaited(ProcessEntry& process, TimePoint now) {
  const bool counts = process.native_loop != nullptr && process.native_loop->counts();
  const auto follow = [&](int32_t tid) {
    process.loop_thread = tid;
    if (process.native_loop != nullptr) process.loops_before += process.native_loop->number();
    process.native_loop.reset();
  };
  if (process.loop_thread != process.pid &&
      std::ranges::find(process.threads, process.loop_thread, &ThreadEntry::tid) ==
          process.threads.end()) {
    return follow(process.pid);  // it has ended: the main thread goes on
  }
  if (counts || process.awaited == 0 || process.awaited == process.loop_thread) return;
  if (now - process.awaited_since >= kAwaitedFor) follow(process.awaited);
}

/// The native stack of the thread with the loop that was read just now.
void StackProbe::show_native_loop(ProcessEntry& process, bool trains, TimePoint now) {
  if (!count_loops_ || once_ || now - process.first_seen < kLoopAfter) return;
  // A launcher only waits for its child, or for a signal.
  if (process.native_loop == nullptr && trains && may_count_loops(process)) {
    process.native_loop = std::make_unique<NativeLoop>(process.loop_thread);
  }
  if (process.native_loop != nullptr && process.native_loop->wants_stacks()) {
    process.native_loop->saw(process.native->path());
  }
}

void StackProbe::tell_native_loop(ProcessEntry& process, TimePoint now, model::Sink& sink) {
  follow_awaited(process, now);
  if (process.native_loop == nullptr) return;
  if (!count_loops_) {
    process.native_loop.reset();
    return;
  }
  const auto rounds = process.native_loop->rounds(now);
  if (const Status& trouble = process.native_loop->trouble(); !trouble.ok()) {
    sink.missing({"loop.rounds", trouble.error().message, trouble.error().hint});
  }
  if (!rounds) return;
  const int64_t key =
      int64_t{process.pid} << 32 | (process.loops_before + process.native_loop->number());
  const model::EntityId entity =
      sink.entity(model::EntityKind::kLoop, key, process.native_loop->name(),
                  process_entity(sink, process.pid));
  sink.reading(model::SignalId::kLoopRounds, entity, now, static_cast<double>(*rounds));
}

/// Gives each thread of the process its stack out of reading_.
void StackProbe::join(ProcessEntry& process, model::Sink& sink) {
  for (ThreadEntry& thread : process.threads) {
    thread.moved = thread.attached = false;
    thread.flags &= model::kIdleWorker;
  }
  process.gil.clear();
  for (const uint64_t gil : reading_.gils) {
    process.gil.push_back({gil + kGilSize.begin, gil + kGilSize.end});
  }
  for (const PythonThread& from : reading_.threads) {
    auto it = std::find_if(process.threads.begin(), process.threads.end(),
                           [&](const ThreadEntry& t) { return t.inner_tid == from.tid; });
    if (it == process.threads.end()) {
      if (from.tid != 0) process.next_list = {};  // a thread that we do not know yet
      continue;
    }
    ThreadEntry& thread = *it;
    thread.attached = from.attached;
    if (from.holds_gil) thread.flags |= model::kHoldsGil;
    if (from.attached && reading_.gc_running) thread.flags |= model::kGcRunning;
    if (from.torn) {
      cost_.torn++;
      if (thread.changed) {
        thread.frames.clear();
        thread.stack = thread.deep = 0;
      }
      continue;
    }
    if (from.frames == thread.frames) continue;
    thread.moved = true;
    thread.frames = from.frames;
    model::StackId stack = 0;
    for (size_t i = from.frames.size(); i-- > 0;) {
      const PythonFrame& frame = from.frames[i];
      const uint64_t key = uint64_t{frame.code} << 32 | frame.line;
      auto known = process.frames.find(key);
      if (known == process.frames.end()) {
        const PythonCode& code = process.python->code(frame.code);
        const auto kind =
            frame.generator ? model::FrameKind::kGenerator : model::FrameKind::kPython;
        known = process.frames.emplace(key, sink.frame(code.function, code.file, frame.line, kind))
                    .first;
      }
      stack = sink.stack(stack, known->second);
    }
    thread.stack = stack;
    thread.deep = 0;
  }
}

void StackProbe::read_state(ProcessEntry& process, ThreadEntry& thread, TimePoint now,
                            model::Sink& sink) {
  cost_.read++;
  std::array<char, 1024> buffer;
  const auto text =
      thread.files.read(scope_.root, process.pid, thread.tid, ThreadFiles::kStat, buffer, files_);
  if (!text.ok()) {
    const Code why = text.error().code;
    thread.gone = thread.gone || why == Code::kGone || why == Code::kNotFound;
    return;
  }
  const auto stat = parse_pid_stat(*text);
  if (!stat || stat->zombie()) {
    thread.gone = true;
    return;
  }
  const bool was_runnable = thread.letter == 'R';
  thread.letter = stat->state;
  if (thread.has_schedstat) {
    thread.share.update(now, thread.on_cpu, thread.delay, was_runnable && stat->state == 'R');
  }
  thread.share.update_modes(stat->user_ticks, stat->system_ticks);
  if (!thread.named || thread.name != stat->comm) {
    thread.name = std::string(stat->comm);
    thread.id = sink.thread(process.pid, thread.tid, thread.name);
    thread.named = true;
  }
  thread.syscall = -1;
  thread.place = NativePlace::kElsewhere;
  thread.deep = 0;
  thread.flags &= static_cast<uint8_t>(~model::kIdleWorker);
  if (stat->state == 'R') {
    // Who waits for the interpreter's lock wakes every 5 ms to ask for it, and then may have to
    // wait for a core to do so: that is still waiting for the lock, as long as nothing was done.
    if (thread.state == ThreadState::kGilWait && !thread.moved && thread.has_schedstat &&
        (thread.flags & model::kHoldsGil) == 0 && thread.ran * 50 < thread.window) {
      return;
    }
    if (thread.has_schedstat && thread.share.take_waiting()) {
      thread.state = ThreadState::kRunQueue;
    } else if (thread.share.take_kernel()) {
      thread.state = ThreadState::kKernel;
    } else {
      const bool python = !thread.frames.empty() && thread.attached;
      thread.state = python ? ThreadState::kOnCpuPython : ThreadState::kOnCpuNative;
    }
    if (process.hopeless) {
      read_native(process, thread, std::nullopt, now, sink);
    } else if (PlaceWatch* places = watch_places(process, now)) {
      if (thread.state == ThreadState::kOnCpuNative || thread.state == ThreadState::kKernel) {
        if (!thread.rests) thread.ran_at = places->running(thread.tid);
        thread.place = thread.ran_at;
      }
      thread.sampled = thread.sampled || !thread.rests;
      if (thread.state != ThreadState::kRunQueue && !thread.rests) {
        read_under_python(process, thread, std::nullopt, now, sink);
      }
    }
    return;
  }
  std::array<char, 1024> call_buffer;
  const auto call_text = thread.files.read(scope_.root, process.pid, thread.tid,
                                           ThreadFiles::kSyscall, call_buffer, files_);
  std::optional<SyscallInfo> call;
  if (call_text.ok()) {
    call = parse_syscall(*call_text);
  } else if (call_text.error().code == Code::kDenied) {
    sink.missing({"stacks.syscall", call_text.error().message,
                  "run flatout as the user of the job, or give it CAP_SYS_PTRACE"});
  }
  std::array<char, 1024> wchan_buffer;
  const auto wchan_text = thread.files.read(scope_.root, process.pid, thread.tid,
                                            ThreadFiles::kWchan, wchan_buffer, files_);
  const std::string_view wchan = wchan_text.ok() ? trim(*wchan_text) : std::string_view();
  thread.state = blocked_state(stat->state, call, wchan, process.gil);
  if (call) thread.syscall = static_cast<int16_t>(std::min(call->number, 0x7FFF));
  if (process.hopeless) {
    if (!call) return thread.stand_as_before(call);
    return read_native(process, thread, call, now, sink);
  }
  if (call && thread.state == ThreadState::kLock) {
    if (PlaceWatch* places = watch_places(process, now)) thread.place = places->blocked(*call);
  }
  if (call && thread.state != ThreadState::kGilWait) {
    read_under_python(process, thread, call, now, sink);
  }
}

/// nullptr as long as the process is not known to be one of Python's, or starts.
PlaceWatch* StackProbe::watch_places(ProcessEntry& process, TimePoint now) {
  if (process.python == nullptr || !wants_native(process, now)) return nullptr;
  if (process.places == nullptr) process.places = std::make_unique<PlaceWatch>(process.pid);
  return process.places.get();
}

/// The native stack of a thread of a process without Python. `call`: where it is blocked; else it
/// runs.
void StackProbe::read_native(ProcessEntry& process, ThreadEntry& thread,
                             const std::optional<SyscallInfo>& call, TimePoint now,
                             model::Sink& sink) {
  if (!wants_native(process, now)) return;
  if (call && call->pc == thread.native_pc && call->sp == thread.native_sp) {
    if (process.native_loop != nullptr && thread.tid == process.loop_thread) {
      process.native_loop->saw_again();
    }
    return;
  }
  if (thread.tid == process.pid) process.awaited = 0;
  const bool ran_before = thread.native_running;
  const model::StackId before = thread.stack;
  thread.native_pc = thread.native_sp = thread.stack = 0;
  thread.native_running = false;
  if (!once_ && natives_left_-- <= 0) return;
  if (process.native == nullptr) {
    process.native = std::make_unique<NativeStacks>(scope_.root, process.pid, names_);
  }
  if (!call && thread.rests) {
    thread.stack = thread.ran_in;
    thread.native_running = thread.stack != 0;
    return;
  }
  thread.sampled = thread.sampled || !call;
  const Nanos names_before = names_.spent();
  const auto& frames =
      call ? process.native->blocked(thread.tid, *call) : process.native->running(thread.tid);
  cost_.native += names_.spent() - names_before;
  thread.native_tried = !process.native->later();
  if (process.native->went_on()) return thread.stand_as_before(call);
  if (thread.tid == process.pid) note_awaited(process, call, frames, now);
  if (!frames.empty() && thread.tid == process.loop_thread)
    show_native_loop(process, !call || thread.state == ThreadState::kLock, now);
  if (!frames.empty() && thread.tid != process.loop_thread && process.native_loop != nullptr &&
      process.native_loop->wants_stacks())
    process.native_loop->saw_elsewhere(process.native->path());
  for (size_t i = frames.size(); i-- > 0;) {
    thread.stack = sink.stack(thread.stack, sink.frame(frames[i].function, frames[i].file,
                                                       frames[i].line, model::FrameKind::kNative));
  }
  if (call && !frames.empty()) {
    thread.native_pc = call->pc;
    thread.native_sp = call->sp;
    thread.stood_in = thread.stack;
    thread.stood_as = thread.state;
    thread.stood_call = call->number;
  }
  if (!call) {
    // Without a new sample it had no core: it stands where it stood, unless it slept meanwhile.
    if (frames.empty() && ran_before) thread.stack = before;
    thread.native_running = thread.stack != 0;
    if (thread.native_running) thread.ran_in = thread.stack;
  }
  if (const Status& trouble = process.native->trouble(); !trouble.ok()) {
    sink.missing({"stacks.native", trouble.error().message, trouble.error().hint});
  }
}

/// Whether a blocked thread has not run since it was looked at.
bool StackProbe::stood_still(const ProcessEntry& process, ThreadEntry& thread) {
  std::array<char, 1024> buffer;
  const auto text = thread.files.read(scope_.root, process.pid, thread.tid, ThreadFiles::kSchedstat,
                                      buffer, files_);
  if (!text.ok() || !thread.has_schedstat) return false;
  std::string_view rest = *text;
  const auto on_cpu = parse_number<uint64_t>(next_word(rest));
  next_word(rest);
  const auto slices = parse_number<uint64_t>(trim(rest));
  return on_cpu == thread.on_cpu && slices == thread.slices;
}

/// Whether a thread is at the Python line where it was.
bool StackProbe::has_same_frames(ProcessEntry& process, const ThreadEntry& thread) {
  tids_.clear();
  for (const ThreadEntry& t : process.threads) tids_.push_back(t.inner_tid);
  if (!process.python->read(check_, tids_).ok()) return false;
  const auto it = std::find_if(check_.threads.begin(), check_.threads.end(),
                               [&](const PythonThread& t) { return t.tid == thread.inner_tid; });
  return it != check_.threads.end() && !it->torn && it->frames == thread.frames;
}

/// The native code under the innermost Python frame of a thread, where it is certain that the two
/// belong together. `call`: where it is blocked; else it runs.
void StackProbe::read_under_python(ProcessEntry& process, ThreadEntry& thread,
                                   const std::optional<SyscallInfo>& call, TimePoint now,
                                   model::Sink& sink) {
  constexpr int kBarren = 8;
  if (!may_look_under(process, thread) || !wants_native(process, now)) return;
  // A thread that is in the interpreter all the time is asked less often.
  const bool turn = (ticks_ + static_cast<uint64_t>(thread.tid)) % 4 == 0;
  if (!once_ && !call && thread.barren >= kBarren && !turn) return;
  if (process.under == nullptr) {
    process.under = std::make_unique<PythonNativeStacks>(scope_.root, process.pid,
                                                         process.python->runtime(), names_);
  }
  const Nanos begin = thread_cpu(), names_before = names_.spent();
  const std::vector<symbols::NativeFrame>* frames = nullptr;
  if (call) {
    frames = &process.under->blocked(*call);
    if (!frames->empty() && !stood_still(process, thread)) frames = nullptr;
  } else if (process.under->sample(thread.tid) && has_same_frames(process, thread)) {
    frames = &process.under->sampled();
  }
  if (frames != nullptr && !frames->empty()) {
    thread.deep = thread.stack;
    for (size_t i = frames->size(); i-- > 0;) {
      thread.deep = sink.stack(thread.deep, sink.frame((*frames)[i].function, (*frames)[i].file, 0,
                                                       model::FrameKind::kUnderPython));
    }
  }
  if (frames != nullptr && process.under->certain()) {
    thread.native_tried = true;
    if (!call) thread.barren = frames->empty() ? std::min(thread.barren + 1, kBarren) : 0;
  }
  if (const Status& trouble = process.under->trouble(); !trouble.ok()) {
    sink.missing({"stacks.native", trouble.error().message, trouble.error().hint});
  }
  // The tables of names are read once and are not charged: else there would be nothing for long.
  const Nanos spent = thread_cpu() - begin;
  native_credit_ns_ -= static_cast<double>((spent - (names_.spent() - names_before)).count());
  cost_.native += spent;
}

void StackProbe::deliver(ProcessEntry& process, ThreadEntry& thread, TimePoint now,
                         model::Sink& sink) {
  if (thread.gone || !thread.named) return;
  const bool parked = !thread.changed && sleeping(thread.letter);
  const bool pool = thread.frames.empty() && thread.tid != process.pid &&
                    (thread.state == ThreadState::kLock || thread.state == ThreadState::kPoll);
  if (parked && pool && now - thread.parked_since >= kIdleAfter) {
    thread.flags |= model::kIdleWorker;
    if (thread.owed < kIdlePeriod) return;
  }
  give(thread, now, thread.owed, sink);
}

void StackProbe::give(ThreadEntry& thread, TimePoint at, Nanos weight, model::Sink& sink) {
  model::StackReading reading{
      .at = at, .thread = thread.id, .stack = thread.deep != 0 ? thread.deep : thread.stack};
  if (thread.place != NativePlace::kElsewhere) {
    const std::string_view leaf =
        thread.place == NativePlace::kAllocator ? "malloc" : model::kSpinWaitFrame;
    reading.stack = sink.stack(reading.stack, sink.frame(leaf, "", 0, model::FrameKind::kNative));
  }
  reading.weight_us =
      static_cast<uint32_t>(std::clamp<int64_t>(weight.count() / 1000, 0, 0xFFFFFFFF));
  reading.state = thread.state;
  reading.flags = thread.flags;
  reading.syscall = thread.syscall;
  sink.stack_reading(reading);
  thread.owed -= weight;
  cost_.readings++;
}

}  // namespace flatout::probe
