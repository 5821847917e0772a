#include "device/storage.h"

#include <cstring>
#include <typeinfo>
#include <utility>

#include <ATen/core/Tensor.h>

#include "device/allocator.h"

namespace neuron {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::StorageImpl;
using c10::TensorImpl;

const c10::Device kCpu(c10::DeviceType::CPU);
// What the two tensors over one memory have in common.
constexpr DispatchKeySet kSharedBits{
    DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor};

// Marks the DataPtr of a twin; its context is the storage that owns the memory.
void twin_of(void* /*owner*/) {}

c10::DataPtr borrowed(StorageImpl& owner) {
  return {owner.mutable_data(), &owner, &twin_of, kCpu};
}

StorageImpl* owner_of(const StorageImpl& cpu) {
  const auto& data = cpu.data_ptr();
  return data.get_deleter() == &twin_of ? static_cast<StorageImpl*>(data.get_context()) : nullptr;
}

NeuronStorage* as_neuron(StorageImpl* storage) {
  return typeid(*storage) == typeid(NeuronStorage) ? static_cast<NeuronStorage*>(storage) : nullptr;
}

c10::intrusive_ptr<StorageImpl> make_twin(StorageImpl& owner) {
  return c10::make_intrusive<StorageImpl>(
      StorageImpl::use_byte_size_t(), static_cast<int64_t>(owner.nbytes()), borrowed(owner),
      redirecting_allocator(), /*resizable=*/true);
}

StorageImpl* twin_of_storage(NeuronStorage& storage) {
  StorageImpl* twin = storage.twin.load(std::memory_order_acquire);
  if (C10_UNLIKELY(twin == nullptr)) {
    auto made = make_twin(storage);
    if (storage.twin.compare_exchange_strong(twin, made.get(), std::memory_order_acq_rel)) {
      twin = made.release();
    }
  } else if (C10_UNLIKELY(
                 twin->data() != storage.data() || twin->nbytes() != storage.nbytes() ||
                 storage.has_materializer())) {
    // The storage was resized, swapped or set since.
    twin->set_data_ptr_noswap(borrowed(storage));
    twin->set_nbytes(storage.nbytes());
  }
  return twin;
}

c10::intrusive_ptr<StorageImpl> twin_for(StorageImpl* storage) {
  if (auto* neuron = as_neuron(storage)) {
    return c10::intrusive_ptr<StorageImpl>::reclaim_copy(twin_of_storage(*neuron));
  }
  return make_twin(*storage); // made without our factory: the twin lives for one call
}

// Moves memory that a kernel put into a CPU storage to `owner`, and leaves a borrower behind.
void take_memory(StorageImpl& owner, StorageImpl& cpu) {
  const size_t bytes = cpu.nbytes();
  c10::DataPtr data = cpu.set_data_ptr(c10::DataPtr());
  if (data.get() != nullptr && !is_device_memory(data)) {
    // Not from the heap (a parallel region's thread, a mapped file): the device needs its own copy.
    auto copy = allocate_on(owner.device().index(), bytes, owner.device());
    std::memcpy(copy.get(), data.get(), bytes);
    data = std::move(copy);
  }
  data.unsafe_set_device(owner.device());
  owner.set_data_ptr_noswap(std::move(data));
  owner.set_nbytes(bytes);
  cpu.set_data_ptr_noswap(borrowed(owner));
}

} // namespace

void NeuronStorage::drop_twin() {
  c10::intrusive_ptr<TensorImpl>::reclaim(spare.exchange(nullptr, std::memory_order_acq_rel));
  StorageImpl* raw = twin.exchange(nullptr, std::memory_order_acq_rel);
  if (raw == nullptr) {
    return;
  }
  auto last = c10::intrusive_ptr<StorageImpl>::reclaim(raw);
  if (C10_UNLIKELY(last.use_count() > 1 && owner_of(*last) == this)) {
    // Someone kept a CPU alias beyond the call that it was made for: it inherits the memory.
    c10::DataPtr data = set_data_ptr(c10::DataPtr(nullptr, device()));
    data.unsafe_set_device(kCpu);
    last->set_data_ptr_noswap(std::move(data));
  }
}

NeuronStorage::~NeuronStorage() {
  drop_twin();
}

void NeuronStorage::release_resources() {
  drop_twin();
  StorageImpl::release_resources();
}

c10::intrusive_ptr<StorageImpl> make_storage(
    StorageImpl::use_byte_size_t tag,
    c10::SymInt bytes,
    c10::DataPtr data,
    c10::Allocator* allocator,
    bool resizable) {
  // Callers without memory of their own pass an empty pointer and expect an allocation.
  if (data == nullptr && allocator != nullptr && !bytes.is_heap_allocated()) {
    data = allocator->allocate(static_cast<size_t>(bytes.as_int_unchecked()));
  }
  return c10::make_intrusive<NeuronStorage>(
      tag, std::move(bytes), std::move(data), allocator, resizable);
}

c10::intrusive_ptr<TensorImpl> make_tensor_impl(
    c10::Device device, size_t bytes, caffe2::TypeMeta dtype) {
  run_backward_in_this_thread();
  auto storage = c10::make_intrusive<NeuronStorage>(
      StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
      allocate_on(device.index(), bytes, device), device_allocator(), /*resizable=*/true);
  return c10::make_intrusive<TensorImpl>(
      c10::Storage(std::move(storage)), DispatchKeySet(DispatchKey::PrivateUse1), dtype);
}

c10::intrusive_ptr<TensorImpl> take_spare_alias(const TensorImpl& tensor) {
  auto* storage = as_neuron(tensor.unsafe_storage().unsafeGetStorageImpl());
  if (storage == nullptr || storage->spare.load(std::memory_order_relaxed) == nullptr) {
    return nullptr;
  }
  auto spare = c10::intrusive_ptr<TensorImpl>::reclaim(
      storage->spare.exchange(nullptr, std::memory_order_acq_rel));
  // A kernel may have kept it, or have left more on it than memory and sizes.
  if (spare == nullptr || !spare.is_uniquely_owned() || spare->autograd_meta() != nullptr ||
      spare->unsafe_storage().unsafeGetStorageImpl() != twin_of_storage(*storage) ||
      spare->dtype() != tensor.dtype() ||
      spare->is_wrapped_number() != tensor.is_wrapped_number() ||
      ((spare->key_set() ^ tensor.key_set()) & kSharedBits) != DispatchKeySet()) {
    return nullptr;
  }
  if (spare->sizes() != tensor.sizes() || spare->strides() != tensor.strides() ||
      spare->storage_offset() != tensor.storage_offset()) {
    spare->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  }
  return spare;
}

void keep_spare_alias(const TensorImpl& tensor, c10::intrusive_ptr<TensorImpl> alias) {
  auto* storage = as_neuron(tensor.unsafe_storage().unsafeGetStorageImpl());
  if (storage != nullptr && storage->spare.load(std::memory_order_relaxed) == nullptr) {
    c10::intrusive_ptr<TensorImpl>::reclaim(
        storage->spare.exchange(alias.release(), std::memory_order_acq_rel));
  }
}

bool borrows(const TensorImpl& cpu) {
  return owner_of(*cpu.unsafe_storage().unsafeGetStorageImpl()) != nullptr;
}

c10::intrusive_ptr<TensorImpl> cpu_alias(const TensorImpl& tensor) {
  DispatchKeySet keys(DispatchKey::CPU);
  keys = keys | (tensor.key_set() & kSharedBits);
  auto impl = c10::make_intrusive<TensorImpl>(
      TensorImpl::VIEW,
      c10::Storage(twin_for(tensor.unsafe_storage().unsafeGetStorageImpl())), keys,
      tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (C10_UNLIKELY(tensor.is_wrapped_number())) {
    impl->set_wrapped_number(true);
  }
  return impl;
}

c10::intrusive_ptr<TensorImpl> adopt(const TensorImpl& cpu, c10::Device device) {
  StorageImpl* storage = cpu.unsafe_storage().unsafeGetStorageImpl();
  c10::Storage owner;
  if (StorageImpl* aliased = owner_of(*storage)) {
    owner = c10::Storage(c10::intrusive_ptr<StorageImpl>::reclaim_copy(aliased));
  } else {
    auto fresh = c10::make_intrusive<NeuronStorage>(
        StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, device), device_allocator(),
        /*resizable=*/true);
    if (storage->data() == nullptr) {
      fresh->set_nbytes(storage->nbytes()); // nothing to own: no elements, or zeros by definition
    } else {
      take_memory(*fresh, *storage);
      storage->set_allocator(redirecting_allocator());
      fresh->twin.store(
          c10::intrusive_ptr<StorageImpl>::reclaim_copy(storage).release(),
          std::memory_order_release);
      if (typeid(cpu) == typeid(TensorImpl)) {
        auto* spare = const_cast<TensorImpl*>(&cpu); // once the kernel's caller has let go of it
        fresh->spare.store(
            c10::intrusive_ptr<TensorImpl>::reclaim_copy(spare).release(), std::memory_order_release);
      }
    }
    owner = c10::Storage(std::move(fresh));
  }
  DispatchKeySet keys(DispatchKey::PrivateUse1);
  keys = keys | (cpu.key_set() & kSharedBits);
  auto impl = c10::make_intrusive<TensorImpl>(std::move(owner), keys, cpu.dtype());
  impl->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
  if (C10_UNLIKELY(cpu.is_wrapped_number())) {
    impl->set_wrapped_number(true);
  }
  return impl;
}

void sync_from_alias(TensorImpl& tensor, const TensorImpl& alias) {
  StorageImpl* cpu = alias.unsafe_storage().unsafeGetStorageImpl();
  StorageImpl* owner = tensor.unsafe_storage().unsafeGetStorageImpl();
  StorageImpl* aliased = owner_of(*cpu);
  if (C10_UNLIKELY(aliased != owner)) {
    auto* neuron = as_neuron(owner);
    if (aliased == nullptr && neuron != nullptr && neuron->twin.load() == cpu) {
      take_memory(*owner, *cpu); // the kernel resized the storage
    } else {
      // The kernel gave the tensor another storage.
      auto other = adopt(alias, tensor.device());
      tensor.set_storage_keep_dtype(other->storage());
    }
  }
  if (C10_UNLIKELY(
          tensor.sizes() != alias.sizes() || tensor.strides() != alias.strides() ||
          tensor.storage_offset() != alias.storage_offset())) {
    tensor.set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
  }
  if (C10_UNLIKELY((tensor.key_set() & kSharedBits) != (alias.key_set() & kSharedBits))) {
    if (c10::isComplexType(c10::typeMetaToScalarType(tensor.dtype()))) {
      tensor._set_conj(alias.is_conj());
    }
    tensor._set_neg(alias.is_neg());
  }
}

void resize_storage(StorageImpl& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const c10::Device device = storage.device();
  auto data = allocate_on(device.index(), bytes, device);
  const size_t keep = std::min(bytes, storage.nbytes());
  if (keep != 0 && storage.data() != nullptr) {
    std::memcpy(data.mutable_get(), storage.data(), keep);
  }
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

} // namespace neuron
