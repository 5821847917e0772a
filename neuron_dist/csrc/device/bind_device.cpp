#include "bindings.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include "arena.h"
#include "device/allocator.h"
#include "device/generator.h"
#include "device/guard.h"
#include "device/heap.h"
#include "device/profiler.h"
#include "device/redispatch.h"
#include "device/runtime.h"
#include "device/watch.h"
#include "python_call.h"

namespace neuron {
namespace {

namespace py = pybind11;
using c10::CachingAllocator::Stat;
using c10::CachingDeviceAllocator::DeviceStats;

py::dict stat_dict(const Stat& stat) {
  py::dict d;
  d["current"] = stat.current;
  d["peak"] = stat.peak;
  d["allocated"] = stat.allocated;
  d["freed"] = stat.freed;
  return d;
}

// {"active_bytes": {"all": {"current": ...}, "small_pool": ...}, ..., "num_ooms": ...}
py::dict memory_stats(int device) {
  const Heap* heap = Heap::find(checked_index(static_cast<c10::DeviceIndex>(device)));
  const DeviceStats s = heap != nullptr ? heap->stats() : DeviceStats{};
  py::dict d;
  const std::pair<const char*, const c10::CachingAllocator::StatArray*> arrays[] = {
      {"allocation", &s.allocation},
      {"segment", &s.segment},
      {"active", &s.active},
      {"inactive_split", &s.inactive_split},
      {"allocated_bytes", &s.allocated_bytes},
      {"reserved_bytes", &s.reserved_bytes},
      {"active_bytes", &s.active_bytes},
      {"inactive_split_bytes", &s.inactive_split_bytes},
      {"requested_bytes", &s.requested_bytes},
  };
  for (const auto& [name, array] : arrays) {
    py::dict pools;
    pools["all"] = stat_dict((*array)[0]);
    pools["small_pool"] = stat_dict((*array)[1]);
    pools["large_pool"] = stat_dict((*array)[2]);
    d[name] = pools;
  }
  d["num_alloc_retries"] = s.num_alloc_retries;
  d["num_ooms"] = s.num_ooms;
  d["num_device_alloc"] = s.num_device_alloc;
  d["num_device_free"] = s.num_device_free;
  d["num_tensor_frees"] = heap != nullptr ? heap->tensor_frees() : 0;
  return d;
}

ClusterInfo cluster_info(const py::object& made) {
  const auto fields = made.cast<std::tuple<int, size_t, std::string, py::dict>>();
  return {std::get<0>(fields), std::get<1>(fields), std::get<2>(fields), rates_from(std::get<3>(fields))};
}

Heap& heap_of(int device) {
  return Heap::get(checked_index(static_cast<c10::DeviceIndex>(device)));
}

} // namespace

void bind_device(py::module_& m) {
  install_allocators();
  install_guard_and_hooks();
  register_redispatch();
  m.attr("_has_profiler") = register_profiler();

  // Called with no arguments, once: (visible cores, HBM bytes of a core, name, its roofline's rates by name).
  m.def("_set_cluster_provider", [](py::function provider) {
    // Leaked: it may be asked while the interpreter shuts down.
    auto* held = new py::function(std::move(provider));
    set_cluster_provider([held] {
      PythonCall python;
      try {
        return cluster_info((*held)());
      } catch (py::error_already_set& error) {
        TORCH_CHECK(false, "neuron: ", py::str(error.value()).cast<std::string>());
      }
    });
  });
  m.def("_cluster", [] {
    const auto& info = cluster();
    return py::make_tuple(info.devices, info.hbm_bytes, info.name);
  });
  m.def("_device_count", [] { return static_cast<int>(device_count()); });
  m.def("_current_device", [] { return static_cast<int>(current_device()); });
  m.def("_set_device", [](int index) { set_current_device(static_cast<c10::DeviceIndex>(index)); });
  m.def("_checked_index", [](int index) {
    return static_cast<int>(checked_index(static_cast<c10::DeviceIndex>(index)));
  });
  m.def("_bind_local_rank", &bind_local_rank);
  m.def("_unbind_local_rank", &unbind_local_rank);
  m.def("_is_bound", &is_bound);
  m.def("_is_in_bad_fork", &Arena::in_bad_fork);
  m.def("_is_initialized", [] {
    for (int i = 0; i < kMaxDevices; ++i) {
      if (Heap::find(i) != nullptr) {
        return true;
      }
    }
    return is_bound();
  });
  m.def("_init", [](int device) { heap_of(device); });

  m.def("_memory_stats", &memory_stats);
  m.def("_empty_cache", [] { device_allocator()->emptyCache(); });
  m.def("_reset_peak_memory_stats", [](int device) {
    device_allocator()->resetPeakStats(static_cast<c10::DeviceIndex>(device));
  });
  m.def("_reset_accumulated_memory_stats", [](int device) {
    device_allocator()->resetAccumulatedStats(static_cast<c10::DeviceIndex>(device));
  });
  m.def("_memory_info", [](int device) { return heap_of(device).memory_info(); });
  m.def("_set_memory_fraction", [](double fraction, int device) {
    heap_of(device).set_fraction(fraction);
  });
  m.def("_set_capacity_for_testing", &Heap::set_capacity_override);
  m.def("_check_heap", [](int device) { heap_of(device).check(); });
  // Called with (operator, dtype, bits of Seen), with the GIL; what it raises, the operator raises. None ends it.
  m.def("_watch_operators", [](const py::object& watcher) {
    if (watcher.is_none()) {
      set_watcher(nullptr);
      return;
    }
    auto* held = new py::object(watcher); // leaked: operators may run while the interpreter shuts down
    set_watcher([held](const std::string& op, const std::string& dtype, int seen) {
      if (!Py_IsInitialized()) {
        return false;
      }
      PythonCall python;
      try {
        return (*held)(op, dtype, seen).cast<bool>();
      } catch (py::error_already_set& error) {
        error.restore();
        python_error raised;
        raised.persist();
        throw raised;
      }
    });
  });
  m.def("_executed_operators", &executed);
  m.def("_clear_executed_operators", &clear_executed);
  m.def("_seed_all", &seed_all);
  m.def("_default_generator", [](int device) {
    at::Generator generator = default_generator(static_cast<c10::DeviceIndex>(device));
    return py::reinterpret_steal<py::object>(THPGenerator_Wrap(std::move(generator)));
  });
}

} // namespace neuron
