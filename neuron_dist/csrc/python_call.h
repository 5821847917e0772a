// How the core calls Python.
#pragma once

#include <pybind11/gil_safe_call_once.h>
#include <pybind11/pybind11.h>

namespace neuron {

// Holds the GIL, and keeps torch.compile's tracer of frames out for as long: collectives of a compiled program may be
// planned, priced and judged in the middle of it, by Python that must not be taken for the program's.
class PythonCall {
 public:
  PythonCall() : tracer_(set_tracer(pybind11::none())) {}
  ~PythonCall() {
    set_tracer(tracer_);
  }
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;

 private:
  static pybind11::object set_tracer(const pybind11::object& tracer) {
    PYBIND11_CONSTINIT static pybind11::gil_safe_call_once_and_store<pybind11::object> storage;
    const auto find = [] { return pybind11::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame"); };
    return storage.call_once_and_store_result(find).get_stored()(tracer);
  }

  pybind11::gil_scoped_acquire gil_;
  pybind11::object tracer_; // this thread's, as it was
};

} // namespace neuron
