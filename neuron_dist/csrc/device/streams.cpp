#include "device/streams.h"

#include <atomic>

#include <c10/util/Exception.h>

#include "arena.h"

namespace neuron {
namespace {

constexpr c10::StreamId kDefaultStream = 0;

std::atomic<c10::StreamId> next_stream{1};
thread_local c10::StreamId current[kMaxDevices] = {};

c10::Stream make(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kNeuron, index), id);
}

} // namespace

c10::Stream default_stream(c10::DeviceIndex index) {
  return make(checked_index(index), kDefaultStream);
}

c10::Stream current_stream(c10::DeviceIndex index) {
  index = checked_index(index);
  return make(index, current[index]);
}

c10::Stream new_stream(c10::DeviceIndex index) {
  return make(checked_index(index), next_stream.fetch_add(1));
}

c10::Stream exchange_stream(c10::Stream stream) {
  const auto index = checked_index(stream.device_index());
  const auto before = current[index];
  current[index] = stream.id();
  return make(index, before);
}

void record_event(Event& event, c10::Stream stream) {
  event.device = stream.device_index();
  event.stream = stream.id();
  event.recorded = true;
  SimulatedClock::get().record(event.at, stream);
}

void stream_wait(c10::Stream stream, const Event& event) {
  SimulatedClock::get().wait(stream, event.at);
}

double elapsed_ms(const Event& start, const Event& end) {
  TORCH_CHECK_VALUE(
      start.timed && end.timed,
      "Both events must be created with argument 'enable_timing=True'.");
  TORCH_CHECK_VALUE(
      start.recorded && end.recorded,
      "Both events must be recorded before calculating elapsed time.");
  return static_cast<double>(end.at.time_ns - start.at.time_ns) / 1e6;
}

} // namespace neuron
