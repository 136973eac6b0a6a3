// Steps that compile or trace what they run again: torch.compile, tf.function, JAX.
#pragma once

#include "diagnose/findings.h"

namespace flatout::diagnose {

/// Says so where it costs enough.
void detect_compiling(const RunView& view, Findings& findings);

/// Whether that is told, and memory grew with the steps that compile rather than with all: what
/// was compiled is kept.
bool keeps_compiled(const RunView& view, const Findings& findings, const model::Series& memory);

/// What there is to do about it.
void compile_once(model::Finding& finding);

}  // namespace flatout::diagnose
