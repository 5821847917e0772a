#include "device/draws.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/cpu/DistributionTemplates.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>

namespace neuron {
namespace {

using at::Tensor;
using torch::jit::Stack;
using OptGenerator = std::optional<at::Generator>;

// --- Philox 4x32-10: four words for each counter

constexpr size_t kLanes = 8; // counters at once, for the vectorizer

void philox(uint64_t seed, uint64_t counter, std::array<std::array<uint32_t, kLanes>, 4>& words) {
  auto& [a, b, c, d] = words;
  for (size_t i = 0; i < kLanes; ++i) {
    a[i] = static_cast<uint32_t>(counter + i);
    b[i] = static_cast<uint32_t>((counter + i) >> 32);
    c[i] = 0;
    d[i] = 0;
  }
  auto k0 = static_cast<uint32_t>(seed);
  auto k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (size_t i = 0; i < kLanes; ++i) {
      const uint64_t p = uint64_t{0xD2511F53} * a[i];
      const uint64_t q = uint64_t{0xCD9E8D57} * c[i];
      a[i] = static_cast<uint32_t>(q >> 32) ^ b[i] ^ k0;
      c[i] = static_cast<uint32_t>(p >> 32) ^ d[i] ^ k1;
      b[i] = static_cast<uint32_t>(q);
      d[i] = static_cast<uint32_t>(p);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

// Calls `store(i, word)` for elements [0, count): word `offset + i` of the seed's stream.
template <typename Store>
void for_each_word(Place place, int64_t count, const Store& store) {
  constexpr auto kBlock = static_cast<int64_t>(4 * kLanes);
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  at::parallel_for(0, blocks, /*grain_size=*/512, [&](int64_t from, int64_t to) {
    std::array<std::array<uint32_t, kLanes>, 4> words;
    for (int64_t block = from; block < to; ++block) {
      philox(place.seed, place.offset / 4 + static_cast<uint64_t>(block) * kLanes, words);
      const int64_t first = block * kBlock;
      const int64_t here = std::min(kBlock, count - first);
      for (int64_t i = 0; i < here; ++i) {
        store(first + i, words[static_cast<size_t>(i % 4)][static_cast<size_t>(i / 4)]);
      }
    }
  });
}

// Writes the values in logical order, wherever they lie in memory.
template <typename Fill>
void in_order(const Tensor& t, const Fill& fill) {
  if (t.is_contiguous()) {
    fill(t);
  } else {
    const Tensor values = at::empty_like(t, at::MemoryFormat::Contiguous);
    fill(values);
    t.copy_(values);
  }
}

#define NEURON_ALL_TYPES(NAME, TYPE, ...) \
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, TYPE, NAME, __VA_ARGS__)

// A word of 32 bits below this: true with probability p.
uint64_t threshold(double p) {
  return static_cast<uint64_t>(p * 4294967296.0 + 0.5);
}

void draw_bernoulli(const Tensor& t, double p, Place place) {
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  in_order(t, [&](const Tensor& out) {
    const uint64_t limit = threshold(p);
    NEURON_ALL_TYPES("bernoulli_neuron", out.scalar_type(), [&] {
      auto* data = out.mutable_data_ptr<scalar_t>();
      for_each_word(place, out.numel(), [=](int64_t i, uint32_t word) {
        data[i] = static_cast<scalar_t>(word < limit ? 1 : 0);
      });
    });
  });
}

void draw_bernoulli(const Tensor& t, const Tensor& p, Place place) {
  TORCH_CHECK(at::isFloatingType(p.scalar_type()), "expected probabilities tensor to have floating type, got ", p.scalar_type());
  const Tensor chances = p.expand(t.sizes()).to(at::kDouble).contiguous();
  const auto* chance = chances.const_data_ptr<double>();
  TORCH_CHECK(
      std::all_of(chance, chance + chances.numel(), [](double each) { return 0 <= each && each <= 1; }),
      "bernoulli_ expects p to be in [0, 1]");
  in_order(t, [&](const Tensor& out) {
    NEURON_ALL_TYPES("bernoulli_neuron", out.scalar_type(), [&] {
      auto* data = out.mutable_data_ptr<scalar_t>();
      for_each_word(place, out.numel(), [=](int64_t i, uint32_t word) {
        data[i] = static_cast<scalar_t>(word < threshold(chance[i]) ? 1 : 0);
      });
    });
  });
}

// --- torch's own distributions over a generator of ours: they ask for one number an element, of 32 or 64 bits, in order

struct Generator {
  explicit Generator(Place place)
      : narrow(place.seed, /*subsequence=*/0, place.offset / 4), wide(place.seed, /*subsequence=*/1, place.offset / 2) {}

  uint32_t random() {
    return narrow();
  }
  uint64_t random64() {
    const uint64_t high = wide();
    return high << 32 | wide();
  }

  std::mutex mutex_; // torch's kernels lock it
  at::philox_engine narrow;
  at::philox_engine wide;
};

thread_local Generator* drawing = nullptr;

template <typename>
struct RandomFromTo {
  void operator()(at::TensorIteratorBase& it, uint64_t range, int64_t base, const OptGenerator&) const {
    at::native::templates::cpu::random_from_to_kernel(it, range, base, drawing);
  }
  void operator()(at::TensorIteratorBase& it, const OptGenerator&) const {
    at::native::templates::cpu::random_full_64_bits_range_kernel(it, drawing);
  }
};

template <typename>
struct Random {
  void operator()(at::TensorIteratorBase& it, const OptGenerator&) const {
    at::native::templates::cpu::random_kernel(it, drawing);
  }
};

template <typename>
struct Exponential {
  void operator()(at::TensorIteratorBase& it, double lambda, const OptGenerator&) const {
    at::native::templates::cpu::exponential_kernel(it, lambda, drawing);
  }
};

template <typename>
struct Geometric {
  void operator()(at::TensorIteratorBase& it, double p, const OptGenerator&) const {
    at::native::templates::cpu::geometric_kernel(it, p, drawing);
  }
};

template <typename>
struct Cauchy {
  void operator()(at::TensorIteratorBase& it, double median, double sigma, const OptGenerator&) const {
    at::native::templates::cpu::cauchy_kernel(it, median, sigma, drawing);
  }
};

template <typename Draw>
void with_generator(const Tensor& t, Place place, const Draw& draw) {
  Generator generator(place);
  drawing = &generator;
  struct Restore {
    ~Restore() {
      drawing = nullptr;
    }
  } restore;
  in_order(t, [&](Tensor out) { draw(out); });
}

// --- the operators: arguments are taken off the stack, results put there

void bernoulli_float(Stack& stack, Place place) {
  const Tensor self = torch::jit::peek(stack, 0, 3).toTensor();
  draw_bernoulli(self, torch::jit::peek(stack, 1, 3).toDouble(), place);
  torch::jit::drop(stack, 2);
}

void bernoulli_tensor(Stack& stack, Place place) {
  const Tensor self = torch::jit::peek(stack, 0, 3).toTensor();
  draw_bernoulli(self, torch::jit::peek(stack, 1, 3).toTensor(), place);
  torch::jit::drop(stack, 2);
}

void native_dropout(Stack& stack, Place place) {
  const Tensor input = torch::jit::peek(stack, 0, 3).toTensor();
  const double p = torch::jit::peek(stack, 1, 3).toDouble();
  const auto train = torch::jit::peek(stack, 2, 3).toOptional<bool>();
  torch::jit::drop(stack, 3);
  if (!train.value_or(true) || input.numel() == 0) {
    torch::jit::push(stack, input.clone(), at::ones_like(input, input.options().dtype(at::kBool)));
    return;
  }
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  draw_bernoulli(mask, 1 - p, place);
  Tensor output = input.mul(mask).mul_(p == 1 ? 0. : 1 / (1 - p));
  torch::jit::push(stack, std::move(output), std::move(mask));
}

void random(Stack& stack, Place place) {
  with_generator(torch::jit::peek(stack, 0, 2).toTensor(), place, [](Tensor& t) {
    at::native::templates::random_impl<Random, Generator>(t, std::nullopt);
  });
  torch::jit::drop(stack, 1);
}

void random_to(Stack& stack, Place place) {
  const int64_t to = torch::jit::peek(stack, 1, 3).toInt();
  with_generator(torch::jit::peek(stack, 0, 3).toTensor(), place, [=](Tensor& t) {
    at::native::templates::random_from_to_impl<RandomFromTo, Generator>(t, 0, to, std::nullopt);
  });
  torch::jit::drop(stack, 2);
}

void random_from(Stack& stack, Place place) {
  const int64_t from = torch::jit::peek(stack, 1, 4).toInt();
  const auto to = torch::jit::peek(stack, 2, 4).toOptional<int64_t>();
  with_generator(torch::jit::peek(stack, 0, 4).toTensor(), place, [=](Tensor& t) {
    at::native::templates::random_from_to_impl<RandomFromTo, Generator>(t, from, to, std::nullopt);
  });
  torch::jit::drop(stack, 3);
}

void exponential(Stack& stack, Place place) {
  const double lambda = torch::jit::peek(stack, 1, 3).toDouble();
  with_generator(torch::jit::peek(stack, 0, 3).toTensor(), place, [=](Tensor& t) {
    at::native::templates::exponential_impl_<Exponential, Generator>(t, lambda, std::nullopt);
  });
  torch::jit::drop(stack, 2);
}

void geometric(Stack& stack, Place place) {
  const double p = torch::jit::peek(stack, 1, 3).toDouble();
  with_generator(torch::jit::peek(stack, 0, 3).toTensor(), place, [=](Tensor& t) {
    at::native::templates::geometric_impl_<Geometric, Generator>(t, p, std::nullopt);
  });
  torch::jit::drop(stack, 2);
}

void cauchy(Stack& stack, Place place) {
  const double median = torch::jit::peek(stack, 1, 4).toDouble();
  const double sigma = torch::jit::peek(stack, 2, 4).toDouble();
  with_generator(torch::jit::peek(stack, 0, 4).toTensor(), place, [=](Tensor& t) {
    at::native::templates::cauchy_impl_<Cauchy, Generator>(t, median, sigma, std::nullopt);
  });
  torch::jit::drop(stack, 3);
}

struct Named {
  std::string_view name;
  std::string_view overload;
  DrawKernel kernel;
};

constexpr Named kKernels[] = {
    {"aten::bernoulli_", "float", bernoulli_float}, {"aten::bernoulli_", "Tensor", bernoulli_tensor},
    {"aten::native_dropout", "", native_dropout},   {"aten::random_", "", random},
    {"aten::random_", "to", random_to},             {"aten::random_", "from", random_from},
    {"aten::exponential_", "", exponential},        {"aten::geometric_", "", geometric},
    {"aten::cauchy_", "", cauchy},
};

} // namespace

DrawKernel draw_kernel(const c10::OperatorName& name) {
  for (const Named& known : kKernels) {
    if (name.name == known.name && name.overload_name == known.overload) {
      return known.kernel;
    }
  }
  return nullptr;
}

} // namespace neuron
