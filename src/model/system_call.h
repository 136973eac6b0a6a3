// What a thread asks of the kernel, by the number of the call.
#pragma once

#include <cstdint>

namespace flatout::model {

enum class CallKind : uint8_t {
  kOther,
  kMetadata,
  kRead,
  kSeek,
  kWrite,
  kSleep,
  kNetwork,
  kPoll,
  kProcess,
  kMemory,
  kFileLock
};

/// `call`: a number of the machine's own; negative: none was seen.
CallKind call_kind(int call);

}  // namespace flatout::model
