#include "distributed/reduce.h"

namespace neuron {

namespace baseline {
void reduce(const ReduceArgs& args); // reduce_baseline.cpp
}
namespace avx2 {
void reduce(const ReduceArgs& args); // reduce_avx2.cpp
}
namespace avx512 {
void reduce(const ReduceArgs& args); // reduce_avx512.cpp
}

ReduceProgram rank_order(int ranks) {
  ReduceProgram program{0};
  for (int r = 1; r < ranks; ++r) {
    program.push_back(static_cast<int16_t>(r));
    program.push_back(kCombine);
  }
  return program;
}

std::string check_program(const ReduceProgram& program, int ranks) {
  std::vector<int> used(ranks, 0);
  int depth = 0;
  for (const int16_t code : program) {
    if (code >= ranks || code < kCombine) {
      return "it names rank " + std::to_string(code) + " in a group of " + std::to_string(ranks);
    }
    if (code >= 0) {
      if (++used[code] > 1) {
        return "it adds the input of rank " + std::to_string(code) + " more than once";
      }
      ++depth;
    } else if (--depth < 1) {
      return "it combines a value that is not there";
    }
  }
  for (int r = 0; r < ranks; ++r) {
    if (used[r] == 0) {
      return "it leaves out the input of rank " + std::to_string(r);
    }
  }
  return depth == 1 ? "" : "it leaves " + std::to_string(depth) + " values instead of one";
}

std::string why_not_reducible(Reduction reduction, c10::ScalarType dtype) {
  using c10::ScalarType;
  const bool bitwise = reduction == Reduction::kBand || reduction == Reduction::kBor ||
      reduction == Reduction::kBxor;
  const bool averages = reduction == Reduction::kAvg || reduction == Reduction::kPremulSum;
  switch (dtype) {
    case ScalarType::Float:
    case ScalarType::Double:
    case ScalarType::BFloat16:
    case ScalarType::Half:
    case ScalarType::Float8_e4m3fn:
    case ScalarType::Float8_e5m2:
    case ScalarType::Float8_e4m3fnuz:
    case ScalarType::Float8_e5m2fnuz:
      return bitwise ? "bitwise reductions need an integer or bool dtype; use .view(torch.int...)" : "";
    case ScalarType::Float8_e8m0fnu:
      return reduction == Reduction::kMin || reduction == Reduction::kMax
          ? ""
          : "it holds powers of two only; reduce in float32, or use MIN or MAX";
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Short:
    case ScalarType::UInt16:
    case ScalarType::Int:
    case ScalarType::UInt32:
    case ScalarType::Long:
    case ScalarType::UInt64:
    case ScalarType::Bool:
      return averages ? "integers have no exact average; use SUM and divide, or a float dtype" : "";
    case ScalarType::ComplexFloat:
    case ScalarType::ComplexDouble:
      if (reduction == Reduction::kMin || reduction == Reduction::kMax) {
        return "complex numbers have no order";
      }
      return bitwise ? "bitwise reductions need an integer or bool dtype" : "";
    default:
      return "this dtype can be moved but not reduced; convert it first";
  }
}

void reduce(const ReduceArgs& args) {
  using Kernel = void (*)(const ReduceArgs&);
  static const Kernel kernel = []() -> Kernel {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return avx512::reduce;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
      return avx2::reduce;
    }
#endif
    return baseline::reduce;
  }();
  kernel(args);
}

} // namespace neuron
