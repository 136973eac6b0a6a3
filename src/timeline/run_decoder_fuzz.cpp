// Any bytes as packets: nothing crashes, what is kept is bounded and consistent, the steps' parts
// add up.
#include <cstdint>
#include <string_view>

#include "timeline/export_chrome.h"
#include "timeline/run_decoder.h"
#include "timeline/steps.h"

namespace {

using namespace flatout;  // NOLINT

void check(const model::Run& run) {
  for (const model::Slice& slice : run.slices) {
    FLATOUT_CHECK(slice.begin <= slice.end && slice.thread < run.threads.size());
    FLATOUT_CHECK(slice.name < run.strings.size());
  }
  for (const model::StackReading& reading : run.readings) {
    FLATOUT_CHECK(reading.thread < run.threads.size() && reading.stack < run.stacks.size());
  }
  for (size_t i = 1; i < run.stacks.size(); ++i) {
    FLATOUT_CHECK(run.stacks[i].parent < i && run.stacks[i].frame < run.frames.size());
  }
  for (const model::Thread& thread : run.threads) {
    FLATOUT_CHECK(thread.process < run.processes.size());
  }
  for (const model::Series& series : run.series) {
    FLATOUT_CHECK(series.entity < run.entities.size());
    for (size_t i = 1; i < series.readings.size(); ++i) {
      FLATOUT_CHECK(series.readings[i - 1].at <= series.readings[i].at);
    }
  }
  for (const model::Step& step : run.steps.steps) {
    Nanos sum{};
    for (const Nanos part : step.parts) {
      FLATOUT_CHECK(part.count() >= 0);
      sum += part;
    }
    FLATOUT_CHECK(sum == step.length());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  timeline::RunDecoder decoder;
  decoder.feed(bytes.substr(0, size / 2 / 8 * 8));
  decoder.feed(bytes.substr(size / 2 / 8 * 8));
  timeline::find_steps(decoder.run());
  check(decoder.run());
  timeline::chrome_json(decoder.run(), {.max_events = 1000});
  decoder.thin(decoder.memory() / 2);
  timeline::find_steps(decoder.run());
  check(decoder.run());
  return 0;
}
