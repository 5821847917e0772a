// Operators that deal with memory and metadata rather than values.
#include <atomic>

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "device/alias.h"
#include "device/allocator.h"
#include "device/heap.h"
#include "device/storage.h"
#include "device/watch.h"

namespace neuron {
namespace {

using at::IntArrayRef;
using at::Tensor;

// In the memory figures, what a program allocates by itself; inside an operator, it is the operator's.
class AllocatingByHand {
 public:
  AllocatingByHand() : name_(allocating_for == 0 ? empty() : allocating_for) {}

 private:
  static Name empty() {
    static const Name name = name_of("aten::empty");
    return name;
  }
  AllocatingFor name_;
};

c10::Device factory_device(
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  TORCH_CHECK(
      !pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK_NOT_IMPLEMENTED(
      layout.value_or(at::kStrided) == at::kStrided, "neuron: empty tensors of layout ", *layout,
      " are not supported");
  return checked_device(device.has_value() ? device->index() : c10::DeviceIndex{-1});
}

// Tells the fidelity profile, once, of a format that the real device does not have.
void watch_format(at::MemoryFormat format, const Tensor& tensor) {
  static std::atomic<bool> told = false;
  if (format != at::MemoryFormat::Preserve && !told.load(std::memory_order_relaxed)) {
    told.store(tell_watcher("aten::empty", tensor.scalar_type(), kSeenChannelsLast));
    // not where it was refused: that is said each time
  }
}

// torch.use_deterministic_algorithms: what nobody has written yet is NaN, or the largest number.
Tensor uninitialized(Tensor tensor) {
  const auto& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensor alias = cpu_alias_of(tensor); // no operator of the program's
    at::native::fill_empty_deterministic_(alias);
  }
  return tensor;
}

Tensor empty_memory_format(
    IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory,
    std::optional<at::MemoryFormat> memory_format) {
  const auto on = factory_device(layout, device, pin_memory);
  at::detail::check_size_nonnegative(size);
  const auto type = c10::scalarTypeToTypeMeta(at::dtype_or_default(dtype));
  const size_t bytes = at::detail::computeStorageNbytesContiguous(size, type.itemsize());
  const AllocatingByHand name;
  Tensor tensor(make_tensor_impl(on, bytes, type));
  if (size.size() != 1 || size[0] != 0) {
    tensor.unsafeGetTensorImpl()->generic_set_sizes_contiguous(size);
  }
  if (memory_format.has_value() && *memory_format != at::MemoryFormat::Contiguous) {
    if (C10_UNLIKELY(watching())) {
      watch_format(*memory_format, tensor);
    }
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  return uninitialized(std::move(tensor));
}

Tensor empty_strided(
    IntArrayRef size,
    IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  const auto on = factory_device(layout, device, pin_memory);
  at::detail::check_size_nonnegative(size);
  const auto type = c10::scalarTypeToTypeMeta(at::dtype_or_default(dtype));
  const size_t bytes = at::detail::computeStorageNbytes(size, stride, type.itemsize());
  const AllocatingByHand name;
  Tensor tensor(make_tensor_impl(on, bytes, type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return uninitialized(std::move(tensor));
}

const Tensor& resize_(
    const Tensor& self, IntArrayRef size, std::optional<at::MemoryFormat> memory_format) {
  c10::OptionalDeviceGuard guard(self.device()); // the storage grows through its allocator
  return at::native::resize_(self, size, memory_format);
}

Tensor& set_source_storage(Tensor& self, at::Storage source) {
  return at::native::set_(self, std::move(source));
}

Tensor& set_storage_offset(
    Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  c10::OptionalDeviceGuard guard(self.device());
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return at::native::set_tensor_(self, source);
}

Tensor& set_nothing(Tensor& self) {
  c10::OptionalDeviceGuard guard(self.device());
  c10::Storage storage(make_storage(
      c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, self.device()),
      device_allocator(), /*resizable=*/true));
  return at::native::set_storage_cpu_(self, std::move(storage), 0, {0}, {});
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) {
  dst.copy_(self, non_blocking);
  return dst;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  dst.resize_(self.sizes());
  dst.copy_(self);
  return dst;
}

void record_stream(Tensor& self, c10::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

// The CPU kernel would draw from the CPU's generator. Same arithmetic, from ours.
std::tuple<Tensor, Tensor> native_dropout(
    const Tensor& input, double p, std::optional<bool> train) {
  if (input.numel() == 0) {
    return {input, at::empty_like(input)};
  }
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  const double keep = 1. - p;
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(keep);
  Tensor output = input.mul(mask).mul_(keep == 0 ? 0. : 1. / keep);
  return {std::move(output), std::move(mask)};
}

// Whether `tensor.data = other` may make one the other. torch's own answer knows of CUDA that its dense tensors are
// laid out as the CPU's, and not of us; with it, module.to() keeps its Parameters: optimizers that have them already
// go on, and tied weights stay tied.
bool may_become(const Tensor& tensor, const Tensor& other) {
  const auto dense = [](const Tensor& t) {
    return t.layout() == at::kStrided && (t.device().is_cpu() || t.device().type() == kNeuron) &&
        !t.key_set().has(c10::DispatchKey::Python);
  };
  return (dense(tensor) && dense(other)) ||
      tensor.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(other.key_set());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty_memory_format));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage", TORCH_FN(set_source_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_nothing));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("native_dropout", TORCH_FN(native_dropout));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(may_become));
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_quantized_));
}

// Both read the bits themselves, through the CPU's copy_; materializing first would never end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

} // namespace
} // namespace neuron
