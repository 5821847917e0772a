#include "simulation/flops.h"

#include <array>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

namespace neuron {
namespace {

using at::Tensor;
using c10::IValue;
using namespace std::string_view_literals;

uint64_t u(int64_t n) {
  return static_cast<uint64_t>(n);
}

// [..., m, k] x [..., k, n], `a` counting all of its leading dimensions.
Flops product(const Tensor& a, const Tensor& b) {
  const int64_t n = b.dim() < 2 ? 1 : b.size(-1);
  return {2 * u(a.numel()) * u(n), a.scalar_type()};
}

template <size_t A, size_t B>
Flops product_of(const IValue* args) {
  return product(args[A].toTensor(), args[B].toTensor());
}

// [m, k] or [groups, m, k] by [groups, k, n] with the rows divided by offsets: each row meets one group.
Flops grouped(const IValue* args) {
  const Tensor& a = args[0].toTensor();
  const Tensor& b = args[1].toTensor();
  if (a.dim() == 2 && b.dim() == 2) { // the inner dimension is what the offsets divide
    return {2 * u(a.size(0)) * u(a.size(1)) * u(b.size(1)), a.scalar_type()};
  }
  return product(a, b);
}

// Each output element takes the weights of one filter; transposed, each input element does.
uint64_t per_place(const Tensor& w) {
  return w.size(0) == 0 ? 0 : u(w.numel() / w.size(0));
}

uint64_t output_places(const IValue* args, const Tensor& x, const Tensor& w) {
  const auto stride = args[3].toIntVector();
  const auto padding = args[4].toIntVector();
  const auto dilation = args[5].toIntVector();
  uint64_t places = u(x.dim() == w.dim() ? x.size(0) : 1) * u(w.size(0));
  for (int64_t d = 0; d < w.dim() - 2; ++d) {
    const auto at = [d](const std::vector<int64_t>& v) {
      return v.size() == 1 ? v[0] : v[static_cast<size_t>(d)];
    };
    const int64_t span = at(dilation) * (w.size(d + 2) - 1) + 1;
    const int64_t in = x.size(x.dim() - (w.dim() - 2) + d);
    places *= u((in + 2 * at(padding) - span) / at(stride) + 1);
  }
  return places;
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
Flops convolution(const IValue* args) {
  const Tensor& x = args[0].toTensor();
  const Tensor& w = args[1].toTensor();
  const uint64_t places = args[6].toBool() ? u(x.numel()) : output_places(args, x, w);
  return {2 * places * per_place(w), x.scalar_type()};
}

// convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
// groups, output_mask)
Flops convolution_backward(const IValue* args) {
  const Tensor& grad = args[0].toTensor();
  const Tensor& x = args[1].toTensor();
  const Tensor& w = args[2].toTensor();
  const auto mask = args[10].toBoolList();
  const uint64_t once = 2 * u(args[7].toBool() ? x.numel() : grad.numel()) * per_place(w);
  return {once * (u(mask[0]) + u(mask[1])), grad.scalar_type()};
}

// Two products: scores and values. A causal mask is not taken off, as in torch's flop counter.
uint64_t attention_products(const Tensor& q, const Tensor& k, const Tensor& v) {
  const uint64_t rows = u(q.numel()) / std::max<uint64_t>(u(q.size(-1)), 1);
  return rows * u(k.size(-2)) * (u(q.size(-1)) + u(v.size(-1)));
}

// (query, key, value, ...)
Flops attention(const IValue* args) {
  const Tensor& q = args[0].toTensor();
  return {2 * attention_products(q, args[1].toTensor(), args[2].toTensor()), q.scalar_type()};
}

// (grad, query, key, value, ...): the scores again, then the gradients of values, scores, query and key.
Flops attention_backward(const IValue* args) {
  const Tensor& q = args[1].toTensor();
  const Tensor& k = args[2].toTensor();
  const uint64_t scores = u(q.numel()) * u(k.size(-2)); // one product over the query's head dimension
  const uint64_t both = attention_products(q, k, args[3].toTensor());
  return {2 * (2 * both + scores), q.scalar_type()};
}

constexpr std::pair<std::string_view, FlopFormula> kFormulas[] = {
    {"aten::mm"sv, product_of<0, 1>},
    {"aten::bmm"sv, product_of<0, 1>},
    {"aten::mv"sv, product_of<0, 1>},
    {"aten::dot"sv, product_of<0, 1>},
    {"aten::vdot"sv, product_of<0, 1>},
    {"aten::_int_mm"sv, product_of<0, 1>},
    {"aten::_scaled_mm"sv, product_of<0, 1>},
    {"aten::addmm"sv, product_of<1, 2>},
    {"aten::addmm_"sv, product_of<1, 2>},
    {"aten::_addmm_activation"sv, product_of<1, 2>},
    {"aten::addmv"sv, product_of<1, 2>},
    {"aten::addmv_"sv, product_of<1, 2>},
    {"aten::baddbmm"sv, product_of<1, 2>},
    {"aten::baddbmm_"sv, product_of<1, 2>},
    {"aten::addbmm"sv, product_of<1, 2>},
    {"aten::addbmm_"sv, product_of<1, 2>},
    {"aten::_grouped_mm"sv, grouped},
    {"aten::_scaled_grouped_mm"sv, grouped},
    {"aten::convolution"sv, convolution},
    {"aten::convolution_overrideable"sv, convolution},
    {"aten::convolution_backward"sv, convolution_backward},
    {"aten::convolution_backward_overrideable"sv, convolution_backward},
    {"aten::_scaled_dot_product_flash_attention_for_cpu"sv, attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward"sv, attention_backward},
};

} // namespace

FlopFormula flop_formula(std::string_view op) {
  for (const auto& [name, formula] : kFormulas) {
    if (name == op) {
      return formula;
    }
  }
  return nullptr;
}

} // namespace neuron
