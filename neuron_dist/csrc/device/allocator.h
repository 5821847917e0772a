// The c10 allocators: device memory, the CPU allocator while an operator is redispatched, pinned memory.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include "device/heap.h"
#include "device/runtime.h"

namespace neuron {

c10::DeviceAllocator* device_allocator();

// A block of `device`'s heap as a DataPtr whose device is `tag`.
c10::DataPtr allocate_on(c10::DeviceIndex device, size_t bytes, c10::Device tag);

// Whether allocate_on made it.
bool is_device_memory(const c10::DataPtr& ptr);

// While one is alive, CPU tensors made by this thread take their memory from the device's heap: a CPU kernel
// then writes its result where it belongs.
class AllocateOnDevice {
 public:
  explicit AllocateOnDevice(c10::DeviceIndex device);
  ~AllocateOnDevice();
  AllocateOnDevice(const AllocateOnDevice&) = delete;
  AllocateOnDevice& operator=(const AllocateOnDevice&) = delete;

 private:
  const int previous_;
};

// The process's CPU allocator, as a twin storage needs it to be resized in place.
c10::Allocator* redirecting_allocator();

c10::Allocator* pinned_allocator();
bool is_pinned(const void* ptr);

// Puts the three allocators in their places. Opens nothing.
void install_allocators();

} // namespace neuron
