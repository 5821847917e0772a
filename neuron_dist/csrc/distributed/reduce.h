// Reductions over the ranks' inputs, in a given order, rounded as the schedule's hops round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "distributed/op_info.h"

namespace neuron {

// The order of additions of one chunk, as a postfix program: a rank >= 0 pushes that rank's input,
// kCombine pops two values and pushes their sum. A ring that starts at rank 1 of 3 is {1, 2, kCombine, 0,
// kCombine}; a tree is {0, 1, kCombine, 2, 3, kCombine, kCombine}.
constexpr int16_t kCombine = -1;
using ReduceProgram = std::vector<int16_t>;

ReduceProgram rank_order(int ranks);
// Empty when `program` uses each of `ranks` inputs at least once and leaves one value; else what is wrong.
std::string check_program(const ReduceProgram& program, int ranks);

struct ReduceArgs {
  const void* const* inputs = nullptr; // one pointer a rank, to the first element to be reduced
  void* const* outputs = nullptr; // where the result must stand
  size_t n_outputs = 0;
  int64_t numel = 0;
  const ReduceProgram* program = nullptr;
  c10::ScalarType dtype = c10::ScalarType::Float;
  Reduction reduction = Reduction::kSum;
  double divisor = 1; // AVG
  const double* factors = nullptr; // PREMUL_SUM: one a rank
  // 16- and 8-bit floats: add in fp32 and round once, instead of rounding to the dtype after every hop.
  bool fp32_accumulation = false;
};

// Why this reduction is not defined for this dtype, or empty.
std::string why_not_reducible(Reduction reduction, c10::ScalarType dtype);

// An input may be an output too (same address). Single-threaded; each rank reduces its own slice.
void reduce(const ReduceArgs& args);

} // namespace neuron
