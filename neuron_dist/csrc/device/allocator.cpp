#include "device/allocator.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

// It pads to the size of a cache line, which g++ warns about.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winterference-size"
#include <ATen/core/CachingHostAllocator.h>
#pragma GCC diagnostic pop
#include <c10/core/CPUAllocator.h>

#include "arena.h"

namespace neuron {
namespace {

thread_local int redirect_to = -1;

void report(int64_t bytes, void* ptr, int device) {
  c10::reportMemoryUsageToProfiler(
      ptr, bytes, 0, 0, c10::Device(kNeuron, static_cast<c10::DeviceIndex>(device)));
}

void free_on_device(void* ptr) {
  Heap* heap = Heap::holding(ptr);
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    report(-static_cast<int64_t>(heap->size_of(ptr)), ptr, heap->device());
  }
  heap->free(ptr);
}

struct NeuronAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const auto index = current_device();
    return allocate_on(index, bytes, c10::Device(kNeuron, index));
  }
  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }
  bool initialized() override {
    return true; // lazily: the first allocation makes the heap
  }
  void emptyCache(c10::MempoolId_t /*mempool*/) override {
    for (int i = 0; i < kMaxDevices; ++i) {
      if (Heap* heap = Heap::find(i)) {
        heap->empty_cache();
      }
    }
  }
  // Execution is eager: when the host has got here, every stream has.
  void recordStream(const c10::DataPtr& /*ptr*/, c10::Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    Heap* heap = Heap::find(checked_index(device));
    return heap != nullptr ? heap->stats() : c10::CachingDeviceAllocator::DeviceStats{};
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    if (Heap* heap = Heap::find(checked_index(device))) {
      heap->reset_accumulated();
    }
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    if (Heap* heap = Heap::find(checked_index(device))) {
      heap->reset_peak();
    }
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return Heap::get(checked_index(device)).memory_info();
  }
};

void free_anywhere(void* ptr);

// Forwards to the allocator that was there, unless this thread is inside a redispatched operator.
struct RedirectingAllocator final : c10::Allocator {
  explicit RedirectingAllocator(c10::Allocator* previous) : previous(previous) {}
  c10::DataPtr allocate(size_t bytes) override {
    if (C10_UNLIKELY(redirect_to >= 0)) {
      return allocate_on(
          static_cast<c10::DeviceIndex>(redirect_to), bytes, c10::Device(c10::DeviceType::CPU));
    }
    return previous->allocate(bytes);
  }
  bool is_simple_data_ptr(const c10::DataPtr& ptr) const override {
    return previous->is_simple_data_ptr(ptr);
  }
  // oneDNN takes raw pointers inside of a redispatch and may give them back outside of it.
  c10::DeleterFnPtr raw_deleter() const override {
    return &free_anywhere;
  }
  void copy_data(void* dest, const void* src, size_t count) const override {
    previous->copy_data(dest, src, count);
  }
  c10::Allocator* const previous;
};

// Host memory that knows it is pinned. Nothing can be locked for a simulated DMA, so it is plain memory.
struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }
  bool record_event(void* /*ptr*/, void* /*ctx*/, c10::Stream /*stream*/) override {
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> lock(mutex);
    return stats;
  }
  void reset_accumulated_stats() override {
    std::lock_guard<std::mutex> lock(mutex);
    each([](auto& s) { s.reset_accumulated(); });
  }
  void reset_peak_stats() override {
    std::lock_guard<std::mutex> lock(mutex);
    each([](auto& s) { s.reset_peak(); });
  }
  template <typename F>
  void each(F f) {
    for (auto* s : {&stats.active_requests, &stats.active_bytes, &stats.allocations,
                    &stats.allocated_bytes}) {
      f(*s);
    }
  }
  void release(void* ptr) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      const auto it = sizes.find(ptr);
      stats.active_requests.decrease(1);
      stats.active_bytes.decrease(it->second);
      stats.allocations.decrease(1);
      stats.allocated_bytes.decrease(it->second);
      ++stats.num_host_free;
      sizes.erase(it);
    }
    std::free(ptr);
  }
  std::mutex mutex;
  std::unordered_map<const void*, size_t> sizes;
  at::HostStats stats;
};

PinnedAllocator& pinned() {
  static auto* allocator = new PinnedAllocator;
  return *allocator;
}

c10::DataPtr PinnedAllocator::allocate(size_t bytes) {
  if (bytes == 0) {
    return {nullptr, c10::Device(c10::DeviceType::CPU)};
  }
  void* ptr = nullptr;
  TORCH_CHECK_WITH(
      OutOfMemoryError, posix_memalign(&ptr, 4096, bytes) == 0,
      "neuron: the host has no ", bytes, " bytes of memory to pin");
  std::lock_guard<std::mutex> lock(mutex);
  sizes.emplace(ptr, bytes);
  stats.active_requests.increase(1);
  stats.active_bytes.increase(bytes);
  stats.allocations.increase(1);
  stats.allocated_bytes.increase(bytes);
  ++stats.num_host_alloc;
  return {ptr, ptr, [](void* p) { pinned().release(p); }, c10::Device(c10::DeviceType::CPU)};
}

NeuronAllocator& neuron_allocator() {
  static auto* allocator = new NeuronAllocator;
  return *allocator;
}

RedirectingAllocator* redirecting = nullptr;

void free_anywhere(void* ptr) {
  if (Heap::holding(ptr) != nullptr) {
    free_on_device(ptr);
  } else {
    redirecting->previous->raw_deleter()(ptr);
  }
}

} // namespace

c10::DeviceAllocator* device_allocator() {
  return &neuron_allocator();
}

c10::DataPtr allocate_on(c10::DeviceIndex device, size_t bytes, c10::Device tag) {
  if (bytes == 0) {
    return {nullptr, tag};
  }
  Heap& heap = Heap::get(device);
  void* ptr = heap.allocate(bytes);
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    report(static_cast<int64_t>(heap.size_of(ptr)), ptr, device);
  }
  return {ptr, ptr, &free_on_device, tag};
}

bool is_device_memory(const c10::DataPtr& ptr) {
  return ptr.get_deleter() == &free_on_device;
}

AllocateOnDevice::AllocateOnDevice(c10::DeviceIndex device) : previous_(redirect_to) {
  redirect_to = device;
}

AllocateOnDevice::~AllocateOnDevice() {
  redirect_to = previous_;
}

c10::Allocator* redirecting_allocator() {
  return redirecting;
}

c10::Allocator* pinned_allocator() {
  return &pinned();
}

bool is_pinned(const void* ptr) {
  auto& p = pinned();
  std::lock_guard<std::mutex> lock(p.mutex);
  return p.sizes.count(ptr) != 0;
}

void install_allocators() {
  c10::SetAllocator(kNeuron, &neuron_allocator());
  redirecting = new RedirectingAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(redirecting, /*priority=*/100);
  at::setHostAllocator(kNeuron, &pinned());
}

} // namespace neuron
