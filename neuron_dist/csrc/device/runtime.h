// Which devices this process has, which one is current, and what a valid index is.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include <c10/core/AutogradState.h>
#include <c10/core/Device.h>

#include "simulation/roofline.h"

namespace neuron {

constexpr c10::DeviceType kNeuron = c10::DeviceType::PrivateUse1;

struct ClusterInfo {
  int devices = 0; // logical cores visible to this process
  size_t hbm_bytes = 0; // of one logical core
  std::string name; // for messages: "trn2.48xlarge (LNC 2)"
  Rates rates; // of one logical core
};

// The provider is asked once, at the first use of a device and never at import. It may throw.
void set_cluster_provider(std::function<ClusterInfo()> provider);
const ClusterInfo& cluster();

// Once a process group exists, this process owns one device and its index is the local rank. Idempotent.
// Throws if tensors live on another index, or if the process is bound to another rank.
void bind_local_rank(int local_rank, int local_world_size);
void unbind_local_rank();
bool is_bound();

// Zero when the cluster cannot be loaded; never throws.
c10::DeviceIndex device_count() noexcept;
// One more than the highest index in use: by memory, a stream or the process group.
c10::DeviceIndex used_device_count() noexcept;
void note_device_used(c10::DeviceIndex index) noexcept;

// Backward passes over neuron tensors run in the thread that asks for them, as on the CPU: the device is the
// CPU, and workers would only cost a second team of OpenMP threads. The setting is torch's, and per thread.
inline void run_backward_in_this_thread() {
  auto& state = c10::AutogradState::get_tls_state();
  if (C10_UNLIKELY(state.get_multithreading_enabled())) {
    state.set_multithreading_enabled(false);
  }
}

c10::DeviceIndex current_device();
// Throws on an index that this process does not have.
void set_current_device(c10::DeviceIndex index);
// Never throws: unknown indices leave the current device as it is.
void set_current_device_unchecked(c10::DeviceIndex index) noexcept;

// The index that `index` (-1: current) names; throws when this process does not have it.
c10::DeviceIndex checked_index(c10::DeviceIndex index);
inline c10::Device checked_device(c10::DeviceIndex index) {
  return c10::Device(kNeuron, checked_index(index));
}

} // namespace neuron
