// What the allocator asks of the kernel. Every function leaves errno as it was: free() must.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace flatout::malloc {

/// Address space without memory behind it (PROT_NONE), aligned to `alignment`; nullptr if refused.
void* os_reserve(size_t bytes, size_t alignment);
/// Zeroed memory for our own books; nullptr if refused.
void* os_map(size_t bytes);
/// Makes a reserved piece readable and writable. False if the kernel refuses (overcommit, limits).
bool os_commit(void* at, size_t bytes);
/// Gives the memory back; it reads as zero afterwards. False (and nothing lost) where it is locked.
bool os_release(void* at, size_t bytes);
/// Clears memory of which much may never have been touched, and leaves that so: a large table of
/// which little is used would else take all of its size when it is allocated for the second time.
void os_clear(char* at, size_t bytes);
/// Whether the kernel would map so many bytes at one time. Our range is reserved without asking,
/// and then it refuses none of them.
bool os_may_give(size_t bytes);
/// Asks for huge pages. What the kernel makes of it is its own choice.
void os_advise_huge(void* at, size_t bytes);
/// Moves the memory's pages from one committed place to another; `from` reads as zero afterwards.
/// False if the kernel cannot, and then nothing has moved.
bool os_move(void* from, void* to, size_t bytes);

/// Makes a piece unreadable, or readable and writable again: false if the kernel refuses.
bool os_protect(void* at, size_t bytes, bool accessible);
/// Whether something is mapped at `at`.
bool os_readable(uintptr_t at);

/// open(2) for reading, read(2), write(2) and close(2), which would each be a place for a thread to
/// be cancelled at: within malloc and free, with a lock held perhaps.
int os_open(const char* path);
ssize_t os_read(int fd, void* to, size_t bytes);
ssize_t os_write(int fd, const void* from, size_t bytes);
void os_close(int fd);

uint64_t os_now_ns();                                    // CLOCK_MONOTONIC
size_t os_address_limit();                               // RLIMIT_AS, SIZE_MAX if there is none
void os_message(const char* text, const void* pointer);  // one line to standard error

}  // namespace flatout::malloc
