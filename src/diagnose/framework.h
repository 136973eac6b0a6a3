// The library that a job trains with. That one is imported says little: Keras and the transformers
// bring others along, and PyTorch's DataLoader and tf.data feed them all.
#pragma once

#include <cstdint>

#include "model/run.h"

namespace flatout::diagnose {

enum class Framework : uint8_t { kNone, kTorch, kTensorFlow, kJax };

Framework framework(const model::Run& run);

}  // namespace flatout::diagnose
