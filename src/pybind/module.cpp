// flatout._native: a run folder for Python, as JSON and plain numbers. python/flatout gives it
// types. Errors of ours become Python exceptions here, and only here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "diagnose/diagnose.h"
#include "report/html.h"
#include "report/json.h"
#include "report/text.h"
#include "timeline/import_folder.h"

namespace nb = nanobind;

namespace flatout::pybind {
namespace {

/// A recorded run with its diagnosis.
struct NativeRun {
  model::Run run;
  model::Diagnosis diagnosis;
};

NativeRun read(const std::string& folder) {
  Result<model::Run> run = timeline::read_run_folder(folder);
  if (!run.ok()) {
    const Error& error = run.error();
    const std::string text =
        error.hint.empty() ? error.message : error.message + " (" + error.hint + ")";
    if (error.code == Code::kNotFound) {
      PyErr_SetString(PyExc_FileNotFoundError, text.c_str());
    } else {
      PyErr_SetString(PyExc_ValueError, text.c_str());
    }
    throw nb::python_error();
  }
  NativeRun native{std::move(run).value(), {}};
  native.diagnosis = diagnose::diagnose(native.run);
  return native;
}

/// Length of each step in ms, in order; warm-up included only if asked for.
std::vector<double> step_ms(const NativeRun& native, bool warmup) {
  std::vector<double> out;
  for (const model::Step& step : native.run.steps.steps) {
    if (warmup || !step.warmup) out.push_back(to_ms(step.length()));
  }
  return out;
}

}  // namespace
}  // namespace flatout::pybind

NB_MODULE(_native, m) {
  using flatout::pybind::NativeRun;
  nb::class_<NativeRun>(m, "Run")
      .def("findings_json",
           [](const NativeRun& r) { return flatout::report::findings_json(r.run, r.diagnosis); })
      .def("step_ms", &flatout::pybind::step_ms, nb::arg("warmup") = false)
      .def("facts",
           [](const NativeRun& r) {
             nb::dict out;
             for (const auto& [key, value] : r.run.info) {
               // Names come from the job: not all of them are UTF-8.
               out[nb::bytes(key.data(), key.size()).attr("decode")("utf-8", "replace")] =
                   nb::bytes(value.data(), value.size()).attr("decode")("utf-8", "replace");
             }
             return out;
           })
      .def("html",
           [](const NativeRun& r) { return flatout::report::render_html(r.run, r.diagnosis); })
      .def("text",
           [](const NativeRun& r) { return flatout::report::render_text(r.run, r.diagnosis, {}); });
  m.def("read", &flatout::pybind::read, nb::arg("folder"));
}
