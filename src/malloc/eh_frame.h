// Call frame information of the code in this process (.eh_frame; DWARF 5, section 6.4, and the
// Linux Standard Base, "Exception Frames"): how to get from a frame to its caller's. Takes no lock,
// no memory and no help of libgcc's unwinder, which does both. Knows the stack pointer, the frame
// pointer and the return address; code that needs another register ends the stack.
#pragma once

#include <cstdint>

namespace flatout::malloc {

struct FrameRule {
  bool cfa_from_fp;  // the canonical frame address counts from the frame pointer, else the stack's
  int32_t cfa_offset;  // bytes
  int32_t fp_at;       // where the caller's frame pointer is saved, bytes from the CFA; 0: nowhere
  int32_t ra_at;       // where the return address is saved; 0: in the link register
};

/// The rule at `pc`, in the tables of the object that holds it. False where there is none.
bool find_frame_rule(uintptr_t pc, FrameRule& out);

/// The rule at `pc` by an .eh_frame_hdr.
bool frame_rule_in(const uint8_t* header, uintptr_t pc, FrameRule& out);

}  // namespace flatout::malloc
