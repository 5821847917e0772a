#include "device/alias.h"

#include <ATen/SparseTensorImpl.h>

namespace neuron {
namespace {

using at::SparseTensorImpl;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

SparseTensorImpl& sparse_impl(const Tensor& t) {
  return *static_cast<SparseTensorImpl*>(t.unsafeGetTensorImpl());
}

bool is_plain(const Tensor& t) {
  return t.layout() == c10::kStrided && !t.is_quantized() && t.has_storage();
}

void check_layout(const Tensor& t) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      t.layout() == c10::kSparse, "device neuron has no ",
      t.is_quantized() ? "quantized" : c10::str(t.layout()),
      " tensors: keep them on the CPU, or use a strided or sparse COO tensor");
}

// A sparse COO tensor of the same shape, over other indices and values.
Tensor sparse_like(const SparseTensorImpl& from, DispatchKey key, Tensor indices, Tensor values) {
  auto impl = c10::make_intrusive<SparseTensorImpl>(DispatchKeySet(key), from.dtype());
  impl->raw_resize_(from.sparse_dim(), from.dense_dim(), from.sizes());
  impl->set_indices_and_values_unsafe(indices, values);
  impl->set_coalesced(from.coalesced());
  return Tensor(std::move(impl));
}

} // namespace

Tensor cpu_alias_of(const Tensor& tensor) {
  if (C10_LIKELY(is_plain(tensor))) {
    return Tensor(cpu_alias(*tensor.unsafeGetTensorImpl()));
  }
  check_layout(tensor);
  const auto& impl = sparse_impl(tensor);
  return sparse_like(
      impl, DispatchKey::SparseCPU, cpu_alias_of(impl.indices()), cpu_alias_of(impl.values()));
}

Tensor adopt_tensor(const Tensor& cpu, c10::Device device) {
  if (C10_LIKELY(is_plain(cpu))) {
    return Tensor(adopt(*cpu.unsafeGetTensorImpl(), device));
  }
  check_layout(cpu);
  const auto& impl = sparse_impl(cpu);
  return sparse_like(
      impl, DispatchKey::SparsePrivateUse1, adopt_tensor(impl.indices(), device),
      adopt_tensor(impl.values(), device));
}

void sync_with_alias(const Tensor& tensor, const Tensor& alias) {
  if (C10_LIKELY(is_plain(tensor))) {
    sync_from_alias(*tensor.unsafeGetTensorImpl(), *alias.unsafeGetTensorImpl());
    return;
  }
  auto& impl = sparse_impl(tensor);
  const auto& from = sparse_impl(alias);
  impl.raw_resize_(from.sparse_dim(), from.dense_dim(), from.sizes());
  impl.set_indices_and_values_unsafe(
      adopt_tensor(from.indices(), tensor.device()), adopt_tensor(from.values(), tensor.device()));
  impl.set_coalesced(from.coalesced());
}

} // namespace neuron
