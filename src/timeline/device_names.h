// Programs that give their events no category say by the names of processes and threads what is a
// device: TensorFlow, JAX, rocprof, Ascend.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace flatout::timeline {

/// "/device:GPU:3", "/gpu:0/stream:all": the number; -1 for the host's.
int64_t device_of_plane(std::string_view plane);

/// Of a device of TensorFlow's or JAX's, "Stream #16(Kernel)": the number. Other lines ("XLA
/// Modules", "Steps") are drawn from these again; a TPU has no streams, but "XLA Ops".
std::optional<int64_t> stream_of_line(std::string_view plane, std::string_view line);

struct NamedStream {
  int64_t device = 0, stream = 0;
};
/// Of a Chrome trace's process and thread; nullopt: it is no device, or repeats another track.
std::optional<NamedStream> stream_by_names(std::string_view process, std::string_view thread);

/// "cudaLaunchKernel", "cuLaunchKernel", "hipMemcpyAsync".
bool is_runtime_call(std::string_view name);

}  // namespace flatout::timeline
