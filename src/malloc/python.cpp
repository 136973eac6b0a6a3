#include "malloc/python.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "malloc/arena.h"
#include "malloc/lock.h"
#include "malloc/os.h"
#include "wire/python_offsets.h"

namespace flatout::malloc {
namespace {

constexpr unsigned kMostLooks = 256;  // shims between Python and C count
constexpr uint32_t kBuckets = 4096;
constexpr uint32_t kMostPlaces = 1 << 18;
constexpr size_t kMostText = 1024;

struct Interpreter {
  void* (*thread_state)() = nullptr;           // PyGILState_GetThisThreadState
  int (*line_of)(const void*, int) = nullptr;  // PyCode_Addr2Line: reads, and nothing else
  const char* code_type = nullptr;             // PyCode_Type
  wire::PythonOffsets offsets;
};
Interpreter g_python;
bool g_keeps_objects = false;           // set before any thread
std::atomic<bool> g_has_python{false};  // g_python is complete, and stays as it is
// The first stacks are read with care: the layout is known by the version alone, and somebody may
// have built an interpreter of his own.
std::atomic<int> g_doubt{64};

constinit Lock g_lock;
constinit Arena g_arena;
PythonPlace* g_buckets[kBuckets];
PythonPlace** g_places = nullptr;  // by id - 1
uint32_t g_count = 0;

template <class T>
T field(const void* at, uint32_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(at) + offset, sizeof value);
  return value;
}

template <class T>
bool symbol(const char* name, T& out) {
  void* const found = dlsym(RTLD_DEFAULT, name);
  std::memcpy(&out, &found, sizeof out);
  return found != nullptr;
}

bool readable(const void* p) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  if (at < 65536 || at % sizeof(void*) != 0) return false;
  return g_doubt.load(std::memory_order_relaxed) == 0 || (os_readable(at) && os_readable(at + 255));
}

struct Frame {
  const void* code;
  int64_t at;
};

// Offset of the frame's instruction in its bytecode; negative before the first.
int64_t instruction(const void* frame, const void* code) {
  const wire::PythonOffsets& o = g_python.offsets;
  if (o.minor <= 10) {
    const int64_t last = field<int32_t>(frame, o.frame_instruction);
    return o.minor == 10 ? last * 2 : last;  // 3.10 counts instructions
  }
  const char* bytecode = static_cast<const char*>(code) + o.code_bytecode;
  if (o.frame_bytecode_copy != 0 && o.code_bytecode_copies != 0) {
    // Each thread of a build without GIL may run a copy of its own; copy 0 is the original.
    const auto index = field<int32_t>(frame, o.frame_bytecode_copy);
    const auto* copies = field<const char*>(code, o.code_bytecode_copies);
    if (index > 0 && index < (1 << 20) && copies != nullptr) {
      const auto* copy = field<const char*>(copies, 8 + static_cast<uint32_t>(index) * 8);
      if (copy != nullptr) bytecode = copy;
    }
  }
  return field<const char*>(frame, o.frame_instruction) - bytecode;
}

unsigned read_frames(Frame* out, unsigned most) {
  const wire::PythonOffsets& o = g_python.offsets;
  const void* const state = g_python.thread_state();
  if (state == nullptr || !readable(state)) return 0;
  const void* frame = field<const void*>(state, o.thread_frame);
  if (o.has_cframe() && frame != nullptr) {
    if (!readable(frame)) return 0;
    frame = field<const void*>(frame, o.cframe_current);
  }
  unsigned n = 0;
  for (unsigned looked = 0; frame != nullptr && n < most && looked < kMostLooks; ++looked) {
    if (!readable(frame)) return n;
    const bool shim = o.frame_owner != 0 && o.minor >= 12 &&
                      field<uint8_t>(frame, o.frame_owner) >= wire::kOwnedByInterpreter;
    if (!shim) {
      const auto* code =
          reinterpret_cast<const void*>(wire::untag(field<uintptr_t>(frame, o.frame_code)));
      if (!readable(code) || field<const char*>(code, o.object_type) != g_python.code_type) {
        return n;
      }
      out[n++] = {code, instruction(frame, code)};
    }
    frame = field<const void*>(frame, o.frame_previous);
  }
  if (n > 0 && frame == nullptr) {
    const int doubt = g_doubt.load(std::memory_order_relaxed);
    if (doubt > 0) g_doubt.store(doubt - 1, std::memory_order_relaxed);
  }
  return n;
}

// Copies a str, its end where it is too long, and control characters as '?', with a NUL. Returns
// the length.
size_t copy_text(const void* object, char* out, size_t room) {
  const wire::PythonOffsets& o = g_python.offsets;
  wire::UnicodeState state;
  out[0] = 0;
  if (!readable(object) ||
      !wire::decode_unicode_state(field<uint32_t>(object, o.unicode_state), o, state)) {
    return 0;
  }
  const auto length = field<uint64_t>(object, o.unicode_length);
  if (length > (uint64_t{1} << 40)) return 0;
  const uint32_t data = state.ascii ? o.unicode_ascii_size : o.unicode_compact_size;
  const uint64_t most = (room - 1) / 4;
  size_t n = 0;
  for (uint64_t i = length > most ? length - most : 0; i < length; ++i) {
    uint32_t c = 0;
    std::memcpy(&c, static_cast<const char*>(object) + data + i * static_cast<uint64_t>(state.kind),
                static_cast<size_t>(state.kind));
    n += wire::encode_utf8(c < 32 || c == 127 || c > 0x10FFFF ? '?' : c, out + n);
  }
  out[n] = 0;
  return n;
}

uint32_t bucket_of(const Frame& f) {
  const uint64_t h = (reinterpret_cast<uintptr_t>(f.code) >> 4) * 0x9e3779b97f4a7c15u +
                     static_cast<uint64_t>(f.at) * 0xff51afd7ed558ccdu;
  return static_cast<uint32_t>(h >> 32) % kBuckets;
}

uint32_t find_place(const Frame& f, const void* file, const void* name) {
  const LockHolder hold(g_lock);
  for (const PythonPlace* p = g_buckets[bucket_of(f)]; p != nullptr; p = p->next) {
    if (p->code == f.code && p->at == f.at && p->file_object == file && p->name_object == name) {
      return p->id;
    }
  }
  return 0;
}

uint32_t add_place(const Frame& f, const void* file, const void* name) {
  char text[2 * kMostText];
  const size_t file_size = copy_text(file, text, kMostText) + 1;
  const size_t size = file_size + copy_text(name, text + file_size, kMostText) + 1;
  int line = f.at < 0 ? -1 : g_python.line_of(f.code, static_cast<int>(f.at));
  if (line < 0) line = field<int32_t>(f.code, g_python.offsets.code_firstlineno);
  const LockHolder hold(g_lock);
  if (g_count == kMostPlaces) return 0;
  if (g_places == nullptr) {
    g_places = static_cast<PythonPlace**>(os_map(kMostPlaces * sizeof(PythonPlace*)));
    if (g_places == nullptr) return 0;
  }
  auto* place = static_cast<PythonPlace*>(g_arena.take(sizeof(PythonPlace) + size));
  if (place == nullptr) return 0;
  *place = {g_buckets[bucket_of(f)],
            f.code,
            file,
            name,
            f.at,
            g_count + 1,
            static_cast<uint32_t>(std::max(line, 0))};
  std::memcpy(place->text, text, size);
  g_buckets[bucket_of(f)] = place;
  g_places[g_count++] = place;
  return place->id;
}

}  // namespace

const char* PythonPlace::function() const { return text + std::strlen(text) + 1; }

void find_python() {
  static std::atomic<bool> looked{false};
  if (looked.exchange(true)) return;
  Interpreter found;
  const char* (*version)() = nullptr;
  const char *runtime = nullptr, *type_type = nullptr;
  if (!symbol("PyGILState_GetThisThreadState", found.thread_state) ||
      !symbol("PyCode_Addr2Line", found.line_of) || !symbol("PyCode_Type", found.code_type) ||
      !symbol("PyType_Type", type_type) || !symbol("Py_GetVersion", version) ||
      !symbol("_PyRuntime", runtime)) {
    return;
  }
  const char* const text = version();  // "3.11.2 (main, ..."
  if (std::strncmp(text, "3.", 2) != 0) return;
  int minor = 0;
  for (const char* at = text + 2; *at >= '0' && *at <= '9'; ++at) minor = minor * 10 + *at - '0';
  if (minor >= 13) {
    if (wire::read_debug_offsets(runtime, wire::kDebugOffsetsSize, found.offsets) !=
        wire::DebugOffsets::kGood) {
      return;
    }
  } else {
    const wire::PythonOffsets* const known = wire::python_offsets(minor);
    if (known == nullptr) return;
    found.offsets = *known;
  }
  // A debug build of an old version has more at the head of each object: types say so.
  if (field<const char*>(found.code_type, found.offsets.object_type) != type_type &&
      field<const char*>(type_type, found.offsets.object_type) != type_type) {
    return;
  }
  g_python = found;
  g_has_python.store(true, std::memory_order_release);
}

void spare_free_threaded_python() {
  const char* runtime = nullptr;
  if (!symbol("_PyRuntime", runtime)) return;
  wire::PythonOffsets offsets;
  const auto read = wire::read_debug_offsets(runtime, wire::kDebugOffsetsSize, offsets);
  g_keeps_objects = read != wire::DebugOffsets::kDamaged && offsets.free_threaded;
  const char* const wanted = std::getenv("PYTHONMALLOC");
  if (g_keeps_objects && wanted != nullptr && std::strcmp(wanted, "malloc") == 0)
    ::unsetenv("PYTHONMALLOC");
}

bool python_keeps_its_objects() { return g_keeps_objects; }

unsigned python_stack(uint32_t* ids, unsigned most) {
  if (!g_has_python.load(std::memory_order_acquire)) return 0;
  constexpr unsigned kMostFrames = 64;
  Frame frames[kMostFrames];
  const unsigned n = read_frames(frames, std::min(most, kMostFrames));
  unsigned kept = 0;
  for (unsigned i = 0; i < n; ++i) {
    const void* const file = field<const void*>(frames[i].code, g_python.offsets.code_filename);
    const void* const name = field<const void*>(frames[i].code, g_python.offsets.code_name);
    uint32_t id = find_place(frames[i], file, name);
    if (id == 0) id = add_place(frames[i], file, name);
    if (id != 0) ids[kept++] = id;
  }
  return kept;
}

const PythonPlace* python_place(uint32_t id) {
  const LockHolder hold(g_lock);
  return id == 0 || id > g_count ? nullptr : g_places[id - 1];
}

void lock_python() { g_lock.lock(); }
void unlock_python() { g_lock.unlock(); }
void reset_python_lock() { g_lock.reset(); }

}  // namespace flatout::malloc
