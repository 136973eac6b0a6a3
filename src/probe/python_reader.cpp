#include "probe/python_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>

#include "model/source_files.h"

namespace flatout::probe {
namespace {

constexpr int kMaxInterpreters = 64;
constexpr size_t kMaxThreads = 1024;
constexpr size_t kMaxDepth = 512;
constexpr size_t kMaxFrames = 1 << 15;   // of all threads together
constexpr size_t kMaxText = 4096;        // characters of a name
constexpr size_t kMaxTable = 256 << 10;  // bytes of a line table
constexpr size_t kMaxKnown = 20000;      // code objects
constexpr size_t kMaxCodes = 30000;      // functions; of those beyond, all are one
constexpr size_t kMaxBlock = 8192;
constexpr uint64_t kTrustFor = 16;       // readings, until a code object is looked at again
constexpr uint64_t kStackMargin = 1024;  // of the data stack beyond its top
constexpr uint64_t kMaxChunk = 256 << 10;
constexpr char kOwnedByGenerator = 1;  // _frameowner
constexpr size_t kLoopFrames = 16;     // outermost frames whose loops are read, also of the user's
constexpr uint32_t kLoopSlots = 16;    // of each frame's value stack, from its bottom
constexpr uint32_t kMaxWords = 1 << 16;  // locals or value stack of a frame
constexpr size_t kMaxTypes = 1000;
constexpr int64_t kMaxRounds = int64_t{1} << 40;

/// Whether a frame is of Python's own or of an installed package, as those of a notebook's kernel.
bool is_library(std::string_view file) {
  return model::is_installed(file) || file.starts_with("<frozen ") ||
         file.find("/lib/python3") != std::string_view::npos;
}

template <class T>
T field(const char* block, uint32_t offset) {
  T value;
  std::memcpy(&value, block + offset, sizeof value);
  return value;
}

void append_utf8(std::string& out, uint32_t c) {
  char text[4];
  out.append(text, wire::encode_utf8(c, text));
}

}  // namespace

PythonReader::PythonReader(std::unique_ptr<RemoteMemory> memory, const PythonPlace& place)
    : memory_(std::move(memory)), snapshot_(*memory_), place_(place) {}

Result<std::unique_ptr<PythonReader>> PythonReader::open(const fs::Root& root, int32_t pid,
                                                         PythonFinder& finder) {
  FLATOUT_TRY(const PythonPlace place, finder.find(root, pid));
  return open(std::make_unique<ProcessMemory>(pid), place);
}

Result<std::unique_ptr<PythonReader>> PythonReader::open(std::unique_ptr<RemoteMemory> memory,
                                                         const PythonPlace& place) {
  std::unique_ptr<PythonReader> reader(new PythonReader(std::move(memory), place));
  FLATOUT_TRY_STATUS(reader->choose_offsets());
  const PythonOffsets& o = reader->offsets_;
  reader->thread_block_ =
      std::max({o.thread_next + 8, o.thread_interp + 8, o.thread_id + 8, o.thread_native_id + 8,
                o.thread_frame + 8, o.thread_chunk + 24, o.thread_status + 4});
  reader->frame_block_ = std::max({o.frame_previous + 8, o.frame_code + 8, o.frame_instruction + 8,
                                   o.frame_owner + 1, o.frame_bytecode_copy + 4});
  reader->code_block_ =
      std::max({o.code_filename, o.code_name, o.code_linetable, o.code_firstlineno,
                o.code_nlocalsplus, o.code_bytecode_copies, o.object_type}) +
      8;
  if (std::max({reader->thread_block_, reader->frame_block_, reader->code_block_}) > kMaxBlock) {
    return Error{Code::kBadInput, "the interpreter's offsets make no sense", ""};
  }
  return reader;
}

Status PythonReader::choose_offsets() {
  std::array<char, kDebugOffsetsSize> head;
  const RemoteRange range{place_.runtime, sizeof head};
  auto got = memory_->read({&range, 1}, head.data());
  if (!got.ok()) return got.error();
  const std::string_view runtime(head.data(), *got);
  if (has_debug_offsets(runtime)) {
    FLATOUT_TRY(offsets_, parse_debug_offsets(runtime));
    return {};
  }
  int minor = place_.minor;
  uint64_t version = 0;
  const RemoteRange word{place_.version_word, sizeof version};
  if (place_.version_word != 0) {
    auto bytes = memory_->read({&word, 1}, reinterpret_cast<char*>(&version));
    if (bytes.ok() && *bytes == sizeof version && version >> 24 == 3) {
      minor = static_cast<int>(version >> 16 & 0xFF);
    }
  }
  if (minor != 0 && python_offsets(minor) == nullptr) {
    const bool starting = minor >= 13 && minor <= kNewestPython;
    return Error{starting ? Code::kNotFound : Code::kUnsupported,
                 "cannot read the stacks of CPython 3." + std::to_string(minor),
                 starting ? "" : "CPython 3.8 to 3.15 are known"};
  }
  for (int candidate = kOldestPython; candidate <= 12; candidate++) {
    if (minor != 0 && candidate != minor) continue;
    if (!walk_matches(*python_offsets(candidate))) continue;
    offsets_ = *python_offsets(candidate);
    return {};
  }
  return Error{Code::kNotFound, "the Python interpreter is not running yet", ""};
}

/// True if following `o` from the runtime leads to a thread state that points back.
bool PythonReader::walk_matches(const PythonOffsets& o) {
  RemoteSnapshot memory(*memory_);
  uint64_t interp = 0, thread = 0, back = 0;
  return memory.begin().ok() && memory.get(place_.runtime + o.interpreters_head, interp) &&
         memory.get(interp + o.interp_threads_head, thread) &&
         memory.get(thread + o.thread_interp, back) && interp != 0 && back == interp;
}

Status PythonReader::read(PythonReading& out, std::span<const int32_t> tids) {
  // A reading that was torn is tried once more: what it caught lasts some nanoseconds.
  Status status = read_once(out);
  const auto torn = [&] {
    return std::any_of(out.threads.begin(), out.threads.end(),
                       [](const PythonThread& t) { return t.torn; });
  };
  if (status.ok() ? torn() : status.error().code == Code::kTorn) status = read_once(out);
  if (status.ok() && offsets_.thread_native_id == 0) find_tids(out, tids);
  if (status.ok() && loops_of_ != 0) {
    for (const PythonThread& t : out.threads) {
      if (t.tid == loops_of_) loops_thread_ = t.address;
    }
  }
  return status;
}

Status PythonReader::read_once(PythonReading& out) {
  readings_++;
  out.gc_running = out.gil_locked = out.cut = false;
  out.gils.clear();
  count_ = frames_ = 0;
  FLATOUT_TRY_STATUS(snapshot_.begin());
  if (known_.size() > kMaxKnown) known_.clear();
  uint64_t interp = 0;
  bool ok = snapshot_.get(place_.runtime + offsets_.interpreters_head, interp) && interp != 0;
  for (int i = 0; ok && interp != 0 && i < kMaxInterpreters; i++) {
    ok = read_interpreter(interp, out) && snapshot_.get(interp + offsets_.interp_next, interp);
  }
  out.threads.resize(count_);
  if (!snapshot_.trouble().ok()) return snapshot_.trouble().error();
  if (!ok) return Error{Code::kTorn, "the interpreter changed while it was read", ""};
  return {};
}

bool PythonReader::read_interpreter(uint64_t interp, PythonReading& out) {
  const PythonOffsets& o = offsets_;
  uint64_t gil = place_.runtime + o.runtime_gil;
  if (o.interp_gil != 0 && !snapshot_.get(interp + o.interp_gil, gil)) return false;
  int32_t locked = 0;
  uint64_t holder = 0;
  if (gil != 0) {
    // Both lie side by side, before anything whose size depends on the machine.
    std::array<char, 512> block;
    const size_t size = std::max(o.gil_locked, o.gil_holder) + 8;
    if (size <= block.size() && snapshot_.copy(gil, block.data(), size)) {
      locked = field<int32_t>(block.data(), o.gil_locked);
      holder = field<uint64_t>(block.data(), o.gil_holder);
      if (out.gils.empty() || out.gils.back() != gil) out.gils.push_back(gil);
    }
  }
  if (locked == 1) out.gil_locked = true;
  int32_t collecting = 0;
  const uint64_t gc = o.runtime_gc_collecting != 0 ? place_.runtime + o.runtime_gc_collecting
                                                   : interp + o.interp_gc_collecting;
  if (snapshot_.get(gc, collecting) && collecting == 1) out.gc_running = true;

  uint64_t thread = 0;
  if (!snapshot_.get(interp + o.interp_threads_head, thread)) return false;
  std::array<char, kMaxBlock> block;
  while (thread != 0) {
    if (count_ >= kMaxThreads) {
      out.cut = true;
      break;
    }
    if (!snapshot_.copy(thread, block.data(), thread_block_)) return false;
    if (field<uint64_t>(block.data(), o.thread_interp) != interp) return false;
    if (count_ >= out.threads.size()) out.threads.emplace_back();
    PythonThread& t = out.threads[count_++];
    t.address = thread;
    t.pthread_id = field<uint64_t>(block.data(), o.thread_id);
    t.tid = o.thread_native_id != 0 ? field<int32_t>(block.data(), o.thread_native_id) : 0;
    t.holds_gil = locked == 1 && holder == thread;
    t.attached = t.holds_gil ||
                 (o.free_threaded &&
                  (field<uint32_t>(block.data(), o.thread_status) & wire::kThreadActive) != 0);
    t.cut = false;
    t.frames.clear();
    t.loops.clear();
    stack_.clear();
    t.torn = !read_thread(block.data(), t);
    if (t.torn) t.frames.clear();
    if (!t.torn && !stack_.empty()) read_loops(t);
    thread = field<uint64_t>(block.data(), o.thread_next);
  }
  return true;
}

bool PythonReader::read_thread(const char* block, PythonThread& thread) {
  uint64_t frame = field<uint64_t>(block, offsets_.thread_frame);
  if (offsets_.has_cframe()) {
    if (frame == 0) return true;
    if (!snapshot_.get(frame + offsets_.cframe_current, frame)) return false;
  }
  if (frame == 0) return true;
  if (offsets_.frames_on_data_stack()) fetch_data_stack(block);
  return read_frames(frame, thread);
}

/// One read for all frames in the current chunk of the thread's data stack.
void PythonReader::fetch_data_stack(const char* block) {
  const auto chunk = field<uint64_t>(block, offsets_.thread_chunk);
  const auto top = field<uint64_t>(block, offsets_.thread_chunk + 8);
  const auto limit = field<uint64_t>(block, offsets_.thread_chunk + 16);
  if (chunk == 0 || top <= chunk || limit < top || limit - chunk > kMaxChunk) return;
  const uint64_t end = (top + kStackMargin - 1) / kStackMargin * kStackMargin;
  if (snapshot_.fetch(chunk, top - chunk)) return;  // covered by what was read at the start
  snapshot_.fetch(chunk, std::min(end + kStackMargin, limit) - chunk);
}

bool PythonReader::read_frames(uint64_t frame, PythonThread& thread) {
  const PythonOffsets& o = offsets_;
  const bool with_loops = loops_of_ != 0 && thread.address == loops_thread_;
  std::array<char, kMaxBlock> block;
  for (size_t depth = 0; frame != 0; depth++) {
    if (depth >= kMaxDepth || frames_++ >= kMaxFrames) {
      thread.cut = true;
      return true;
    }
    if (!snapshot_.copy(frame, block.data(), frame_block_)) return false;
    const auto previous = field<uint64_t>(block.data(), o.frame_previous);
    if (previous == frame) return false;
    const bool generator = o.frame_owner != 0 && block[o.frame_owner] == kOwnedByGenerator;
    // One that is just being entered or left: its link to the caller is not there.
    if (generator && previous == 0) return false;
    // Frames of the interpreter itself, between Python and C: 3.12 and later.
    const bool shim = o.frame_owner != 0 && o.minor >= 12 &&
                      static_cast<uint8_t>(block[o.frame_owner]) >= wire::kOwnedByInterpreter;
    if (!shim) {
      const uint64_t address = wire::untag(field<uint64_t>(block.data(), o.frame_code));
      const KnownCode* code = find_code(address, false);
      if (code == nullptr) return false;
      const int64_t at = instruction(block.data(), address);
      // Outside of its code: it is another object by now, or the frame is torn.
      const auto outside = [&] { return code->lines.end() != 0 && at > code->lines.end(); };
      if (outside()) code = find_code(address, true);
      if (code == nullptr || outside()) return false;
      const int line = at < 0 ? code->first_line : code->lines.line(at);
      thread.frames.push_back({code->id, static_cast<uint32_t>(std::max(line, 0)), generator});
      if (with_loops) stack_.emplace_back(frame, code);
    }
    frame = previous;
  }
  return true;
}

/// What modules do while they are imported is preparation: no loop of theirs is looked at. A
/// notebook's cell lies below dozens of frames of its kernel, so what is outermost counts from
/// there, too.
void PythonReader::read_loops(PythonThread& thread) {
  const size_t count = thread.cut ? 0 : stack_.size();
  std::optional<size_t> own;  // depth of the outermost frame that is no library's
  for (size_t depth = 0; depth < count; depth++) {
    const auto& [frame, code] = stack_[count - 1 - depth];
    const std::string& file = codes_[code->id].file;
    if (file.starts_with("<frozen importlib")) break;
    if (!own && !is_library(file)) own = depth;
    if (depth >= kLoopFrames && (!own || depth >= *own + kLoopFrames)) {
      if (own) break;
      continue;
    }
    PythonLoop loop;
    loop.code = code->id;
    loop.depth = static_cast<uint32_t>(depth);
    read_loops(frame, *code, loop, thread);
  }
}

/// A `for` loop keeps its iterator on the value stack as long as it runs. What lies above the top
/// of the stack is left over from before, and may be anything: types are checked, and an iterator
/// counts only once. From 3.15 on a list or tuple stands there itself, below its index.
void PythonReader::read_loops(uint64_t frame, const KnownCode& code, PythonLoop loop,
                              PythonThread& thread) {
  if (code.stack == 0 || code.stack > kMaxWords || code.locals > kMaxWords) return;
  uint64_t values = frame + offsets_.frame_values + uint64_t{code.locals} * 8;
  if (!offsets_.frames_on_data_stack() && !snapshot_.get(frame + offsets_.frame_values, values)) {
    return;
  }
  std::array<uint64_t, kLoopSlots> slots;
  const uint32_t count = std::min(code.stack, kLoopSlots);
  if (!snapshot_.copy(values, slots.data(), count * sizeof slots[0])) return;
  for (loop.slot = 0; loop.slot < count; loop.slot++) {
    loop.iterator = wire::untag(slots[loop.slot]);
    if (offsets_.minor >= 15 && wire::is_tagged_int(slots[loop.slot])) {
      if (loop.slot == 0 || !read_items(wire::untag(slots[loop.slot - 1]), loop)) continue;
      loop.begun = wire::tagged_int(slots[loop.slot]);
      loop.iterator = values + uint64_t{loop.slot} * 8;
      if (loop.begun < 0 || loop.begun > loop.length) continue;
    } else if (loop.iterator < 4096 || !read_iterator(loop)) {
      continue;
    }
    const bool known =
        std::any_of(thread.loops.begin(), thread.loops.end(),
                    [&](const PythonLoop& other) { return other.iterator == loop.iterator; });
    if (!known) thread.loops.push_back(loop);
  }
}

/// Fills in `begun` and `length`. False where loop.iterator is no iterator that counts.
bool PythonReader::read_iterator(PythonLoop& loop) {
  const PythonOffsets& o = offsets_;
  const uint32_t head = o.object_type + 8;
  struct {
    uint64_t type;
    int64_t words[4];
  } object;
  if (!snapshot_.copy(loop.iterator + o.object_type, &object, sizeof object)) return false;
  const auto& w = object.words;
  switch (counting_of(object.type)) {
    case Counting::kNot:
    case Counting::kItems:
      return false;
    case Counting::kRange:
      // index, start, step, length until 3.11; then start, step, length, of which the first grows
      // and the last shrinks: how many rounds are over is told by a range that begins at 0.
      loop.begun = o.minor <= 11 ? w[0] : (w[1] > 0 ? std::max<int64_t>(w[0] / w[1], 0) : 0);
      loop.length = o.minor <= 11 ? w[3] : w[2];
      if (loop.length < 0 || loop.length > kMaxRounds || loop.begun > kMaxRounds) return false;
      if (o.minor > 11) loop.length += loop.begun;
      break;
    case Counting::kSequence: {
      loop.begun = w[0];
      loop.length = -1;
      int64_t size = 0;
      if (snapshot_.copy(static_cast<uint64_t>(w[1]) + head, &size, sizeof size)) {
        loop.length = size;
      }
      break;
    }
    case Counting::kIndex:
      loop.begun = w[0];
      loop.length = -1;
      break;
  }
  return loop.begun >= 0 && loop.begun <= kMaxRounds && loop.length <= 2 * kMaxRounds &&
         (loop.length < 0 || loop.begun <= loop.length);
}

/// Fills in `length` where there is a list or tuple at `address`.
bool PythonReader::read_items(uint64_t address, PythonLoop& loop) {
  struct {
    uint64_t type;
    int64_t size;
  } object;
  if (address < 4096 || !snapshot_.copy(address + offsets_.object_type, &object, sizeof object) ||
      counting_of(object.type) != Counting::kItems) {
    return false;
  }
  loop.length = object.size;
  return loop.length >= 0 && loop.length <= kMaxRounds;
}

/// How objects of the type at that address count rounds.
PythonReader::Counting PythonReader::counting_of(uint64_t type_address) {
  const auto known = types_.find(type_address);
  if (known != types_.end()) return known->second;
  if (types_.size() >= kMaxTypes) types_.clear();
  uint64_t name = 0;
  char text[16] = {};
  Counting counting = Counting::kNot;
  if (snapshot_.copy_once(type_address + offsets_.type_name, &name, sizeof name) &&
      snapshot_.copy_once(name, text, sizeof text - 1)) {
    const std::string_view type = text;
    if (type == "range_iterator") counting = Counting::kRange;
    if (type == "list_iterator" || type == "tuple_iterator") counting = Counting::kSequence;
    if (type == "enumerate" || type == "iterator") counting = Counting::kIndex;
    if (type == "list" || type == "tuple") counting = Counting::kItems;
  }
  return types_.emplace(type_address, counting).first->second;
}

/// Offset of the frame's instruction in its bytecode; negative before the first.
int64_t PythonReader::instruction(const char* block, uint64_t code) {
  const PythonOffsets& o = offsets_;
  if (o.minor <= 10) {
    const int64_t last = field<int32_t>(block, o.frame_instruction);
    return o.minor == 10 ? last * 2 : last;  // 3.10 counts instructions
  }
  uint64_t bytecode = code + o.code_bytecode;
  if (o.frame_bytecode_copy != 0 && o.code_bytecode_copies != 0) {
    // Each thread of a build without GIL may run a copy of its own; copy 0 is the original.
    const auto index = field<int32_t>(block, o.frame_bytecode_copy);
    uint64_t copies = 0, copy = 0;
    if (index > 0 && index < (1 << 20) && snapshot_.get(code + o.code_bytecode_copies, copies) &&
        copies != 0 && snapshot_.get(copies + 8 + static_cast<uint64_t>(index) * 8, copy) &&
        copy != 0) {
      bytecode = copy;
    }
  }
  return static_cast<int64_t>(field<uint64_t>(block, o.frame_instruction) - bytecode);
}

/// The code object at `address`. Addresses are reused, so every so often, and always where
/// `distrust`, it is checked to be what it was when it was learned. nullptr where there is none.
PythonReader::KnownCode* PythonReader::find_code(uint64_t address, bool distrust) {
  if (address == 0 || address % 8 != 0) return nullptr;
  const auto found = known_.find(address);
  if (!distrust && found != known_.end() && readings_ - found->second.checked <= kTrustFor) {
    return &found->second;
  }
  const PythonOffsets& o = offsets_;
  std::array<char, kMaxBlock> block;
  if (!snapshot_.copy(address, block.data(), code_block_)) return nullptr;
  KnownCode now;
  now.name = field<uint64_t>(block.data(), o.code_name);
  now.file = field<uint64_t>(block.data(), o.code_filename);
  now.table = field<uint64_t>(block.data(), o.code_linetable);
  now.first_line = field<int32_t>(block.data(), o.code_firstlineno);
  now.stack = field<uint32_t>(block.data(), o.code_stacksize);
  if (o.code_nlocalsplus != 0) now.locals = field<uint32_t>(block.data(), o.code_nlocalsplus);
  now.checked = readings_;
  if (found != known_.end() && found->second.name == now.name && found->second.file == now.file &&
      found->second.table == now.table && found->second.first_line == now.first_line) {
    found->second.checked = readings_;
    return &found->second;
  }
  if (!is_code_type(field<uint64_t>(block.data(), o.object_type))) return nullptr;
  std::string name, file, table;
  if (!read_string(now.name, name) || !read_string(now.file, file) ||
      !read_bytes(now.table, table)) {
    return nullptr;
  }
  now.id = intern(name, file, now.first_line);
  now.lines = symbols::PythonLines::decode(table, now.first_line, o.minor);
  return &(known_[address] = std::move(now));
}

bool PythonReader::is_code_type(uint64_t type) {
  if (place_.code_type != 0) return type == place_.code_type;
  uint64_t name = 0;
  char text[5] = {};
  if (!snapshot_.copy_once(type + offsets_.type_name, &name, sizeof name) ||
      !snapshot_.copy_once(name, text, sizeof text) || std::memcmp(text, "code", 5) != 0) {
    return false;
  }
  place_.code_type = type;
  return true;
}

bool PythonReader::read_string(uint64_t address, std::string& out) {
  const PythonOffsets& o = offsets_;
  std::array<char, 256> head;
  const size_t size = std::max(o.unicode_length + 8, o.unicode_state + 4);
  if (size > head.size() || !snapshot_.copy_once(address, head.data(), size)) return false;
  const auto length = field<uint64_t>(head.data(), o.unicode_length);
  wire::UnicodeState state;
  if (!wire::decode_unicode_state(field<uint32_t>(head.data(), o.unicode_state), o, state))
    return false;
  if (length > (uint64_t{1} << 40)) return false;
  const size_t count = std::min<uint64_t>(length, kMaxText);
  out.clear();
  if (count == 0) return true;
  std::string raw(count * static_cast<size_t>(state.kind), '\0');
  const uint64_t data = address + (state.ascii ? o.unicode_ascii_size : o.unicode_compact_size);
  if (!snapshot_.copy_once(data, raw.data(), raw.size())) return false;
  for (size_t i = 0; i < count; i++) {
    uint32_t c = 0;
    std::memcpy(&c, raw.data() + i * static_cast<size_t>(state.kind),
                static_cast<size_t>(state.kind));
    append_utf8(out, c <= 0x10FFFF ? c : 0xFFFD);
  }
  return true;
}

bool PythonReader::read_bytes(uint64_t address, std::string& out) {
  uint64_t size = 0;
  if (!snapshot_.copy_once(address + offsets_.bytes_size, &size, sizeof size)) return false;
  if (size > kMaxTable) return false;
  out.resize(size);
  return size == 0 || snapshot_.copy_once(address + offsets_.bytes_data, out.data(), size);
}

uint32_t PythonReader::intern(const std::string& function, const std::string& file, int line) {
  const std::string key = function + '\0' + file + '\0' + std::to_string(line);
  // Programs that write programs make functions without end.
  if (ids_.size() >= kMaxCodes && !ids_.contains(key)) {
    if (codes_.size() == ids_.size()) codes_.push_back({"(one of very many functions)", "", 0});
    return static_cast<uint32_t>(codes_.size() - 1);
  }
  const auto [it, fresh] = ids_.emplace(key, static_cast<uint32_t>(codes_.size()));
  if (fresh) codes_.push_back({function, file, line});
  return it->second;
}

/// Until 3.10 a thread state knows only its pthread_t: the address of libc's struct pthread, which
/// holds the tid. Where in there is learned by looking for numbers that are tids of this process.
void PythonReader::find_tids(PythonReading& out, std::span<const int32_t> tids) {
  if (tids.empty() || out.threads.empty()) return;
  if (tid_offset_ < 0) learn_tid_offset(out, tids);
  if (tid_offset_ < 0) return;
  size_t matched = 0;
  for (PythonThread& t : out.threads) {
    int32_t tid = 0;
    if (!snapshot_.get(t.pthread_id + static_cast<uint64_t>(tid_offset_), tid)) continue;
    if (std::find(tids.begin(), tids.end(), tid) == tids.end()) continue;
    t.tid = tid;
    matched++;
  }
  if (matched == 0) tid_offset_ = -1;
}

void PythonReader::learn_tid_offset(const PythonReading& out, std::span<const int32_t> tids) {
  constexpr size_t kLook = 1024;
  std::vector<size_t> candidates;
  std::array<char, kLook> block;
  bool first = true;
  std::vector<int32_t> seen;
  for (const PythonThread& t : out.threads) {
    if (t.pthread_id % 8 != 0 || !snapshot_.copy_once(t.pthread_id, block.data(), kLook)) continue;
    const auto is_tid = [&](size_t at) {
      const auto value = field<int32_t>(block.data(), static_cast<uint32_t>(at));
      return std::find(tids.begin(), tids.end(), value) != tids.end();
    };
    if (first) {
      for (size_t at = 0; at + 4 <= kLook; at += 4) {
        if (is_tid(at)) candidates.push_back(at);
      }
      first = false;
    } else {
      std::erase_if(candidates, [&](size_t at) { return !is_tid(at); });
    }
  }
  if (!candidates.empty()) tid_offset_ = static_cast<int>(candidates.front());
}

}  // namespace flatout::probe
