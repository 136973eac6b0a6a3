#include "probe/native_stack.h"

#include <linux/perf_event.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <asm/perf_regs.h>
#endif

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/fs.h"
#include "base/page_size.h"
#include "model/stack.h"
#include "probe/perf_event.h"
#include "probe/remote_memory.h"
#include "symbols/spin_loop.h"

namespace flatout::probe {
namespace {

constexpr size_t kStackBytes = 8192;
constexpr size_t kMaxStackBytes = 24576;
constexpr size_t kRingPages = 8;  // data; holds one sample of the largest stack, three usual ones
constexpr uint32_t kTopOfStack = 192;  // bytes; what a lock or a call of the kernel's leaves there
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxSamplers = 16;
constexpr uint64_t kSoonNs = 20'000;     // of CPU time, from ask() to the sample
constexpr long kMostWaitNs = 1'000'000;  // in ask()
constexpr size_t kMaxKnown = 4096;       // frames, by address

#if defined(__x86_64__)
// From the kernel's numbers of registers to DWARF's.
constexpr struct {
  unsigned perf, dwarf;
} kRegisters[] = {
    {PERF_REG_X86_AX, 0},   {PERF_REG_X86_DX, 1},   {PERF_REG_X86_CX, 2},   {PERF_REG_X86_BX, 3},
    {PERF_REG_X86_SI, 4},   {PERF_REG_X86_DI, 5},   {PERF_REG_X86_BP, 6},   {PERF_REG_X86_SP, 7},
    {PERF_REG_X86_R8, 8},   {PERF_REG_X86_R9, 9},   {PERF_REG_X86_R10, 10}, {PERF_REG_X86_R11, 11},
    {PERF_REG_X86_R12, 12}, {PERF_REG_X86_R13, 13}, {PERF_REG_X86_R14, 14}, {PERF_REG_X86_R15, 15}};
constexpr unsigned kPc = PERF_REG_X86_IP;
#elif defined(__aarch64__)
constexpr struct {
  unsigned perf, dwarf;
} kRegisters[] = {{0, 0},   {1, 1},   {2, 2},   {3, 3},   {4, 4},   {5, 5},   {6, 6},   {7, 7},
                  {8, 8},   {9, 9},   {10, 10}, {11, 11}, {12, 12}, {13, 13}, {14, 14}, {15, 15},
                  {16, 16}, {17, 17}, {18, 18}, {19, 19}, {20, 20}, {21, 21}, {22, 22}, {23, 23},
                  {24, 24}, {25, 25}, {26, 26}, {27, 27}, {28, 28}, {29, 29}, {30, 30}, {31, 31}};
constexpr unsigned kPc = 32;
#endif

constexpr uint64_t register_mask() {
  uint64_t mask = uint64_t{1} << kPc;
  for (const auto& r : kRegisters) mask |= uint64_t{1} << r.perf;
  return mask;
}

/// A sample's payload, as the attributes in open() ask for it.
bool parse_sample(std::string_view payload, symbols::NativeRegisters& registers,
                  std::string& stack) {
  ByteReader in(payload);
  registers = {};
  if (in.get<uint64_t>() == PERF_SAMPLE_REGS_ABI_NONE) return false;
  for (unsigned bit = 0; bit < 64; bit++) {
    if ((register_mask() >> bit & 1) == 0) continue;
    const auto value = in.get<uint64_t>();
    if (bit == kPc) registers.pc = value;
    for (const auto& r : kRegisters) {
      if (r.perf == bit) registers.set(r.dwarf, value);
    }
  }
  const auto size = in.get<uint64_t>();
  if (size > kMaxStackBytes) return false;
  const std::string_view bytes = in.take(size);
  const uint64_t used = size != 0 ? in.get<uint64_t>() : 0;
  if (!in.ok()) return false;
  stack.assign(bytes.substr(0, used));
  return true;
}

/// Whether the code at `pc` waits for memory to change.
bool spins_at(int32_t pid, uint64_t pc) {
  std::array<char, 2 * symbols::kSpinLoopReach> code{};
  if (pc < symbols::kSpinLoopReach) return false;
  const RemoteRange range{pc - symbols::kSpinLoopReach, static_cast<uint32_t>(code.size())};
  const auto got = ProcessMemory(pid).read({&range, 1}, code.data());
  return got.ok() &&
         symbols::is_spin_loop(std::string_view(code.data(), *got), symbols::kSpinLoopReach);
}

}  // namespace

Result<std::unique_ptr<CpuSampler>> CpuSampler::open(int32_t tid, uint32_t stack_bytes, When when) {
  perf_event_attr attr{};
  attr.size = sizeof attr;
  attr.type = PERF_TYPE_SOFTWARE;
  attr.config = PERF_COUNT_SW_TASK_CLOCK;
  if (when == kAlways) {
    attr.freq = 1;
    attr.sample_freq = model::kNativeSamplesPerSecond;
  } else {
    attr.disabled = 1;
    attr.sample_period = kSoonNs;
    attr.wakeup_events = 1;
  }
  attr.sample_type = PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER;
  attr.sample_regs_user = register_mask();
  attr.sample_stack_user = stack_bytes;
  attr.exclude_kernel = 1;
  attr.exclude_hv = 1;
  attr.write_backward = 0;
  FLATOUT_TRY(const int fd, open_perf_event(attr, tid, "sample running native code"));
  void* ring =
      mmap(nullptr, (1 + kRingPages) * page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (ring == MAP_FAILED) {
    close(fd);
    return Error{Code::kDenied, "cannot map a sampling buffer", "raise kernel.perf_event_mlock_kb"};
  }
  return std::unique_ptr<CpuSampler>(new CpuSampler(fd, ring));
}

CpuSampler::~CpuSampler() {
  munmap(ring_, (1 + kRingPages) * page_bytes());
  close(fd_);
}

bool CpuSampler::ask() {
  auto* header = static_cast<perf_event_mmap_page*>(ring_);
  const auto head = [&] { return __atomic_load_n(&header->data_head, __ATOMIC_ACQUIRE); };
  pollfd ready{fd_, POLLIN, 0};
  if (head() != header->data_tail) {  // it came after the last ask() had given up
    header->data_tail = head();
    poll(&ready, 1, 0);
    asked_ = false;
  }
  // Each of these adds one sample; what was asked for and did not come is still to come.
  if (!asked_ && ioctl(fd_, PERF_EVENT_IOC_REFRESH, 1) != 0) return false;
  const timespec most{0, kMostWaitNs};
  ppoll(&ready, 1, &most, nullptr);
  asked_ = head() == header->data_tail;
  return !asked_;
}

bool CpuSampler::take(symbols::NativeRegisters& registers, std::string& stack) {
  auto* header = static_cast<perf_event_mmap_page*>(ring_);
  const char* data = static_cast<const char*>(ring_) + page_bytes();
  const uint64_t size = kRingPages * page_bytes();
  const uint64_t head = __atomic_load_n(&header->data_head, __ATOMIC_ACQUIRE);
  uint64_t tail = header->data_tail;
  std::string newest, event;
  while (tail < head) {
    perf_event_header h{};
    const auto copy = [&](uint64_t at, void* to, size_t bytes) {
      for (size_t i = 0; i < bytes; i++) static_cast<char*>(to)[i] = data[(at + i) % size];
    };
    copy(tail, &h, sizeof h);
    if (h.size < sizeof h || h.size > head - tail) break;
    if (h.type == PERF_RECORD_SAMPLE) {
      event.resize(h.size - sizeof h);
      copy(tail + sizeof h, event.data(), event.size());
      newest.swap(event);
    }
    tail += h.size;
  }
  __atomic_store_n(&header->data_tail, head, __ATOMIC_RELEASE);
  return !newest.empty() && parse_sample(newest, registers, stack);
}

PlaceWatch::PlaceWatch(int32_t pid) : pid_(pid) {
  const auto maps = symbols::read_maps(fs::Root("/"), pid);
  if (maps.ok()) code_ = symbols::AllocatorCode::of(*maps);
}

NativePlace PlaceWatch::blocked(const SyscallInfo& call) {
  // Whatever an earlier call left next to the stack pointer.
  if (!may_wait_for_lock(call)) return NativePlace::kElsewhere;
  ProcessMemory memory(pid_);
  buffer_.resize(kTopOfStack);
  const RemoteRange top{call.sp, static_cast<uint32_t>(buffer_.size())};
  const auto got = memory.read({&top, 1}, buffer_.data());
  const bool inside = got.ok() && code_.is_called_from(std::string_view(buffer_).substr(0, *got));
  return inside ? NativePlace::kAllocator : NativePlace::kElsewhere;
}

NativePlace PlaceWatch::running(int32_t tid) {
  auto it = samplers_.find(tid);
  if (it == samplers_.end()) {
    if (samplers_.size() >= kMaxSamplers) return NativePlace::kElsewhere;
    auto opened = CpuSampler::open(tid, kTopOfStack);
    it = samplers_.emplace(tid, Sampled{opened.ok() ? std::move(*opened) : nullptr}).first;
  }
  if (it->second.sampler == nullptr) return NativePlace::kElsewhere;
  symbols::NativeRegisters registers;
  if (it->second.sampler->take(registers, buffer_)) {
    const bool inside = code_.holds(registers.pc) || code_.is_called_from(buffer_);
    it->second.place = inside                         ? NativePlace::kAllocator
                       : spins_at(pid_, registers.pc) ? NativePlace::kSpinWait
                                                      : NativePlace::kElsewhere;
  }
  return it->second.place;
}

bool NativeStacks::ready() {
  const bool there = code_.ready();
  if (version_ != code_.version()) {
    version_ = code_.version();
    known_.clear();
    callees_.clear();
  }
  return there;
}

/// Whether the stack begins where stacks do: in the program, in libc or in the loader.
bool NativeStacks::has_beginning() const {
  if (pcs_.size() >= kMaxDepth) return true;  // further than this is followed
  const auto* m = code_.find(pcs_.back() - (pcs_.size() > 1 ? 1 : 0));
  if (m == nullptr) return false;
  const auto& maps = code_.maps();
  const auto program = std::ranges::find_if(maps, [](const symbols::Mapping& mapping) {
    return mapping.executable && mapping.is_file();
  });
  return (program != maps.end() && m->path == program->path) || m->is_c_library() ||
         m->file_name().starts_with("libpthread") || m->file_name().starts_with("ld-");
}

/// Innermost first, as functions are inlined; empty where no code is known to be. nullptr: not yet,
/// its names are still to be read.
const std::vector<symbols::NativeFrame>* NativeStacks::frames_at(uint64_t pc, bool caller) {
  // A caller's address is where it goes on: the call lies before it.
  const uint64_t at = caller ? pc - 1 : pc;
  if (const auto known = known_.find(at); known != known_.end()) return &known->second;
  std::vector<symbols::NativeFrame> frames;
  if (const auto* m = code_.find(at); m != nullptr && !m->path.empty()) {
    symbols::NativeFrame named;
    if (!names_.name(pid_, *m, at, named)) return nullptr;
    frames = code_.process().frames(at, named);
    for (symbols::NativeFrame& frame : frames) {
      if (frame.function != named.function) frame.function = short_name(std::move(frame.function));
    }
  }
  if (known_.size() >= kMaxKnown) known_.clear();
  return &known_.emplace(at, std::move(frames)).first->second;
}

/// What its caller in another file calls a function that has no name there; empty if that is not
/// known.
const std::string& NativeStacks::called_from(uint64_t return_address,
                                             const symbols::NativeFrame& callee) {
  if (const auto known = callees_.find(return_address); known != callees_.end())
    return known->second;
  std::string name;
  const auto* m = code_.find(return_address - 1);
  if (m != nullptr && m->is_file() && m->path != callee.file)
    name = names_.callee(*m, return_address);
  if (callees_.size() >= kMaxKnown) callees_.clear();
  return callees_.emplace(return_address, std::move(name)).first->second;
}

void NativeStacks::fill(const symbols::NativeRegisters& registers, std::string_view stack) {
  pcs_ = code_.process().unwind(registers, stack, kMaxDepth);
  if (!has_beginning()) code_.doubt(CodeMap::Doubt::kOfStack);
  for (size_t i = 0; i < pcs_.size(); i++) {
    const auto* frames = frames_at(pcs_[i], i != 0);
    if (frames == nullptr) {
      later_ = true;
      frames_.clear();
      return;
    }
    frames_.insert(frames_.end(), frames->begin(), frames->end());
    if (frames->size() == 1 && i + 1 < pcs_.size() && !frames_.back().file.empty() &&
        frames_.back().function.starts_with('[')) {
      const std::string& name = called_from(pcs_[i + 1], frames_.back());
      if (!name.empty()) frames_.back().function = name;
    }
    if (i == 0 && frames->empty()) code_.doubt(CodeMap::Doubt::kOfPlace);
  }
}

NativePath NativeStacks::path() {
  NativePath path;
  for (size_t i = pcs_.size(); i-- > 0;) {
    // A guessed address is none to count at: a trap within an instruction would break it.
    const auto* m = i == 0 ? nullptr : code_.find(pcs_[i] - 1);
    if (m != nullptr && !names_.is_behind_call(*m, pcs_[i])) return {};
    const auto* frames = frames_at(pcs_[i], i != 0);
    if (frames == nullptr || frames->empty()) continue;
    path.push_back({frames->back().function, pcs_[i], {}});
    for (size_t k = 0; k + 1 < frames->size(); ++k)
      path.back().inlined.push_back((*frames)[k].function);
  }
  return path;
}

/// A stack that was copied since may be what another function left there.
bool NativeStacks::is_still_at(int32_t tid, const SyscallInfo& call) {
  const std::string path =
      "proc/" + std::to_string(pid_) + "/task/" + std::to_string(tid) + "/syscall";
  std::string text;
  if (!root_.read_into(path, text, 1024).ok()) return false;
  return parse_syscall(text) == call;
}

const std::vector<symbols::NativeFrame>& NativeStacks::blocked(int32_t tid,
                                                               const SyscallInfo& call) {
  frames_.clear();
  pcs_.clear();
  later_ = went_on_ = false;
  if (!ready()) return frames_;
  const auto registers = symbols::NativeRegisters::blocked(call.pc, call.sp);
  // The rest of a page is always there if its beginning is.
  ProcessMemory memory(pid_);
  buffer_.resize(kStackBytes);
  const RemoteRange whole{call.sp, static_cast<uint32_t>(buffer_.size())};
  const auto got = memory.read({&whole, 1}, buffer_.data());
  went_on_ = !is_still_at(tid, call);
  if (went_on_) return frames_;
  fill(registers, std::string_view(buffer_).substr(0, got.ok() ? *got : 0));
  return frames_;
}

const std::vector<symbols::NativeFrame>& NativeStacks::running(int32_t tid) {
  frames_.clear();
  pcs_.clear();
  later_ = went_on_ = false;
  if (!trouble_.ok()) return frames_;
  auto it = samplers_.find(tid);
  const bool fresh = it == samplers_.end();
  if (fresh || it->second.at_first) {
    if (fresh && samplers_.size() >= kMaxSamplers) return frames_;
    auto opened =
        CpuSampler::open(tid, kStackBytes, fresh ? CpuSampler::kOnDemand : CpuSampler::kAlways);
    if (!opened.ok()) {
      if (opened.error().code != Code::kGone) trouble_ = opened.error();
      return frames_;
    }
    it = samplers_.insert_or_assign(tid, Sampled{std::move(*opened), fresh}).first;
    if (fresh) it->second.sampler->ask();
  }
  symbols::NativeRegisters registers;
  if (!it->second.sampler->take(registers, buffer_) || !ready()) return frames_;
  if (spins_at(pid_, registers.pc)) frames_.push_back({std::string(model::kSpinWaitFrame), "", 0});
  fill(registers, buffer_);
  return frames_;
}

}  // namespace flatout::probe
