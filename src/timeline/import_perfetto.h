// Perfetto's protobuf traces: the track events in them (slices with a track descriptor). Scheduler
// and other data sources are counted, not read. Field numbers: protos/perfetto/trace of the
// Perfetto project.
#pragma once

#include <string_view>

#include "timeline/trace_builder.h"

namespace flatout::timeline {

bool looks_like_perfetto(std::string_view head);
/// False where the bytes end or break within a packet: what came before is kept.
bool import_perfetto(std::string_view bytes, TraceBuilder& builder);

}  // namespace flatout::timeline
