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

/// Workers that make batches one after the other over the whole run, `fetch` ms each.
inline std::vector<model::ThreadId> workers(RunBuilder& b, int count, double fetch,
                                            const Doing& what, double idle = 0) {
  std::vector<model::ThreadId> out;
  for (int w = 0; w < count; ++w) {
    const model::ThreadId t = b.worker(200 + w);
    out.push_back(t);
    int64_t batch = w;
    for (TimePoint at = b.run().begin; at + nanos(fetch * 1e6) <= b.now(); batch += count) {
      const TimePoint end = at + nanos(fetch * 1e6);
      b.slice(t, SliceKind::kFetch, at, end, 16, batch);
      b.doing(t, at, end, what);
      at = end + nanos(idle * 1e6);
    }
  }
  return out;
}

}  // namespace flatout::diagnose
