// A CPython in made-up memory, for tests and fuzzers of PythonReader: laid out by the same offsets
// as the real ones, for any version.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "probe/python_reader.h"

namespace flatout::probe {

/// Memory made of regions. Shared by the test, which changes it, and the reader.
struct FakeMemory {
  std::map<uint64_t, std::string> regions;  // by first address
  bool gone = false;
  bool denied = false;

  std::string* region(uint64_t address, uint64_t& offset) {
    auto it = regions.upper_bound(address);
    if (it == regions.begin()) return nullptr;
    --it;
    offset = address - it->first;
    return offset < it->second.size() ? &it->second : nullptr;
  }
  void poke_bytes(uint64_t address, const void* data, size_t size) {
    uint64_t offset = 0;
    std::string* to = region(address, offset);
    if (to != nullptr && offset + size <= to->size()) std::memcpy(to->data() + offset, data, size);
  }
  template <class T>
  void poke(uint64_t address, T value) {
    poke_bytes(address, &value, sizeof value);
  }
};

class FakeMemoryReader : public RemoteMemory {
 public:
  explicit FakeMemoryReader(std::shared_ptr<FakeMemory> memory) : memory_(std::move(memory)) {}
  Result<size_t> read(std::span<const RemoteRange> ranges, char* to) override {
    if (memory_->gone) return Error{Code::kGone, "gone", ""};
    if (memory_->denied) return Error{Code::kDenied, "denied", ""};
    size_t done = 0;
    for (const RemoteRange& range : ranges) {
      uint64_t offset = 0;
      const std::string* from = memory_->region(range.address, offset);
      if (from == nullptr || range.size > from->size() - offset) break;
      std::memcpy(to + done, from->data() + offset, range.size);
      done += range.size;
    }
    return done;
  }

 private:
  std::shared_ptr<FakeMemory> memory_;
};

class FakePython {
 public:
  static constexpr uint64_t kRuntime = 0x100000, kInterp = 0x200000, kHeap = 0x300000;
  static constexpr uint64_t kCodeType = 0x500000;
  static constexpr size_t kLocals = 1, kStack = 4;  // words of each frame

  explicit FakePython(const PythonOffsets& offsets, size_t heap = 1 << 20)
      : o(offsets), memory(std::make_shared<FakeMemory>()) {
    memory->regions[kRuntime] = std::string(8192, '\0');
    memory->regions[kInterp] = std::string(16384, '\0');
    memory->regions[kHeap] = std::string(heap, '\0');
    memory->poke(kRuntime + o.interpreters_head, kInterp);
    gil = kRuntime + o.runtime_gil;
    if (o.interp_gil != 0) {
      gil = allocate(256);
      memory->poke(kInterp + o.interp_gil, gil);
    }
    if (o.minor >= 13) write_debug_offsets();
  }

  Result<std::unique_ptr<PythonReader>> open() const {
    PythonPlace place;
    place.runtime = kRuntime;
    place.code_type = kCodeType;
    place.minor = o.minor;
    return PythonReader::open(std::make_unique<FakeMemoryReader>(memory), place);
  }

  uint64_t allocate(size_t size) {
    const uint64_t at = next_;
    next_ += (size + 15) / 16 * 16;
    return at;
  }
  uint64_t add_string(const std::string& ascii) {
    const uint64_t at = allocate(o.unicode_compact_size + ascii.size());
    memory->poke<uint64_t>(at + o.unicode_length, ascii.size());
    const int shift = o.free_threaded && o.minor >= 14 ? 8 : 2;
    // Kind 1, compact, ascii; the bits above are padding, with whatever was there.
    memory->poke<uint32_t>(at + o.unicode_state, 1u | (1u | 8u | 16u) << shift | 0xAB0000u);
    memory->poke_bytes(at + o.unicode_ascii_size, ascii.data(), ascii.size());
    return at;
  }
  uint64_t add_bytes(const std::string& bytes) {
    const uint64_t at = allocate(o.bytes_data + bytes.size() + 1);
    memory->poke<uint64_t>(at + o.bytes_size, bytes.size());
    memory->poke_bytes(at + o.bytes_data, bytes.data(), bytes.size());
    return at;
  }
  /// A code object of `lines` lines, 8 bytes of bytecode each.
  uint64_t add_code(const std::string& name, const std::string& file, int first_line,
                    int lines = 10) {
    std::string table;
    for (int i = 0; i < lines; i++) {
      if (o.minor <= 10) {
        // 3.10: (length, line delta); before: (offset delta, line delta).
        table += o.minor == 10 ? std::string{8, i == 0 ? '\0' : '\1'}
                               : (i == 0 ? std::string{0, 0} : std::string{8, 1});
      } else {
        // One-line form: code 10 + delta, four code units; then two columns.
        table += std::string{static_cast<char>(0x80 | (10 + (i == 0 ? 0 : 1)) << 3 | 3), 0, 0};
      }
    }
    const uint64_t at = allocate(256 + static_cast<size_t>(lines) * 8);
    memory->poke(at + o.object_type, kCodeType);
    memory->poke(at + o.code_name, add_string(name));
    memory->poke(at + o.code_filename, add_string(file));
    memory->poke(at + o.code_linetable, add_bytes(table));
    memory->poke<int32_t>(at + o.code_firstlineno, first_line);
    memory->poke<uint32_t>(at + o.code_stacksize, kStack);
    if (o.code_nlocalsplus != 0) memory->poke<uint32_t>(at + o.code_nlocalsplus, kLocals);
    return at;
  }
  /// The address of a slot of a frame's value stack.
  uint64_t slot(uint64_t frame, size_t number) const {
    const uint64_t values = o.frames_on_data_stack() ? frame + o.frame_values + 8 * kLocals
                                                     : peek(frame + o.frame_values);
    return values + 8 * number;
  }
  /// An iterator that has begun `begun` of `length` rounds.
  uint64_t add_iterator(const std::string& type, int64_t begun, int64_t length) {
    uint64_t& type_at = types_[type];
    if (type_at == 0) {
      type_at = allocate(64);
      const uint64_t name = allocate(32);
      memory->poke_bytes(name, type.data(), type.size());
      memory->poke(type_at + o.type_name, name);
    }
    const uint64_t at = allocate(96);
    memory->poke(at + o.object_type, type_at);
    if (type == "list_iterator") {
      const uint64_t list = allocate(64);
      memory->poke(list + o.object_type + 8, length);
      memory->poke(at + o.object_type + 16, list);
    }
    set_iterator(at, type, begun, length);
    return at;
  }
  void set_iterator(uint64_t at, const std::string& type, int64_t begun, int64_t length) {
    const uint64_t words = at + o.object_type + 8;
    memory->poke(words, begun);
    if (type != "range_iterator") return;
    if (o.minor <= 11) {  // index, start, step, length
      memory->poke<int64_t>(words + 16, 1);
      memory->poke(words + 24, length);
    } else {  // start, step, what is left
      memory->poke<int64_t>(words + 8, 1);
      memory->poke(words + 16, length - begun);
    }
  }
  /// Threads are put at the head of the list, as CPython does.
  uint64_t add_thread(int32_t tid) {
    const uint64_t at = allocate(1024);
    memory->poke(at + o.thread_interp, kInterp);
    memory->poke(at + o.thread_next, head_);
    memory->poke(kInterp + o.interp_threads_head, at);
    head_ = at;
    const uint64_t pthread = allocate(1024);
    memory->poke<uint64_t>(at + o.thread_id, pthread);
    memory->poke<int32_t>(pthread + 720, tid);
    if (o.thread_native_id != 0) memory->poke<uint64_t>(at + o.thread_native_id, tid);
    if (o.has_cframe()) memory->poke(at + o.thread_frame, allocate(64));
    if (o.frames_on_data_stack()) {
      const uint64_t chunk = allocate(4096);
      memory->poke(at + o.thread_chunk, chunk);
      memory->poke(at + o.thread_chunk + 8, chunk + 24);
      memory->poke(at + o.thread_chunk + 16, chunk + 4096);
    }
    return at;
  }
  /// Calls `code` on the thread, standing in the line `line` lines below its first. Its frame.
  uint64_t call(uint64_t thread, uint64_t code, int line, int owner = 0) {
    uint64_t frame = 0;
    if (o.frames_on_data_stack() && owner == 0) {
      frame = peek(thread + o.thread_chunk + 8);
      memory->poke(thread + o.thread_chunk + 8, frame + 128);
    } else {
      frame = allocate(512);
    }
    if (!o.frames_on_data_stack()) memory->poke(frame + o.frame_values, allocate(8 * kStack));
    uint64_t top = thread + o.thread_frame;
    if (o.has_cframe()) top = peek(top) + o.cframe_current;
    memory->poke(frame + o.frame_previous, peek(top));
    memory->poke(frame + o.frame_code, o.minor >= 14 ? code | 1 : code);
    const auto offset = static_cast<uint64_t>(line) * 8;
    if (o.minor <= 10) {
      memory->poke<int32_t>(frame + o.frame_instruction,
                            static_cast<int32_t>(o.minor == 10 ? offset / 2 : offset));
    } else {
      memory->poke(frame + o.frame_instruction, code + o.code_bytecode + offset);
      memory->poke<uint8_t>(frame + o.frame_owner, static_cast<uint8_t>(owner));
    }
    memory->poke(top, frame);
    return frame;
  }
  void hold_gil(uint64_t thread) {
    memory->poke<int32_t>(gil + o.gil_locked, thread != 0);
    memory->poke(gil + o.gil_holder, thread);
  }
  void attach(uint64_t thread, bool on) {
    if (o.thread_status != 0)
      memory->poke<uint32_t>(thread + o.thread_status, on ? 0b10011 : 0b00011);
  }
  void collect(bool on) {
    memory->poke<int32_t>(o.runtime_gc_collecting != 0 ? kRuntime + o.runtime_gc_collecting
                                                       : kInterp + o.interp_gc_collecting,
                          on);
  }
  uint64_t peek(uint64_t address) const {
    uint64_t offset = 0, value = 0;
    const std::string* from = memory->region(address, offset);
    if (from != nullptr && offset + 8 <= from->size()) {
      std::memcpy(&value, from->data() + offset, 8);
    }
    return value;
  }

  PythonOffsets o;
  std::shared_ptr<FakeMemory> memory;
  uint64_t gil = 0;

 private:
  /// As _Py_DebugOffsets_INIT of 3.13 to 3.15 does; fields that are not used are 1.
  void write_debug_offsets() {
    const bool v14 = o.minor >= 14, v15 = o.minor >= 15;
    std::vector<uint64_t> f = {uint64_t{3} << 24 | static_cast<uint64_t>(o.minor) << 16 | 0xF0,
                               o.free_threaded ? 1u : 0u};
    const auto put = [&](std::initializer_list<uint64_t> values) {
      f.insert(f.end(), values.begin(), values.end());
    };
    const uint64_t gil_at = 1000;
    put({1, 1, o.interpreters_head});
    put({1, 1, o.interp_next, o.interp_threads_head});
    if (v14) put({1});
    put({o.interp_gc_collecting - 8, o.interp_modules, 1, 1, o.interp_gil, gil_at, 1,
         gil_at + o.gil_locked, gil_at + o.gil_holder});
    if (v14) put({1, 1});
    put({1, 1, o.thread_next, o.thread_interp, o.thread_frame});
    if (v15) put({1, 1, 1});
    put({o.thread_id, o.thread_native_id, o.thread_chunk, o.thread_status});
    if (v15) put({1, 1, 1, 1, 1});
    put({1, o.frame_previous, o.frame_code, o.frame_instruction, o.frame_values, o.frame_owner});
    if (v14) put({1, o.frame_bytecode_copy});
    put({1, o.code_filename, o.code_name, 1, o.code_linetable, o.code_firstlineno, 1, 1, 1,
         o.code_bytecode});
    if (v14) put({o.code_bytecode_copies});
    put({1, o.object_type, 1, o.type_name, 1, 1});
    if (v15) put({1, 1, 1, 1});
    put({1, 1, 1, 1, 1, 1});
    if (v14) put({1, 1, 1, 1});
    put({1, 1, 1, 1, 1, 1, 1, 1});
    put({1, o.bytes_size, o.bytes_data});
    put({1, o.unicode_state, o.unicode_length, o.unicode_ascii_size});
    if (v15) put({o.unicode_compact_size});
    put({1, 8});
    memory->poke_bytes(kRuntime, "xdebugpy", 8);
    memory->poke_bytes(kRuntime + 8, f.data(), f.size() * 8);
  }

  uint64_t next_ = kHeap;
  std::map<std::string, uint64_t> types_;
  uint64_t head_ = 0;
};

/// Offsets to build with: of the table until 3.12, else invented ones in the manner of that
/// version.
inline PythonOffsets fake_offsets(int minor, bool free_threaded = false) {
  if (minor <= 12) return *python_offsets(minor);
  PythonOffsets o = *python_offsets(12);
  o.minor = minor;
  o.free_threaded = free_threaded;
  o.interpreters_head = 1200;  // behind the debug offsets
  o.cframe_current = 0;
  o.thread_status = 40;
  if (free_threaded) {
    o.object_type = 24;
    o.bytes_size = 32;
    o.bytes_data = 48;
    o.unicode_length = 32;
    o.unicode_state = 48;
    o.unicode_ascii_size = 56;
    if (minor >= 14) {
      o.frame_bytecode_copy = 72;
      o.frame_values = 80;
      o.code_bytecode_copies = 240;
      o.code_bytecode = 256;
    }
  }
  o.unicode_compact_size = o.unicode_ascii_size + 16;
  return o;
}

}  // namespace flatout::probe
