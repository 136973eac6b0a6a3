// What of a trace a page can draw, however long it is: long slices as they are, shorter ones joined
// to blocks, and a closer look at some places. Times in nanoseconds from the picture's begin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flatout::model {

struct PictureSlice {
  int64_t begin = 0, end = 0;
  uint32_t name = 0;   // TracePicture::names; of a block that of its longest slice
  uint32_t count = 1;  // slices in this block
};

/// A thread, a stream of a device, or why a device was idle.
struct PictureTrack {
  enum class Kind : uint8_t { kThread, kStream, kIdle };
  Kind kind = Kind::kThread;
  std::string process, thread;
  uint64_t slices = 0;  // of the trace
};

/// One look at [begin, end): by track and row, in order of time, without overlap in a row.
struct PictureLevel {
  int64_t begin = 0, end = 0;
  int64_t resolution = 0;  // shorter slices are joined; 0: all are as they are
  std::vector<std::vector<std::vector<PictureSlice>>> tracks;
};

/// A place worth a look.
struct PicturePlace {
  std::string label;
  int64_t begin = 0, end = 0;
};

struct TracePicture {
  std::string file;
  int rank = -1;
  int64_t begin = 0;  // on the trace's own clock
  int64_t length = 0;
  int64_t offset = 0;  // of its begin from that of the first picture beside it
  std::vector<std::string> names;
  std::vector<PictureTrack> tracks;
  uint64_t hidden_tracks = 0, hidden_slices = 0;  // left out: too many
  std::vector<PictureLevel> levels;               // the first is of all of it
  std::vector<PicturePlace> places;               // the longest gap or step first
};

}  // namespace flatout::model
