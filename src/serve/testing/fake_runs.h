// Runs in memory in place of recordings, below a real temporary folder: for tests.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>

#include "report/test_run.h"
#include "serve/run_reader.h"

namespace flatout::serve::testing {

struct FakeRun {
  model::Run run = report::testing::decode_bound_run(60);
  bool live = false;
  bool changed = true;  // since the last read
};

class FakeRuns : public RunReader {
 public:
  FakeRuns() {
    char name[] = "/tmp/flatout-serve-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~FakeRuns() override { std::filesystem::remove_all(folder_); }
  FakeRuns(const FakeRuns&) = delete;
  FakeRuns& operator=(const FakeRuns&) = delete;

  const std::string& folder() const { return folder_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  FakeRun& add(const std::string& name, bool live) {
    std::filesystem::create_directories(path(name));
    std::ofstream(path(name) + "/series.bin") << "";
    FakeRun& run = runs_[path(name)];
    run.live = live;
    run.run.info["host.name"] = "hopper";
    run.run.info["run.begin_unix_ns"] = std::to_string(++begun_ * 1'000'000'000);
    if (live) run.run.finished = false;
    return run;
  }
  FakeRun& at(const std::string& name) { return runs_.at(path(name)); }

  size_t opened = 0, open_now = 0, most_open = 0, judged = 0;

  bool is_run(const std::string& folder) const override { return runs_.contains(folder); }
  bool is_live(const std::string& folder) const override { return runs_.at(folder).live; }
  Result<std::unique_ptr<RunSource>> open(const std::string& folder, size_t) override {
    if (!runs_.contains(folder)) return Error{Code::kNotFound, "gone", ""};
    ++opened;
    most_open = std::max(most_open, ++open_now);
    return std::unique_ptr<RunSource>(std::make_unique<Source>(*this, runs_.at(folder)));
  }
  model::Diagnosis judge(model::Run&) override {
    ++judged;
    return report::testing::decode_diagnosis();
  }
  model::Comparison compare(model::Run&, model::Run&) override {
    return report::testing::slower_comparison();
  }

 private:
  class Source : public RunSource {
   public:
    Source(FakeRuns& all, FakeRun& run) : all_(all), run_(run) { run.changed = true; }
    ~Source() override { --all_.open_now; }
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;
    bool read(bool) override { return std::exchange(run_.changed, false); }
    model::Run& run() override { return run_.run; }

   private:
    FakeRuns& all_;
    FakeRun& run_;
  };

  std::string folder_;
  std::map<std::string, FakeRun> runs_;
  int64_t begun_ = 1'700'000'000;
};

}  // namespace flatout::serve::testing
