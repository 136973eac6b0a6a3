// What a verdict costs at the end of an hour's run: 60 ms steps with two loader workers, stacks
// read 25 times a second. The bound is 50 ms, so that the live view can afford it.
#include <benchmark/benchmark.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/run_builder.h"

namespace flatout::diagnose {
namespace {

constexpr double kStepMs = 60, kReadingMs = 40;

model::Run hour(int64_t steps) {
  RunBuilder b;
  const model::ThreadId worker[2] = {b.worker(200), b.worker(201)};
  const Doing compute{ThreadState::kOnCpuNative, {kMain}};
  const Doing decode{ThreadState::kOnCpuNative, {kItem}};
  for (int64_t i = 0; i < steps; ++i) {
    const TimePoint begin = b.now();
    b.step({{Part::kInputWait, 30, {ThreadState::kPoll, {kMain}}},
            {Part::kForward, 10, compute},
            {Part::kBackward, 15, compute},
            {Part::kOptimizer, 5, compute}},
           i < 5);
    const model::ThreadId w = worker[i % 2];
    b.slice(w, SliceKind::kFetch, begin - nanos(kStepMs * 1e6), b.now(), 32, i);
    b.slice(w, SliceKind::kCollate, b.now() - nanos(2e6), b.now() - nanos(1e6), 1 << 20);
    b.doing(w, b.now() - nanos(1e6), b.now(), decode);
  }
  b.machine(2, 0.1).process_cpu(100, 0.5).process_cpu(200, 0.7).process_cpu(201, 0.7);
  model::Run run = b.build();
  // The builder reads each millisecond.
  const size_t keep = static_cast<size_t>(kReadingMs);
  std::vector<model::StackReading> thin;
  for (size_t i = 0; i < run.readings.size(); i += keep) {
    thin.push_back(run.readings[i]);
    thin.back().weight_us = static_cast<uint32_t>(kReadingMs * 1e3);
  }
  run.readings = std::move(thin);
  return run;
}

void BM_DiagnoseAnHour(benchmark::State& state) {
  const model::Run run = hour(state.range(0));
  while (state.KeepRunning()) benchmark::DoNotOptimize(diagnose(run));
  state.counters["readings"] = static_cast<double>(run.readings.size());
  state.counters["slices"] = static_cast<double>(run.slices.size());
}
BENCHMARK(BM_DiagnoseAnHour)->Arg(60'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace flatout::diagnose
