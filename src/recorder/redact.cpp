#include "recorder/redact.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace flatout::recorder {
namespace {

// Names that may be recorded; a trailing '*' stands for any ending.
constexpr std::string_view kAllowed[] = {"OMP_*",
                                         "KMP_*",
                                         "GOMP_*",
                                         "MKL_*",
                                         "OPENBLAS_*",
                                         "BLIS_*",
                                         "VECLIB_*",
                                         "NUMEXPR_*",
                                         "NUMBA_*",
                                         "TBB_*",
                                         "ONEDNN_*",
                                         "DNNL_*",
                                         "TORCH_*",
                                         "TORCHINDUCTOR_*",
                                         "TORCHELASTIC_*",
                                         "PYTORCH_*",
                                         "ATEN_*",
                                         "TF_*",
                                         "XLA_*",
                                         "JAX_*",
                                         "KERAS_*",
                                         "MXNET_*",
                                         "TRITON_*",
                                         "CUDA_*",
                                         "CUDNN_*",
                                         "NVIDIA_*",
                                         "NCCL_*",
                                         "GLOO_*",
                                         "UCX_*",
                                         "FI_*",
                                         "PYTHONPATH",
                                         "PYTHONHASHSEED",
                                         "PYTHONUNBUFFERED",
                                         "PYTHONMALLOC",
                                         "PYTHONOPTIMIZE",
                                         "PYTHONDEVMODE",
                                         "PYTHONFAULTHANDLER",
                                         "PYTHONASYNCIODEBUG",
                                         "PYTHONTRACEMALLOC",
                                         "PYTHONPROFILEIMPORTTIME",
                                         "COVERAGE_*",
                                         "COV_CORE_*",
                                         "PYDEVD_*",
                                         "PYTHON_GIL",
                                         "PYTHONHOME",
                                         "LD_PRELOAD",
                                         "LD_LIBRARY_PATH",
                                         "MALLOC_*",
                                         "GLIBC_TUNABLES",
                                         "TCMALLOC_*",
                                         "RANK",
                                         "LOCAL_RANK",
                                         "WORLD_SIZE",
                                         "LOCAL_WORLD_SIZE",
                                         "GROUP_RANK",
                                         "NODE_RANK",
                                         "CROSS_RANK",
                                         "CROSS_SIZE",
                                         "JOB_COMPLETION_INDEX",
                                         "MASTER_ADDR",
                                         "MASTER_PORT",
                                         "SLURM_JOB_ID",
                                         "SLURM_PROCID",
                                         "SLURM_LOCALID",
                                         "SLURM_STEP_ID",
                                         "SLURM_NODEID",
                                         "SLURM_NTASKS",
                                         "SLURM_NNODES",
                                         "SLURM_CPUS_PER_TASK",
                                         "SLURM_CPUS_ON_NODE",
                                         "SLURM_MEM_PER_NODE",
                                         "OMPI_COMM_WORLD_*",
                                         "PMI_RANK",
                                         "PMI_SIZE",
                                         "CONDA_DEFAULT_ENV",
                                         "VIRTUAL_ENV",
                                         "TMPDIR",
                                         "LANG",
                                         "LC_ALL",
                                         "TZ",
                                         "HF_HOME",
                                         "HF_DATASETS_CACHE",
                                         "HF_HUB_OFFLINE",
                                         "HF_DATASETS_OFFLINE",
                                         "TOKENIZERS_PARALLELISM",
                                         "ACCELERATE_*",
                                         "DEEPSPEED_*",
                                         "GRPC_*",
                                         "LIGHTNING_*",
                                         "PL_*"};

constexpr std::string_view kSecretWords[] = {"TOKEN",       "SECRET",      "PASSWORD", "PASSWD",
                                             "PASSPHRASE",  "CREDENTIAL",  "APIKEY",   "API_KEY",
                                             "ACCESS_KEY",  "PRIVATE_KEY", "AUTH",     "COOKIE",
                                             "SESSION_KEY", "SIGNATURE",   "BEARER",   "PWD"};

// How tokens of well-known services begin.
constexpr std::string_view kTokenPrefixes[] = {
    "ghp_",  "gho_",  "ghu_",    "ghs_",    "ghr_",   "github_pat_", "glpat-", "hf_",
    "sk-",   "pk-",   "rk_live", "sk_live", "AKIA",   "ASIA",        "xoxb-",  "xoxp-",
    "xoxa-", "xapp-", "eyJ",     "npm_",    "pypi-",  "dop_v1_",     "AIza",   "ya29.",
    "SG.",   "dapi",  "nvapi-",  "r8_",     "wandb_", "local-",      "Bearer"};

bool is_word_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '+' ||
         c == '=' || c == '.' || c == '/';
}

std::string upper_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

// "PWD" and "KEY" alone stand for harmless things too (PWD is a folder, "--key" a field).
bool names_a_secret(std::string_view name) {
  const std::string upper = upper_name(name);
  if (upper.starts_with("TOKENIZER") || upper.find("TOKENS") != std::string::npos ||
      upper.find("TOKENIZER") != std::string::npos || upper.find("AUTHOR") != std::string::npos ||
      upper == "PWD" || upper == "OLDPWD") {
    return false;
  }
  return std::any_of(std::begin(kSecretWords), std::end(kSecretWords),
                     [&](std::string_view word) { return upper.find(word) != std::string::npos; });
}

bool allowed(std::string_view name) {
  return std::any_of(std::begin(kAllowed), std::end(kAllowed), [&](std::string_view pattern) {
    if (pattern.back() != '*') return name == pattern;
    return name.starts_with(pattern.substr(0, pattern.size() - 1));
  });
}

// A run of letters and digits that no person would type: long, and mixed throughout.
bool looks_random(std::string_view s) {
  if (s.size() < 20) return false;
  size_t digits = 0, upper = 0, lower = 0, changes = 0;
  int last = -1;
  for (const char c : s) {
    const auto u = static_cast<unsigned char>(c);
    int kind = 3;
    if (std::isdigit(u) != 0) kind = 0, ++digits;
    if (std::isupper(u) != 0) kind = 1, ++upper;
    if (std::islower(u) != 0) kind = 2, ++lower;
    if (kind == 3) return false;  // separated words are names
    if (last >= 0 && kind != last) ++changes;
    last = kind;
  }
  const bool hex = std::all_of(
      s.begin(), s.end(), [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; });
  if (hex && s.size() >= 32 && digits >= 4 && digits < s.size()) return true;
  return digits >= 3 && (upper == 0 || lower == 0 || upper + lower >= 8) && changes * 5 >= s.size();
}

bool is_token(std::string_view word) {
  for (const std::string_view prefix : kTokenPrefixes) {
    // Short prefixes also begin ordinary words: what follows must look like a key.
    if (!word.starts_with(prefix) || word.size() < prefix.size() + 12) continue;
    const std::string_view rest = word.substr(prefix.size());
    const auto digits = std::count_if(rest.begin(), rest.end(), [](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) != 0;
    });
    const auto others = std::count_if(rest.begin(), rest.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '-' && c != '.';
    });
    if (digits >= 2 && others == 0) return true;
  }
  return looks_random(word);
}

// user:password@ in every URL of the text.
std::string redact_urls(std::string_view text) {
  std::string out;
  for (;;) {
    const size_t scheme = text.find("://");
    if (scheme == std::string_view::npos) break;
    const size_t start = scheme + 3;
    const size_t end = std::min(text.find_first_of("/?# \t\n\"'", start), text.size());
    const size_t at = text.substr(start, end - start).rfind('@');
    out.append(text.substr(0, start));
    if (at != std::string_view::npos) {
      out.append(kRedacted);
      text.remove_prefix(start + at);
    } else {
      text.remove_prefix(start);
    }
  }
  out.append(text);
  return out;
}

std::string redact_words(std::string_view text) {
  std::string out;
  size_t i = 0;
  while (i < text.size()) {
    if (!is_word_char(text[i])) {
      out += text[i++];
      continue;
    }
    size_t j = i;
    while (j < text.size() && is_word_char(text[j])) ++j;
    // Judge the pieces of "a=b" and of paths one by one.
    std::string_view word = text.substr(i, j - i);
    while (!word.empty()) {
      const size_t cut = std::min(word.find_first_of("=/"), word.size());
      const std::string_view piece = word.substr(0, cut);
      out.append(is_token(piece) ? kRedacted : piece);
      if (cut < word.size()) out += word[cut];
      word.remove_prefix(std::min(cut + 1, word.size()));
    }
    i = j;
  }
  return out;
}

}  // namespace

std::string redact_text(std::string_view text) { return redact_words(redact_urls(text)); }

std::string redact_value(std::string_view name, std::string_view value) {
  if (value.empty()) return "";
  return names_a_secret(name) ? std::string(kRedacted) : redact_text(value);
}

std::string redact_command(std::string_view command) {
  std::string out;
  bool hide_next = false;
  while (!command.empty()) {
    const size_t end = std::min(command.find_first_of(" \t\n"), command.size());
    std::string_view word = command.substr(0, end);
    command.remove_prefix(end);
    if (!word.empty()) {
      const size_t equals = word.find('=');
      std::string_view name = word.substr(0, equals);
      const bool option = name.starts_with('-');
      while (name.starts_with('-')) name.remove_prefix(1);
      if (hide_next && !option) {
        out.append(kRedacted);
        hide_next = false;
      } else if (equals != std::string_view::npos) {
        out.append(word.substr(0, equals + 1));
        out.append(redact_value(name, word.substr(equals + 1)));
        hide_next = false;
      } else {
        hide_next = option && names_a_secret(name);
        out.append(redact_text(word));
      }
    }
    if (!command.empty()) {
      out += command.front();
      command.remove_prefix(1);
    }
  }
  return redact_urls(out);
}

std::vector<std::pair<std::string, std::string>> recordable_environment(
    const std::vector<std::string>& environment) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    const std::string name = entry.substr(0, equals);
    if (!allowed(name)) continue;
    out.emplace_back(name, redact_value(name, std::string_view(entry).substr(equals + 1)));
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace flatout::recorder
