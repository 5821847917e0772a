// What an operator costs on one logical core. neuron_dist/simulation/roofline.py says the same in Python, and a
// replay of a trace gives the run's own nanoseconds only while both do the same arithmetic.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include <c10/core/ScalarType.h>

namespace neuron {

// Where an operator's bytes move; the numbers stand in the trace.
enum class Moves : uint8_t { kInHbm, kToDevice, kFromDevice };

// Rates of one logical core, in flops or bytes a second; times in nanoseconds. From the product's YAML.
struct Rates {
  double bfloat16 = 0;
  double float16 = 0;
  double float32 = 0;
  double float8 = 0;
  double hbm = 0;
  double host = 0;
  double launch_ns = 0;
  double dispatch_ns = 0;

  double tensor(c10::ScalarType dtype) const {
    switch (dtype) {
      case c10::ScalarType::BFloat16:
        return bfloat16;
      case c10::ScalarType::Half:
        return float16;
      case c10::ScalarType::Float8_e5m2:
      case c10::ScalarType::Float8_e4m3fn:
      case c10::ScalarType::Float8_e5m2fnuz:
      case c10::ScalarType::Float8_e4m3fnuz:
      case c10::ScalarType::Float8_e8m0fnu:
      case c10::ScalarType::Float4_e2m1fn_x2:
        return float8;
      default: // TensorE has no 64-bit and no integer formats
        return float32;
    }
  }

  int64_t duration_ns(uint64_t flops, uint64_t bytes, c10::ScalarType dtype, Moves moves) const {
    const double compute = static_cast<double>(flops) * 1e9 / tensor(dtype);
    const double memory = static_cast<double>(bytes) * 1e9 / (moves == Moves::kInHbm ? hbm : host);
    return static_cast<int64_t>(std::floor(launch_ns + std::max(compute, memory) + 0.5));
  }

  // A message to oneself: read and written in HBM. 0 where no device is known.
  int64_t copy_ns(uint64_t bytes) const {
    return hbm > 0 ? static_cast<int64_t>(std::floor(2.0 * static_cast<double>(bytes) * 1e9 / hbm + 0.5)) : 0;
  }
};

} // namespace neuron
