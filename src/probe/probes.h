// The probes one by one, for make_probes() and for tests.
#pragma once

#include <memory>

#include "probe/probe.h"

namespace flatout::probe {

std::unique_ptr<Probe> make_host_probe(const Scope& scope);
std::unique_ptr<Probe> make_memory_probe(const Scope& scope);
std::unique_ptr<Probe> make_pressure_probe(const Scope& scope);
std::unique_ptr<Probe> make_disk_probe(const Scope& scope);
std::unique_ptr<Probe> make_mount_probe(const Scope& scope);
std::unique_ptr<Probe> make_cgroup_probe(const Scope& scope);
std::unique_ptr<Probe> make_process_probe(const Scope& scope);
std::unique_ptr<Probe> make_process_maps_probe(const Scope& scope);
std::unique_ptr<Probe> make_thread_probe(const Scope& scope);
std::unique_ptr<Probe> make_neighbour_probe(const Scope& scope);
std::unique_ptr<Probe> make_file_probe(const Scope& scope);

/// Wraps a probe so that its readings cost at most `share` of a core: the period grows with the
/// CPU time that a reading took.
std::unique_ptr<Probe> make_paced(std::unique_ptr<Probe> probe, double share);

}  // namespace flatout::probe
