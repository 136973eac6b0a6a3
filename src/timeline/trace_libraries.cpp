#include "timeline/trace_libraries.h"

#include <algorithm>
#include <iterator>

namespace flatout::timeline {
namespace {

// clang-format off
// Files of the standard library, of all versions from 3.8 to 3.14, and of what lies as a file beside
// it; sorted. Left out are those that programs are named like: calendar, cmd, code, profile, trace.
constexpr std::string_view kModules[] = {
    "abc", "aifc", "annotationlib", "argparse", "ast", "asynchat", "asyncore", "base64",
    "bdb", "binhex", "bisect", "bz2", "cProfile", "cgi", "cgitb", "codecs", "codeop",
    "colorsys", "compileall", "configparser", "contextlib", "contextvars", "copy", "copyreg",
    "crypt", "csv", "dataclasses", "datetime", "decimal", "difflib", "dis", "doctest", "enum",
    "filecmp", "fileinput", "fnmatch", "formatter", "fractions", "ftplib", "functools",
    "genericpath", "getopt", "getpass", "gettext", "glob", "graphlib", "gzip", "hashlib",
    "heapq", "hmac", "imaplib", "imghdr", "imp", "inspect", "io", "ipaddress", "keyword",
    "linecache", "locale", "lzma", "mailbox", "mailcap", "mimetypes", "modulefinder", "netrc",
    "nntplib", "ntpath", "nturl2path", "numbers", "opcode", "operator", "optparse", "os",
    "pathlib", "pdb", "pickle", "pickletools", "pipes", "pkgutil", "platform", "plistlib",
    "poplib", "posixpath", "pprint", "pstats", "pty", "py_compile", "pyclbr", "pydoc",
    "queue", "quopri", "random", "reprlib", "rlcompleter", "runpy", "sched", "secrets",
    "selectors", "shelve", "shlex", "shutil", "signal", "site", "six", "smtpd", "smtplib",
    "sndhdr", "socket", "socketserver", "sre_compile", "sre_constants", "sre_parse", "ssl",
    "stat", "statistics", "string", "stringprep", "struct", "subprocess", "sunau", "symtable",
    "sysconfig", "tabnanny", "tarfile", "telnetlib", "tempfile", "textwrap", "threading",
    "timeit", "tokenize", "traceback", "tracemalloc", "tty", "types", "typing",
    "typing_extensions", "uu", "uuid", "warnings", "wave", "weakref", "webbrowser", "xdrlib",
    "zipapp", "zipfile", "zipimport"};

// Folders of the standard library; sorted.
constexpr std::string_view kPackages[] = {
    "asyncio", "collections", "compression", "concurrent", "ctypes", "curses", "dbm",
    "distutils", "email", "encodings", "ensurepip", "html", "http", "idlelib", "importlib",
    "json", "lib2to3", "logging", "multiprocessing", "pathlib", "pydoc_data", "re", "sqlite3",
    "string", "sysconfig", "tkinter", "tomllib", "unittest", "urllib", "venv", "wsgiref",
    "xml", "xmlrpc", "zipfile", "zoneinfo"};

// Folders of others that a step's time is spent in; sorted.
constexpr std::string_view kLibraries[] = {
    "PIL", "accelerate", "albumentations", "cv2", "deepspeed", "einops", "flashinfer", "flax",
    "huggingface_hub", "jax", "jaxlib", "keras", "lightning", "lightning_fabric",
    "matplotlib", "numpy", "optax", "orbax", "pandas", "peft", "pydantic",
    "pytorch_lightning", "safetensors", "scipy", "sklearn", "tensorboard", "tensorflow",
    "tf_keras", "timm", "tokenizers", "torch", "torchaudio", "torchdata", "torchvision",
    "tqdm", "transformers", "triton", "triton_kernels", "vllm", "wandb", "webdataset",
    "xformers"};

// clang-format on

template <size_t N>
bool is_one_of(const std::string_view (&sorted)[N], std::string_view word) {
  return std::binary_search(std::begin(sorted), std::end(sorted), word);
}

}  // namespace

bool is_library_file(std::string_view file) {
  constexpr std::string_view kEnding = ".py";
  bool first = true, in_lib = false;
  for (;;) {
    const size_t slash = file.find('/');
    const std::string_view part = file.substr(0, slash);
    if (slash == std::string_view::npos) {
      // What lies directly in a folder of sys.path.
      return first && part.ends_with(kEnding) &&
             is_one_of(kModules, part.substr(0, part.size() - kEnding.size()));
    }
    if (first && is_one_of(kPackages, part)) return true;
    if (is_one_of(kLibraries, part) || part == "site-packages" || part == "dist-packages" ||
        (in_lib && part.starts_with("python3")) || part.starts_with("torchinductor")) {
      return true;
    }
    in_lib = part == "lib" || part == "lib64";
    first = false;
    file.remove_prefix(slash + 1);
  }
}

}  // namespace flatout::timeline
