// Every operator that is not native runs on its CPU kernel, over the same memory.
#pragma once

namespace neuron {

// Registers the redispatching kernel for the operators that have a CPU kernel, and as the fallback of the rest.
// Call it after the native kernels are registered: those are left alone.
void register_redispatch();

} // namespace neuron
