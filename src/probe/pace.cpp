// Pacing, and the list of all probes.
#include <time.h>

#include <algorithm>

#include "probe/probes.h"

namespace flatout::probe {
namespace {

// Keeps an inner probe to its share of a core.
class Paced : public Probe {
 public:
  Paced(std::unique_ptr<Probe> probe, double share) : probe_(std::move(probe)), share_(share) {}
  const char* name() const override { return probe_->name(); }

  Nanos period() const override {
    return std::max(probe_->period(), std::min(nanos(cost_ns_ / share_), kLongest));
  }

  void read(TimePoint now, model::Sink& sink) override {
    const double before = cpu_ns();
    probe_->read(now, sink);
    const double cost = cpu_ns() - before;
    // Rises at once and falls slowly: one dear reading must not be followed by another.
    cost_ns_ = std::max(cost, cost_ns_ * 0.8 + cost * 0.2);
  }

 private:
  static constexpr Nanos kLongest = std::chrono::seconds(30);

  static double cpu_ns() {
    timespec ts{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return static_cast<double>(ts.tv_sec) * 1e9 + static_cast<double>(ts.tv_nsec);
  }

  std::unique_ptr<Probe> probe_;
  double share_;
  double cost_ns_ = 0;
};

}  // namespace

std::unique_ptr<Probe> make_paced(std::unique_ptr<Probe> probe, double share) {
  return std::make_unique<Paced>(std::move(probe), share);
}

std::vector<std::unique_ptr<Probe>> make_probes(const Scope& scope) {
  // Shares of a core. Their sum is the ceiling on a big machine; an ordinary one stays far below.
  std::vector<std::unique_ptr<Probe>> out;
  out.push_back(make_paced(make_cgroup_probe(scope), 0.0005));
  out.push_back(make_paced(make_host_probe(scope), 0.001));
  out.push_back(make_paced(make_process_probe(scope), 0.002));
  out.push_back(make_paced(make_thread_probe(scope), 0.002));
  out.push_back(make_paced(make_memory_probe(scope), 0.0005));
  out.push_back(make_paced(make_pressure_probe(scope), 0.0005));
  out.push_back(make_paced(make_disk_probe(scope), 0.0005));
  out.push_back(make_paced(make_mount_probe(scope), 0.0002));
  return out;
}

}  // namespace flatout::probe
