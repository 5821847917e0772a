// Random operators whose values depend on their place alone: element i of a tensor drawn at offset o is value o + i of
// the seed's stream, whatever else is drawn. So the pieces of a DTensor, drawn at their own offsets, are the pieces of
// the tensor that one rank alone would draw.
#pragma once

#include <cstdint>

#include <ATen/core/dispatch/Dispatcher.h>

namespace neuron {

struct Place {
  uint64_t seed;
  uint64_t offset; // a multiple of 4
};

// Runs an operator on the CPU tensors on the stack, in place of its CPU kernel; its results take the arguments' place.
using DrawKernel = void (*)(torch::jit::Stack& stack, Place place);

// The kernel for an operator, or nullptr.
DrawKernel draw_kernel(const c10::OperatorName& name);

} // namespace neuron
