#include "screen/help.h"

namespace flatout::screen {

std::string_view help_text() {
  return R"(flatout top: keys, as in htop where alike. Up and Down scroll, others go back.

Look
  Up Down PgUp ...  move; 0-9 goes to the process of that number, follows it
  Left Right        shift command lines
  / F3   n          search; the next one
  \ F4              filter: only what holds this text; a|b for either; Esc: all
  t F5              tree;  + - collapse or open;  * all of them
  > . F6            sort by ...
  P M T N   I       by CPU, memory, time, number;  the other way round
  u                 processes of one user
  H   K             threads; threads of the kernel
  p                 programs with their folders
  F                 follow the process: the cursor stays on it
  F2                fold panels
  mouse             a click chooses a process, sorts by a heading, folds a panel
                    by its name, is as the F key; the wheel scrolls

One process
  Enter             Python functions: own time, waiting, total, GIL
  b                 functions of native code: what its busiest threads run
  l   e             open files with their read rate; environment
  Tab               the next of them: command line and limits are the last
  Esc               close

Do, each only after a y
  Space  c  U       tag; tag with all descendants; untag all
  k F9              send a signal to what is tagged, else the one at the cursor
  F7 F8  ] [        nice value down, up
  i   a             I/O priority; allowed cores
  g                 share of its session among all (the autogroup's nice value)

Time
  Z                 pause; go on
  { }   ( )         back and forth by a look, by a minute: up to ten minutes
  Shift-Left -Right as { }
  S                 save them as a run folder

  h ? F1            this help
  Ctrl-L            draw all of the screen anew
  q F10             quit

CPU% is of one core. Bars: | user  + system  . waiting for a disk or stolen;
of memory: | used  : cache. Run queue: tasks that run or could run.
Pressure: share of the time in which some task had to wait.
)";
}

}  // namespace flatout::screen
