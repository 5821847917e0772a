// The loops for any processor.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e4m3fnuz.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Float8_e5m2fnuz.h>
#include <c10/util/Float8_e8m0fnu.h>
#include <c10/util/Half.h>

#include "distributed/reduce.h"

namespace neuron::baseline {
namespace {
#include "distributed/reduce_kernels.h"
} // namespace

void reduce(const ReduceArgs& args) {
  run_reduce(args);
}

} // namespace neuron::baseline
