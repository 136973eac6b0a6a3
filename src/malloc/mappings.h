// Where libraries lay that the program has closed since: stacks lead through them, and a record of
// the heap says by their files which lines these are.
#pragma once

namespace flatout::malloc {

class Text;

/// Before a library is closed: remembers which files are mapped where.
void remember_mappings();
/// A line "was ..." for each that was remembered, as /proc/self/maps had it.
void write_mappings(Text& out);

void lock_mappings();
void unlock_mappings();
void reset_mappings_lock();

}  // namespace flatout::malloc
