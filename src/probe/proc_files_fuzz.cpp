// Parsers of /proc/PID: the first byte chooses the parser.
#include "probe/proc_files.h"

#include "probe/leftover.h"
#include "probe/thread_state.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout::probe;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  SchedStat sched;
  switch (data[0] % 11) {
    case 0:
      if (const auto stat = parse_pid_stat(text)) {
        if (stat->comm.data() < text.data() ||
            stat->comm.data() + stat->comm.size() > text.data() + text.size()) {
          __builtin_trap();
        }
      }
      break;
    case 1:
      parse_pid_status(text);
      break;
    case 2:
      parse_pid_io(text);
      break;
    case 3:
      parse_schedstat(text, sched);
      break;
    case 4:
      parse_fd_limit(text);
      break;
    case 5:
      parse_pss_bytes(text);
      break;
    case 6:
      parse_fd_position(text);
      break;
    case 7: {
      const auto list = parse_cpu_list(text, 1 << 16);
      const auto count = count_cpu_list(text);
      if (list.has_value() != count.has_value() && (!list || count)) __builtin_trap();
      break;
    }
    case 8:
      join_command_line(text);
      program_and_script(text);
      break;
    case 9: {
      const AddressRange gil{0x1000, 0x1100};
      const auto call = parse_syscall(text);
      for (const char state : {'S', 'D', 'T'}) blocked_state(state, call, text, {&gil, 1});
      break;
    }
    case 10:
      for (const LimitRow& row : parse_limits(text)) {
        if (row.hard.empty()) __builtin_trap();
      }
      break;
  }
  return 0;
}
