#include "model/finding_ids.h"

namespace flatout::model {

const std::vector<std::string_view>& finding_ids() {
  static const std::vector<std::string_view> ids = {"input.decode_cpu",
                                                    "input.too_few_workers",
                                                    "input.disk",
                                                    "input.disk_throttled",
                                                    "input.cold_cache",
                                                    "input.small_files",
                                                    "input.random_seek",
                                                    "input.collate",
                                                    "input.worker_skew",
                                                    "input.worker_restart",
                                                    "input.gil",
                                                    "input.feed_dict",
                                                    "input.h2d_sync",
                                                    "cpu.noisy_neighbour",
                                                    "cpu.oversubscribed",
                                                    "cpu.throttled",
                                                    "cpu.affinity",
                                                    "cpu.python_bound",
                                                    "cpu.gc",
                                                    "cpu.process_churn",
                                                    "cpu.zombies",
                                                    "mem.leak",
                                                    "mem.pressure",
                                                    "mem.page_faults",
                                                    "mem.allocator",
                                                    "mem.compaction",
                                                    "mem.fds",
                                                    "mem.killed",
                                                    "mem.shm",
                                                    "gpu.launch_bound",
                                                    "gpu.sync",
                                                    "gpu.wrong_device",
                                                    "gpu.unfused_norm",
                                                    "gpu.no_overlap",
                                                    "stall.checkpoint",
                                                    "stall.logging",
                                                    "stall.idle_wait",
                                                    "stall.hang",
                                                    "stall.periodic",
                                                    "dist.straggler",
                                                    "dist.exposed_communication",
                                                    "crash.exception",
                                                    "crash.signal"};
  return ids;
}

}  // namespace flatout::model
