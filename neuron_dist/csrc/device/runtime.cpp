#include "device/runtime.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include <sys/syscall.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include "arena.h"
#include "device/heap.h"
#include "simulation/clock.h"

namespace neuron {
namespace {

std::function<ClusterInfo()> provider;
std::atomic<const ClusterInfo*> loaded{nullptr};
std::mutex load_mutex;

std::atomic<int> bound_rank{-1};
std::atomic<int> bound_world{0};
// Raised whenever every thread's choice of a device is void.
std::atomic<int> epoch{1};
std::atomic<int> process_default{0};
std::atomic<int> used_devices{0};

struct ThreadDevice {
  int epoch = 0;
  c10::DeviceIndex index = 0;
};
thread_local ThreadDevice thread_device;

bool is_main_thread() {
  return getpid() == static_cast<pid_t>(syscall(SYS_gettid));
}

} // namespace

void set_cluster_provider(std::function<ClusterInfo()> p) {
  provider = std::move(p);
  loaded.store(nullptr, std::memory_order_release); // an old one may still be read: left alone
}

const ClusterInfo& cluster() {
  if (const auto* info = loaded.load(std::memory_order_acquire)) {
    return *info;
  }
  TORCH_CHECK(provider, "neuron: no cluster is known; import neuron_dist first");
  // Asked without the lock: the provider takes Python's own.
  auto* info = new ClusterInfo(provider());
  TORCH_CHECK(
      info->devices > 0, "neuron: ", info->name, " has no visible core; see NEURON_RT_NUM_CORES and "
      "NEURON_RT_VISIBLE_CORES");
  std::lock_guard<std::mutex> lock(load_mutex);
  if (const auto* other = loaded.load(std::memory_order_acquire)) {
    delete info;
    return *other;
  }
  SimulatedClock::get().set_rates(info->rates);
  loaded.store(info, std::memory_order_release);
  return *info;
}

void bind_local_rank(int local_rank, int local_world_size) {
  TORCH_CHECK_VALUE(
      local_rank >= 0 && local_rank < local_world_size && local_world_size <= kMaxDevices,
      "neuron: local rank ", local_rank, " of ", local_world_size, " local ranks (at most ",
      kMaxDevices, ")");
  const int now = bound_rank.load();
  if (now == local_rank && bound_world.load() == local_world_size) {
    return;
  }
  TORCH_CHECK(
      now < 0, "neuron: this process is local rank ", now, " of ", bound_world.load(),
      " already and cannot become ", local_rank, " of ", local_world_size,
      "; destroy its process groups first");
  for (int i = 0; i < kMaxDevices; ++i) {
    const Heap* heap = Heap::find(i);
    TORCH_CHECK(
        i == local_rank || heap == nullptr || heap->live_bytes() == 0,
        "neuron: tensors live on neuron:", i, ", but this process is local rank ", local_rank,
        " and owns neuron:", local_rank,
        " only. Call torch.distributed.init_process_group before making neuron tensors.");
  }
  bound_world.store(local_world_size);
  bound_rank.store(local_rank);
  process_default.store(local_rank);
  epoch.fetch_add(1);
}

void unbind_local_rank() {
  if (bound_rank.exchange(-1) >= 0) {
    epoch.fetch_add(1); // the process's default stays where its tensors are
  }
}

bool is_bound() {
  return bound_rank.load(std::memory_order_relaxed) >= 0;
}

c10::DeviceIndex device_count() noexcept {
  if (is_bound()) {
    return static_cast<c10::DeviceIndex>(bound_world.load());
  }
  try {
    return static_cast<c10::DeviceIndex>(cluster().devices);
  } catch (...) {
    return 0;
  }
}

c10::DeviceIndex used_device_count() noexcept {
  return static_cast<c10::DeviceIndex>(
      std::max(used_devices.load(std::memory_order_relaxed), bound_rank.load() + 1));
}

void note_device_used(c10::DeviceIndex index) noexcept {
  int seen = used_devices.load(std::memory_order_relaxed);
  while (index >= seen && !used_devices.compare_exchange_weak(seen, index + 1)) {
  }
}

c10::DeviceIndex current_device() {
  const int rank = bound_rank.load(std::memory_order_relaxed);
  if (rank >= 0) {
    return static_cast<c10::DeviceIndex>(rank);
  }
  if (thread_device.epoch == epoch.load(std::memory_order_relaxed)) {
    return thread_device.index;
  }
  return static_cast<c10::DeviceIndex>(process_default.load(std::memory_order_relaxed));
}

c10::DeviceIndex checked_index(c10::DeviceIndex index) {
  if (index < 0) {
    return current_device();
  }
  const int rank = bound_rank.load(std::memory_order_relaxed);
  if (rank >= 0) {
    TORCH_CHECK(
        index == rank, "neuron:", static_cast<int>(index),
        " is not this process's device: with a process group, the index is the local rank. This "
        "process is local rank ", rank, "; say 'neuron' or 'neuron:", rank, "'.");
    return index;
  }
  const int count = cluster().devices;
  TORCH_CHECK(
      index < count, "Device index ", static_cast<int>(index),
      " is out of range. Valid range is 0 to ", count - 1, " for this process (", cluster().name,
      ")");
  return index;
}

void set_current_device(c10::DeviceIndex index) {
  if (index < 0) {
    return;
  }
  // Autograd starts one worker for each index and lets it set that index; only the program itself is told off.
  if (is_bound() && index < bound_world.load() && !is_main_thread()) {
    return;
  }
  set_current_device_unchecked(checked_index(index));
}

void set_current_device_unchecked(c10::DeviceIndex index) noexcept {
  if (index < 0 || index >= kMaxDevices || is_bound()) {
    return;
  }
  thread_device.epoch = epoch.load(std::memory_order_relaxed);
  thread_device.index = index;
}

} // namespace neuron
