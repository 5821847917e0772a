// RNN, LSTM and GRU as the CPU computes them. torch chooses by the device: accelerators get fused cells, which add in
// another order, and multiply the input step by step. Here the operators follow the CPU's order, so that values and
// gradients are its bits: all steps' input at once, or oneDNN's layer where the CPU would take that.
#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru_cell_native.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm_cell_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "device/runtime.h"

namespace neuron {
namespace {

using at::Tensor;
using at::TensorList;
using OptTensor = std::optional<Tensor>;

// Of one layer and direction.
struct Weights {
  Tensor ih, hh, ih_bias, hh_bias;
  Tensor projection; // of an LSTM's output, if it has one
};

struct State {
  Tensor h;
  Tensor c; // LSTM only
};

// The input's part of the gates, (batch, gates * hidden): of a layer all steps' at once, of a cell alone where the CPU
// computes it, since a second derivative adds in the order of the operators.
struct Input {
  Tensor value;
  bool is_part_of_gates;

  Tensor part_of_gates(const Weights& w) const {
    return is_part_of_gates ? value : at::linear(value, w.ih, w.ih_bias);
  }
};

// One step from the input and the state before it.
using Cell = State (*)(const Input&, const State&, const Weights&);

Tensor plus_hidden(const Input& in, const State& state, const Weights& w) {
  const Tensor gates = at::linear(state.h, w.hh, w.hh_bias);
  return gates.add_(in.part_of_gates(w));
}

State tanh_cell(const Input& in, const State& state, const Weights& w) {
  return {at::tanh(plus_hidden(in, state, w)), {}};
}

State relu_cell(const Input& in, const State& state, const Weights& w) {
  return {at::relu(plus_hidden(in, state, w)), {}};
}

State lstm_step(const Input& in, const State& state, const Weights& w) {
  auto gates = plus_hidden(in, state, w).unsafe_chunk(4, /*dim=*/1);
  const Tensor enter = gates[0].sigmoid_();
  const Tensor keep = gates[1].sigmoid_();
  const Tensor fresh = gates[2].tanh_();
  const Tensor leave = gates[3].sigmoid_();
  Tensor c = (keep * state.c).add_(enter * fresh);
  Tensor h = leave * c.tanh();
  if (w.projection.defined()) {
    h = at::matmul(h, w.projection.t());
  }
  return {std::move(h), std::move(c)};
}

State gru_step(const Input& in, const State& state, const Weights& w) {
  const auto from_input = in.part_of_gates(w).unsafe_chunk(3, /*dim=*/1);
  auto gates = at::linear(state.h, w.hh, w.hh_bias).unsafe_chunk(3, /*dim=*/1);
  const Tensor reset = gates[0].add_(from_input[0]).sigmoid_();
  const Tensor update = gates[1].add_(from_input[1]).sigmoid_();
  const Tensor fresh = from_input[2].add(gates[2].mul_(reset)).tanh_();
  return {(state.h - fresh).mul_(update).add_(fresh), {}};
}

struct Kind {
  Cell cell;
  int64_t gates;
  int64_t states;
};

constexpr Kind kTanh{tanh_cell, 1, 1};
constexpr Kind kRelu{relu_cell, 1, 1};
constexpr Kind kLstm{lstm_step, 4, 2};
constexpr Kind kGru{gru_step, 3, 1};

struct Settings {
  bool has_biases;
  int64_t layers;
  double dropout;
  bool train;
  bool bidirectional;
};

std::vector<Weights> weights_of(TensorList flat, bool has_biases, bool projected) {
  const size_t each = 2 + (has_biases ? 2 : 0) + (projected ? 1 : 0);
  TORCH_CHECK(flat.size() % each == 0, "got an incorrect number of RNN parameters");
  std::vector<Weights> all;
  for (size_t i = 0; i < flat.size(); i += each) {
    Weights w{flat[i], flat[i + 1], {}, {}, {}};
    if (has_biases) {
      w.ih_bias = flat[i + 2];
      w.hh_bias = flat[i + 3];
    }
    if (projected) {
      w.projection = flat[i + each - 1];
    }
    all.push_back(std::move(w));
  }
  return all;
}

// --- one direction of one layer. Sequences are (time, batch, features), or packed: (sum of batch sizes, features).

struct Layer {
  Tensor output;
  State last;
};

Layer run_padded(const Kind& kind, const Tensor& input, State state, const Weights& w, bool backwards) {
  auto steps = at::linear(input, w.ih, w.ih_bias).unbind(0);
  TORCH_CHECK(!steps.empty(), "Expected sequence length to be larger than 0 in RNN");
  if (backwards) {
    std::reverse(steps.begin(), steps.end());
  }
  std::vector<Tensor> outputs;
  outputs.reserve(steps.size());
  for (const Tensor& in : steps) {
    state = kind.cell({in, /*is_part_of_gates=*/true}, state, w);
    outputs.push_back(state.h);
  }
  if (backwards) {
    std::reverse(outputs.begin(), outputs.end());
  }
  return {at::stack(outputs, 0), std::move(state)};
}

State rows(const State& state, int64_t from, int64_t to) {
  const auto part = [&](const Tensor& t) { return t.defined() ? t.narrow(0, from, to - from) : Tensor(); };
  return {part(state.h), part(state.c)};
}

State joined(const std::vector<State>& states) {
  std::vector<Tensor> h, c;
  for (const State& s : states) {
    h.push_back(s.h);
    if (s.c.defined()) {
      c.push_back(s.c);
    }
  }
  return {at::cat(h, 0), c.empty() ? Tensor() : at::cat(c, 0)};
}

// Sequences end one after the other, the shortest first; their last states are put together in the end.
Layer run_packed(
    const Kind& kind, const Tensor& input, at::IntArrayRef batch_sizes, State state, const Weights& w) {
  const Tensor all = at::linear(input, w.ih, w.ih_bias);
  std::vector<Tensor> outputs;
  std::vector<State> ended;
  int64_t offset = 0;
  int64_t running = batch_sizes.front();
  for (const int64_t size : batch_sizes) {
    const Tensor in = all.narrow(0, offset, size);
    offset += size;
    if (size < running) {
      ended.push_back(rows(state, size, running));
      state = rows(state, 0, size);
      running = size;
    }
    state = kind.cell({in, /*is_part_of_gates=*/true}, state, w);
    outputs.push_back(state.h);
  }
  ended.push_back(std::move(state));
  std::reverse(ended.begin(), ended.end());
  return {at::cat(outputs, 0), joined(ended)};
}

// From the end on: sequences join one after the other, the longest first.
Layer run_packed_backwards(
    const Kind& kind, const Tensor& input, at::IntArrayRef batch_sizes, const State& first, const Weights& w) {
  const Tensor all = at::linear(input, w.ih, w.ih_bias);
  std::vector<Tensor> outputs;
  int64_t offset = input.size(0);
  int64_t running = batch_sizes.back();
  State state = rows(first, 0, running);
  for (auto size = batch_sizes.rbegin(); size != batch_sizes.rend(); ++size) {
    if (*size > running) {
      state = joined({state, rows(first, running, *size)});
      running = *size;
    }
    offset -= *size;
    state = kind.cell({all.narrow(0, offset, *size), /*is_part_of_gates=*/true}, state, w);
    outputs.push_back(state.h);
  }
  std::reverse(outputs.begin(), outputs.end());
  return {at::cat(outputs, 0), std::move(state)};
}

// --- all layers

struct Result {
  Tensor output;
  Tensor h; // (layers * directions, batch, hidden)
  Tensor c;
};

// `run(layer input, first state, weights, backwards)` runs one direction of one layer.
template <typename Run>
Result run_layers(Tensor input, const std::vector<State>& first, const Settings& s, const Run& run) {
  const int64_t directions = s.bidirectional ? 2 : 1;
  TORCH_CHECK(
      static_cast<int64_t>(first.size()) == s.layers * directions, "Expected ", s.layers * directions,
      " hidden states in an RNN of ", s.layers, " layers and ", directions, " directions, got ", first.size());
  std::vector<Tensor> h, c;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const auto at = static_cast<size_t>(layer * directions + direction);
      Layer done = run(input, first[at], at, direction == 1);
      outputs.push_back(std::move(done.output));
      h.push_back(std::move(done.last.h));
      if (done.last.c.defined()) {
        c.push_back(std::move(done.last.c));
      }
    }
    input = s.bidirectional ? at::cat(outputs, -1) : outputs[0];
    if (s.dropout != 0 && s.train && layer < s.layers - 1) {
      input = at::dropout(input, s.dropout, /*train=*/true);
    }
  }
  return {std::move(input), at::stack(h, 0), c.empty() ? Tensor() : at::stack(c, 0)};
}

std::vector<State> states_of(TensorList hx) {
  std::vector<State> states;
  for (Tensor& h : hx[0].unbind(0)) {
    states.push_back({std::move(h), {}});
  }
  if (hx.size() == 2) {
    auto cells = hx[1].unbind(0);
    TORCH_CHECK(cells.size() == states.size(), "Expected as many layers in hx[1] as in hx[0]");
    for (size_t i = 0; i < cells.size(); ++i) {
      states[i].c = std::move(cells[i]);
    }
  }
  return states;
}

void check(const Kind& kind, const Tensor& input, TensorList hx, TensorList weights, const Settings& s, bool projected) {
  const auto directions = static_cast<size_t>(s.bidirectional ? 2 : 1);
  const size_t each = 2 + (s.has_biases ? 2 : 0) + (projected ? 1 : 0);
  TORCH_CHECK(
      weights.size() == static_cast<size_t>(s.layers) * directions * each, "Expected ",
      static_cast<size_t>(s.layers) * directions * each, " RNN parameters, got ", weights.size());
  const auto same = [&](const Tensor& t, const char* what) {
    TORCH_CHECK(
        t.device() == input.device(), "Input and ", what, " tensors are not at the same device, found input tensor at ",
        input.device(), " and ", what, " tensor at ", t.device());
    TORCH_CHECK(
        t.scalar_type() == input.scalar_type(), "Input and ", what,
        " tensors are not the same dtype, found input tensor with ", input.scalar_type(), " and ", what,
        " tensor with ", t.scalar_type());
  };
  for (const Tensor& t : hx) {
    TORCH_CHECK(t.dim() == 3, "For batched 3-D input, hx should be 3-D but got ", t.dim(), "-D tensor");
    same(t, "hidden");
  }
  for (const Tensor& t : weights) {
    same(t, "parameter");
  }
}

// --- oneDNN's layer, which the CPU takes for padded LSTMs without a projection

bool onednn_has(const char* question) {
  static auto& dispatcher = c10::Dispatcher::singleton();
  return dispatcher.findSchemaOrThrow(question, "").typed<bool()>().call();
}

bool cpu_takes_onednn(const Tensor& input, bool projected) {
  if (projected || !at::hasMKLDNN() || !at::globalContext().userEnabledMkldnn() || input.numel() == 0 ||
      input.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    return false;
  }
  switch (input.scalar_type()) {
    case at::kFloat:
      return true;
    case at::kBFloat16:
      return onednn_has("mkldnn::_is_mkldnn_bf16_supported");
    case at::kHalf:
      return !at::GradMode::is_enabled() && onednn_has("mkldnn::_is_mkldnn_fp16_supported");
    default:
      return false;
  }
}

Result run_onednn(const Tensor& input, TensorList hx, TensorList flat, const Settings& s, bool batch_first) {
  constexpr int64_t kModeLstm = 2; // oneDNN's number for it
  const auto weights = weights_of(flat, s.has_biases, /*projected=*/false);
  const int64_t hidden = hx[0].size(2);
  const auto run = [&](const Tensor& in, const State& first, size_t index, bool backwards) -> Layer {
    const Weights& w = weights[index];
    const auto bias = [&](const Tensor& b, const Tensor& like) {
      return s.has_biases ? b : at::zeros(like.sizes(), like.options());
    };
    auto [output, h, c, workspace] = at::mkldnn_rnn_layer(
        in, w.ih, w.hh, bias(w.ih_bias, w.ih), bias(w.hh_bias, w.hh), first.h, first.c, backwards, /*batch_sizes=*/{},
        kModeLstm, hidden, s.layers, s.has_biases, s.bidirectional, batch_first, s.train);
    return {std::move(output), {std::move(h), std::move(c)}};
  };
  // Its kernel takes states by their address; select keeps the graph that the CPU's indexing makes.
  const Tensor h = hx[0].contiguous();
  const Tensor c = hx[1].contiguous();
  std::vector<State> states;
  for (int64_t i = 0; i < h.size(0); ++i) {
    states.push_back({h[i], c[i]});
  }
  return run_layers((batch_first ? input.transpose(0, 1) : input).contiguous(), states, s, run);
}

// --- the operators

// Autocast casts the accelerators' cells, as with CUDA: there is nothing of the CPU's to equal.
bool as_accelerator() {
  return at::autocast::is_autocast_enabled(kNeuron);
}

Result padded(
    const Kind& kind, const Tensor& input, TensorList hx, TensorList weights, const Settings& s, bool batch_first) {
  const bool projected = kind.states == 2 && hx[0].sym_size(-1) != hx[1].sym_size(-1);
  check(kind, input, hx, weights, s, projected);
  Result result;
  if (kind.states == 2 && cpu_takes_onednn(input, projected)) {
    result = run_onednn(input, hx, weights, s, batch_first);
  } else {
    const auto all = weights_of(weights, s.has_biases, projected);
    result = run_layers(
        batch_first ? input.transpose(0, 1) : input, states_of(hx), s,
        [&](const Tensor& in, const State& first, size_t index, bool backwards) {
          return run_padded(kind, in, first, all[index], backwards);
        });
  }
  if (batch_first) {
    result.output = result.output.transpose(0, 1);
  }
  return result;
}

Result packed(
    const Kind& kind, const Tensor& input, const Tensor& batch_sizes, TensorList hx, TensorList weights,
    const Settings& s) {
  const bool projected = kind.states == 2 && hx[0].sym_size(-1) != hx[1].sym_size(-1);
  check(kind, input, hx, weights, s, projected);
  TORCH_CHECK(
      batch_sizes.device().is_cpu() && batch_sizes.scalar_type() == at::kLong && batch_sizes.dim() == 1 &&
          batch_sizes.numel() > 0,
      "batch_sizes of a packed sequence must be a 1-D int64 tensor on the CPU that is not empty");
  const Tensor held = batch_sizes.contiguous();
  const at::IntArrayRef sizes(held.const_data_ptr<int64_t>(), static_cast<size_t>(held.numel()));
  const auto all = weights_of(weights, s.has_biases, projected);
  return run_layers(
      input, states_of(hx), s, [&](const Tensor& in, const State& first, size_t index, bool backwards) {
        return backwards ? run_packed_backwards(kind, in, sizes, first, all[index])
                         : run_packed(kind, in, sizes, first, all[index]);
      });
}

std::tuple<Tensor, Tensor, Tensor> lstm_padded(
    const Tensor& input, TensorList hx, TensorList weights, bool has_biases, int64_t layers, double dropout, bool train,
    bool bidirectional, bool batch_first) {
  if (as_accelerator()) {
    return at::native::lstm(input, hx, weights, has_biases, layers, dropout, train, bidirectional, batch_first);
  }
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  auto [output, h, c] =
      padded(kLstm, input, hx, weights, {has_biases, layers, dropout, train, bidirectional}, batch_first);
  return {std::move(output), std::move(h), std::move(c)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_packed(
    const Tensor& input, const Tensor& batch_sizes, TensorList hx, TensorList weights, bool has_biases, int64_t layers,
    double dropout, bool train, bool bidirectional) {
  if (as_accelerator()) {
    return at::native::lstm(input, batch_sizes, hx, weights, has_biases, layers, dropout, train, bidirectional);
  }
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  auto [output, h, c] =
      packed(kLstm, input, batch_sizes, hx, weights, {has_biases, layers, dropout, train, bidirectional});
  return {std::move(output), std::move(h), std::move(c)};
}

using PaddedRnn = std::tuple<Tensor, Tensor> (*)(
    const Tensor&, const Tensor&, TensorList, bool, int64_t, double, bool, bool, bool);
using PackedRnn = std::tuple<Tensor, Tensor> (*)(
    const Tensor&, const Tensor&, const Tensor&, TensorList, bool, int64_t, double, bool, bool);

template <const Kind& kind, PaddedRnn torchs>
std::tuple<Tensor, Tensor> rnn_padded(
    const Tensor& input, const Tensor& hx, TensorList weights, bool has_biases, int64_t layers, double dropout,
    bool train, bool bidirectional, bool batch_first) {
  if (as_accelerator()) {
    return torchs(input, hx, weights, has_biases, layers, dropout, train, bidirectional, batch_first);
  }
  auto [output, h, c] =
      padded(kind, input, hx, weights, {has_biases, layers, dropout, train, bidirectional}, batch_first);
  return {std::move(output), std::move(h)};
}

template <const Kind& kind, PackedRnn torchs>
std::tuple<Tensor, Tensor> rnn_packed(
    const Tensor& input, const Tensor& batch_sizes, const Tensor& hx, TensorList weights, bool has_biases,
    int64_t layers, double dropout, bool train, bool bidirectional) {
  if (as_accelerator()) {
    return torchs(input, batch_sizes, hx, weights, has_biases, layers, dropout, train, bidirectional);
  }
  auto [output, h, c] =
      packed(kind, input, batch_sizes, hx, weights, {has_biases, layers, dropout, train, bidirectional});
  return {std::move(output), std::move(h)};
}

// Cells alone. Those of simple RNNs do not depend on the device.
void check_cell(const Kind& kind, const Tensor& input, TensorList hx, const Tensor& w_ih, const Tensor& w_hh) {
  const auto hidden = w_hh.sym_size(1);
  TORCH_CHECK(
      input.sym_size(1) == w_ih.sym_size(1), "input has inconsistent input_size: got ", input.sym_size(1), " expected ",
      w_ih.sym_size(1));
  for (const Tensor* w : {&w_ih, &w_hh}) {
    TORCH_CHECK(
        w->sym_size(0) == hidden * kind.gates, "first dim of the weights must be ", kind.gates, " * hidden_size = ",
        hidden * kind.gates, ", but got ", w->sym_size(0));
  }
  for (const Tensor& h : hx) {
    TORCH_CHECK(
        input.sym_size(0) == h.sym_size(0), "Input batch size ", input.sym_size(0), " doesn't match hidden batch size ",
        h.sym_size(0));
    TORCH_CHECK(
        h.sym_size(1) == hidden, "hidden has inconsistent hidden_size: got ", h.sym_size(1), ", expected ", hidden);
  }
}

State one_step(
    const Kind& kind, const Tensor& input, TensorList hx, const Tensor& w_ih, const Tensor& w_hh, const OptTensor& b_ih,
    const OptTensor& b_hh) {
  check_cell(kind, input, hx, w_ih, w_hh);
  const Weights w{w_ih, w_hh, b_ih.value_or(Tensor()), b_hh.value_or(Tensor()), {}};
  const State state{hx[0], hx.size() == 2 ? hx[1] : Tensor()};
  return kind.cell({input, /*is_part_of_gates=*/false}, state, w);
}

std::tuple<Tensor, Tensor> lstm_cell(
    const Tensor& input, TensorList hx, const Tensor& w_ih, const Tensor& w_hh, const OptTensor& b_ih,
    const OptTensor& b_hh) {
  if (as_accelerator()) {
    return at::native::lstm_cell(input, hx, w_ih, w_hh, b_ih, b_hh);
  }
  TORCH_CHECK(hx.size() == 2, "lstm_cell expects two hidden states");
  auto [h, c] = one_step(kLstm, input, hx, w_ih, w_hh, b_ih, b_hh);
  return {std::move(h), std::move(c)};
}

Tensor gru_cell(
    const Tensor& input, const Tensor& hx, const Tensor& w_ih, const Tensor& w_hh, const OptTensor& b_ih,
    const OptTensor& b_hh) {
  if (as_accelerator()) {
    return at::native::gru_cell(input, hx, w_ih, w_hh, b_ih, b_hh);
  }
  return one_step(kGru, input, hx, w_ih, w_hh, b_ih, b_hh).h;
}

// Above autograd, which follows the operators that they are made of; below it for what runs without.
void implement(torch::Library& m) {
  m.impl("lstm.input", TORCH_FN(lstm_padded));
  m.impl("lstm.data", TORCH_FN(lstm_packed));
  m.impl("gru.input", TORCH_FN((rnn_padded<kGru, at::native::gru>)));
  m.impl("gru.data", TORCH_FN((rnn_packed<kGru, at::native::gru>)));
  m.impl("rnn_tanh.input", TORCH_FN((rnn_padded<kTanh, at::native::rnn_tanh>)));
  m.impl("rnn_tanh.data", TORCH_FN((rnn_packed<kTanh, at::native::rnn_tanh>)));
  m.impl("rnn_relu.input", TORCH_FN((rnn_padded<kRelu, at::native::rnn_relu>)));
  m.impl("rnn_relu.data", TORCH_FN((rnn_packed<kRelu, at::native::rnn_relu>)));
  m.impl("lstm_cell", TORCH_FN(lstm_cell));
  m.impl("gru_cell", TORCH_FN(gru_cell));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  implement(m);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement(m);
}

} // namespace
} // namespace neuron
