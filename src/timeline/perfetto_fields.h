// Field numbers of Perfetto's protobufs that we read and write (protos/perfetto/trace/*.proto of
// that project).
#pragma once

#include <cstdint>

namespace flatout::timeline::perfetto {

constexpr uint32_t kTracePacket = 1;  // Trace

// TracePacket
constexpr uint32_t kClockSnapshot = 6, kTimestamp = 8, kSequenceId = 10, kTrackEvent = 11,
                   kInternedData = 12, kSequenceFlags = 13, kTimestampClock = 58,
                   kPacketDefaults = 59, kTrackDescriptor = 60;
constexpr uint32_t kTrackEventDefaults = 11;  // TracePacketDefaults

// TrackDescriptor
constexpr uint32_t kUuid = 1, kTrackName = 2, kProcess = 3, kThread = 4, kParentUuid = 5;

// TrackEvent
constexpr uint32_t kEventCategoryId = 3, kDebugAnnotation = 4, kLegacyEvent = 6, kEventType = 9,
                   kEventNameId = 10, kTrackUuid = 11, kEventCategory = 22, kEventName = 23;
constexpr uint64_t kTypeBegin = 1, kTypeEnd = 2;

// InternedData
constexpr uint32_t kInternedCategories = 1, kInternedNames = 2, kInternedAnnotations = 3,
                   kInternedStrings = 29;

constexpr uint64_t kStateCleared = 1, kNeedsState = 2;  // TracePacket.sequence_flags

}  // namespace flatout::timeline::perfetto
