/* flatout/devmem.h: Flatout's device-memory pools for any language: libflatout_devmem.so. The C++
 * side, below, is all that most C++ programs need:
 *
 *   flatout::devmem::Pool pool({.limit_bytes = 4ull << 30});      // of CUDA device 0
 *   void* p = pool.allocate(bytes, stream);                       // throws OutOfMemory
 *   pool.deallocate(p, bytes, stream);
 *
 * A pool serves any number of threads and streams. What is allocated on a stream is for work on
 * that stream; a block that is freed serves the same stream again at once, and others only after
 * the work that used it. Several pools may share a device, each with a limit of its own.
 *
 * Environment: FLATOUT_DEVMEM_RECORD=FILE (every request, for `flatout devmem replay`),
 * FLATOUT_DEVMEM_HISTORY=N (requests that a snapshot has, 65536), FLATOUT_DEVMEM_SITES=1 (each with
 * its place in the code), FLATOUT_DEVMEM_DEBUG=1 (double frees, foreign pointers, wrong sizes and
 * streams are named with their places; =abort: and end the process). */
#ifndef FLATOUT_DEVMEM_H_
#define FLATOUT_DEVMEM_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef FLATOUT_DEVMEM_API
#define FLATOUT_DEVMEM_API
#endif

typedef struct flatout_devmem_pool flatout_devmem_pool;

enum {
  FLATOUT_DEVMEM_CUDA = 0,
  FLATOUT_DEVMEM_HOST = 1,      /* the machine's memory: pointers can be used by the CPU */
  FLATOUT_DEVMEM_SIMULATED = 2, /* numbers only: pointers cannot be used at all */
};

/* Zero is a good value for each. */
struct flatout_devmem_options {
  int32_t kind;
  int32_t device;          /* as CUDA numbers them in this process */
  uint64_t limit_bytes;    /* the pool takes no more than that; 0: what the device has */
  uint64_t capacity_bytes; /* of FLATOUT_DEVMEM_HOST (0: the machine's) and _SIMULATED (0: 16 GiB);
                              the first pool of a device decides */
  const char* policy;      /* "arena", "torch", "torch_expandable"; NULL: arena */
};

/* In bytes. New fields are added at the end. */
struct flatout_devmem_stats {
  uint64_t live, peak_live;         /* as requested, and not freed */
  uint64_t reserved, peak_reserved; /* taken from the driver */
  uint64_t limit, largest_free;
  uint64_t waiting; /* freed, but another stream is not known to be done with it */
  uint64_t allocated_total, freed_total;
  uint64_t blocks, allocations, frees, refused, driver_calls; /* counts */
  uint64_t device_free, device_total;
};

/* What went wrong last on this thread; "" if nothing did. Valid until its next call. */
FLATOUT_DEVMEM_API const char* flatout_devmem_error(void);

/* NULL on failure. options may be NULL. */
FLATOUT_DEVMEM_API flatout_devmem_pool* flatout_devmem_open(
    const struct flatout_devmem_options* options);
/* Gives everything back, live blocks too. */
FLATOUT_DEVMEM_API void flatout_devmem_close(flatout_devmem_pool* pool);

/* Aligned to 256; NULL: no memory, or 0 bytes. stream: a CUstream (cudaStream_t); NULL: the default
 * one. */
FLATOUT_DEVMEM_API void* flatout_devmem_allocate(flatout_devmem_pool* pool, size_t bytes,
                                                 void* stream);
/* 0, or -1: no live block of the pool begins there. ptr may be NULL. */
FLATOUT_DEVMEM_API int flatout_devmem_deallocate(flatout_devmem_pool* pool, void* ptr, size_t bytes,
                                                 void* stream);
/* Work on that stream, too, uses the block. 0 or -1. */
FLATOUT_DEVMEM_API int flatout_devmem_record_stream(flatout_devmem_pool* pool, void* ptr,
                                                    void* stream);
/* Waits for the streams, and gives back what is wholly free. */
FLATOUT_DEVMEM_API void flatout_devmem_trim(flatout_devmem_pool* pool);
/* size: sizeof *stats. */
FLATOUT_DEVMEM_API void flatout_devmem_get_stats(flatout_devmem_pool* pool,
                                                 struct flatout_devmem_stats* stats, size_t size);
FLATOUT_DEVMEM_API void flatout_devmem_reset_peaks(flatout_devmem_pool* pool);
/* The latest requests and what is live as JSON lines, which `flatout devmem replay` reads. 0 or -1.
 */
FLATOUT_DEVMEM_API int flatout_devmem_snapshot(flatout_devmem_pool* pool, const char* path);

/* ---- in place of a framework's allocator: pools that are opened at a device's first request ----
 *
 * The signatures are those of PyTorch's CUDAPluggableAllocator; python/flatout/devmem installs
 * them.
 */

/* policy as above; limits as "8GiB", "0.5", "50%", by device "0=8GiB,1=50%", and for several pools
 * on a device (logical devices) "0=4GiB+4GiB"; each may be NULL. Before the first request. 0 or -1.
 */
FLATOUT_DEVMEM_API int flatout_devmem_configure(const char* policy, const char* limits);
/* Fraction of the device's memory, as torch.cuda.set_per_process_memory_fraction; before the first
 * request. */
FLATOUT_DEVMEM_API void flatout_devmem_set_fraction(double fraction, int device);

/* NULL when there is no memory, or for 0 bytes. */
FLATOUT_DEVMEM_API void* flatout_devmem_alloc(size_t bytes, int device, void* stream);
/* The same, but where there is no memory it throws what PyTorch does: c10::OutOfMemoryError (its
 * CUDAPluggableAllocator would take NULL for memory); with an older PyTorch a std::exception in the
 * same words. */
FLATOUT_DEVMEM_API void* flatout_devmem_alloc_or_throw(size_t bytes, int device, void* stream);
FLATOUT_DEVMEM_API void flatout_devmem_free(void* ptr, size_t bytes, int device, void* stream);
FLATOUT_DEVMEM_API void flatout_devmem_use_on(void* ptr, void* stream);
/* Trims every pool. */
FLATOUT_DEVMEM_API void flatout_devmem_empty_cache(void);

/* How many pools the device has: 0 before its first request. */
FLATOUT_DEVMEM_API int flatout_devmem_pools(int device);
/* One of them, which is not to be closed; NULL: there is none. */
FLATOUT_DEVMEM_API flatout_devmem_pool* flatout_devmem_pool_of(int device, int index);
/* What is asked for on that stream comes from that pool of the device; else from the first. Opens
 * the device's pools. 0 or -1. */
FLATOUT_DEVMEM_API int flatout_devmem_bind(int device, void* stream, int index);

#ifdef __cplusplus
}  // extern "C"
#endif

#if defined(__cpp_exceptions)
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace flatout::devmem {

using Stats = flatout_devmem_stats;
using Options = flatout_devmem_options;

/// What a pool throws when a request does not fit; what() says how much there is and who has it.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const char* text) : text_(text) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

/// A pool on a device, as RMM's resources are used. Throws std::runtime_error where it cannot be
/// opened.
class Pool {
 public:
  explicit Pool(const Options& options = {}) : pool_(flatout_devmem_open(&options)) {
    if (pool_ == nullptr) throw std::runtime_error(flatout_devmem_error());
  }
  ~Pool() { flatout_devmem_close(pool_); }
  Pool(Pool&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)) {}
  Pool& operator=(Pool&& other) noexcept {
    std::swap(pool_, other.pool_);
    return *this;
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Memory for work on `stream`, aligned to 256; nullptr for 0 bytes. Throws OutOfMemory.
  void* allocate(std::size_t bytes, void* stream = nullptr) {
    void* const out = flatout_devmem_allocate(pool_, bytes, stream);
    if (out == nullptr && bytes > 0) throw OutOfMemory(flatout_devmem_error());
    return out;
  }
  /// `bytes` and `stream` as they were given to allocate().
  void deallocate(void* ptr, std::size_t bytes, void* stream = nullptr) noexcept {
    flatout_devmem_deallocate(pool_, ptr, bytes, stream);
  }
  /// Work on `stream`, too, uses the block: it is not used again before that is done.
  void record_stream(void* ptr, void* stream) {
    if (flatout_devmem_record_stream(pool_, ptr, stream) != 0)
      throw std::invalid_argument(flatout_devmem_error());
  }
  void trim() { flatout_devmem_trim(pool_); }
  Stats stats() const {
    Stats out = {};
    flatout_devmem_get_stats(pool_, &out, sizeof out);
    return out;
  }
  void reset_peaks() { flatout_devmem_reset_peaks(pool_); }
  /// A file for `flatout devmem replay`.
  void snapshot(const std::string& path) const {
    if (flatout_devmem_snapshot(pool_, path.c_str()) != 0)
      throw std::runtime_error(flatout_devmem_error());
  }

 private:
  flatout_devmem_pool* pool_;
};

/// A block of a pool for as long as it lives; the pool outlives it.
class Buffer {
 public:
  Buffer(Pool& pool, std::size_t bytes, void* stream = nullptr)
      : pool_(&pool), data_(pool.allocate(bytes, stream)), size_(bytes), stream_(stream) {}
  ~Buffer() {
    if (data_ != nullptr) pool_->deallocate(data_, size_, stream_);
  }
  Buffer(Buffer&& other) noexcept
      : pool_(other.pool_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        stream_(other.stream_) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer& operator=(Buffer&&) = delete;

  void* data() const { return data_; }
  std::size_t size() const { return size_; }
  void* stream() const { return stream_; }

 private:
  Pool* pool_;
  void* data_;
  std::size_t size_;
  void* stream_;
};

}  // namespace flatout::devmem
#endif
#endif
