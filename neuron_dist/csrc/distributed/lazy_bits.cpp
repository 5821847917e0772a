// Lets conj and neg views reach the backend as they are. torch's fallback for these bits would hand c10d's
// operators a resolved copy and write it back as soon as the call returns, which is before the collective has
// run; the caller's tensor would keep its old values. ProcessGroupNeuron resolves the bits and writes back itself.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace neuron {
namespace {

struct Fallthroughs {
  std::vector<torch::Library> libraries;

  Fallthroughs() {
    for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
      libraries.emplace_back(torch::Library::IMPL, "c10d", key, __FILE__, __LINE__);
    }
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name.rfind("c10d::", 0) == 0) {
        for (auto& library : libraries) {
          library.impl(name.name.c_str(), torch::CppFunction::makeFallthrough());
        }
      }
    }
  }
};

const Fallthroughs fallthroughs;

} // namespace
} // namespace neuron
