// Floating point operations of the operators that run on TensorE: matrix products, convolutions, attention.
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

namespace neuron {

struct Flops {
  uint64_t count = 0;
  c10::ScalarType dtype = c10::ScalarType::Float; // of the factors
};

// From an operator's arguments, as they stand on the stack. nullptr: the operator has none worth counting, and
// its bytes decide.
using FlopFormula = Flops (*)(const c10::IValue* arguments);
FlopFormula flop_formula(std::string_view op); // "aten::mm"

} // namespace neuron
