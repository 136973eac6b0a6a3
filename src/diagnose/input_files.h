// What making a batch spends on files: on waiting for storage, on looking files up, on a core.
#pragma once

#include "diagnose/input.h"

namespace flatout::diagnose {

/// What the lines that do I/O spend, in seconds per batch.
struct FileWork {
  double blocked = 0;                  // waiting for storage
  double lookups = 0;                  // known to be look-ups of files
  double kernel = 0, interpreter = 0;  // on a core, in and around the calls
  // Of the kernel's: on lines whose known calls look files up, and on lines whose native code was
  // seen without one that is known. A call is known in few readings.
  double by_lookups = 0, by_unknown = 0;
  Profile::Filter cells;
  double all() const { return blocked + lookups + kernel + interpreter; }
};

/// Bytes and calls of read per batch, from wherever they came.
struct ReadWork {
  double bytes = 0, calls = 0, stored = 0, faults = 0, huge = 0, writes = 0;
  bool small() const;
  /// So many short ones leave no time for anything else.
  bool are_all_of(double seconds) const;
};

ReadWork read_work(const RunView& view);
FileWork file_work(const RunView& view, const BatchTimes& times, const ReadWork& read);

}  // namespace flatout::diagnose
