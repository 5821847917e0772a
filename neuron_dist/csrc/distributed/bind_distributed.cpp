#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/numpy.h>

#include "bindings.h"
#include "distributed/process_group.h"
#include "python_call.h"
#include "simulation/clock.h"
#include "simulation/activities.h"
#include "simulation/hook.h"

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
  engine.add_hook(std::make_unique<SimulationHook>(1));
  engine.add_hook(std::make_unique<ActivityHook>(2));
  {
    auto& clock = SimulatedClock::get();
    const auto held = clock.lock();
    clock.ledger().move_to(&peers.block().ledger);
  }
  auto* provider = new py::object(stack_provider); // lives until the process ends: a thread may call it late
  peers.set_stack_provider([provider]() -> std::string {
    if (!Py_IsInitialized()) {
      return "";
    }
    PythonCall python;
    try {
      return (*provider)().cast<std::string>();
    } catch (const py::error_already_set& e) {
      return std::string("the stack could not be read: ") + e.what();
    }
  });
}

c10::intrusive_ptr<ProcessGroupNeuron> create(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<ProcessGroupNeuron::Options>& options, const py::object& stack_provider) {
  const auto& ranks = options->global_ranks_in_group;
  Peers& peers = Peers::start(options->device_index, ranks.empty() ? rank : static_cast<int>(ranks.at(rank)));
  start_services(peers, Engine::get(peers), stack_provider);
  py::gil_scoped_release no_gil;
  return c10::make_intrusive<ProcessGroupNeuron>(store, rank, size, options);
}

// A callable that may be let go by a thread without the GIL.
std::shared_ptr<py::function> hold(py::function function) {
  return {new py::function(std::move(function)), [](py::function* f) {
            py::gil_scoped_acquire gil;
            delete f;
          }};
}

} // namespace

void bind_distributed(py::module_& m) {
  py::module_::import("torch._C._distributed_c10d"); // holds the base classes
  using Options = ProcessGroupNeuron::Options;
  py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(m, "Options")
      .def(py::init<std::chrono::milliseconds>(), py::arg("timeout") = kBackendDefaultTimeout)
      .def_readwrite("fp32_accumulation", &Options::fp32_accumulation)
      .def_readwrite("algorithm", &Options::algorithm)
      .def_readwrite("device_index", &Options::device_index)
      .def_readwrite("group_name", &Options::group_name)
      .def_readwrite("global_ranks_in_group", &Options::global_ranks_in_group)
      .def("__copy__", [](const Options& self) { return c10::make_intrusive<Options>(self); })
      .def("__deepcopy__", [](const Options& self, const py::dict& memo) {
        return c10::make_intrusive<Options>(self);
      });
  py::class_<ProcessGroupNeuron, c10::intrusive_ptr<ProcessGroupNeuron>, c10d::Backend>(
      m, "ProcessGroupNeuron")
      .def_property_readonly(
          "options",
          [](ProcessGroupNeuron& self) {
            return c10::static_intrusive_pointer_cast<Options>(self.getBackendOptions());
          })
      .def(
          "_set_default_timeout", &ProcessGroupNeuron::setTimeout, py::arg("timeout"),
          py::call_guard<py::gil_scoped_release>())
      .def(
          "_set_pricer",
          [](ProcessGroupNeuron& self, py::function pricer) {
            const auto held = hold(std::move(pricer));
            self.set_pricer([held](Op op, int64_t bytes, int root) {
              PythonCall python;
              const auto [ns, algorithm] =
                  (*held)(op_name(op), size_class(bytes), bytes, root).cast<std::tuple<int64_t, std::string>>();
              ProcessGroupNeuron::Price price;
              price.ns = ns;
              std::copy_n(
                  algorithm.begin(), std::min(algorithm.size(), price.algorithm.size() - 1), price.algorithm.begin());
              return price;
            });
          },
          py::arg("pricer"),
          "pricer(op, planned_bytes, bytes, root) -> (simulated nanoseconds, algorithm); planned_bytes is the size "
          "class by which the schedule is chosen. For op send, root is the receiver.")
      .def(
          "_set_watcher",
          [](ProcessGroupNeuron& self, py::function watcher) {
            const auto held = hold(std::move(watcher));
            self.set_watcher([held](const char* op, const OpInfo& info, uint32_t flags) {
              PythonCall python;
              const bool tensors = info.group != nullptr && info.op != Op::kBarrier;
              return (*held)(
                         op, reduction_name(info.reduction), tensors ? dtype_name(info.dtype) : "", info.numel, flags)
                  .cast<bool>();
            });
          },
          py::arg("watcher"),
          "watcher(op, reduction, dtype, numel, flags) -> bool, called before anything of a call is enqueued; it may "
          "raise. True: not again for a call of the same op, reduction, dtype and flags.")
      .def("_start_time_estimate", &ProcessGroupNeuron::start_time_estimate)
      .def("_end_time_estimate", &ProcessGroupNeuron::end_time_estimate, "Simulated microseconds.")
      .def(
          "_set_planner",
          [](ProcessGroupNeuron& self, py::function planner) {
            const auto held = hold(std::move(planner));
            self.set_planner([held](Op op, int64_t bytes, int root) {
              PythonCall python;
              const auto table = py::cast<py::array_t<int16_t, py::array::c_style | py::array::forcecast>>(
                  (*held)(op_name(op), bytes, root));
              TORCH_CHECK_VALUE(table.ndim() == 2, "a planner returns an array of [programs, length]");
              Plan plan;
              for (py::ssize_t i = 0; i < table.shape(0); ++i) {
                plan.programs.emplace_back(table.data(i, 0), table.data(i, 0) + table.shape(1));
              }
              return std::make_shared<const Plan>(std::move(plan));
            });
          },
          py::arg("planner"),
          "planner(op, bytes, root) -> int16 array [programs, length] of postfix programs over group ranks (-1 "
          "combines); plan.h says how they divide the tensor");
  m.def("size_class", &size_class, py::arg("bytes"), "The size that collectives of `bytes` are planned for.");
  m.def("rounded_up", &rounded_up, py::arg("bytes"), "The size that uneven collectives of `bytes` are priced as.");
  m.def(
      "create_process_group", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
      py::arg("stack_provider"));
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
