#include "symbols/native_symbols.h"

#include <cxxabi.h>
#include <dwarf.h>
#include <elfutils/libdwfl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "symbols/debug_files.h"

namespace flatout::symbols {
namespace {

std::string demangle(const char* name) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return status == 0 && text != nullptr ? std::string(text.get()) : std::string(name);
}

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

}  // namespace

NativeFrame describe(Dwfl* dwfl, uint64_t at) {
  NativeFrame frame;
  Dwfl_Module* module = dwfl_addrmodule(dwfl, at);
  if (module == nullptr) return frame;
  // libdwfl takes the last module for every address above it.
  GElf_Addr low = 0, high = 0;
  dwfl_module_info(module, nullptr, &low, &high, nullptr, nullptr, nullptr, nullptr);
  if (at < low || at >= high) return frame;
  GElf_Off offset = 0;
  GElf_Sym symbol{};
  const char* name = dwfl_module_addrinfo(module, at, &offset, &symbol, nullptr, nullptr, nullptr);
  if (name != nullptr) frame.function = demangle(name);
  const char* binary = nullptr;
  dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, &binary, nullptr);
  Dwfl_Line* line = dwfl_module_getsrc(module, at);
  int number = 0;
  const char* source =
      line == nullptr ? nullptr : dwfl_lineinfo(line, nullptr, &number, nullptr, nullptr, nullptr);
  if (source != nullptr) {
    frame.file = source;
    frame.line = static_cast<uint32_t>(number > 0 ? number : 0);
  } else if (binary != nullptr) {
    frame.file = binary;
  }
  if (frame.function.empty() && binary != nullptr) {
    const char* slash = std::strrchr(binary, '/');
    frame.function = "[" + std::string(slash != nullptr ? slash + 1 : binary) + "]";
  }
  return frame;
}

struct NativeSymbols::State {
  ~State() {
    if (dwfl != nullptr) dwfl_end(dwfl);
  }
  Dwfl_Callbacks callbacks{};
  char* debug_path = nullptr;
  Dwfl* dwfl = nullptr;
};

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
  const uint64_t at = pc - 1;
  std::vector<NativeFrame> out{describe(state_->dwfl, at)};
  Dwarf_Addr bias = 0;
  Dwarf_Die* unit = dwfl_addrdie(state_->dwfl, at, &bias);
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
  if (out.back().function.empty()) out.back().function = describe(state_->dwfl, at).function;
  return out;
}

}  // namespace flatout::symbols
