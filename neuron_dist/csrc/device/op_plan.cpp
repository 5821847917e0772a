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
  cpu_result.resize(results);
  if (name == "aten::_pack_padded_sequence"sv) {
    cpu_result[1] = true; // batch sizes
  }
  draws = generator < 0 && op.hasTag(at::Tag::nondeterministic_seeded);
  takes_cpu = contains(kTakesCpu, name);
}

bool runs_whole(const c10::OperatorName& name) {
  return starts_with(name.name, "aten::_foreach_") || contains(kRunsWhole, name.name);
}

} // namespace neuron
