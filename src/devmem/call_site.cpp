#include "devmem/call_site.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>

#include <cstdlib>
#include <memory>

namespace flatout::devmem {
namespace {

// The part of Python's C API that reads frames, looked up in the process: this library is the same
// for jobs with and without an interpreter, of any version.
struct Python {
  using Object = void;
  int (*initialized)() = nullptr;
  int (*ensure)() = nullptr;
  void (*release)(int) = nullptr;
  Object* (*this_thread)() = nullptr;
  Object* (*frame)() = nullptr;
  int (*finalizing)() = nullptr;  // since 3.13; _Py_IsFinalizing before
  Object* (*attribute)(Object*, const char*) = nullptr;
  const char* (*text)(Object*) = nullptr;
  long (*number)(Object*) = nullptr;
  void (*decref)(Object*) = nullptr;
  void (*clear)() = nullptr;
  void (*fetch)(Object**, Object**, Object**) = nullptr;
  void (*restore)(Object*, Object*, Object*) = nullptr;

  Python() {
    find(initialized, "Py_IsInitialized");
    find(ensure, "PyGILState_Ensure");
    find(release, "PyGILState_Release");
    find(this_thread, "PyGILState_GetThisThreadState");
    find(frame, "PyEval_GetFrame");
    find(finalizing, "Py_IsFinalizing");
    if (finalizing == nullptr) find(finalizing, "_Py_IsFinalizing");
    find(attribute, "PyObject_GetAttrString");
    find(text, "PyUnicode_AsUTF8");
    find(number, "PyLong_AsLong");
    find(decref, "Py_DecRef");
    find(clear, "PyErr_Clear");
    find(fetch, "PyErr_Fetch");
    find(restore, "PyErr_Restore");
  }
  bool is_there() const {
    return initialized && ensure && release && this_thread && frame && attribute && text &&
           number && decref && clear && fetch && restore && initialized() != 0;
  }

 private:
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  }
};

// "file.py:17 name" of a frame; empty if it cannot be read.
std::string frame_text(const Python& python, Python::Object* frame, bool& library) {
  const auto drop = [&](Python::Object* object) { python.decref(object); };
  using Held = std::unique_ptr<Python::Object, decltype(drop)>;
  const Held code(python.attribute(frame, "f_code"), drop);
  const Held line(python.attribute(frame, "f_lineno"), drop);
  if (!code || !line) return "";
  const Held file(python.attribute(code.get(), "co_filename"), drop);
  const Held name(python.attribute(code.get(), "co_name"), drop);
  const char* const file_text = file ? python.text(file.get()) : nullptr;
  const char* const name_text = name ? python.text(name.get()) : nullptr;
  if (file_text == nullptr || name_text == nullptr) return "";
  library = is_library_file(file_text);
  return fmt::format("{}:{} {}", file_text, python.number(line.get()), name_text);
}

// Under the GIL.
std::string innermost_line(const Python& python) {
  const auto drop = [&](Python::Object* object) { python.decref(object); };
  std::unique_ptr<Python::Object, decltype(drop)> held(nullptr, drop);
  Python::Object* frame = python.frame();  // borrowed
  std::string innermost;
  for (int depth = 0; frame != nullptr && depth < 200; ++depth) {
    bool library = false;
    std::string text = frame_text(python, frame, library);
    if (text.empty()) break;
    if (!library) return text;
    if (innermost.empty()) innermost = std::move(text);
    held.reset(python.attribute(frame, "f_back"));
    frame = held.get();  // None has no f_code: the loop ends there
  }
  return innermost;
}

}  // namespace

bool is_library_file(std::string_view file) {
  return file.find("site-packages/") != file.npos || file.find("/torch/") != file.npos ||
         file.find("/flatout/agent/") != file.npos || file.starts_with("<frozen ");
}

std::string plain_name(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return plain != nullptr ? plain.get() : name;
}

std::string code_site(const void* address) {
  Dl_info info = {};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  const auto offset = [&](const void* from) {
    return static_cast<const char*>(address) - static_cast<const char*>(from);
  };
  if (info.dli_sname != nullptr) {
    return fmt::format("{}+{:#x}", plain_name(info.dli_sname), offset(info.dli_saddr));
  }
  const std::string_view file = info.dli_fname;
  return fmt::format("{}+{:#x}", file.substr(file.rfind('/') + 1), offset(info.dli_fbase));
}

std::string call_site(const void* return_address) {
  static const Python python;
  if (!python.is_there() || (python.finalizing != nullptr && python.finalizing() != 0))
    return code_site(return_address);
  if (python.this_thread() != nullptr) {
    const int before = python.ensure();
    Python::Object *type = nullptr, *value = nullptr, *trace = nullptr;
    python.fetch(&type, &value, &trace);  // an exception under way stays as it is
    std::string line = innermost_line(python);
    python.clear();
    python.restore(type, value, trace);
    python.release(before);
    if (!line.empty()) return line;
  }
  char name[32] = "";
  ::pthread_getname_np(::pthread_self(), name, sizeof name);
  return fmt::format("thread {}", name);
}

}  // namespace flatout::devmem
