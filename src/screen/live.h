// `flatout run --live`: the terminal in two. Above, the job writes as ever: its lines scroll within
// a region of the terminal (DECSTBM), and nothing stands between it and its keyboard. Below, what
// its processes do, drawn by a helper process that never reads a key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "screen/canvas.h"
#include "screen/sampler.h"

namespace flatout::screen {

/// Rows of the view below, of a terminal so high; 0 where there is no room for two.
int live_rows(int height);
/// Makes room below and leaves the cursor where the job has it, within its part.
std::string live_begin(int height, int rows);
std::string live_draw(int height, const std::vector<std::string>& lines);
std::string live_end(int height, int rows);
/// A row with what a terminal has without colours: bold, dim, reverse.
std::string live_line(const Canvas& canvas, int y);

struct LiveOptions {
  SamplerOptions sampler;
  int32_t job_pid = 0;
  int32_t group = 0;   // the job's process group: it is drawn while that has the terminal
  int status_fd = -1;  // a line at a time: what stands above the view
  double delay_s = 1.5;
};

/// Until SIGTERM, SIGHUP or SIGINT, or the end of status_fd. Errors: no terminal.
Status run_live(const LiveOptions& options);

}  // namespace flatout::screen
