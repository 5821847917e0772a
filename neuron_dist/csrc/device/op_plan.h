// What the redispatching kernel knows of an operator before it sees arguments.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "device/draws.h"
#include "simulation/flops.h"
#include "simulation/names.h"

namespace neuron {

struct OpPlan {
  explicit OpPlan(const c10::OperatorHandle& op);

  size_t arguments = 0;
  size_t results = 0;
  std::vector<bool> mutated; // by argument: the kernel writes to it
  std::vector<int> result_of; // by result: the mutated argument that it is, or -1
  std::vector<bool> cpu_result; // by result: it stays on the CPU, as with CUDA
  int generator = -1; // index of the Generator? argument
  bool draws = false; // random, with no generator argument
  enum class Fill : uint8_t { kNone, kUniform, kNormal } fill = Fill::kNone; // of its first argument
  DrawKernel drawn = nullptr; // runs in place of the CPU's kernel
  bool widens_integers = false; // GPUs have it for integers, the CPU does not: runs in double and is narrowed
  bool takes_cpu = false; // CPU tensors are welcome beside neuron tensors
  int cpu_argument = -1; // index of the one argument that is a tensor on the CPU, as with CUDA
  bool asks_for_grad = false; // the kernel looks at requires_grad of its arguments

  // What it costs in simulated time.
  Name name = 0;
  bool free = false; // makes views or answers from metadata
  FlopFormula flops = nullptr;
  std::vector<bool> only_written; // by argument: what was there is not read
  bool picks = false; // of its first argument it reads or writes some elements only, those of its index
  bool copies = false; // copy_(self, src, non_blocking), between devices too
  bool host_waits = false; // its result depends on the data, so the host waits for it

  // What the fidelity profile wants to know of it; see watch.h.
  bool computes = true; // new values come out, not copies or views
  bool may_fall_back = false;
  mutable std::atomic<uint8_t> told = 0; // bits of Seen
};

// Operators without a CPU kernel of their own that are best run on the CPU as a whole, since their composite
// form asks the device for kernels that only GPUs have, or would dispatch once a tensor. `cpu` is the key that
// they run with: strided tensors' or that of another kind.
bool runs_whole(const c10::OperatorName& name, c10::DispatchKey cpu);

} // namespace neuron
