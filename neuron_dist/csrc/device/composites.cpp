// Operators that torch composes of others and in which it asks for the device: composed here as for the CPU.
#include <ATen/core/Tensor.h>
#include <ATen/ops/native_group_norm.h>
#include <torch/library.h>

namespace neuron {
namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;

// The CPU keeps channels_last; for accelerators torch makes the input contiguous.
Tensor group_norm(
    const Tensor& input, int64_t groups, const OptTensor& weight, const OptTensor& bias, double eps,
    bool /*cudnn_enabled*/) {
  TORCH_CHECK(input.dim() >= 2, "Expected at least 2 dimensions for input tensor but received ", input.dim());
  TORCH_CHECK(groups > 0, "Expected num groups to be greater than 0, got ", groups);
  const auto batch = input.sym_size(0);
  const auto channels = input.sym_size(1);
  TORCH_CHECK(
      channels % groups == 0, "Expected number of channels in input to be divisible by num_groups, but got input of ",
      "shape ", input.sym_sizes(), " and num_groups=", groups);
  for (const auto& [name, scale] : {std::pair{"weight", &weight}, std::pair{"bias", &bias}}) {
    TORCH_CHECK(
        !scale->has_value() || !(*scale)->defined() || ((*scale)->dim() == 1 && (*scale)->sym_numel() == channels),
        "Expected ", name, " to be a vector of size equal to the number of channels in input, but got ", name,
        " of shape ", scale->has_value() ? (*scale)->sym_sizes() : c10::SymIntArrayRef(), " and input of shape ",
        input.sym_sizes());
  }
  auto pixels = c10::SymInt(1);
  for (const auto& size : input.sym_sizes().slice(2)) {
    pixels *= size;
  }
  const auto contiguous = [](const OptTensor& t) {
    return t.has_value() && t->defined() ? OptTensor(t->contiguous()) : OptTensor();
  };
  const Tensor x = input.contiguous(input.suggest_memory_format());
  return std::get<0>(at::native_group_norm_symint(
      x, contiguous(weight), contiguous(bias), batch, channels, pixels, groups, eps));
}

} // namespace

// Above autograd, which follows the operators that they are made of; below it for what runs without.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("group_norm", TORCH_FN(group_norm));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("group_norm", TORCH_FN(group_norm));
}

} // namespace neuron
