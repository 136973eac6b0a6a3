// flatout top: a thread takes snapshots, another draws them and listens to keys.
#pragma once

#include <functional>
#include <string>

#include "base/fs.h"
#include "base/result.h"
#include "screen/history.h"
#include "screen/sampler.h"

namespace flatout::screen {

struct TopOptions {
  SamplerOptions sampler;
  int32_t pid = 0;  // only this process and what descends from it; 0: all
  double delay_s = 1.5;
  /// Saves what is seen as a run folder; gives its path.
  std::function<Result<std::string>(const History&)> save;
};

/// Until the user quits. Errors: as Terminal::open().
Status run_top(const TopOptions& options);

/// Two looks, `delay_s` apart; the second.
std::shared_ptr<const Snapshot> look_twice(const TopOptions& options);

/// The screen as plain text, as long as it takes for all processes.
std::string plain_screen(const TopOptions& options, int width, bool unicode);

}  // namespace flatout::screen
