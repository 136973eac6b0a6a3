#include "probe/python_native.h"

#include <algorithm>

#include "probe/remote_memory.h"

namespace flatout::probe {
namespace {

constexpr size_t kMaxPlaces = 8192;
constexpr size_t kMaxDepth = 96;
constexpr size_t kMaxSamplers = 4;
constexpr uint32_t kBlockedBytes = 8192;   // of a stack that stands still, read at first
constexpr uint32_t kSampledBytes = 24576;  // PyTorch's are some 40 frames deep

}  // namespace

PythonNativeStacks::PythonNativeStacks(fs::Root root, int32_t pid, uint64_t runtime,
                                       FunctionNames& names)
    : code_(std::move(root), pid), pid_(pid), runtime_(runtime), names_(names) {}

bool PythonNativeStacks::ready() {
  const bool there = code_.ready();
  if (version_ == code_.version()) return there && has_interpreter();
  version_ = code_.version();
  places_.clear();
  interpreter_ = {};
  const symbols::Mapping* interpreter = code_.find(runtime_);
  if (interpreter == nullptr) return has_interpreter();
  // Data that begins as zeros is mapped behind its file, without a name.
  while (!interpreter->is_file() && interpreter != code_.maps().data()) --interpreter;
  interpreter_ = {interpreter->device, interpreter->inode};
  return has_interpreter() && there;
}

/// A map without it was not read as a whole.
bool PythonNativeStacks::has_interpreter() {
  if (interpreter_.second == 0) code_.doubt(CodeMap::Doubt::kOfStack);
  return interpreter_.second != 0;
}

/// nullptr: not yet, its names are still to be read.
const PythonNativeStacks::Place* PythonNativeStacks::place_at(uint64_t pc, bool caller) {
  // A caller's address is where it goes on: the call lies before it.
  const uint64_t at = caller ? pc - 1 : pc;
  if (const auto known = places_.find(at); known != places_.end()) return &known->second;
  Place place;
  if (const symbols::Mapping* m = code_.find(at); m != nullptr) {
    place.known = true;
    place.interpreter = std::make_pair(m->device, m->inode) == interpreter_;
    if (!names_.name(pid_, *m, at, place.frame)) return nullptr;
    if (place.frame.function.empty()) place.frame.function = "[code made at run time]";
    place.evaluates =
        place.interpreter && place.frame.function.starts_with("_PyEval_EvalFrameDefault");
  }
  if (places_.size() >= kMaxPlaces) places_.clear();
  return &places_.emplace(at, std::move(place)).first->second;
}

void PythonNativeStacks::fill(const symbols::NativeRegisters& registers, std::string_view stack) {
  const auto pcs = code_.process().unwind(registers, stack, kMaxDepth);
  std::vector<bool> interpreter;
  bool reached = false;
  for (size_t i = 0; i < pcs.size() && !reached; i++) {
    const Place* place = place_at(pcs[i], i != 0);
    if (place == nullptr || !place->known) {
      if (place != nullptr)
        code_.doubt(i == 0 ? CodeMap::Doubt::kOfPlace : CodeMap::Doubt::kOfStack);
      frames_.clear();
      return;
    }
    // By the name of its loop; where it has none, an extension ends where the interpreter called
    // it.
    reached = place->evaluates;
    if (reached) break;
    frames_.push_back(place->frame);
    interpreter.push_back(place->interpreter);
  }
  size_t count = frames_.size();
  for (size_t i = 1; i < count && !reached; i++) {
    if (!interpreter[i] || interpreter[i - 1]) continue;
    reached = true;
    count = i;
  }
  while (count > 0 && interpreter[count - 1]) count--;  // how it calls is of no interest
  frames_.resize(count);
  certain_ = true;
  if (reached || count == 0) return;
  frames_.push_back({std::string(kLostFrames), "", 0});
  code_.doubt(CodeMap::Doubt::kOfStack);
}

const std::vector<symbols::NativeFrame>& PythonNativeStacks::blocked(const SyscallInfo& call) {
  frames_.clear();
  certain_ = false;
  if (!ready()) return frames_;
  ProcessMemory memory(pid_);
  buffer_.resize(kBlockedBytes);
  const RemoteRange whole{call.sp, kBlockedBytes};
  const auto got = memory.read({&whole, 1}, buffer_.data());
  fill(symbols::NativeRegisters::blocked(call.pc, call.sp),
       std::string_view(buffer_).substr(0, got.ok() ? *got : 0));
  return frames_;
}

bool PythonNativeStacks::sample(int32_t tid) {
  if (!trouble_.ok() || !ready()) return false;
  auto it = samplers_.find(tid);
  if (it == samplers_.end()) {
    if (samplers_.size() >= kMaxSamplers) samplers_.erase(samplers_.begin());
    auto opened = CpuSampler::open(tid, kSampledBytes, CpuSampler::kOnDemand);
    if (!opened.ok()) {
      if (opened.error().code != Code::kGone) trouble_ = opened.error();
      return false;
    }
    it = samplers_.emplace(tid, std::move(*opened)).first;
  }
  return it->second->ask() && it->second->take(registers_, buffer_);
}

const std::vector<symbols::NativeFrame>& PythonNativeStacks::sampled() {
  frames_.clear();
  certain_ = false;
  fill(registers_, buffer_);
  return frames_;
}

}  // namespace flatout::probe
