#include "probe/function_names.h"

#include "base/cpu_time.h"
#include "symbols/imported_callee.h"
#include "symbols/native_symbols.h"

namespace flatout::probe {
namespace {

constexpr size_t kMaxFiles = 32;  // each is kept open
constexpr size_t kMaxName = 200;

}  // namespace

std::string short_name(std::string name) {
  if (const size_t close = name.rfind(')'); close != std::string::npos) {
    int depth = 0;
    for (size_t i = close + 1; i-- > 0;) {
      depth += name[i] == ')' ? 1 : name[i] == '(' ? -1 : 0;
      if (depth > 0) continue;
      if (i > 0) name.resize(i);
      break;
    }
  }
  if (name.size() > kMaxName) name.replace(kMaxName - 3, std::string::npos, "...");
  return name;
}

bool FunctionNames::name(int32_t pid, const symbols::Mapping& mapping, uint64_t address,
                         symbols::NativeFrame& out) {
  if (!mapping.is_file()) {
    out.function = mapping.path;
    return true;
  }
  out.file = mapping.path;
  const Answer answer = look_up(pid, mapping, address, out.function);
  if (answer == Answer::kNone) {
    out.function = "[" + mapping.path.substr(mapping.path.rfind('/') + 1) + "]";
  }
  return answer != Answer::kLater;
}

FunctionNames::Answer FunctionNames::look_up(int32_t pid, const symbols::Mapping& mapping,
                                             uint64_t address, std::string& out) {
  const auto key = std::make_pair(mapping.device, mapping.inode);
  auto known = files_.find(key);
  if (known == files_.end()) {
    if (files_.size() >= kMaxFiles) return Answer::kNone;
    if (loaded_now_ && !all_) return Answer::kLater;
    loaded_now_ = true;
    const Nanos begin = thread_cpu();
    auto elf =
        symbols::ElfFile::open(root_.full("proc/" + std::to_string(pid) + "/root" + mapping.path));
    std::unique_ptr<File> file;
    if (elf.ok()) {
      auto starts = elf->functions();
      file = std::make_unique<File>(File{std::move(*elf), std::move(starts)});
    }
    known = files_.emplace(key, std::move(file)).first;
    spent_ += thread_cpu() - begin;
  }
  if (known->second == nullptr) return Answer::kNone;
  const File& file = *known->second;
  const auto bias = file.elf.bias(mapping.begin, mapping.offset);
  if (!bias) return Answer::kNone;
  const auto function = file.elf.function_at(file.starts, address - *bias);
  if (!function || function->name.empty()) return Answer::kNone;
  out = short_name(symbols::demangle(function->name.c_str()));
  return Answer::kName;
}

std::string FunctionNames::callee(const symbols::Mapping& mapping, uint64_t return_address) {
  const auto known = files_.find({mapping.device, mapping.inode});
  if (known == files_.end() || known->second == nullptr) return {};
  const symbols::ElfFile& elf = known->second->elf;
  const auto bias = elf.bias(mapping.begin, mapping.offset);
  if (!bias) return {};
  const Nanos begin = thread_cpu();
  const auto name = symbols::imported_callee(elf, return_address - *bias);
  spent_ += thread_cpu() - begin;
  return name ? short_name(symbols::demangle(name->c_str())) : std::string();
}

bool FunctionNames::is_behind_call(const symbols::Mapping& mapping, uint64_t address) const {
  const auto known = files_.find({mapping.device, mapping.inode});
  if (known == files_.end() || known->second == nullptr) return true;
  const symbols::ElfFile& elf = known->second->elf;
  const auto bias = elf.bias(mapping.begin, mapping.offset);
  return !bias || symbols::is_behind_call(elf, address - *bias);
}

}  // namespace flatout::probe
