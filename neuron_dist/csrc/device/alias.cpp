#include "device/alias.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/quantized/QTensorImpl.h>

namespace neuron {
namespace {

using at::QTensorImpl;
using at::SparseCsrTensorImpl;
using at::SparseTensorImpl;
using at::Tensor;
using at::native::NestedTensorImpl;
using c10::DispatchKey;
using c10::DispatchKeySet;

template <class Impl>
Impl& impl_of(const Tensor& t) {
  return *static_cast<Impl*>(t.unsafeGetTensorImpl());
}

bool is_plain(const Tensor& t) {
  constexpr DispatchKeySet special{
      DispatchKey::Quantized, DispatchKey::Sparse, DispatchKey::SparseCsr,
      DispatchKey::NestedTensor};
  return !t.key_set().has_any(special) && t.has_storage();
}

// Both devices, as the functions below see them: where to go, and how the parts of a tensor get there.
struct ToCpu {
  static constexpr DispatchKey quantized = DispatchKey::QuantizedCPU;
  static constexpr DispatchKey sparse = DispatchKey::SparseCPU;
  static constexpr DispatchKey compressed = DispatchKey::SparseCsrCPU;
  c10::Device device{c10::DeviceType::CPU};
  Tensor plain(const Tensor& t) const {
    return Tensor(cpu_alias(*t.unsafeGetTensorImpl()));
  }
};

struct ToNeuron {
  static constexpr DispatchKey quantized = DispatchKey::QuantizedPrivateUse1;
  static constexpr DispatchKey sparse = DispatchKey::SparsePrivateUse1;
  static constexpr DispatchKey compressed = DispatchKey::SparseCsrPrivateUse1;
  c10::Device device;
  Tensor plain(const Tensor& t) const {
    return Tensor(adopt(*t.unsafeGetTensorImpl(), device));
  }
};

// The same tensor over the same memory on the other device. The quantizer of a quantized tensor and the sizes of a
// nested one are on the CPU on either.
template <class Target>
Tensor over(const Tensor& t, const Target& target) {
  if (C10_LIKELY(is_plain(t))) {
    return target.plain(t);
  }
  if (t.layout() == c10::kSparse) {
    auto& from = impl_of<SparseTensorImpl>(t);
    auto impl = c10::make_intrusive<SparseTensorImpl>(DispatchKeySet(Target::sparse), from.dtype());
    impl->raw_resize_(from.sparse_dim(), from.dense_dim(), from.sizes());
    impl->set_indices_and_values_unsafe(
        over(from.indices(), target), over(from.values(), target));
    impl->set_coalesced(from.coalesced());
    return Tensor(std::move(impl));
  }
  if (t.key_set().has(DispatchKey::NestedTensor)) {
    auto& from = impl_of<NestedTensorImpl>(t);
    return at::detail::make_tensor<NestedTensorImpl>(
        over(from.get_unsafe_storage_as_tensor(), target), from.get_nested_sizes(),
        from.get_nested_strides(), from.get_storage_offsets());
  }
  if (at::sparse_csr::is_sparse_compressed(t)) {
    auto& from = impl_of<SparseCsrTensorImpl>(t);
    auto impl = c10::make_intrusive<SparseCsrTensorImpl>(
        DispatchKeySet(Target::compressed), target.device, from.layout(), from.dtype());
    impl->set_member_tensors(
        over(from.compressed_indices(), target), over(from.plain_indices(), target),
        over(from.values(), target), from.sizes());
    return Tensor(std::move(impl));
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      t.is_quantized(), "device neuron has no tensors of layout ", t.layout(),
      ": keep them on the CPU, or use a strided or sparse tensor");
  auto& from = impl_of<QTensorImpl>(t);
  const Tensor memory = target.plain(t);
  auto impl = c10::make_intrusive<QTensorImpl>(
      c10::Storage(memory.storage()), DispatchKeySet(Target::quantized), from.dtype(),
      from.quantizer());
  impl->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  return Tensor(std::move(impl));
}

} // namespace

Tensor spare_alias_of(const Tensor& tensor) {
  return is_plain(tensor) ? Tensor(take_spare_alias(*tensor.unsafeGetTensorImpl())) : Tensor();
}

Tensor cpu_alias_of(const Tensor& tensor) {
  return over(tensor, ToCpu{});
}

void keep_alias(const Tensor& tensor, Tensor alias) {
  if (C10_LIKELY(is_plain(tensor))) {
    keep_spare_alias(*tensor.unsafeGetTensorImpl(), alias.unsafeReleaseIntrusivePtr());
  }
}

bool is_fresh(const Tensor& cpu) {
  return is_plain(cpu) && !borrows(*cpu.unsafeGetTensorImpl());
}

Tensor adopt_tensor(const Tensor& cpu, c10::Device device) {
  return over(cpu, ToNeuron{device});
}

void sync_with_alias(const Tensor& tensor, const Tensor& alias) {
  if (C10_LIKELY(is_plain(tensor))) {
    sync_from_alias(*tensor.unsafeGetTensorImpl(), *alias.unsafeGetTensorImpl());
    return;
  }
  const ToNeuron target{tensor.device()};
  if (tensor.layout() == c10::kSparse) {
    auto& impl = impl_of<SparseTensorImpl>(tensor);
    const auto& from = impl_of<SparseTensorImpl>(alias);
    impl.raw_resize_(from.sparse_dim(), from.dense_dim(), from.sizes());
    impl.set_indices_and_values_unsafe(over(from.indices(), target), over(from.values(), target));
    impl.set_coalesced(from.coalesced());
  } else if (at::sparse_csr::is_sparse_compressed(tensor)) {
    auto& impl = impl_of<SparseCsrTensorImpl>(tensor);
    const auto& from = impl_of<SparseCsrTensorImpl>(alias);
    impl.set_member_tensors(
        over(from.compressed_indices(), target), over(from.plain_indices(), target),
        over(from.values(), target), from.sizes());
  } else if (tensor.is_quantized()) {
    sync_from_alias(*tensor.unsafeGetTensorImpl(), *alias.unsafeGetTensorImpl());
    impl_of<QTensorImpl>(tensor).set_quantizer_(impl_of<QTensorImpl>(alias).quantizer());
  }
  // A nested tensor's sizes are fixed; its values were written in place.
}

} // namespace neuron
