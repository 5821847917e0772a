// Neuron tensors and their CPU aliases over the same memory.
#pragma once

#include <atomic>

#include <ATen/core/TensorBase.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "device/runtime.h"

namespace neuron {

// A storage on the device. Keeps a CPU storage over the same memory, its twin, and a CPU tensor of it, so that
// redispatching an operator need not make them each time.
struct NeuronStorage final : c10::StorageImpl {
  using c10::StorageImpl::StorageImpl;
  ~NeuronStorage() override;
  void release_resources() override;

  // Both owned. Atomic, since two threads may read one tensor at once.
  std::atomic<c10::StorageImpl*> twin{nullptr};
  std::atomic<c10::TensorImpl*> spare{nullptr}; // who uses it has taken it out

 private:
  void drop_twin();
};

c10::intrusive_ptr<c10::StorageImpl> make_storage(
    c10::StorageImpl::use_byte_size_t,
    c10::SymInt bytes,
    c10::DataPtr data,
    c10::Allocator* allocator,
    bool resizable);

// A CPU tensor over the memory of `tensor`: same sizes, strides, offset, conj and neg bits. The spare one of its
// storage, which nobody else has then, or nullptr; and a new one.
c10::intrusive_ptr<c10::TensorImpl> take_spare_alias(const c10::TensorImpl& tensor);
c10::intrusive_ptr<c10::TensorImpl> cpu_alias(const c10::TensorImpl& tensor);

// Leaves `alias` with the storage of `tensor` as its spare one.
void keep_spare_alias(const c10::TensorImpl& tensor, c10::intrusive_ptr<c10::TensorImpl> alias);

// Whether `cpu` lies in the memory of a storage on the device.
bool borrows(const c10::TensorImpl& cpu);

// The neuron tensor for what a CPU kernel returned: a view of the storage that it aliases, or the owner of
// memory that came from the heap (moved, not copied), or a copy of memory from elsewhere.
c10::intrusive_ptr<c10::TensorImpl> adopt(const c10::TensorImpl& cpu, c10::Device device);

// After a kernel wrote to `alias`: brings `tensor` to the same sizes and storage if the kernel resized it.
void sync_from_alias(c10::TensorImpl& tensor, const c10::TensorImpl& alias);

// Grows or shrinks a storage on its own device, keeping what fits.
void resize_storage(c10::StorageImpl& storage, size_t bytes);

// A tensor on `device` with memory for `bytes`; sizes are the caller's.
c10::intrusive_ptr<c10::TensorImpl> make_tensor_impl(
    c10::Device device, size_t bytes, caffe2::TypeMeta dtype);

} // namespace neuron
