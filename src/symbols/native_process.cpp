#include "symbols/native_process.h"

#include <dwarf.h>
#include <elfutils/libdwfl.h>
#include <errno.h>
#include <sys/uio.h>

#include <cstring>

#include "symbols/debug_files.h"
#include "symbols/native_symbols.h"

namespace flatout::symbols {
namespace {

#if defined(__x86_64__)
constexpr unsigned kStackPointer = 7;
constexpr unsigned kRegisters = 17;
constexpr unsigned kReturnAddress = 16;
#elif defined(__aarch64__)
constexpr unsigned kStackPointer = 31;
constexpr unsigned kRegisters = 32;
#endif

struct Sample {
  int32_t pid = 0;
  const NativeRegisters* registers = nullptr;
  std::string_view stack;
  std::vector<uint64_t>* out = nullptr;
  size_t limit = 0;
};

}  // namespace

uint64_t NativeRegisters::sp() const { return values[kStackPointer]; }

NativeRegisters NativeRegisters::blocked(uint64_t pc, uint64_t sp) {
  NativeRegisters r;
  r.pc = pc;
  r.set(kStackPointer, sp);
  return r;
}

struct NativeProcess::State {
  ~State() {
    if (dwfl != nullptr) dwfl_end(dwfl);
  }
  Dwfl_Callbacks callbacks{};
  char* debug_path = nullptr;
  Dwfl* dwfl = nullptr;
  Sample sample;

  static pid_t next_thread(Dwfl*, void* arg, void** thread_arg) {
    auto* state = static_cast<State*>(arg);
    if (*thread_arg != nullptr) return 0;
    *thread_arg = state;
    return state->sample.pid;
  }
  static bool get_thread(Dwfl*, pid_t, void* arg, void** thread_arg) {
    *thread_arg = arg;
    return true;
  }
  static bool memory_read(Dwfl*, Dwarf_Addr address, Dwarf_Word* result, void* arg) {
    const Sample& s = static_cast<State*>(arg)->sample;
    const uint64_t base = s.registers->sp();
    if (address >= base && s.stack.size() >= sizeof *result &&
        address - base <= s.stack.size() - sizeof *result) {
      std::memcpy(result, s.stack.data() + (address - base), sizeof *result);
      return true;
    }
    iovec local{result, sizeof *result};
    iovec remote{reinterpret_cast<void*>(address), sizeof *result};  // NOLINT: not our address
    return process_vm_readv(s.pid, &local, 1, &remote, 1, 0) == sizeof *result;
  }
  static bool set_registers(Dwfl_Thread* thread, void* arg) {
    const NativeRegisters& r = *static_cast<State*>(arg)->sample.registers;
    for (unsigned i = 0; i < kRegisters; i++) {
      if ((r.known >> i & 1) == 0) continue;
      const Dwarf_Word value = r.values[i];
      if (!dwfl_thread_state_registers(thread, static_cast<int>(i), 1, &value)) return false;
    }
#if defined(__x86_64__)
    const Dwarf_Word pc = r.pc;
    if (!dwfl_thread_state_registers(thread, kReturnAddress, 1, &pc)) return false;
#endif
    dwfl_thread_state_register_pc(thread, r.pc);
    return true;
  }
  static int take_frame(Dwfl_Frame* frame, void* arg) {
    Sample& s = static_cast<State*>(arg)->sample;
    Dwarf_Addr pc = 0;
    bool activation = false;
    if (!dwfl_frame_pc(frame, &pc, &activation)) return DWARF_CB_ABORT;
    s.out->push_back(pc);
    return s.out->size() < s.limit ? DWARF_CB_OK : DWARF_CB_ABORT;
  }
  static constexpr Dwfl_Thread_Callbacks kThreads = {next_thread,   get_thread, memory_read,
                                                     set_registers, nullptr,    nullptr};
};

NativeProcess::NativeProcess(std::unique_ptr<State> state) : state_(std::move(state)) {}
NativeProcess::~NativeProcess() = default;

Result<std::unique_ptr<NativeProcess>> NativeProcess::open(int32_t pid) {
  const std::string who = "cannot read the symbols of pid " + std::to_string(pid);
  auto state = std::make_unique<State>();
  state->callbacks.find_elf = dwfl_linux_proc_find_elf;
  state->callbacks.find_debuginfo = no_debug_file;
  state->callbacks.debuginfo_path = &state->debug_path;
  state->dwfl = dwfl_begin(&state->callbacks);
  if (state->dwfl == nullptr) return Error{Code::kIo, who, ""};
  const int failed = dwfl_linux_proc_report(state->dwfl, pid);
  if (failed != 0) {
    if (failed == EACCES || failed == EPERM) return Error{Code::kDenied, who, ""};
    return Error{Code::kGone, who, ""};
  }
  dwfl_report_end(state->dwfl, nullptr, nullptr);
  state->sample.pid = pid;
  if (!dwfl_attach_state(state->dwfl, nullptr, pid, &State::kThreads, state.get())) {
    return Error{Code::kUnsupported, who + ": " + dwfl_errmsg(-1), ""};
  }
  return std::unique_ptr<NativeProcess>(new NativeProcess(std::move(state)));
}

std::vector<uint64_t> NativeProcess::unwind(const NativeRegisters& registers,
                                            std::string_view stack, size_t limit) {
  std::vector<uint64_t> out;
  Sample& s = state_->sample;
  s.registers = &registers;
  s.stack = stack;
  s.out = &out;
  s.limit = limit;
  // An error means that the stack could not be followed to its end: what was found still holds.
  (void)dwfl_getthread_frames(state_->dwfl, s.pid, State::take_frame, state_.get());
  if (out.empty()) out.push_back(registers.pc);
  return out;
}

std::vector<NativeFrame> NativeProcess::frames(uint64_t address, NativeFrame named) {
  NativeFrame source = source_at(state_->dwfl, address);
  if (source.line == 0) return {std::move(named)};
  source.function = std::move(named.function);
  return with_inlined(state_->dwfl, address, std::move(source));
}

}  // namespace flatout::symbols
