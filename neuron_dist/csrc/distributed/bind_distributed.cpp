#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/functional.h>

#include "bindings.h"
#include "distributed/process_group.h"

namespace py = pybind11;

namespace neuron {
namespace {

void start_services(Peers& peers, Engine& engine, const py::object& stack_provider) {
  static pid_t started = 0; // a forked child starts its own
  if (started == getpid()) {
    return;
  }
  started = getpid();
  engine.add_hook(std::make_unique<FlightRecorder>(peers.block().flight, 0));
  auto* provider = new py::object(stack_provider); // lives until the process ends: a thread may call it late
  peers.set_stack_provider([provider]() -> std::string {
    if (!Py_IsInitialized()) {
      return "";
    }
    py::gil_scoped_acquire gil;
    try {
      return (*provider)().cast<std::string>();
    } catch (const py::error_already_set& e) {
      return std::string("the stack could not be read: ") + e.what();
    }
  });
}

c10::intrusive_ptr<c10d::Backend> create(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
    const std::string& group_name, const std::vector<uint64_t>& global_ranks, int device_index,
    bool fp32_accumulation, const py::object& stack_provider) {
  auto options = c10::make_intrusive<ProcessGroupNeuron::Options>(timeout);
  options->group_name = group_name;
  options->global_ranks_in_group = global_ranks;
  options->device_index = device_index;
  options->fp32_accumulation = fp32_accumulation;
  Peers& peers =
      Peers::start(device_index, global_ranks.empty() ? rank : static_cast<int>(global_ranks[rank]));
  start_services(peers, Engine::get(peers), stack_provider);
  py::gil_scoped_release no_gil;
  return c10::make_intrusive<ProcessGroupNeuron>(store, rank, size, options);
}

ProcessGroupNeuron& as_neuron(c10d::Backend& backend) {
  auto* group = dynamic_cast<ProcessGroupNeuron*>(&backend);
  TORCH_CHECK_TYPE(group != nullptr, "expected a neuron backend, got ", backend.getBackendName());
  return *group;
}

} // namespace

void bind_distributed(py::module_& m) {
  m.def(
      "create_process_group", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
      py::arg("group_name"), py::arg("global_ranks"), py::arg("device_index"), py::arg("fp32_accumulation"),
      py::arg("stack_provider"));
  m.def(
      "set_planner",
      [](c10d::Backend& backend, py::function planner) {
        auto held = std::shared_ptr<py::function>(new py::function(std::move(planner)), [](py::function* f) {
          py::gil_scoped_acquire gil;
          delete f;
        });
        as_neuron(backend).set_planner([held](Op op, int64_t bytes) {
          py::gil_scoped_acquire gil;
          auto programs = (*held)(op_name(op), bytes).cast<std::vector<ReduceProgram>>();
          return std::make_shared<const Plan>(Plan{std::move(programs)});
        });
      },
      "planner(op, bytes) -> list of postfix programs over group ranks (-1 combines); see csrc plan.h");
  m.def(
      "flight_recorder",
      [](uint64_t limit) {
        Peers* peers = Peers::running();
        return peers == nullptr ? std::vector<std::string>{} : peers->block().flight.describe(limit);
      },
      py::arg("limit") = FlightRing::kEntries);
  m.def(
      "retire_engine",
      [] {
        if (Engine* engine = Engine::running()) {
          engine->retire();
        }
      },
      "Before the interpreter ends: no thread calls into Python any more.");
}

} // namespace neuron
