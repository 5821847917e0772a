// Tensors between device and CPU without a copy, of the layouts that both have.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/storage.h"

namespace neuron {

// The CPU tensor that stands in for `tensor`, if its storage has one left from an earlier call that nobody uses;
// keep_alias() leaves it there again. No tensor is given out twice in between.
at::Tensor spare_alias_of(const at::Tensor& tensor);
void keep_alias(const at::Tensor& tensor, at::Tensor alias);

// A new CPU tensor that stands in for `tensor`: strided, sparse (COO or compressed), quantized or nested.
// Throws NotImplementedError on other layouts.
at::Tensor cpu_alias_of(const at::Tensor& tensor);

// The neuron tensor for a CPU tensor that a kernel made; see adopt().
at::Tensor adopt_tensor(const at::Tensor& cpu, c10::Device device);

// Whether a CPU tensor that a kernel made is strided and has memory of its own.
bool is_fresh(const at::Tensor& cpu);

// Brings `tensor` to the state that a kernel left its alias in.
void sync_with_alias(const at::Tensor& tensor, const at::Tensor& alias);

} // namespace neuron
