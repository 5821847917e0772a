// A compiled schedule: in which order each part of a collective's data is added.
#pragma once

#include <memory>
#include <vector>

#include "distributed/reduce.h"

namespace neuron {

// all_reduce and reduce: the data is cut into programs.size() parts of equal size (numel * i / parts), and
// part i is added in the order of programs[i]. reduce_scatter: programs.size() is ranks * k, and each rank's
// segment is cut into its k parts. One program alone holds for everything.
struct Plan {
  std::vector<ReduceProgram> programs;

  static std::shared_ptr<const Plan> in_rank_order(int ranks) {
    return std::make_shared<const Plan>(Plan{{rank_order(ranks)}});
  }
};

} // namespace neuron
