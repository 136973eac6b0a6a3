// Synthetic runs for the tests of this room: a job with two loader workers that is bound by
// decoding, and what is hostile, empty or huge. Deterministic, test only.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "model/comparison.h"
#include "model/finding.h"
#include "model/run.h"

namespace flatout::report::testing {

using namespace model;  // NOLINT: test code reads better so

constexpr int64_t kMs = 1'000'000;

class RunBuilder {
 public:
  RunBuilder() {
    run.begin = time_point_ns(1'000'000 * kMs);
    run.end = run.begin;
    run.entities.push_back({EntityKind::kHost, 0, kNoEntity, "host"});
  }

  TimePoint at(double ms) const { return run.begin + nanos(ms * 1e6); }

  StringId string(const std::string& text) {
    for (StringId i = 0; i < run.strings.size(); ++i) {
      if (run.strings[i] == text) return i;
    }
    run.strings.push_back(text);
    return static_cast<StringId>(run.strings.size() - 1);
  }

  ProcessId process(int32_t pid, const std::string& name, bool main = false) {
    Process p;
    p.pid = pid;
    p.ppid = 1;
    p.start = run.begin;
    p.end = run.end;
    p.in_job = true;
    p.main = main;
    p.python = true;
    p.ended = true;
    p.name = name;
    p.command = "python " + name;
    run.processes.push_back(p);
    return static_cast<ProcessId>(run.processes.size() - 1);
  }

  ThreadId thread(ProcessId process, int32_t tid, const std::string& name) {
    Thread t;
    t.process = process;
    t.tid = tid;
    t.name = name;
    t.is_main = tid == run.processes[process].pid;
    run.threads.push_back(t);
    return static_cast<ThreadId>(run.threads.size() - 1);
  }

  /// A stack from frames "function@file:line", outermost first.
  StackId stack(const std::vector<std::string>& frames) {
    StackId node = 0;
    for (const std::string& text : frames) {
      const size_t at_sign = text.find('@');
      const size_t colon = text.rfind(':');
      Frame f;
      f.function = string(text.substr(0, at_sign));
      f.file = string(text.substr(at_sign + 1, colon - at_sign - 1));
      f.line = static_cast<uint32_t>(std::stoi(text.substr(colon + 1)));
      run.frames.push_back(f);
      run.stacks.push_back({node, static_cast<FrameId>(run.frames.size() - 1)});
      node = static_cast<StackId>(run.stacks.size() - 1);
    }
    return node;
  }

  void reading(double ms, ThreadId thread, StackId stack, ThreadState state, uint8_t flags = 0) {
    run.readings.push_back({at(ms), thread, stack, 10'000, state, flags, -1});
  }

  void slice(SliceKind kind, ThreadId thread, double begin, double end, int64_t value = 0,
             int64_t value2 = 0) {
    Slice s;
    s.begin = at(begin);
    s.end = at(end);
    s.kind = kind;
    s.thread = thread;
    s.value = value;
    s.value2 = value2;
    run.slices.push_back(s);
  }

  void sample(SignalId signal, EntityId entity, double ms, double value) {
    for (Series& s : run.series) {
      if (s.signal == signal && s.entity == entity) {
        s.readings.push_back({at(ms), value});
        return;
      }
    }
    run.series.push_back({signal, entity, {{at(ms), value}}});
  }

  EntityId entity(EntityKind kind, int64_t key, const std::string& name) {
    run.entities.push_back({kind, key, kNoEntity, name});
    return static_cast<EntityId>(run.entities.size() - 1);
  }

  void step(double begin, double end, const std::vector<std::pair<Part, double>>& parts) {
    Step s;
    s.index = static_cast<int64_t>(run.steps.steps.size());
    s.begin = at(begin);
    s.end = at(end);
    Nanos left = s.end - s.begin;
    for (const auto& [part, ms] : parts) {
      s.part(part) = nanos(ms * 1e6);
      left -= s.part(part);
    }
    s.part(Part::kOther) += left;
    run.steps.steps.push_back(s);
    run.end = std::max(run.end, s.end);
  }

  Run run;
};

/// 200 steps of about 61 ms, of which 37 wait for input; every 50th saves a checkpoint; two
/// workers.
inline Run decode_bound_run(int step_count = 200) {
  RunBuilder b;
  Run& run = b.run;
  run.info = {{"command", "python train.py --data shapes --epochs 2"},
              {"host.name", "hopper"},
              {"host.cores", "2"},
              {"kernel.version", "6.1.0"},
              {"python.version", "3.11.2"},
              {"torch.version", "2.13.0+cpu"},
              {"loader.num_workers", "2"},
              {"loader.batch_size", "32"}};
  const ProcessId main = b.process(4100, "train.py", true);
  const ThreadId loop = b.thread(main, 4100, "MainThread");
  const ProcessId w0 = b.process(4101, "pt_data_worker");
  const ProcessId w1 = b.process(4102, "pt_data_worker");
  const ThreadId worker[2] = {b.thread(w0, 4101, "pt_data_worker"),
                              b.thread(w1, 4102, "pt_data_worker")};
  const StackId wait = b.stack({"<module>@/home/u/train.py:80", "train@/home/u/train.py:52",
                                "__next__@/usr/lib/torch/utils/data/dataloader.py:733",
                                "get@/usr/lib/python3.11/multiprocessing/queues.py:103"});
  const StackId forward =
      b.stack({"<module>@/home/u/train.py:80", "train@/home/u/train.py:54",
               "forward@/home/u/model.py:21", "conv2d@/usr/lib/torch/nn/modules/conv.py:456"});
  const StackId backward = b.stack({"<module>@/home/u/train.py:80", "train@/home/u/train.py:56",
                                    "backward@/usr/lib/torch/_tensor.py:520"});
  const StackId save = b.stack({"<module>@/home/u/train.py:80", "train@/home/u/train.py:60",
                                "save@/usr/lib/torch/serialization.py:849"});
  const StackId decode =
      b.stack({"_worker_loop@/usr/lib/torch/utils/data/_utils/worker.py:308",
               "__getitem__@/home/u/data.py:41", "decode@/usr/lib/PIL/Image.py:917"});
  const EntityId disk = b.entity(EntityKind::kDisk, 65024, "vda");
  const EntityId proc[3] = {b.entity(EntityKind::kProcess, 4100, "train.py"),
                            b.entity(EntityKind::kProcess, 4101, "pt_data_worker"),
                            b.entity(EntityKind::kProcess, 4102, "pt_data_worker")};
  const EntityId other = b.entity(EntityKind::kOther, 900, "backupd");
  const EntityId loop_entity = b.entity(EntityKind::kThread, 4100, "MainThread");

  double t = 400;
  double cpu[3] = {0, 0, 0};
  int64_t fetched = 0;
  for (int i = 0; i < step_count; ++i) {
    const bool warmup = i < 5;
    const double wave = 3 * std::sin(i * 0.7) + (i % 17 == 0 ? 9 : 0);
    const double wait_ms = (warmup ? 90 : 37) + wave;
    const double checkpoint = i % 50 == 49 ? 120 : 0;
    const double length = wait_ms + 8 + 12 + 2 + checkpoint + 2;
    b.step(t, t + length,
           {{Part::kInputWait, wait_ms},
            {Part::kForward, 8},
            {Part::kBackward, 12},
            {Part::kOptimizer, 2},
            {Part::kCheckpoint, checkpoint}});
    run.steps.steps.back().warmup = warmup;
    run.steps.steps.back().epoch_start = i % 100 == 0;
    b.slice(SliceKind::kInputWait, loop, t, t + wait_ms);
    const int w = i % 2;
    b.slice(SliceKind::kFetch, worker[w], t - length * 0.9, t + wait_ms - 1, 32, fetched++);
    b.slice(SliceKind::kHandover, worker[w], t + wait_ms - 1, t + wait_ms);
    for (int tick = 0; tick * 10 < length; ++tick) {
      const double m = tick * 10;
      const bool waits = m < wait_ms;
      const bool saves = m > wait_ms + 22 && checkpoint > 0;
      b.reading(t + m, loop,
                waits             ? wait
                : saves           ? save
                : m < wait_ms + 8 ? forward
                                  : backward,
                waits   ? ThreadState::kPoll
                : saves ? ThreadState::kDisk
                        : ThreadState::kOnCpuNative);
      for (const ThreadId id : worker) {
        b.reading(t + m, id, decode,
                  i % 7 == 0 ? ThreadState::kRunQueue : ThreadState::kOnCpuNative);
      }
    }
    if (checkpoint > 0) b.slice(SliceKind::kCheckpoint, loop, t + length - 122, t + length - 2);
    t += length;
    cpu[0] += 24 * kMs;
    cpu[1] += length * 0.98 * kMs;
    cpu[2] += length * 0.97 * kMs;
    for (int p = 0; p < 3; ++p) {
      b.sample(SignalId::kProcCpuUser, proc[p], t, cpu[p]);
      b.sample(SignalId::kProcRss, proc[p], t, (300 + 40 * p + i * 0.1) * 1048576.0);
    }
    b.sample(SignalId::kThreadRunDelay, loop_entity, t, i * 1.5 * kMs);
    b.sample(SignalId::kOthersCpu, 0, t, i * 2.0 * kMs);
    b.sample(SignalId::kOtherCpu, other, t, i * 1.0 * kMs);
    b.sample(SignalId::kMemCached, 0, t, (2000.0 + i) * 1048576.0);
    b.sample(SignalId::kMemAvailable, 0, t, 6e9 - i * 1e6);
    b.sample(SignalId::kDiskReadBytes, disk, t, i * 40e3);
    b.sample(SignalId::kDiskBusy, disk, t, i * 0.4 * kMs);
    b.sample(SignalId::kPsiCpuSome, 0, t, i * 20.0 * kMs);
    b.sample(SignalId::kProcMinorFaults, proc[0], t, i * 120.0);
  }
  run.end = b.at(t + 150);
  for (Process& p : run.processes) p.end = run.end;
  run.finished = true;
  run.wait_status = 0;
  run.steps.source = StepSource::kHooks;
  run.steps.thread = loop;
  StepSummary& s = run.steps.summary;
  s.count = step_count;
  s.warmup = 5;
  s.median = nanos(61.3e6);
  s.mean = nanos(62.9e6);
  s.p95 = nanos(70.2e6);
  s.samples_per_s = 509;
  s.breakdown = {0.61, 0, 0.13, 0.2, 0.03, 0, 0, 0, 0.03, 0};
  run.missing = {{"gpu", "no NVIDIA driver", ""},
                 {"psi.memory", "the kernel was started without psi=1", "boot with psi=1"}};
  return run;
}

inline Diagnosis decode_diagnosis() {
  Diagnosis d;
  d.verdict = "input.decode_cpu";
  d.headline = "Decoding images bounds the loader: 37 of 61 ms per step.";
  Finding f;
  f.id = "input.decode_cpu";
  f.title = "Decoding images bounds the loader";
  f.confidence = 0.97;
  f.cost_ms_per_step = 37.4;
  f.gain = 2.04;
  f.where = Where{"data.py", 41, "__getitem__"};
  f.evidence = {
      {"input wait is 61 % of the median step", 0.61, "ratio", "agent", 195},
      {"the 2 workers spend 98 % of their time on a core", 0.98, "ratio", "probe.threads", 2400},
      {"86 % of the workers' readings lie in __getitem__ (data.py:41), below it PIL's decode", 0.86,
       "ratio", "stacks", 2400},
      {"the disk is busy 0.6 % of the time", 0.006, "ratio", "probe.disk", 195}};
  f.remedies = {{"feed", "decode at a scaled size with flatout's feed, or store smaller images"},
                {"num_workers", "more workers do not help here: both cores are busy"}};
  Finding second;
  second.id = "stall.checkpoint";
  second.title = "Saving a checkpoint blocks every 50th step";
  second.confidence = 0.9;
  second.cost_ms_per_step = 2.4;
  second.gain = 1.04;
  second.where = Where{"train.py", 60, "train"};
  second.evidence = {{"4 saves of 120 ms", 120, "ms", "agent", 4}};
  second.remedies = {{"async_save", "save in the background"}};
  d.findings = {f, second};
  return d;
}

/// Names that try to break out of every format.
inline const std::string& hostile_name() {
  static const std::string name =
      "</script><script>alert(1)</script>\x1b[2J\x1b]0;owned\x07\"'&<b>\xff\xfe"
      "\xE2\x80\xAE"
      "evil\xE2\x80\xA8]]>\n{{x}}\\u0000%s";
  return name;
}

inline Run hostile_run() {
  Run run = decode_bound_run(12);
  const std::string& bad = hostile_name();
  run.info["command"] = bad;
  run.info[bad] = bad;
  for (Process& p : run.processes) p.name = p.command = p.exe = bad;
  for (Thread& t : run.threads) t.name = bad;
  for (Entity& e : run.entities) e.name = bad;
  for (size_t i = 1; i < run.strings.size(); ++i) run.strings[i] = bad + std::to_string(i);
  run.processes[1].ended = false;
  run.missing = {{bad, bad, bad}};
  return run;
}

inline Diagnosis hostile_diagnosis() {
  Diagnosis d = decode_diagnosis();
  const std::string& bad = hostile_name();
  for (Finding& f : d.findings) {
    f.title = bad;
    f.where = Where{bad, 1, bad};
    for (Evidence& e : f.evidence) e.text = e.source = e.unit = bad;
    for (Suggestion& s : f.remedies) s.id = s.text = bad;
  }
  d.headline = bad;
  return d;
}

inline Comparison slower_comparison() {
  Comparison c;
  c.old_name = "flatout-runs/monday";
  c.new_name = "flatout-runs/tuesday";
  c.verdict = "slower";
  c.headline = "The new run is 1.46 times as slow: 20.1 ms more per step, most of it a cold cache.";
  c.old_steps = 400;
  c.new_steps = 380;
  c.old_median_ms = 43.5;
  c.new_median_ms = 63.6;
  c.old_interval = {43.1, 43.9};
  c.new_interval = {63.0, 64.4};
  c.by_mean = true;
  c.old_mean_ms = 44.0;
  c.new_mean_ms = 64.1;
  c.mean_ratio = 1.457;
  c.mean_ratio_interval = {1.43, 1.48};
  c.difference_ms = 20.1;
  c.difference = {19.4, 21.0};
  c.ratio = 1.462;
  c.ratio_interval = {1.44, 1.49};
  c.changes = {{"data.cached", "100 %", "3 %", 18.2, "data in the page cache"},
               {"data.fs", "ext4", "nfs4", std::nullopt, "file system of the data"},
               {"torch.version", "2.12.0", "2.13.0", std::nullopt, "PyTorch"},
               {"limit.memory", "", "4 GiB", std::nullopt, "limit on memory"}};
  for (int i = 0; i < 8; ++i) {
    const std::string package = "lib" + std::to_string(i);
    c.changes.push_back({"package." + package, "1", "2", std::nullopt, "package " + package});
  }
  c.other = {{"host.boot_id", "a1", "b2", std::nullopt, ""}};
  c.parts = {{Part::kInputWait,
              4.1,
              23.9,
              {19.0, 20.6},
              0.985,
              {{true, "input.decode_cpu", "Decoding images bounds the loader", 19.0},
               {false, "data.cached", "data in the page cache: 3 % instead of 100 %", 18.2},
               {false, "data.fs", "file system of the data: nfs4 instead of ext4", std::nullopt},
               {false, "limit.memory", "limit on memory: 4 GiB instead of none", std::nullopt}}},
             {Part::kForward, 15.0, 15.1, {-0.2, 0.4}, 0.005, {}}};
  c.findings = {{"input.decode_cpu",
                 "Decoding images bounds the loader",
                 std::nullopt,
                 19.0,
                 {},
                 {18.4, 19.7}},
                {"stall.checkpoint",
                 "Saving a checkpoint blocks every 50th step",
                 6.0,
                 std::nullopt,
                 {5.0, 7.1},
                 {}}};
  c.unexplained_ms = 1.9;
  c.appeared = {decode_diagnosis().findings[0]};
  c.vanished = {decode_diagnosis().findings[1]};
  return c;
}

/// Works 60 % of 2 s, 10 % of them with nothing but copies; waits 30 % for input, 10 % for
/// launches.
inline model::DeviceUse one_device() {
  model::DeviceUse use;
  use.recorded = std::chrono::seconds(2);
  use.windows = 1;
  use.sum.busy = std::chrono::milliseconds(1200);
  use.sum.compute = std::chrono::milliseconds(1000);
  use.sum.exposed_copies = std::chrono::milliseconds(200);
  use.sum.idle[static_cast<size_t>(model::IdleCause::kInput)] = std::chrono::milliseconds(600);
  use.sum.idle[static_cast<size_t>(model::IdleCause::kLaunch)] = std::chrono::milliseconds(200);
  return use;
}

}  // namespace flatout::report::testing
