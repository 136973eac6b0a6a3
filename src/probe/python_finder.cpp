#include "probe/python_finder.h"

#include <errno.h>

#include <vector>

#include "base/text.h"
#include "probe/remote_memory.h"
#include "symbols/elf.h"
#include "symbols/process_maps.h"

namespace flatout::probe {
namespace {

constexpr size_t kMaxRemembered = 4096;  // files

std::string_view base_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

PythonPlace look_into(const symbols::ElfFile& file) {
  PythonPlace place;
  if (const auto s = file.find("_PyRuntime")) {
    place.runtime = s->value;
  } else if (const auto* section = file.section(".PyRuntime")) {
    place.runtime = section->vaddr;
  }
  if (place.runtime == 0) return place;
  if (const auto s = file.find("PyCode_Type")) place.code_type = s->value;
  if (const auto s = file.find("Py_Version")) place.version_word = s->value;
  return place;
}

}  // namespace

int python_minor_from_path(std::string_view path) {
  std::string_view name = base_name(path);
  const size_t at = name.find("python3.");
  if (at == std::string_view::npos) return 0;
  name.remove_prefix(at + 8);
  size_t digits = 0;
  while (digits < name.size() && digits < 3 && name[digits] >= '0' && name[digits] <= '9') digits++;
  return parse_number<int>(name.substr(0, digits)).value_or(0);
}

Result<PythonPlace> PythonFinder::find(const fs::Root& root, int32_t pid) {
  const std::string base = "proc/" + std::to_string(pid);
  FLATOUT_TRY(const std::vector<symbols::Mapping> maps, symbols::read_maps(root, pid));
  const std::string exe = root.read_link(base + "/exe").value_or("");

  // A shared libpython first: with one, the executable has no runtime of its own.
  std::vector<const symbols::Mapping*> candidates;
  for (const auto& m : maps) {
    if (m.is_file() && m.file_name().find("libpython3") == 0 &&
        (candidates.empty() || candidates.back()->inode != m.inode)) {
      candidates.push_back(&m);
    }
  }
  for (const auto& m : maps) {
    if (m.is_file() && m.path == exe) {
      candidates.push_back(&m);
      break;
    }
  }
  for (const symbols::Mapping* m : candidates) {
    const auto key = std::make_pair(m->device, m->inode);
    auto known = files_.find(key);
    auto file = symbols::ElfFile::open(
        root.full(m->path == exe ? base + "/exe" : base + "/root" + m->path));
    if (!file.ok()) {
      if (file.error().code == Code::kDenied) return read_error(EACCES, pid);
      continue;
    }
    if (known == files_.end()) {
      if (files_.size() >= kMaxRemembered) files_.clear();
      PythonPlace learned = look_into(*file);
      learned.minor = python_minor_from_path(m->path);
      known = files_.emplace(key, learned).first;
    }
    PythonPlace place = known->second;
    if (place.runtime == 0) continue;
    const auto bias = file->bias(m->begin, m->offset);
    if (!bias) continue;
    place.runtime += *bias;
    if (place.code_type != 0) place.code_type += *bias;
    if (place.version_word != 0) place.version_word += *bias;
    return place;
  }
  return Error{Code::kNotFound, "no Python in pid " + std::to_string(pid), ""};
}

}  // namespace flatout::probe
