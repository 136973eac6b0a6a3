#include "model/system_call.h"

#include <sys/syscall.h>

namespace flatout::model {

CallKind call_kind(int call) {
  switch (call) {
#ifdef SYS_open
    case SYS_open:
    case SYS_stat:
    case SYS_lstat:
    case SYS_access:
    case SYS_readlink:
    case SYS_getdents:
    case SYS_unlink:
    case SYS_rename:
    case SYS_mkdir:
#endif
    case SYS_openat:
    case SYS_newfstatat:
    case SYS_statx:
    case SYS_faccessat:
    case SYS_getdents64:
    case SYS_readlinkat:
    case SYS_close:
    case SYS_fstat:
    case SYS_getcwd:
      return CallKind::kMetadata;
    case SYS_read:
    case SYS_pread64:
    case SYS_readv:
    case SYS_preadv:
    case SYS_preadv2:
    case SYS_sendfile:
    case SYS_readahead:
      return CallKind::kRead;
    case SYS_lseek:
      return CallKind::kSeek;
    case SYS_write:
    case SYS_pwrite64:
    case SYS_writev:
    case SYS_pwritev:
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_sync:
    case SYS_syncfs:
    case SYS_sync_file_range:
    case SYS_msync:
    case SYS_ftruncate:
    case SYS_fallocate:
      return CallKind::kWrite;
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
      return CallKind::kSleep;
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_connect:
    case SYS_accept:
      return CallKind::kNetwork;
#ifdef SYS_poll
    case SYS_poll:
    case SYS_select:
    case SYS_epoll_wait:
#endif
    case SYS_ppoll:
    case SYS_pselect6:
    case SYS_epoll_pwait:
      return CallKind::kPoll;
#ifdef SYS_fork
    case SYS_fork:
    case SYS_vfork:
#endif
    case SYS_clone:
    case SYS_clone3:
    case SYS_execve:
    case SYS_wait4:
    case SYS_waitid:
      return CallKind::kProcess;
    case SYS_mmap:
    case SYS_munmap:
    case SYS_mremap:
    case SYS_madvise:
    case SYS_brk:
    case SYS_mprotect:
      return CallKind::kMemory;
    case SYS_flock:
    case SYS_fcntl:
      return CallKind::kFileLock;
    default:
      return CallKind::kOther;
  }
}

}  // namespace flatout::model
