// The loops for x86-64 with avx2. Only our own code is compiled for it: what the headers define inline
// must stay runnable everywhere.
#if defined(__x86_64__)
#include <immintrin.h>

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

#pragma GCC push_options
#pragma GCC target("avx2,f16c")

namespace neuron::avx2 {
namespace {
#include "distributed/reduce_kernels.h"
} // namespace

void reduce(const ReduceArgs& args) {
  run_reduce(args);
}

} // namespace neuron::avx2

#pragma GCC pop_options
#endif
