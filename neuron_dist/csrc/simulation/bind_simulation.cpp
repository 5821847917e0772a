#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "device/heap.h"
#include "device/runtime.h"
#include "distributed/peers.h"
#include "simulation/clock.h"

namespace neuron {
namespace {

namespace py = pybind11;

py::dict figures_of(int rank, const LedgerBlock& block) {
  py::list steps;
  const uint64_t done = block.steps.load(std::memory_order_acquire);
  for (uint64_t i = done - std::min(done, LedgerBlock::kSteps); i < done; ++i) {
    const StepFigures& s = block.step[i % LedgerBlock::kSteps];
    py::dict step;
    step["step"] = s.step;
    step["start_ns"] = s.start_ns;
    step["end_ns"] = s.end_ns;
    step["compute_ns"] = s.compute_ns;
    step["exposed_ns"] = s.exposed_ns;
    step["overlapped_ns"] = s.overlapped_ns;
    step["flops"] = s.flops;
    step["peak_bytes"] = s.peak_bytes;
    steps.append(step);
  }
  py::list traffic;
  for (uint32_t i = 0; i < block.rows.load(std::memory_order_acquire); ++i) {
    const TrafficRow& r = block.row[i];
    const GroupEntry& group = block.group[r.group];
    py::dict row;
    row["group"] = std::string(group.name);
    row["ranks"] = std::vector<uint32_t>(block.ranks + group.first, block.ranks + group.first + group.size);
    row["op"] = op_name(static_cast<Op>(r.op));
    row["algorithm"] = std::string(r.algorithm, strnlen(r.algorithm, sizeof(r.algorithm)));
    row["root"] = r.root;
    row["count"] = r.count;
    row["bytes"] = r.bytes;
    row["time_ns"] = r.time_ns;
    traffic.append(row);
  }
  py::dict made;
  made["rank"] = rank;
  made["steps"] = steps;
  made["traffic"] = traffic;
  made["unlisted"] = block.unlisted.load();
  return made;
}

} // namespace

Rates rates_from(const py::dict& given) {
  const auto rate = [&](const char* name) { return given[name].cast<double>(); };
  Rates rates;
  rates.bfloat16 = rate("bfloat16");
  rates.float16 = rate("float16");
  rates.float32 = rate("float32");
  rates.float8 = rate("float8");
  rates.hbm = rate("hbm_Bps");
  rates.host = rate("host_Bps");
  rates.launch_ns = rate("launch_ns");
  rates.dispatch_ns = rate("dispatch_ns");
  return rates;
}

void bind_simulation(py::module_& m) {
  m.def("_set_simulation", [](bool enabled) { SimulatedClock::get().set_enabled(enabled); });
  m.def("_set_blocking", [](bool blocking) { SimulatedClock::get().set_blocking(blocking); });
  m.def("_simulation", [] { return SimulatedClock::get().enabled(); });
  m.def("_set_rates", [](const py::dict& rates) { SimulatedClock::get().set_rates(rates_from(rates)); });
  m.def("_host_ns", [] { return SimulatedClock::host_ns(); });
  m.def("_device_ns", [](int device) {
    return SimulatedClock::get().time_of_device(checked_index(static_cast<c10::DeviceIndex>(device)));
  });

  m.def(
      "_start_trace",
      [](const std::string& path, const std::string& header, uint64_t most_bytes) {
        SimulatedClock::get().set_trace(std::make_unique<Trace>(path, header, most_bytes));
      },
      py::arg("path"), py::arg("header"), py::arg("most_bytes"));
  m.def("_stop_trace", [] { SimulatedClock::get().set_trace(nullptr); });
  m.def(
      "_trace_text",
      [](int flag, const std::string& text) {
        auto& clock = SimulatedClock::get();
        const auto held = clock.lock();
        if (Trace* trace = clock.trace()) {
          trace->text(static_cast<Text>(flag), text);
        }
      },
      py::arg("flag"), py::arg("text"));

  m.def("_dtypes", [] {
    py::dict names;
    for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
      const auto dtype = static_cast<c10::ScalarType>(i);
      if (dtype != c10::ScalarType::Undefined) {
        names[py::int_(i)] = dtype_name(dtype);
      }
    }
    return names;
  });

  m.def("_end_step", [] {
    const auto device = current_device();
    Heap* heap = Heap::find(device);
    constexpr size_t kHolders = 16;
    Heap::Peak peak;
    if (heap != nullptr) {
      peak = heap->take_step_peak();
      peak.holders.resize(std::min(peak.holders.size(), kHolders));
    }
    SimulatedClock::get().end_step(heap == nullptr ? c10::DeviceIndex{-1} : device, peak.bytes, peak.holders);
  });
  m.def(
      "_set_owner",
      [](const std::vector<uintptr_t>& pointers, const std::string& name) {
        const Name number = name_of(name);
        for (const uintptr_t p : pointers) {
          auto* ptr = reinterpret_cast<void*>(p);
          if (Heap* heap = ptr == nullptr ? nullptr : Heap::holding(ptr)) {
            heap->set_owner(ptr, number);
          }
        }
      },
      py::arg("pointers"), py::arg("name"),
      "Accounts the allocations that begin at these addresses to `name`, in the memory figures of steps.");
  m.def(
      "_figures",
      [] {
        py::list all;
        {
          auto& clock = SimulatedClock::get();
          Peers* peers = Peers::running();
          const int rank = peers == nullptr ? 0 : static_cast<int>(peers->self().global_rank);
          const auto held = clock.lock();
          all.append(figures_of(rank, clock.ledger().block()));
        }
        if (Peers* peers = Peers::running()) {
          for (const Peer* peer : peers->met()) {
            all.append(figures_of(peer->global_rank, peer->block->ledger));
          }
        }
        return all;
      },
      "What this rank and every peer that it has met have counted, also peers that have ended.");
}

} // namespace neuron
