#include "advise/python_packages.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/text.h"
#include "probe/python_finder.h"

namespace flatout::advise {
namespace {

constexpr int kMaxLinks = 16;
constexpr size_t kMaxMetadata = 1 << 20, kMaxLibrary = 256 << 20;

std::string parent(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

std::string without_slash(std::string_view path) {
  while (path.starts_with('/')) path.remove_prefix(1);
  return std::string(path);
}

// Where a chain of symbolic links ends.
std::string follow(const fs::Root& root, std::string path) {
  for (int i = 0; i < kMaxLinks; ++i) {
    const auto target = root.read_link(path);
    if (!target.ok()) break;
    path = target->starts_with('/')
               ? without_slash(*target)
               : (std::filesystem::path(parent(path)) / *target).lexically_normal().string();
  }
  return path;
}

// "key = value" of a pyvenv.cfg.
std::string config_value(std::string_view text, std::string_view key) {
  std::string_view row;
  while (next_line(text, row)) {
    const size_t equal = row.find('=');
    if (equal != std::string_view::npos && trim(row.substr(0, equal)) == key) {
      return std::string(trim(row.substr(equal + 1)));
    }
  }
  return "";
}

int minor_of(const fs::Root& root, const std::string& prefix) {
  const int minor = probe::python_minor_from_path(follow(root, prefix + "/bin/python3"));
  if (minor > 0) return minor;
  const auto names = root.list(prefix + "/lib");
  for (const std::string& name : names.value_or({})) {
    if (const int found = probe::python_minor_from_path(name); found > 0) return found;
  }
  return 0;
}

void add_folders(const std::string& prefix, const std::string& name, Python& out) {
  for (const char* lib : {"/lib/", "/lib64/"}) {
    out.folders.push_back(std::string(prefix).append(lib).append(name).append("/site-packages"));
  }
  // Debian's own Python keeps what pip installs beneath /usr/local.
  if (prefix != "usr") return;
  out.folders.push_back("usr/local/lib/" + name + "/dist-packages");
  out.folders.emplace_back("usr/lib/python3/dist-packages");
}

// `home`: of the user, for packages that pip installed with --user.
Python python_at(const fs::Root& root, const std::string& prefix, const std::string& home) {
  Python out;
  out.minor = minor_of(root, prefix);
  const std::string name = "python3." + std::to_string(out.minor);
  const std::string user = home + "/.local/lib/" + name + "/site-packages";
  const auto config = root.read(prefix + "/pyvenv.cfg", 4096);
  if (!config.ok()) {
    out.folders.push_back(user);
    add_folders(prefix, name, out);
    return out;
  }
  add_folders(prefix, name, out);
  if (config_value(*config, "include-system-site-packages") == "true") {
    out.folders.push_back(user);
    add_folders(parent(without_slash(config_value(*config, "home"))), name, out);
  }
  return out;
}

// Beneath which the python3 in this folder of $PATH has its packages.
std::string prefix_of(const fs::Root& root, const std::string& bin, const char* pyenv_version) {
  std::string beside = parent(bin);
  if (root.exists(beside + "/pyvenv.cfg")) return beside;
  if (bin.ends_with("/shims")) {  // pyenv: a script that looks up which one is chosen
    std::string version = pyenv_version == nullptr ? "" : pyenv_version;
    const auto chosen = root.read(beside + "/version", 256);
    if (version.empty() && chosen.ok()) version = trim(chosen->substr(0, chosen->find('\n')));
    return std::string(beside).append("/versions/").append(version);
  }
  const std::string prefix = parent(parent(follow(root, bin + "/python3")));
  return prefix.empty() ? "usr" : prefix;  // /bin is a link to /usr/bin
}

// "Requires-Dist: nvidia-cudnn-cu12==9.1.0.70; platform_system == "Linux"".
struct Requirement {
  std::string package, extras, oldest;
  std::string extra;  // only where this extra of the package that requires it is wanted
};

std::optional<Requirement> parse_requirement(std::string_view row) {
  constexpr std::string_view kKey = "Requires-Dist:";
  if (!row.starts_with(kKey)) return std::nullopt;
  row = trim(row.substr(kKey.size()));
  const size_t semicolon = std::min(row.find(';'), row.size());
  const std::string_view text = row.substr(0, semicolon), marker = row.substr(semicolon);
  Requirement out;
  out.package = text.substr(0, text.find_first_of(" [(<>=!~"));
  const size_t open = text.find('['), close = text.find(']');
  if (close != std::string_view::npos && open < close) {
    out.extras = text.substr(open + 1, close - open - 1);
  }
  size_t bound = text.find("==");
  if (bound == std::string_view::npos) bound = text.find(">=");
  if (bound != std::string_view::npos) {
    const std::string_view version = trim(text.substr(bound + 2));
    out.oldest = version.substr(0, version.find_first_not_of("0123456789."));
    if (out.oldest.ends_with('.')) out.oldest.pop_back();  // of "13.0.*"
  }
  const size_t extra = marker.find("extra == ");
  if (extra != std::string_view::npos && extra + 10 < marker.size()) {
    const std::string_view name = marker.substr(extra + 10);
    out.extra = name.substr(0, name.find(marker[extra + 9]));
  }
  return out;
}

bool is_target(std::string_view word) {
  for (const std::string_view kind : {"sm_", "compute_"}) {
    if (!word.starts_with(kind)) continue;
    word.remove_prefix(kind.size());
    if (word.ends_with('a') || word.ends_with('f')) word.remove_suffix(1);
    return parse_number<int>(word).has_value();
  }
  return false;
}

// The longest C string in a library that is nothing but a list of targets, with which PyTorch
// answers torch.cuda.get_arch_list().
std::vector<std::string> targets_in(std::string_view library) {
  std::vector<std::string> out;
  size_t at = 0;
  while ((at = library.find("sm_", at)) != std::string_view::npos) {
    const size_t before = library.rfind('\0', at);
    const size_t begin = before == std::string_view::npos ? 0 : before + 1;
    const size_t end = std::min(library.find('\0', at), library.size());
    std::string_view text = library.substr(begin, end - begin);
    std::vector<std::string> words;
    for (std::string_view word = next_word(text); is_target(word); word = next_word(text)) {
      words.emplace_back(word);
    }
    if (text.empty() && words.size() > out.size()) out = std::move(words);
    at = end;
  }
  return out;
}

// One folder with packages.
class Packages {
 public:
  Packages(const fs::Root& root, const std::string& folder)
      : root_(root), folder_(folder), names_(root.list(folder).value_or({})) {}

  // torch/version.py: "__version__ = '2.1.0+cu121'", "cuda: Optional[str] = '12.1'".
  std::optional<Framework> torch(bool targets) const {
    const auto text = root_.read(folder_ + "/torch/version.py", 16 << 10);
    if (!text.ok()) return std::nullopt;
    Framework out{"PyTorch", "", "torch", ""};
    std::string_view rest = *text, row;
    while (next_line(rest, row)) {
      const size_t open = row.find('\''), close = row.rfind('\'');
      if (open == std::string_view::npos || close <= open) continue;
      const std::string_view value = row.substr(open + 1, close - open - 1);
      if (row.starts_with("__version__")) out.version = value;
      if (row.starts_with("cuda")) out.cuda = value;
    }
    add_libraries("torch", std::nullopt, out.libraries);
    if (targets && !out.cuda.empty()) {
      const auto library = root_.read(folder_ + "/torch/lib/libtorch_python.so", kMaxLibrary);
      if (library.ok()) out.targets = targets_in(*library);
    }
    return out;
  }

  // tensorflow/python/platform/build_info.py: "OrderedDict([..., ('cuda_compute_capabilities',
  // ['sm_60', ..., 'compute_90']), ('cuda_version', '12.5.1'), ... ('is_cuda_build', True), ...])".
  std::optional<Framework> tensorflow() const {
    const auto text = root_.read(folder_ + "/tensorflow/python/platform/build_info.py", 64 << 10);
    if (!text.ok()) return std::nullopt;
    Framework out{"TensorFlow", "", "tensorflow", ""};
    for (const char* package : {"tensorflow", "tensorflow_cpu"}) {
      if (out.version.empty()) out.version = version_of(package);
    }
    if (text->find("'is_cuda_build', True") == std::string::npos) return out;
    constexpr std::string_view kVersion = "'cuda_version', '";
    if (const size_t at = text->find(kVersion); at != std::string::npos) {
      const size_t from = at + kVersion.size();
      out.cuda = text->substr(from, text->find('\'', from) - from);
    }
    constexpr std::string_view kTargets = "'cuda_compute_capabilities', [";
    if (const size_t at = text->find(kTargets); at != std::string::npos) {
      const size_t from = at + kTargets.size();
      const std::string list = text->substr(from, text->find(']', from) - from);
      for (const std::string_view quoted : split(list, '\'')) {
        if (is_target(quoted)) out.targets.emplace_back(quoted);
      }
    }
    add_libraries("tensorflow", std::nullopt, out.libraries);
    return out;
  }

  // The plugin for GPUs is a package named after CUDA's major version.
  std::optional<Framework> jax() const {
    if (!root_.exists(folder_ + "/jaxlib/version.py")) return std::nullopt;
    Framework out{"JAX", version_of("jaxlib"), "jax", ""};
    for (const std::string cuda : {"12", "13"}) {
      const std::string plugin = "jax_cuda" + cuda + "_plugin";
      if (std::find(names_.begin(), names_.end(), plugin) == names_.end()) continue;
      out.cuda = cuda;
      add_libraries(plugin, std::nullopt, out.libraries);
    }
    // Before there were plugins the version said it: "0.4.13+cuda12.cudnn89".
    if (const size_t at = out.version.find("+cuda"); at != std::string::npos) {
      out.cuda = out.version.substr(at + 5, 2);
    }
    return out;
  }

 private:
  // By the name of its metadata's folder, "jaxlib-0.4.30.dist-info".
  std::string version_of(std::string_view package) const {
    constexpr std::string_view kEnd = ".dist-info";
    for (const std::string& name : names_) {
      if (name.starts_with(package) && name.ends_with(kEnd) && name[package.size()] == '-') {
        const size_t from = package.size() + 1;
        return name.substr(from, name.size() - kEnd.size() - from);
      }
    }
    return "";
  }

  // NVIDIA's libraries that a package wants and that are installed as packages. `extras`: only
  // those that these of its extras want, "cublas,cudart"; nullopt: all.
  void add_libraries(const std::string& package, std::optional<std::string_view> extras,
                     std::vector<Library>& out) const {
    const auto text = root_.read(std::string(folder_)
                                     .append("/")
                                     .append(package)
                                     .append("-")
                                     .append(version_of(package))
                                     .append(".dist-info/METADATA"),
                                 kMaxMetadata);
    std::string_view rest = text.ok() ? std::string_view(*text) : "", row;
    while (next_line(rest, row) && !row.empty()) {  // what follows is the package's description
      const auto wants = parse_requirement(row);
      if (!wants || wants->oldest.empty()) continue;
      if (extras) {
        const auto wanted = split(*extras, ',');
        if (std::find(wanted.begin(), wanted.end(), wants->extra) == wanted.end()) continue;
      }
      if (wants->package == "cuda-toolkit") add_libraries("cuda_toolkit", wants->extras, out);
      if (!wants->package.starts_with("nvidia-")) continue;
      std::string folder_name = wants->package;
      std::replace(folder_name.begin(), folder_name.end(), '-', '_');
      const std::string installed = version_of(folder_name);
      const bool known = std::any_of(out.begin(), out.end(),
                                     [&](const Library& l) { return l.package == wants->package; });
      if (!installed.empty() && !known) out.push_back({wants->package, wants->oldest, installed});
    }
  }

  const fs::Root& root_;
  const std::string& folder_;
  std::vector<std::string> names_;
};

}  // namespace

std::vector<Python> find_pythons(const fs::Root& root,
                                 const std::function<const char*(const char*)>& environment) {
  const auto value = [&](const char* name) {
    const char* text = environment(name);
    return std::string(text == nullptr ? "" : text);
  };
  const std::string home = without_slash(value("HOME"));
  std::vector<Python> out;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string prefix = value(name);
    if (prefix.starts_with('/')) out.push_back(python_at(root, without_slash(prefix), home));
  }
  const std::string path = value("PATH");
  for (const std::string_view dir : split(path, ':')) {
    const std::string bin = without_slash(dir);
    if (!dir.starts_with('/') || !root.exists(bin + "/python3")) continue;
    out.push_back(python_at(root, prefix_of(root, bin, environment("PYENV_VERSION")), home));
    break;
  }
  return out;
}

std::vector<Framework> read_frameworks(const fs::Root& root, const Python& python, bool targets) {
  std::vector<Framework> out;
  for (const std::string& folder : python.folders) {
    const Packages packages(root, folder);
    for (std::optional<Framework>& found :
         std::vector{packages.torch(targets), packages.tensorflow(), packages.jax()}) {
      const auto same = [&](const Framework& f) { return f.package == found->package; };
      // Of two with one name, Python takes the first.
      if (found && std::none_of(out.begin(), out.end(), same)) out.push_back(std::move(*found));
    }
  }
  return out;
}

std::string find_cupti(const fs::Root& root, const std::vector<Python>& pythons) {
  std::vector<std::string> folders;
  for (const Python& python : pythons) {
    for (const std::string& packages : python.folders) {
      for (const char* wheel : {"cuda_cupti", "cu12", "cu13"}) {
        folders.push_back(std::string(packages).append("/nvidia/").append(wheel).append("/lib"));
      }
    }
  }
  for (const char* folder :
       {"usr/local/cuda/lib64", "usr/local/cuda/extras/CUPTI/lib64", "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu", "usr/lib64"}) {
    folders.emplace_back(folder);
  }
  // As the agent asks the loader for it.
  for (const std::string& folder : folders) {
    for (const char* name : {"/libcupti.so.13", "/libcupti.so.12", "/libcupti.so"}) {
      if (root.exists(folder + name)) return "/" + folder + name;
    }
  }
  return "";
}

}  // namespace flatout::advise
