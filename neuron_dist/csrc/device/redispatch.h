// Every operator that is not native runs on its CPU kernel, over the same memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace neuron {

// Registers the redispatching kernel for the operators that have a CPU kernel, and as the fallback of the rest.
// Call it after the native kernels are registered: those are left alone.
void register_redispatch();

// Runs `op` on its CPU kernel, for kernels that come before it. An operator that is called often has one of its own.
void redispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

} // namespace neuron
