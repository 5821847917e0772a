// What the files that turn c10d's calls into operations have in common.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "distributed/group.h"

namespace neuron {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

inline Buffer whole(const at::Tensor& tensor) {
  return {static_cast<char*>(tensor.data_ptr()), tensor.nbytes()};
}

inline const at::Tensor& only(const char* op, const Tensors& tensors) {
  TORCH_CHECK_VALUE(
      tensors.size() == 1, "neuron: ", op, " takes one tensor a rank, got ", tensors.size(),
      "; for several use the coalesced form");
  return tensors[0];
}

} // namespace neuron
