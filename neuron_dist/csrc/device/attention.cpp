// Scaled dot product attention. The device answers to the "memory efficient" operator, which DTensor has sharding
// rules for (it has none for the CPU's own), and runs it on the CPU's flash kernel: same bits as on the CPU. What
// that kernel does not take (dropout, a mask that needs a gradient) goes the math way.
#include <array>
#include <tuple>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "device/runtime.h"

namespace neuron {
namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;

constexpr int64_t kMath = 0; // at::SDPBackend, whose header is for CUDA builds only
constexpr int64_t kEfficient = 2;

bool mask_fits(const Tensor& mask, const Tensor& q, const Tensor& k) {
  if (mask.requires_grad() || (mask.dim() != 2 && mask.dim() != 4)) {
    return false;
  }
  const auto type = mask.scalar_type();
  if (type != at::kBool && type != q.scalar_type() && type != at::kFloat) {
    return false;
  }
  const std::array<int64_t, 4> full{q.size(0), q.size(1), q.size(2), k.size(2)};
  for (int64_t d = 1; d <= mask.dim(); ++d) {
    const auto size = mask.size(-d);
    if (size != 1 && size != full[static_cast<size_t>(4 - d)]) {
      return false;
    }
  }
  return true;
}

bool flash_takes(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const OptTensor& mask,
    double dropout_p,
    bool is_causal,
    bool enable_gqa) {
  if (dropout_p != 0 || q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || q.is_nested() ||
      k.is_nested() || v.is_nested()) {
    return false;
  }
  const auto type = q.scalar_type();
  const bool float_type =
      type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
  if (!float_type || k.scalar_type() != type || v.scalar_type() != type) {
    return false;
  }
  if (q.size(1) != k.size(1)) {
    // The shape functions of the operator do not know of grouped heads; subclasses (DTensor, fake) go by them.
    if (!enable_gqa || q.key_set().has(c10::DispatchKey::Python) || k.size(1) == 0 ||
        q.size(1) % k.size(1) != 0) {
      return false;
    }
  }
  if (k.size(1) != v.size(1)) {
    return false;
  }
  for (const int64_t d : {0, 3}) {
    if (q.size(d) != k.size(d) || q.size(d) != v.size(d)) {
      return false;
    }
  }
  if (k.size(2) != v.size(2) || q.numel() == 0 || k.numel() == 0) {
    return false;
  }
  for (const Tensor* t : {&q, &k, &v}) {
    if (t->stride(3) != 1 && t->size(3) != 1) {
      return false;
    }
  }
  return !mask.has_value() || !mask->defined() || (!is_causal && mask_fits(*mask, q, k));
}

int64_t choose(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const OptTensor& mask,
    double dropout_p,
    bool is_causal,
    std::optional<double> /*scale*/,
    bool enable_gqa) {
  const auto& context = at::globalContext();
  const bool allowed = context.userEnabledFlashSDP() || context.userEnabledMemEfficientSDP();
  return allowed && flash_takes(q, k, v, mask, dropout_p, is_causal, enable_gqa) ? kEfficient : kMath;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const OptTensor& bias,
    bool /*compute_log_sumexp*/,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale) {
  auto [out, log_sumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      q, k, v, dropout_p, is_causal, bias, scale);
  // Seed and offset of a dropout that never is.
  const auto none = q.options().dtype(at::kLong);
  return {std::move(out), std::move(log_sumexp), at::empty({}, none), at::empty({}, none)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad_out,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& bias,
    const Tensor& out,
    const Tensor& log_sumexp,
    const Tensor& /*philox_seed*/,
    const Tensor& /*philox_offset*/,
    double dropout_p,
    std::array<bool, 4> /*grad_input_mask*/,
    bool is_causal,
    std::optional<double> scale) {
  if (!grad_out.defined()) {
    return {};
  }
  auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad_out, q, k, v, out, log_sumexp, dropout_p, is_causal,
      bias.defined() ? OptTensor(bias) : OptTensor(), scale);
  return {std::move(gq), std::move(gk), std::move(gv), Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", TORCH_FN(choose));
  m.impl("_scaled_dot_product_efficient_attention", TORCH_FN(forward));
  m.impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(backward));
}

} // namespace
} // namespace neuron

namespace at::native {

REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &::neuron::choose)

} // namespace at::native
