// What c10 asks of a device type: guards, streams, events, and the accelerator hooks.
#include <Python.h>

#include "device/guard.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "arena.h"
#include "device/allocator.h"
#include "device/generator.h"
#include "device/runtime.h"
#include "device/storage.h"
#include "device/streams.h"

namespace neuron {
namespace {

struct NeuronGuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kNeuron;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    set_current_device(device.index());
    return before;
  }
  c10::Device getDevice() const override {
    return c10::Device(kNeuron, current_device());
  }
  void setDevice(c10::Device device) const override {
    set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_current_device_unchecked(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    // Autograd's engine asks without Python's lock at the first backward, a CPU-only one too, and starts so many
    // threads, after which no forked child may run backward. So it hears of devices in use only.
    return PyGILState_Check() != 0 ? device_count() : used_device_count();
  }
  c10::DeviceCapability getDeviceCapability(c10::Device /*device*/) const override {
    return c10::DeviceCapability();
  }

  c10::Stream getStream(c10::Device device) const override {
    // Autograd asks when it records a node, of a fake tensor too.
    run_backward_in_this_thread();
    note_device_used(checked_index(device.index()));
    return current_stream(device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(device.index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high*/) const override {
    return new_stream(device.index());
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return new_stream(device.index());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_stream(stream);
  }
  bool queryStream(const c10::Stream& /*stream*/) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    SimulatedClock::get().host_waits_for(stream);
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    SimulatedClock::get().host_waits_for_device(checked_index(index));
  }

  void record(
      void** event,
      const c10::Stream& stream,
      const c10::DeviceIndex /*index*/,
      const c10::EventFlag flag) const override {
    if (*event == nullptr) {
      auto* made = new Event;
      made->timed = flag == c10::EventFlag::BACKEND_DEFAULT;
      *event = made;
    }
    record_event(*static_cast<Event*>(*event), stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      stream_wait(stream, *static_cast<Event*>(event));
    }
  }
  bool queryEvent(void* /*event*/) const override {
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      SimulatedClock::get().host_waits_for(static_cast<Event*>(event)->at);
    }
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex /*index*/) const override {
    TORCH_CHECK_VALUE(
        start != nullptr && end != nullptr,
        "Both events must be recorded before calculating elapsed time.");
    return elapsed_ms(*static_cast<Event*>(start), *static_cast<Event*>(end));
  }
};

struct NeuronHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_count() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    // With a process group, an index that was in use before it is no longer this process's.
    return index >= 0 && index < kMaxDevices && Heap::find(index) != nullptr &&
        (!is_bound() || index == current_device());
  }
  c10::DeviceIndex deviceCount() const override {
    return device_count();
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    set_current_device(index);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto before = current_device();
    set_current_device(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    for (int i = 0; i < kMaxDevices; ++i) {
      if (Heap::find(i) != nullptr && Arena::get(i).contains(data)) {
        return at::Device(kNeuron, static_cast<c10::DeviceIndex>(i));
      }
    }
    TORCH_CHECK(false, "neuron: the pointer is not in any device's memory");
  }
  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

} // namespace

void install_guard_and_hooks() {
  c10::impl::registerDeviceGuard(kNeuron, new NeuronGuardImpl);
  at::RegisterPrivateUse1HooksInterface(new NeuronHooks);
  c10::SetStorageImplCreate(kNeuron, &make_storage);
}

} // namespace neuron
