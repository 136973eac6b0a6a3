#include "symbols/native_symbols.h"

#include <cxxabi.h>
#include <dwarf.h>
#include <elfutils/libdwfl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "symbols/debug_files.h"

namespace flatout::symbols {
std::string demangle(const char* name) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return status == 0 && text != nullptr ? std::string(text.get()) : std::string(name);
}

namespace {

std::string name_of(Dwarf_Die* die) {
  Dwarf_Attribute attribute;
  for (const unsigned kind : {DW_AT_linkage_name, DW_AT_MIPS_linkage_name, DW_AT_name}) {
    if (dwarf_attr_integrate(die, kind, &attribute) == nullptr) continue;
    if (const char* name = dwarf_formstring(&attribute)) return demangle(name);
  }
  return "";
}

uint64_t number_of(Dwarf_Die* die, unsigned kind) {
  Dwarf_Attribute attribute;
  Dwarf_Word value = 0;
  if (dwarf_attr(die, kind, &attribute) != nullptr) dwarf_formudata(&attribute, &value);
  return value;
}

// nullptr where nothing is loaded.
Dwfl_Module* module_at(Dwfl* dwfl, uint64_t at) {
  Dwfl_Module* module = dwfl_addrmodule(dwfl, at);
  if (module == nullptr) return nullptr;
  // libdwfl takes the last module for every address above it.
  GElf_Addr low = 0, high = 0;
  dwfl_module_info(module, nullptr, &low, &high, nullptr, nullptr, nullptr, nullptr);
  return at < low || at >= high ? nullptr : module;
}

NativeFrame source_in(Dwfl_Module* module, uint64_t at) {
  NativeFrame frame;
  const char* binary = nullptr;
  dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, &binary, nullptr);
  // libdwfl gives the last line before code that no unit has, such as _start.
  Dwarf_Addr bias = 0;
  Dwarf_Die* unit = dwfl_module_addrdie(module, at, &bias);
  const bool has_lines = unit != nullptr && dwarf_haspc(unit, at - bias) > 0;
  Dwfl_Line* line = has_lines ? dwfl_module_getsrc(module, at) : nullptr;
  int number = 0;
  const char* source =
      line == nullptr ? nullptr : dwfl_lineinfo(line, nullptr, &number, nullptr, nullptr, nullptr);
  if (source != nullptr) {
    frame.file = source;
    frame.line = static_cast<uint32_t>(number > 0 ? number : 0);
  } else if (binary != nullptr) {
    frame.file = binary;
  }
  return frame;
}

// `name`: of the function, mangled; nullptr where it is not known.
NativeFrame frame_at(Dwfl_Module* module, uint64_t at, const char* name) {
  NativeFrame frame = source_in(module, at);
  if (name != nullptr) frame.function = demangle(name);
  if (!frame.function.empty()) return frame;
  const char* binary = nullptr;
  dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, &binary, nullptr);
  if (binary != nullptr) {
    const char* slash = std::strrchr(binary, '/');
    frame.function = "[" + std::string(slash != nullptr ? slash + 1 : binary) + "]";
  }
  return frame;
}

}  // namespace

NativeFrame source_at(Dwfl* dwfl, uint64_t at) {
  Dwfl_Module* module = module_at(dwfl, at);
  return module == nullptr ? NativeFrame{} : source_in(module, at);
}

std::vector<NativeFrame> with_inlined(Dwfl* dwfl, uint64_t at, NativeFrame frame) {
  const std::string function = std::move(frame.function);
  std::vector<NativeFrame> out{std::move(frame)};
  Dwarf_Addr bias = 0;
  Dwarf_Die* unit = dwfl_addrdie(dwfl, at, &bias);
  Dwarf_Die* scopes = nullptr;
  int count = unit == nullptr ? 0 : dwarf_getscopes(unit, at - bias, &scopes);
  if (count > 0) {
    // Outwards from an inlined function these are where it was defined; wanted is where it stands.
    Dwarf_Die innermost = scopes[0];
    std::free(scopes);
    scopes = nullptr;
    count = dwarf_getscopes_die(&innermost, &scopes);
  }
  Dwarf_Files* files = nullptr;
  size_t file_count = 0;
  if (unit != nullptr) dwarf_getsrcfiles(unit, &files, &file_count);
  // A scope that was inlined says where: the place of the frame that it is in.
  for (int i = 0; i < count; ++i) {
    const int tag = dwarf_tag(&scopes[i]);
    if (tag == DW_TAG_subprogram) {
      if (const std::string name = name_of(&scopes[i]); !name.empty()) out.back().function = name;
      break;
    }
    if (tag != DW_TAG_inlined_subroutine) continue;
    out.back().function = name_of(&scopes[i]);
    NativeFrame caller;
    const uint64_t file = number_of(&scopes[i], DW_AT_call_file);
    const char* name = files != nullptr && file < file_count
                           ? dwarf_filesrc(files, file, nullptr, nullptr)
                           : nullptr;
    caller.file = name != nullptr ? name : out.back().file;
    caller.line = static_cast<uint32_t>(number_of(&scopes[i], DW_AT_call_line));
    out.push_back(std::move(caller));
  }
  std::free(scopes);
  if (out.back().function.empty()) out.back().function = function;
  return out;
}

struct NativeSymbols::State {
  struct Function {
    uint64_t begin, end;
    const char* name;
  };

  ~State() {
    if (dwfl != nullptr) dwfl_end(dwfl);
  }
  NativeFrame describe(uint64_t at);
  const std::vector<Function>& functions_of(Dwfl_Module* module);

  // By address. libdwfl looks through all symbols each time, and PyTorch has half a million.
  std::unordered_map<Dwfl_Module*, std::vector<Function>> functions;
  Dwfl_Callbacks callbacks{};
  char* debug_path = nullptr;
  Dwfl* dwfl = nullptr;
};

const std::vector<NativeSymbols::State::Function>& NativeSymbols::State::functions_of(
    Dwfl_Module* module) {
  const auto [known, fresh] = functions.try_emplace(module);
  std::vector<Function>& table = known->second;
  if (!fresh) return table;
  const int count = dwfl_module_getsymtab(module);
  for (int i = 0; i < count; ++i) {
    GElf_Sym symbol{};
    GElf_Addr value = 0;
    const char* name =
        dwfl_module_getsym_info(module, i, &symbol, &value, nullptr, nullptr, nullptr);
    const unsigned type = GELF_ST_TYPE(symbol.st_info);
    if (name == nullptr || name[0] == 0 || symbol.st_shndx == SHN_UNDEF ||
        (type != STT_FUNC && type != STT_GNU_IFUNC && type != STT_NOTYPE)) {
      continue;
    }
    table.push_back({value, value + symbol.st_size, name});
  }
  std::stable_sort(table.begin(), table.end(),
                   [](const Function& a, const Function& b) { return a.begin < b.begin; });
  return table;
}

NativeFrame NativeSymbols::State::describe(uint64_t at) {
  Dwfl_Module* module = module_at(dwfl, at);
  if (module == nullptr) return {};
  const std::vector<Function>& table = functions_of(module);
  auto f = std::upper_bound(table.begin(), table.end(), at,
                            [](uint64_t a, const Function& b) { return a < b.begin; });
  // A few back: aliases, and labels within a function, which have no size.
  const char* name = nullptr;
  for (int looked = 0; f != table.begin() && looked < 8 && name == nullptr; ++looked) {
    --f;
    if (at < f->end) name = f->name;
  }
  return frame_at(module, at, name);
}

NativeSymbols::NativeSymbols(std::unique_ptr<State> state) : state_(std::move(state)) {}
NativeSymbols::~NativeSymbols() = default;

Result<std::unique_ptr<NativeSymbols>> NativeSymbols::open(std::string_view maps) {
  auto state = std::make_unique<State>();
  state->callbacks.find_elf = dwfl_linux_proc_find_elf;
  state->callbacks.find_debuginfo = no_debug_file;
  state->callbacks.debuginfo_path = &state->debug_path;
  state->dwfl = dwfl_begin(&state->callbacks);
  if (state->dwfl == nullptr) return Error{Code::kIo, "cannot read symbols", ""};
  // fmemopen refuses to read nothing.
  std::string text(maps.empty() ? "\n" : maps);
  FILE* file = fmemopen(text.data(), text.size(), "r");
  if (file == nullptr) return Error{Code::kIo, "cannot read a memory map", ""};
  const int failed = dwfl_linux_proc_maps_report(state->dwfl, file);
  fclose(file);
  if (failed != 0) return Error{Code::kBadInput, "the memory map makes no sense", ""};
  dwfl_report_end(state->dwfl, nullptr, nullptr);
  return std::unique_ptr<NativeSymbols>(new NativeSymbols(std::move(state)));
}

std::vector<NativeFrame> NativeSymbols::call_at(uint64_t pc) {
  return with_inlined(state_->dwfl, pc - 1, state_->describe(pc - 1));
}

}  // namespace flatout::symbols
