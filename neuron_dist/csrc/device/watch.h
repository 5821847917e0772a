// What the fidelity profile is told of operators: those that the real device would compute otherwise, or not at all.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

namespace neuron {

// Bits of what was seen.
enum Seen : uint8_t {
  kSeenOperator = 1 << 0, // one of those that TorchNeuron may run on the CPU
  kSeenDouble = 1 << 1, // a float64 tensor with a dimension
  kSeenOverflow = 1 << 2, // an int64 result beyond 32 bits
  kSeenChannelsLast = 1 << 3, // asked for
};

// Returns false for a call that does not count, such as one that prints a tensor; may throw.
using Watcher = std::function<bool(const std::string& op, const std::string& dtype, int seen)>;

// Called for each operator and bit until a call counts. Null ends it.
void set_watcher(Watcher watcher);

extern std::atomic<bool> watching_operators;
inline bool watching() {
  return watching_operators.load(std::memory_order_relaxed);
}

bool tell_watcher(const std::string& op, at::ScalarType dtype, uint8_t seen);

// Whether an int64 tensor holds a value that int32 does not.
bool beyond_32_bits(const at::Tensor& cpu);

} // namespace neuron
