// Operators that torch asks of accelerators only, so that no CPU kernel exists: written in terms of others.
#include <tuple>

#include <ATen/ATen.h>
#include <torch/library.h>

namespace neuron {
namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;

bool given(const OptTensor& t) {
  return t.has_value() && t->defined();
}

Tensor plus(const Tensor& t, const OptTensor& bias) {
  return given(bias) ? t + *bias : t;
}

// --- recurrent cells: forward, and backward from a workspace of activated gates

std::tuple<Tensor, Tensor, Tensor> lstm_cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& cx,
    const OptTensor& input_bias,
    const OptTensor& hidden_bias) {
  const auto gates =
      (plus(hidden_gates, hidden_bias) + plus(input_gates, input_bias)).chunk(4, /*dim=*/1);
  const Tensor in = gates[0].sigmoid();
  const Tensor forget = gates[1].sigmoid();
  const Tensor cell = gates[2].tanh();
  const Tensor out = gates[3].sigmoid();
  Tensor cy = (forget * cx).add_(in * cell);
  Tensor hy = out * cy.tanh();
  return {std::move(hy), std::move(cy), at::cat({in, forget, cell, out}, /*dim=*/1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const OptTensor& grad_hy,
    const OptTensor& grad_cy,
    const Tensor& cx,
    const Tensor& cy,
    const Tensor& workspace,
    bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) {
    return {};
  }
  const auto gates = workspace.chunk(4, /*dim=*/1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const Tensor tanh_cy = cy.tanh();
  const Tensor ghy = given(grad_hy) ? *grad_hy : at::zeros_like(cx);
  Tensor gcx = ghy * out * (1 - tanh_cy * tanh_cy);
  if (given(grad_cy)) {
    gcx = gcx + *grad_cy;
  }
  Tensor grad_gates = at::cat(
      {gcx * cell * in * (1 - in), gcx * cx * forget * (1 - forget), gcx * in * (1 - cell * cell),
       ghy * tanh_cy * out * (1 - out)},
      /*dim=*/1);
  Tensor grad_bias = has_bias ? grad_gates.sum(0) : Tensor();
  return {std::move(grad_gates), gcx * forget, std::move(grad_bias)};
}

std::tuple<Tensor, Tensor> gru_cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& hx,
    const OptTensor& input_bias,
    const OptTensor& hidden_bias) {
  const auto in = plus(input_gates, input_bias).chunk(3, /*dim=*/1);
  const auto hidden = plus(hidden_gates, hidden_bias).chunk(3, /*dim=*/1);
  const Tensor reset = (in[0] + hidden[0]).sigmoid();
  const Tensor update = (in[1] + hidden[1]).sigmoid();
  const Tensor fresh = (in[2] + hidden[2] * reset).tanh();
  Tensor hy = (hx - fresh).mul_(update).add_(fresh);
  return {std::move(hy), at::cat({reset, update, fresh, hx, hidden[2]}, /*dim=*/1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(
    const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const auto w = workspace.chunk(5, /*dim=*/1);
  const Tensor &reset = w[0], &update = w[1], &fresh = w[2], &hx = w[3], &hidden = w[4];
  const Tensor g_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  const Tensor g_update = grad_hy * (hx - fresh) * (1 - update) * update;
  const Tensor g_reset = g_fresh * hidden * (1 - reset) * reset;
  Tensor g_in = at::cat({g_reset, g_update, g_fresh}, /*dim=*/1);
  Tensor g_hidden = at::cat({g_reset, g_update, g_fresh * reset}, /*dim=*/1);
  Tensor in_bias = has_bias ? g_in.sum(0) : Tensor();
  Tensor hidden_bias = has_bias ? g_hidden.sum(0) : Tensor();
  return {
      std::move(g_in), std::move(g_hidden), grad_hy * update, std::move(in_bias),
      std::move(hidden_bias)};
}

// --- the pieces of SyncBatchNorm; statistics are fp32, as on a GPU

std::vector<int64_t> all_but_channel(const Tensor& t) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < t.dim(); ++d) {
    dims.push_back(d);
  }
  return dims;
}

Tensor by_channel(const Tensor& v, const Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[1] = -1;
  return v.view(shape);
}

at::ScalarType acc_type(const Tensor& t) {
  return at::isReducedFloatingType(t.scalar_type()) ? at::kFloat : t.scalar_type();
}

std::tuple<Tensor, Tensor> sync_stats(const Tensor& input, double eps) {
  const Tensor x = input.to(acc_type(input));
  const auto dims = all_but_channel(x);
  Tensor mean = x.mean(dims);
  return {mean, (x.var(dims, /*unbiased=*/false) + eps).rsqrt()};
}

Tensor sync_elemt(
    const Tensor& input,
    const OptTensor& weight,
    const OptTensor& bias,
    const Tensor& mean,
    const Tensor& invstd,
    double /*eps*/) {
  Tensor y = (input.to(mean.scalar_type()) - by_channel(mean, input)) * by_channel(invstd, input);
  if (given(weight)) {
    y = y * by_channel(*weight, input);
  }
  if (given(bias)) {
    y = y + by_channel(*bias, input);
  }
  return y.to(input.scalar_type());
}

Tensor& sync_elemt_out(
    const Tensor& input,
    const OptTensor& weight,
    const OptTensor& bias,
    const Tensor& mean,
    const Tensor& invstd,
    double eps,
    Tensor& out) {
  const Tensor y = sync_elemt(input, weight, bias, mean, invstd, eps);
  out.resize_(y.sizes());
  return out.copy_(y);
}

// mean, invstd: one row a process. counts: how many values each row is of.
std::tuple<Tensor, Tensor> sync_gather_stats_with_counts(
    const Tensor& /*input*/,
    const Tensor& mean,
    const Tensor& invstd,
    const OptTensor& running_mean,
    const OptTensor& running_var,
    double momentum,
    double eps,
    const Tensor& counts) {
  const Tensor n = counts.to(mean.scalar_type()).view({-1, 1});
  const Tensor total = n.sum();
  const Tensor var = invstd.pow(-2) - eps;
  Tensor global_mean = (mean * n).sum(0) / total;
  const Tensor global_var = ((var + (mean - global_mean).pow(2)) * n).sum(0) / total;
  if (given(running_mean)) {
    running_mean->mul_(1 - momentum).add_(global_mean.to(running_mean->scalar_type()), momentum);
  }
  if (given(running_var)) {
    const Tensor unbiased = global_var * total / (total - 1);
    running_var->mul_(1 - momentum).add_(unbiased.to(running_var->scalar_type()), momentum);
  }
  return {std::move(global_mean), (global_var + eps).rsqrt()};
}

std::tuple<Tensor, Tensor> sync_gather_stats(
    const Tensor& input,
    const Tensor& mean,
    const Tensor& invstd,
    const OptTensor& running_mean,
    const OptTensor& running_var,
    double momentum,
    double eps,
    int64_t count) {
  return sync_gather_stats_with_counts(
      input, mean, invstd, running_mean, running_var, momentum, eps,
      at::full({mean.size(0)}, count, mean.options()));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> sync_backward_reduce(
    const Tensor& grad_out,
    const Tensor& input,
    const Tensor& mean,
    const Tensor& invstd,
    const OptTensor& weight,
    bool input_g,
    bool weight_g,
    bool bias_g) {
  const auto type = mean.scalar_type();
  const auto dims = all_but_channel(input);
  const Tensor g = grad_out.to(type);
  Tensor sum_dy = g.sum(dims);
  Tensor sum_dy_xmu = (g * (input.to(type) - by_channel(mean, input))).sum(dims);
  Tensor grad_weight;
  Tensor grad_bias;
  const auto param_type = given(weight) ? weight->scalar_type() : type;
  if (weight_g) {
    grad_weight = (sum_dy_xmu * invstd).to(param_type);
  }
  if (bias_g) {
    grad_bias = sum_dy.to(param_type, /*non_blocking=*/false, /*copy=*/true);
  }
  if (!input_g) {
    sum_dy = Tensor();
    sum_dy_xmu = Tensor();
  }
  return {
      std::move(sum_dy), std::move(sum_dy_xmu), std::move(grad_weight), std::move(grad_bias)};
}

Tensor sync_backward_elemt(
    const Tensor& grad_out,
    const Tensor& input,
    const Tensor& mean,
    const Tensor& invstd,
    const OptTensor& weight,
    const Tensor& sum_dy,
    const Tensor& sum_dy_xmu,
    const Tensor& count) {
  const auto type = mean.scalar_type();
  const Tensor total = count.sum().to(type);
  const Tensor centred = input.to(type) - by_channel(mean, input);
  Tensor g = grad_out.to(type) - by_channel(sum_dy / total, input) -
      centred * by_channel(invstd * invstd * sum_dy_xmu / total, input);
  g = g * by_channel(given(weight) ? invstd * weight->to(type) : invstd, input);
  return g.to(input.scalar_type());
}

// --- what torch._convolution asks of devices that it does not know

Tensor convolution(
    const Tensor& input, const Tensor& weight, const OptTensor& bias, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups) {
  return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> wanted) {
  const auto channels = transposed ? weight.size(1) * groups : weight.size(0);
  return at::convolution_backward(
      grad, input, weight, at::IntArrayRef(channels), stride, padding, dilation, transposed, output_padding, groups,
      wanted);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  m.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
  m.impl("batch_norm_stats", TORCH_FN(sync_stats));
  m.impl("batch_norm_elemt", TORCH_FN(sync_elemt));
  m.impl("batch_norm_elemt.out", TORCH_FN(sync_elemt_out));
  m.impl("batch_norm_gather_stats", TORCH_FN(sync_gather_stats));
  m.impl("batch_norm_gather_stats_with_counts", TORCH_FN(sync_gather_stats_with_counts));
  m.impl("batch_norm_backward_reduce", TORCH_FN(sync_backward_reduce));
  m.impl("batch_norm_backward_elemt", TORCH_FN(sync_backward_elemt));
}

} // namespace
} // namespace neuron
