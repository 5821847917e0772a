#include "device/op_plan.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <ATen/core/enum_tag.h>

namespace neuron {
namespace {

using namespace std::string_view_literals;

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

template <size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Copies between devices, and index tensors that CUDA takes from the CPU too.
constexpr std::array kTakesCpu{
    "aten::copy_"sv,
    "aten::index"sv,
    "aten::index_put"sv,
    "aten::index_put_"sv,
    "aten::_index_put_impl_"sv,
    "aten::_foreach_copy_"sv,
    "aten::_foreach_copy"sv,
    "aten::_pack_padded_sequence"sv,
};

constexpr std::array kRunsWhole{
    "aten::copy_"sv,
    "aten::clone"sv,
    "aten::convolution"sv,
    "aten::convolution_backward"sv,
    "aten::_chunk_cat"sv,
    "aten::split_with_sizes_copy"sv,
    "aten::embedding"sv,
    "aten::mode"sv,
    "aten::addr_"sv, // tells by the address whether it is in place
    "aten::conj_physical_"sv,
};

// Kernels that ask whether their arguments require a gradient, and then leave more behind for backward.
constexpr std::array kAsksForGrad{
    "aten::_sparse_mm_reduce_impl"sv,
    "aten::convolution"sv,
};

// Operators that overwrite the tensor that they are called on without reading it.
constexpr std::array kOverwrite{
    "aten::copy_"sv,       "aten::fill_"sv,        "aten::zero_"sv,      "aten::uniform_"sv,
    "aten::normal_"sv,     "aten::bernoulli_"sv,   "aten::random_"sv,    "aten::exponential_"sv,
    "aten::geometric_"sv,  "aten::log_normal_"sv,  "aten::cauchy_"sv,    "aten::_foreach_copy_"sv,
    "aten::_foreach_zero_"sv,
};

// Reads, or writes in place, those elements of its first argument that an index names.
constexpr std::array kPicks{
    "aten::embedding"sv,   "aten::gather"sv,      "aten::index"sv,       "aten::index_select"sv,
    "aten::take"sv,        "aten::index_put_"sv,  "aten::_index_put_impl_"sv, "aten::index_add_"sv,
    "aten::index_copy_"sv, "aten::index_fill_"sv, "aten::scatter_"sv,    "aten::scatter_add_"sv,
    "aten::put_"sv,
};

// Beside aten::linalg_*, operators of which the fidelity profile is asked: their rules stand in operators.yaml.
constexpr std::array kMayFallBack{
    "aten::cholesky"sv, "aten::cholesky_inverse"sv, "aten::inverse"sv, "aten::lu_unpack"sv, "aten::triangular_solve"sv,
};

// Answers from metadata.
constexpr std::array kFree{
    "aten::is_set_to"sv, "aten::_nnz"sv,      "aten::sparse_dim"sv, "aten::dense_dim"sv,
    "aten::_dimI"sv,     "aten::_dimV"sv,     "aten::is_coalesced"sv, "aten::_coalesced_"sv,
    "aten::_resize_output_"sv,
};

} // namespace

OpPlan::OpPlan(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto& args = schema.arguments();
  const auto& rets = schema.returns();
  arguments = args.size();
  results = rets.size();
  mutated.resize(arguments);
  for (size_t i = 0; i < arguments; ++i) {
    const auto* alias = args[i].alias_info();
    mutated[i] = alias != nullptr && alias->isWrite();
    if (args[i].name() == "scalars" && args[i].type()->kind() == c10::TypeKind::TensorType) {
      cpu_argument = static_cast<int>(i); // of the fused foreach operators
    }
    const auto type = args[i].real_type();
    const auto inner = type->kind() == c10::TypeKind::OptionalType
        ? type->castRaw<c10::OptionalType>()->getElementType()
        : type;
    if (inner->kind() == c10::TypeKind::GeneratorType) {
      generator = static_cast<int>(i);
    }
  }
  result_of.assign(results, -1);
  for (size_t r = 0; r < results; ++r) {
    const auto* alias = rets[r].alias_info();
    if (alias == nullptr || !alias->isWrite()) {
      continue;
    }
    for (size_t i = 0; i < arguments; ++i) {
      const auto* other = args[i].alias_info();
      if (mutated[i] && other->beforeSets() == alias->beforeSets()) {
        result_of[r] = static_cast<int>(i);
      }
    }
  }
  const std::string_view name = op.operator_name().name;
  this->name = name_of(name);
  flops = flop_formula(name);
  picks = contains(kPicks, name);
  copies = name == "aten::copy_"sv;
  host_waits = name == "aten::_local_scalar_dense"sv || op.hasTag(at::Tag::data_dependent_output) ||
      op.hasTag(at::Tag::dynamic_output_shape);
  only_written.resize(arguments);
  for (size_t i = 0; i < arguments; ++i) {
    only_written[i] = mutated[i] && (args[i].is_out() || (i == 0 && contains(kOverwrite, name)));
  }
  free = contains(kFree, name) || std::any_of(rets.begin(), rets.end(), [](const auto& ret) {
    return ret.alias_info() != nullptr && !ret.alias_info()->isWrite();
  });
  cpu_result.resize(results);
  if (name == "aten::_pack_padded_sequence"sv) {
    cpu_result[1] = true; // batch sizes
  }
  draws = generator < 0 && op.hasTag(at::Tag::nondeterministic_seeded);
  fill = name == "aten::uniform_"sv ? Fill::kUniform : name == "aten::normal_"sv ? Fill::kNormal : Fill::kNone;
  drawn = draw_kernel(op.operator_name());
  computes = !free && !copies && name != "aten::clone"sv && name != "aten::zero_"sv;
  may_fall_back = op.hasTag(at::Tag::dynamic_output_shape) || starts_with(name, "aten::linalg_") ||
      starts_with(name, "aten::_linalg_") || contains(kMayFallBack, name);
  widens_integers = name == "aten::histc"sv;
  takes_cpu = contains(kTakesCpu, name);
  asks_for_grad = contains(kAsksForGrad, name);
}

bool runs_whole(const c10::OperatorName& name, c10::DispatchKey cpu) {
  if (cpu != c10::DispatchKey::CPU) {
    return cpu == c10::DispatchKey::QuantizedCPU && name.name == "aten::copy_"sv;
  }
  return starts_with(name.name, "aten::_foreach_") || contains(kRunsWhole, name.name);
}

} // namespace neuron
