// Pacing, and the list of all probes.
#include <algorithm>

#include "base/cpu_time.h"
#include "probe/host_facts.h"
#include "probe/nvml_probe.h"
#include "probe/probes.h"

namespace flatout::probe {
namespace {

// Keeps an inner probe to its share of a core, but for a burst: the first readings, and those after
// a quiet time, may come at full rate. After the first minute, in which a verdict is wanted soon,
// half the rate will do.
class Paced : public Probe {
 public:
  Paced(std::unique_ptr<Probe> probe, double share) : probe_(std::move(probe)), share_(share) {}
  const char* name() const override { return probe_->name(); }

  Nanos period() const override {
    const Nanos wait = credit_ns_ >= 0 ? Nanos(0) : nanos(-credit_ns_ / share_);
    const bool settled = last_ - first_ > kFirstPhase;
    return std::max(probe_->period() * (settled ? 2 : 1), std::min(wait, kLongest));
  }

  void read(TimePoint now, model::Sink& sink) override {
    if (last_ != TimePoint{}) {
      const double elapsed = static_cast<double>((now - last_).count());
      credit_ns_ = std::min(kBurstNs, credit_ns_ + elapsed * share_);
    }
    if (first_ == TimePoint{}) first_ = now;
    last_ = now;
    const double before = cpu_ns();
    probe_->read(now, sink);
    credit_ns_ -= cpu_ns() - before;
  }
  void read_after_failure(TimePoint now, model::Sink& sink) override {
    probe_->read_after_failure(now, sink);
  }

 private:
  static constexpr Nanos kLongest = std::chrono::seconds(30);
  static constexpr Nanos kFirstPhase = std::chrono::minutes(1);
  static constexpr double kBurstNs = 20e6;

  static double cpu_ns() { return static_cast<double>(thread_cpu().count()); }

  std::unique_ptr<Probe> probe_;
  double share_;
  double credit_ns_ = kBurstNs;
  TimePoint first_{}, last_{};
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
  out.push_back(make_paced(make_process_maps_probe(scope), 0.0005));
  out.push_back(make_paced(make_thread_probe(scope), 0.002));
  out.push_back(make_paced(make_memory_probe(scope), 0.0005));
  out.push_back(make_paced(make_pressure_probe(scope), 0.0005));
  out.push_back(make_paced(make_disk_probe(scope), 0.0005));
  out.push_back(make_paced(make_mount_probe(scope), 0.0002));
  out.push_back(make_paced(make_neighbour_probe(scope), 0.0008));
  out.push_back(make_paced(make_file_probe(scope), 0.0005));
  out.push_back(make_paced(make_nvml_probe(scope), 0.001));
  out.push_back(make_host_facts_probe(scope));
  return out;
}

}  // namespace flatout::probe
