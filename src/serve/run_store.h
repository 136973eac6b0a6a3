// The runs that are served: finds them, follows those that are being recorded, and keeps what was
// made of them, within bounds however many there are and however many ask.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "report/metrics.h"
#include "report/run_summary.h"
#include "serve/run_reader.h"

namespace flatout::serve {

struct StoreLimits {
  size_t runs = 1000;                          // the newest
  size_t live_sources = 16;                    // held open at once
  size_t live_bytes = size_t{96} << 20;        // for all of these together
  size_t ended_sources = 2;                    // as many as a comparison needs
  size_t ended_bytes = size_t{48} << 20;       // for each of these
  size_t page_bytes = size_t{32} << 20;        // of rendered reports
  Nanos scan = std::chrono::seconds(2);        // between two looks for new runs
  Nanos refresh = std::chrono::seconds(2);     // between two looks at a live one, at least
  double share = 0.05;                         // of one core, for looking at live ones
  Nanos after_end = std::chrono::minutes(10);  // metrics of a run that has ended stay so long
};

/// What there is to tell a page about whether it is up to date.
struct RunState {
  uint64_t revision = 0;
  bool live = false;
};

struct ReportBody {
  std::shared_ptr<const std::string> html;
  RunState state;
};

class RunStore {
 public:
  /// `folders`: run folders, and folders that hold run folders.
  RunStore(std::vector<std::string> folders, RunReader& reader, const std::string& version,
           const StoreLimits& limits = {});
  ~RunStore();
  RunStore(const RunStore&) = delete;
  RunStore& operator=(const RunStore&) = delete;

  /// Looks for runs now and then on a thread of its own, until stop(), which also ends all waiting.
  void start();
  void stop();
  /// One round of that thread's work.
  void look(TimePoint now);
  /// Brings every live run up to date, however lately that was done.
  void look_at_all();

  std::string runs_json();
  std::string metrics(report::Exposition exposition);

  // All of these are nullopt where there is no such run, or it cannot be read any more.
  std::optional<ReportBody> report(std::string_view id);
  std::optional<std::string> findings_json(std::string_view id);
  std::optional<std::string> run_json(std::string_view id);
  std::optional<std::string> comparison_json(std::string_view older, std::string_view newer);
  /// The report of `newer`, with the comparison first.
  std::optional<ReportBody> comparison(std::string_view older, std::string_view newer);

  /// Waits at most so long until the run's revision is not `seen` (id "": that of the list).
  /// nullopt: there is no such run, or the store was stopped.
  std::optional<RunState> wait(std::string_view id, uint64_t seen, Nanos most);

 private:
  struct Entry;
  using EntryPtr = std::shared_ptr<Entry>;
  // Rendered pages, the least recently used dropped first.
  class Pages {
   public:
    explicit Pages(size_t most) : most_(most) {}
    std::shared_ptr<const std::string> find(const std::string& key);
    std::shared_ptr<const std::string> keep(const std::string& key, std::string page);

   private:
    struct Page {
      std::string key;
      std::shared_ptr<const std::string> text;
    };
    size_t most_, bytes_ = 0;
    std::list<Page> pages_;  // the latest first
  };

  using Found = std::map<std::string, EntryPtr>;  // by path
  void scan(TimePoint now);
  void add_folder(const std::string& path, Found& found) const;
  void add_run(const std::string& path, Found& found) const;
  std::string free_id(const std::string& path) const;
  EntryPtr find(std::string_view id);
  std::vector<EntryPtr> entries() const;  // newest first

  // With work_ held:
  bool refresh(Entry& entry);
  bool open(Entry& entry);
  bool make_ready(Entry& entry);
  void make_room(const Entry& entry);
  void learn_summary(Entry& entry);
  bool due(const Entry& entry, TimePoint now) const;
  std::optional<model::Comparison> compare(Entry& older, Entry& newer);

  // With mutex_ held too:
  void changed(Entry& entry);
  void end(Entry& entry, TimePoint now);

  const std::vector<std::string> folders_;
  RunReader& reader_;
  const StoreLimits limits_;
  const std::vector<report::Sample> build_;

  // Held for what takes long: one folder is read, one report rendered at a time. Before mutex_.
  std::mutex work_;
  Pages pages_;  // work_

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Written with both locks held, so read with either.
  std::map<std::string, EntryPtr, std::less<>> by_id_;
  Found by_path_;
  uint64_t revision_ = 1;
  TimePoint list_wanted_{};
  bool stopped_ = false;
  TimePoint next_scan_{};  // work_
  std::thread thread_;
};

}  // namespace flatout::serve
