// torch.neuron.memory's history and snapshots, as Python objects.
#include <algorithm>
#include <unordered_map>

#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include "arena.h"
#include "bindings.h"
#include "device/heap.h"
#include "device/runtime.h"

namespace neuron {
namespace {

namespace py = pybind11;

// Lists of frames: each stack is symbolized once and shared by all that have it.
class Stacks {
 public:
  void want(const Context& context) {
    auto* stack = dynamic_cast<torch::CapturedTraceback*>(context.get());
    if (stack != nullptr && places_.emplace(stack, wanted_.size()).second) {
      wanted_.push_back(stack);
    }
  }
  void symbolize() {
    const auto found = torch::symbolize(wanted_);
    std::vector<py::dict> frames;
    frames.reserve(found.all_frames.size());
    for (const auto& frame : found.all_frames) {
      py::dict d;
      d["filename"] = frame.filename;
      d["name"] = frame.funcname;
      d["line"] = frame.lineno;
      frames.push_back(std::move(d));
    }
    for (const auto& indices : found.tracebacks) {
      py::list stack;
      for (const auto i : indices) {
        stack.append(frames[i]);
      }
      lists_.push_back(std::move(stack));
    }
  }
  py::list of(const Context& context) const {
    auto* stack = dynamic_cast<torch::CapturedTraceback*>(context.get());
    return stack == nullptr ? py::list() : lists_[places_.at(stack)];
  }

 private:
  std::unordered_map<torch::CapturedTraceback*, size_t> places_;
  std::vector<torch::CapturedTraceback*> wanted_;
  std::vector<py::list> lists_;
};

const py::tuple& default_pool() {
  static const auto* pool = new py::tuple(py::make_tuple(0, 0)); // no private pools
  return *pool;
}

py::dict segment_dict(int device, const SegmentState& segment, const Stacks& stacks) {
  size_t allocated = 0;
  size_t requested = 0;
  py::list blocks;
  for (const BlockState& b : segment.blocks) {
    py::dict block;
    block["address"] = b.address;
    block["size"] = b.size;
    block["requested_size"] = b.requested;
    block["state"] = b.used ? "active_allocated" : "inactive";
    block["frames"] = stacks.of(b.context);
    block["user_metadata"] = b.used ? text_of(b.owner) : "";
    blocks.append(block);
    allocated += b.used ? b.size : 0;
    requested += b.used ? b.requested : 0;
  }
  py::dict d;
  d["device"] = device;
  d["address"] = segment.address;
  d["total_size"] = segment.size;
  d["allocated_size"] = allocated;
  d["active_size"] = allocated;
  d["requested_size"] = requested;
  d["stream"] = 0; // memory is not bound to a stream: execution is eager
  d["segment_type"] = segment.small ? "small" : "large";
  d["segment_pool_id"] = default_pool();
  d["is_expandable"] = false;
  d["frames"] = stacks.of(segment.context);
  d["blocks"] = blocks;
  return d;
}

py::dict event_dict(const MemoryEvent& event, const Stacks& stacks) {
  py::dict d;
  d["action"] = kMemoryActionNames[static_cast<size_t>(event.action)];
  d[event.action == MemoryAction::kOom ? "device_free" : "addr"] = event.address;
  d["size"] = event.bytes;
  d["stream"] = event.stream;
  d["time_us"] = event.time_us;
  d["simulated_ns"] = event.simulated_ns;
  d["pool_id"] = default_pool();
  d["compile_context"] = "N/A"; // what torch writes where nothing is compiled
  d["user_metadata"] = text_of(event.owner);
  d["frames"] = stacks.of(event.context);
  return d;
}

py::dict snapshot() {
  std::vector<std::pair<int, std::vector<SegmentState>>> segments;
  std::vector<std::vector<MemoryEvent>> events;
  {
    py::gil_scoped_release no_gil; // another thread may hold a heap's lock and want Python's
    for (int device = 0; device < kMaxDevices; ++device) {
      if (Heap* heap = Heap::find(device)) {
        auto state = heap->snapshot();
        segments.emplace_back(device, std::move(state.first));
        events.resize(static_cast<size_t>(device) + 1);
        events.back() = std::move(state.second);
      }
    }
  }
  Stacks stacks;
  for (const auto& [device, all] : segments) {
    for (const SegmentState& segment : all) {
      stacks.want(segment.context);
      for (const BlockState& block : segment.blocks) {
        stacks.want(block.context);
      }
    }
  }
  for (const auto& of_device : events) {
    for (const MemoryEvent& event : of_device) {
      stacks.want(event.context);
    }
  }
  stacks.symbolize();
  py::list segment_list;
  for (const auto& [device, all] : segments) {
    for (const SegmentState& segment : all) {
      segment_list.append(segment_dict(device, segment, stacks));
    }
  }
  py::list traces;
  for (const auto& of_device : events) {
    py::list trace;
    for (const MemoryEvent& event : of_device) {
      trace.append(event_dict(event, stacks));
    }
    traces.append(trace);
  }
  py::dict made;
  made["segments"] = segment_list;
  made["device_traces"] = traces;
  return made;
}

} // namespace

void bind_memory_history(py::module_& m) {
  m.def(
      "_record_memory_history",
      [](bool events, int contexts, bool cpp_frames, size_t max_events, const std::vector<std::string>& skipped) {
        HistoryOptions options;
        options.events = events;
        options.contexts = static_cast<ContextLevel>(contexts);
        options.cpp_frames = cpp_frames;
        options.max_events = max_events;
        for (size_t i = 0; i < kMemoryActions; ++i) {
          options.skipped[i] = std::find(skipped.begin(), skipped.end(), kMemoryActionNames[i]) != skipped.end();
        }
        MemoryHistory::set_options(options);
      },
      py::arg("events"), py::arg("contexts"), py::arg("cpp_frames"), py::arg("max_events"), py::arg("skipped"));
  m.def("_memory_actions", [] {
    return std::vector<std::string>(kMemoryActionNames, kMemoryActionNames + kMemoryActions);
  });
  m.def("_clear_memory_history", [] {
    py::gil_scoped_release no_gil;
    for (int device = 0; device < kMaxDevices; ++device) {
      if (Heap* heap = Heap::find(device)) {
        heap->clear_history();
      }
    }
  });
  m.def("_memory_snapshot", &snapshot);
  // Bytes: (largest free block of the cache, all free blocks of the cache).
  m.def(
      "_free_blocks",
      [](int device) {
        Heap* heap = Heap::find(checked_index(static_cast<c10::DeviceIndex>(device)));
        return heap == nullptr ? std::pair<size_t, size_t>{} : heap->free_blocks();
      },
      py::arg("device"));
}

} // namespace neuron
