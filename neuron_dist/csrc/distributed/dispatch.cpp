// Which of torch's dispatch keys reach the backend.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace neuron {
namespace {

// c10d has kernels for sparse tensors of the devices that it knows. The dense kernel of device neuron does as
// well: it hands the tensors to the backend, which takes sparse ones where it can and refuses them elsewhere.
void as_dense(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
}

struct Registrations {
  std::vector<torch::Library> libraries;

  Registrations() {
    for (const auto key :
         {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::SparsePrivateUse1}) {
      libraries.emplace_back(torch::Library::IMPL, "c10d", key, __FILE__, __LINE__);
    }
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name.rfind("c10d::", 0) != 0) {
        continue;
      }
      // Conj and neg views go to the backend as they are. torch's fallback for these bits would hand it a
      // resolved copy and write that back as soon as the call returns, which is before the collective has run;
      // the caller's tensor would keep its old values. ProcessGroupNeuron resolves and writes back itself.
      libraries[0].impl(name.name.c_str(), torch::CppFunction::makeFallthrough());
      libraries[1].impl(name.name.c_str(), torch::CppFunction::makeFallthrough());
      libraries[2].impl(name.name.c_str(), torch::CppFunction::makeFromBoxedFunction<&as_dense>());
    }
  }
};

const Registrations registrations;

} // namespace
} // namespace neuron
