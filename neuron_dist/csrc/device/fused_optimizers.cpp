// Fused Adam whose states are narrower than its parameters. As CUDA's kernels do, it computes in the parameters' dtype
// and rounds the states when it stores them; the CPU's kernels take one dtype for all.
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "device/redispatch.h"

namespace neuron {
namespace {

using at::Tensor;

// exp_avgs, exp_avg_sqs, max_exp_avg_sqs among the arguments of every overload; the last is empty without amsgrad.
constexpr size_t kStates[] = {2, 3, 4};

void fused_adam(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = stack->end() - static_cast<ptrdiff_t>(op.schema().arguments().size());
  const std::vector<Tensor> params = arguments->toTensorVector();
  std::vector<std::pair<Tensor, Tensor>> widened; // the state and its stand-in
  for (const size_t argument : kStates) {
    auto states = (arguments + static_cast<ptrdiff_t>(argument))->toTensorVector();
    bool same = true;
    for (size_t i = 0; i < states.size() && i < params.size(); ++i) {
      if (states[i].scalar_type() != params[i].scalar_type()) {
        same = false;
        widened.emplace_back(states[i], states[i].to(params[i].scalar_type()));
        states[i] = widened.back().second;
      }
    }
    if (!same) {
      *(arguments + static_cast<ptrdiff_t>(argument)) = std::move(states);
    }
  }
  redispatch(op, keys, stack);
  for (auto& [state, wide] : widened) {
    state.copy_(wide);
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name :
       {"_fused_adam_", "_fused_adam_.tensor_lr", "_fused_adamw_", "_fused_adamw_.tensor_lr"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fused_adam>());
  }
}

} // namespace
} // namespace neuron
