// What the tests of several detectors begin with: a training loop, and the findings by id.
#pragma once

#include <string_view>
#include <vector>

#include "diagnose/testing/run_builder.h"

namespace flatout::diagnose {

inline const Doing kCompute{ThreadState::kOnCpuNative, {kMain}};
inline const Doing kQueueWait{ThreadState::kPoll,
                              {kMain, {"get", "/usr/lib/python3.11/queue.py", 5}}};

inline const Doing kDecode{ThreadState::kOnCpuNative,
                           {kItem, {"load", "/x/site-packages/PIL/ImageFile.py", 300}}};

inline const model::Finding* find(const model::Diagnosis& d, std::string_view id) {
  for (const model::Finding& f : d.findings) {
    if (f.id == id) return &f;
  }
  return nullptr;
}

/// `steps` steps that wait `wait` and compute `compute` ms.
inline void train(RunBuilder& b, int steps, double wait, double compute,
                  const Doing& waiting = kQueueWait, const Doing& computing = kCompute) {
  for (int i = 0; i < steps; ++i) {
    b.step({{Part::kInputWait, wait, waiting}, {Part::kForward, compute, computing}}, i < 3);
  }
}

/// What a worker does with each batch, one after the other: ms of each.
struct Phase {
  double ms;
  Doing what;
};

/// Workers that make batches one after the other over the whole run.
inline std::vector<model::ThreadId> workers(RunBuilder& b, int count,
                                            const std::vector<Phase>& phases, double idle = 0) {
  double fetch = 0;
  for (const Phase& phase : phases) fetch += phase.ms;
  std::vector<model::ThreadId> out;
  for (int w = 0; w < count; ++w) {
    const model::ThreadId t = b.worker(200 + w);
    out.push_back(t);
    int64_t batch = w;
    for (TimePoint at = b.run().begin; at + nanos(fetch * 1e6) <= b.now(); batch += count) {
      b.slice(t, SliceKind::kFetch, at, at + nanos(fetch * 1e6), 16, batch);
      for (const Phase& phase : phases) {
        const TimePoint end = at + nanos(phase.ms * 1e6);
        b.doing(t, at, end, phase.what);
        at = end;
      }
      at += nanos(idle * 1e6);
    }
  }
  return out;
}

/// The same, `fetch` ms of one thing each.
inline std::vector<model::ThreadId> workers(RunBuilder& b, int count, double fetch,
                                            const Doing& what, double idle = 0) {
  return workers(b, count, {{fetch, what}}, idle);
}

}  // namespace flatout::diagnose
