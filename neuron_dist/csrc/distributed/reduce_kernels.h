// The loops of reduce.h. Included by one .cpp a instruction set, inside its own namespace, after the headers
// below: nothing here may be shared between them.
// Needs: <algorithm> <cmath> <cstdint> <cstring> <limits> <type_traits> <c10 float types> "distributed/reduce.h"

constexpr int64_t kBlockBytes = 8192; // of accumulator: a few of them fit in the L1 cache

template <typename T>
struct is_small_float : std::false_type {};
template <> struct is_small_float<c10::BFloat16> : std::true_type {};
template <> struct is_small_float<c10::Half> : std::true_type {};
template <> struct is_small_float<c10::Float8_e4m3fn> : std::true_type {};
template <> struct is_small_float<c10::Float8_e5m2> : std::true_type {};
template <> struct is_small_float<c10::Float8_e4m3fnuz> : std::true_type {};
template <> struct is_small_float<c10::Float8_e5m2fnuz> : std::true_type {};
template <> struct is_small_float<c10::Float8_e8m0fnu> : std::true_type {};

// The type that a dtype is added in.
template <typename T>
using acc_t = std::conditional_t<is_small_float<T>::value, float, T>;

inline float bf16_round(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  const uint32_t result = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : rounded; // NaN stays NaN
  float out;
  std::memcpy(&out, &result, 4);
  return out;
}

template <typename T>
inline void load(const T* in, acc_t<T>* acc, int64_t n) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    const auto* bits = reinterpret_cast<const uint16_t*>(in);
    auto* out = reinterpret_cast<uint32_t*>(acc);
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<uint32_t>(bits[i]) << 16;
    }
#if defined(__F16C__)
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
      _mm256_storeu_ps(acc + i, _mm256_cvtph_ps(half));
    }
    for (; i < n; ++i) {
      acc[i] = static_cast<float>(in[i]);
    }
#endif
  } else {
    for (int64_t i = 0; i < n; ++i) {
      acc[i] = static_cast<acc_t<T>>(in[i]);
    }
  }
}

template <typename T>
inline void store(const acc_t<T>* acc, T* out, int64_t n) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    auto* bits = reinterpret_cast<uint16_t*>(out);
    for (int64_t i = 0; i < n; ++i) {
      const float rounded = bf16_round(acc[i]);
      uint32_t word;
      std::memcpy(&word, &rounded, 4);
      bits[i] = static_cast<uint16_t>(word >> 16);
    }
#if defined(__F16C__)
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const __m128i half =
          _mm256_cvtps_ph(_mm256_loadu_ps(acc + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
    }
    for (; i < n; ++i) {
      out[i] = static_cast<T>(acc[i]);
    }
#endif
  } else {
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<T>(acc[i]);
    }
  }
}

// Rounds the accumulator to what the wire holds.
template <typename T>
inline void round_to_wire(acc_t<T>* acc, int64_t n) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    for (int64_t i = 0; i < n; ++i) {
      acc[i] = bf16_round(acc[i]);
    }
  } else if constexpr (is_small_float<T>::value) {
    T wire[64];
    for (int64_t i = 0; i < n; i += 64) {
      const int64_t m = std::min<int64_t>(64, n - i);
      store<T>(acc + i, wire, m);
      load<T>(wire, acc + i, m);
    }
  }
}

template <typename A>
struct AddOp {
  // Unsigned, so that integers wrap without undefined behaviour.
  static inline A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};
template <typename A>
struct MulOp {
  static inline A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      using W = std::conditional_t<(sizeof(U) < 4), uint32_t, U>; // uint16 * uint16 would overflow an int
      return static_cast<A>(static_cast<U>(static_cast<W>(static_cast<U>(a)) * static_cast<W>(static_cast<U>(b))));
    } else {
      return a * b;
    }
  }
};
// NaN wins, whichever side it is on.
template <typename A>
struct MinOp {
  static inline A apply(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) {
      return a != a ? a : (b < a || b != b ? b : a);
    } else {
      return b < a ? b : a;
    }
  }
};
template <typename A>
struct MaxOp {
  static inline A apply(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) {
      return a != a ? a : (a < b || b != b ? b : a);
    } else {
      return a < b ? b : a;
    }
  }
};
template <typename A>
struct AndOp {
  static inline A apply(A a, A b) {
    return static_cast<A>(a & b);
  }
};
template <typename A>
struct OrOp {
  static inline A apply(A a, A b) {
    return static_cast<A>(a | b);
  }
};
template <typename A>
struct XorOp {
  static inline A apply(A a, A b) {
    return static_cast<A>(a ^ b);
  }
};

template <typename T, template <typename> class BinaryOp>
void run(const ReduceArgs& args) {
  using A = acc_t<T>;
  constexpr int64_t kBlock = kBlockBytes / static_cast<int64_t>(sizeof(A));
  const ReduceProgram& program = *args.program;
  const bool scaled = args.reduction == Reduction::kPremulSum;
  const bool round_hops = is_small_float<T>::value && !args.fp32_accumulation;
  // The deepest stack of values that this program reaches.
  int depth = 0;
  int deepest = 0;
  for (const int16_t code : program) {
    depth += code >= 0 ? 1 : -1;
    deepest = std::max(deepest, depth);
  }
  thread_local std::vector<char> memory;
  memory.resize(static_cast<size_t>(deepest + 1) * kBlockBytes + 64);
  auto* stack = reinterpret_cast<A*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});

  for (int64_t begin = 0; begin < args.numel; begin += kBlock) {
    const int64_t n = std::min(kBlock, args.numel - begin);
    int top = -1;
    for (size_t pc = 0; pc < program.size(); ++pc) {
      const int16_t code = program[pc];
      A* value;
      if (code >= 0) {
        const T* in = static_cast<const T*>(args.inputs[code]) + begin;
        // The usual case, a chain: add an input to the value on top without loading it apart.
        const bool chained = top >= 0 && pc + 1 < program.size() && program[pc + 1] == kCombine;
        if constexpr (std::is_same_v<T, A>) {
          if (chained && !scaled) {
            A* acc = stack + top * kBlock;
            for (int64_t i = 0; i < n; ++i) {
              acc[i] = BinaryOp<A>::apply(acc[i], in[i]);
            }
            ++pc;
            continue;
          }
        }
        ++top;
        value = stack + top * kBlock;
        load<T>(in, value, n);
        if constexpr (std::is_floating_point_v<A>) {
          if (scaled) {
            const auto factor = static_cast<A>(args.factors[code]);
            for (int64_t i = 0; i < n; ++i) {
              value[i] *= factor;
            }
            if (round_hops) {
              round_to_wire<T>(value, n);
            }
          }
        }
        continue;
      }
      const A* right = stack + top * kBlock;
      --top;
      value = stack + top * kBlock;
      for (int64_t i = 0; i < n; ++i) {
        value[i] = BinaryOp<A>::apply(value[i], right[i]);
      }
      if (round_hops) {
        round_to_wire<T>(value, n);
      }
    }
    if constexpr (std::is_floating_point_v<A>) {
      if (args.reduction == Reduction::kAvg) {
        const auto divisor = static_cast<A>(args.divisor);
        for (int64_t i = 0; i < n; ++i) {
          stack[i] /= divisor;
        }
      }
    }
    T* first = static_cast<T*>(args.outputs[0]) + begin;
    if constexpr (std::is_same_v<T, A>) {
      std::memcpy(first, stack, static_cast<size_t>(n) * sizeof(T));
    } else {
      store<T>(stack, first, n);
    }
    for (size_t o = 1; o < args.n_outputs; ++o) {
      std::memcpy(static_cast<T*>(args.outputs[o]) + begin, first, static_cast<size_t>(n) * sizeof(T));
    }
  }
}

template <typename T>
void run_arithmetic(const ReduceArgs& args) {
  switch (args.reduction) {
    case Reduction::kSum:
    case Reduction::kAvg:
    case Reduction::kPremulSum:
      return run<T, AddOp>(args);
    case Reduction::kProduct:
      return run<T, MulOp>(args);
    case Reduction::kMin:
      return run<T, MinOp>(args);
    default:
      return run<T, MaxOp>(args);
  }
}

template <typename T>
void run_integer(const ReduceArgs& args) {
  switch (args.reduction) {
    case Reduction::kBand:
      return run<T, AndOp>(args);
    case Reduction::kBor:
      return run<T, OrOp>(args);
    case Reduction::kBxor:
      return run<T, XorOp>(args);
    default:
      return run_arithmetic<T>(args);
  }
}

// Truth values: a sum is "any", a product is "all", as torch adds and multiplies booleans.
inline void run_bool(const ReduceArgs& args) {
  switch (args.reduction) {
    case Reduction::kProduct:
    case Reduction::kMin:
    case Reduction::kBand:
      return run<uint8_t, AndOp>(args);
    case Reduction::kBxor:
      return run<uint8_t, XorOp>(args);
    default:
      return run<uint8_t, OrOp>(args);
  }
}

// (a + bi)(c + di) in the reals, component by component.
template <typename R>
void run_complex_product(const ReduceArgs& args) {
  struct Pair {
    R re, im;
  };
  std::vector<Pair> stack;
  for (int64_t i = 0; i < args.numel; ++i) {
    stack.clear();
    for (const int16_t code : *args.program) {
      if (code >= 0) {
        stack.push_back(static_cast<const Pair*>(args.inputs[code])[i]);
        continue;
      }
      const Pair b = stack.back();
      stack.pop_back();
      const Pair a = stack.back();
      stack.back() = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    }
    for (size_t o = 0; o < args.n_outputs; ++o) {
      static_cast<Pair*>(args.outputs[o])[i] = stack.back();
    }
  }
}

template <typename R>
void run_complex(const ReduceArgs& args) {
  if (args.reduction == Reduction::kProduct) {
    return run_complex_product<R>(args);
  }
  ReduceArgs components = args; // sums, averages and real factors act on each component
  components.numel *= 2;
  run<R, AddOp>(components);
}

inline void run_reduce(const ReduceArgs& args) {
  using c10::ScalarType;
  switch (args.dtype) {
    case ScalarType::Float: return run_arithmetic<float>(args);
    case ScalarType::Double: return run_arithmetic<double>(args);
    case ScalarType::BFloat16: return run_arithmetic<c10::BFloat16>(args);
    case ScalarType::Half: return run_arithmetic<c10::Half>(args);
    case ScalarType::Float8_e4m3fn: return run_arithmetic<c10::Float8_e4m3fn>(args);
    case ScalarType::Float8_e5m2: return run_arithmetic<c10::Float8_e5m2>(args);
    case ScalarType::Float8_e4m3fnuz: return run_arithmetic<c10::Float8_e4m3fnuz>(args);
    case ScalarType::Float8_e5m2fnuz: return run_arithmetic<c10::Float8_e5m2fnuz>(args);
    case ScalarType::Float8_e8m0fnu: return run_arithmetic<c10::Float8_e8m0fnu>(args);
    case ScalarType::Byte: return run_integer<uint8_t>(args);
    case ScalarType::Char: return run_integer<int8_t>(args);
    case ScalarType::Short: return run_integer<int16_t>(args);
    case ScalarType::UInt16: return run_integer<uint16_t>(args);
    case ScalarType::Int: return run_integer<int32_t>(args);
    case ScalarType::UInt32: return run_integer<uint32_t>(args);
    case ScalarType::Long: return run_integer<int64_t>(args);
    case ScalarType::UInt64: return run_integer<uint64_t>(args);
    case ScalarType::Bool: return run_bool(args);
    case ScalarType::ComplexFloat: return run_complex<float>(args);
    case ScalarType::ComplexDouble: return run_complex<double>(args);
    default: return; // why_not_reducible() has refused it
  }
}
