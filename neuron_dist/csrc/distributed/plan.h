// A compiled schedule: in which order each part of a collective's data is added.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "distributed/reduce.h"

namespace neuron {

// all_reduce and reduce: the data is cut into programs.size() parts of equal size (numel * i / parts), and
// part i is added in the order of programs[i]. reduce_scatter: programs.size() is ranks * k, and each rank's
// segment is cut into its k parts. One program alone holds for everything.
struct Plan {
  std::vector<ReduceProgram> programs;
  uint32_t hash = 0; // ranks that add in different orders must not go on

  static std::shared_ptr<const Plan> in_rank_order(int ranks) {
    return std::make_shared<const Plan>(Plan{{rank_order(ranks)}});
  }
};

// Sizes that share a plan: an eighth of an octave, so that a schedule's thresholds are met to 12 %. Returns
// the smallest size of the class that `bytes` is in; every rank plans for that size.
inline int64_t size_class(int64_t bytes) {
  const int width = std::bit_width(static_cast<uint64_t>(bytes));
  const int dropped = width > 4 ? width - 4 : 0;
  return bytes >> dropped << dropped;
}

// What sizes that vary from call to call are priced as (all_to_all with splits): rounded up to a sixteenth of their
// octave, so that not every one has to be priced.
inline int64_t rounded_up(int64_t bytes) {
  const int width = std::bit_width(static_cast<uint64_t>(bytes));
  const int dropped = width > 5 ? width - 5 : 0;
  return (bytes + (int64_t{1} << dropped) - 1) >> dropped << dropped;
}

} // namespace neuron
