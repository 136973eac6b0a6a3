#include "devlimit/async_free.h"

#include "devlimit/capture_mode.h"
#include "devlimit/pages.h"
#include "devlimit/pools.h"
#include "devlimit/real.h"

namespace flatout::devlimit {

extern "C" {
CUresult cuEventCreate(Opaque* event, unsigned flags);
CUresult cuEventRecord(Opaque event, Opaque stream);
CUresult cuEventQuery(Opaque event);
CUresult cuEventDestroy_v2(Opaque event);
}

namespace {

// All of these under Locked. Where the driver says anything else, its work is lost, and the memory
// is not waited for.
bool done(const PendingFree& free) {
  constexpr CUresult kNoContext = 201;  // in this thread
  const CUresult result = FLATOUT_REAL(cuEventQuery, cuEventQuery, free.event);
  return result != CUDA_ERROR_NOT_READY && result != kNoContext;
}

void drop_event(Opaque event) { FLATOUT_REAL(cuEventDestroy_v2, cuEventDestroy_v2, event); }

void give_back_all(PendingFree* free) {
  if (free->pool != nullptr) {
    drop_block(*free->pool, free->bytes);
  } else {
    give_back(free->memory.row, free->bytes);
  }
  free->next = books().unused_frees;
  books().unused_frees = free;
}

// Takes it out of the list that `link` is part of.
PendingFree* unlink(PendingFree** link) {
  PendingFree* const free = *link;
  *link = free->next;
  return free;
}

void end(PendingFree** link) {
  PendingFree* const free = unlink(link);
  drop_event(free->event);
  give_back_all(free);
}

}  // namespace

bool begin_free(PendingFree what, Opaque stream, bool per_thread) {
  const RelaxedCapture relaxed;
  const InContextOf current(stream);
  if (FLATOUT_REAL(cuEventCreate, cuEventCreate, &what.event, CU_EVENT_DISABLE_TIMING) !=
      CUDA_SUCCESS)
    return false;
  const CUresult recorded =
      per_thread ? FLATOUT_REAL(cuEventRecord, cuEventRecord_ptsz, what.event, stream)
                 : FLATOUT_REAL(cuEventRecord, cuEventRecord, what.event, stream);
  what.stream.row = row_of_current();
  Opaque const context = current_context();
  const Locked lock;
  PendingFree* const free = recorded == CUDA_SUCCESS ? from_spare(books().unused_frees) : nullptr;
  if (free == nullptr) {
    drop_event(what.event);
    return false;
  }
  what.stream.context = home_of(context);
  *free = what;
  PendingFree** last = &books().pending_frees;
  while (*last != nullptr && done(**last)) end(last);  // the first are done first as a rule
  while (*last != nullptr) last = &(*last)->next;
  *last = free;
  return true;
}

void end_frees(int row) {
  if (__atomic_load_n(&books().pending_frees, __ATOMIC_RELAXED) == nullptr) return;
  const RelaxedCapture relaxed;
  const Locked lock;
  for (PendingFree** link = &books().pending_frees; *link != nullptr;) {
    if ((*link)->memory.row == row && done(**link)) {
      end(link);
    } else {
      link = &(*link)->next;
    }
  }
}

PendingFree* take_frees_of(const Home& context) {
  PendingFree* taken = nullptr;
  for (PendingFree** link = &books().pending_frees; *link != nullptr;) {
    const PendingFree& free = **link;
    const bool its_stream = free.stream == context;
    if (!its_stream && (free.pool != nullptr || free.memory != context)) {
      link = &(*link)->next;
      continue;
    }
    if (!its_stream) drop_event(free.event);  // the others' go with the context
    PendingFree* const one = unlink(link);
    one->next = taken;
    taken = one;
  }
  return taken;
}

void end_taken_frees(PendingFree* list) {
  const Locked lock;
  while (list != nullptr) give_back_all(unlink(&list));
}

}  // namespace flatout::devlimit
