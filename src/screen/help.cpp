#include "screen/help.h"

namespace flatout::screen {

std::string_view help_text() {
  return R"(flatout top: keys, as in htop where there is a like one. Any other key goes back.

Look
  Up Down PgUp ...  move; 0-9 goes to the process with that number
  Left Right        shift command lines
  / F3   n          search; the next one
  \ F4              filter: only what holds this text; a|b for either; Esc: all
  t F5              tree;  + - collapse or open;  * all of them
  > . F6            sort by ...;  P CPU  M memory  T time  N number  I other way round
  u                 processes of one user
  H   K             threads; threads of the kernel
  p                 programs with their folders
  F                 follow the process: the cursor stays on it
  F2                fold panels; a click on a panel's name does, too

One process
  Enter             Python functions: own time, waiting, total, GIL
  b                 functions of native code: what its busiest threads run
  l   e             open files with their read rate; environment
  Tab               the next of them: command line and limits are the last
  Esc               close

Do, each only after a y
  Space  c  U       tag; tag with all descendants; untag all
  k F9              send a signal to what is tagged, else to what the cursor is on
  F7 F8  ] [        nice value down, up
  i   a             I/O priority; allowed cores
  g                 share of its session among all (the autogroup's nice value)

Time
  Z                 pause; go on
  { }   ( )         back and forth through the last ten minutes: a look; a minute
  S                 save them as a run folder

  q F10             quit

CPU% is of one core; bars: | user  + system  . waiting for a disk or stolen. Memory: | used  : cache.
Run queue: tasks that run or could run. Pressure: share of the time in which some task had to wait.
)";
}

}  // namespace flatout::screen
