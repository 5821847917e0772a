// Streams and events. Execution is eager, so they order nothing that is computed; they carry simulated time.
#pragma once

#include <cstdint>

#include <c10/core/Stream.h>

#include "device/runtime.h"
#include "simulation/clock.h"

namespace neuron {

c10::Stream default_stream(c10::DeviceIndex index);
c10::Stream current_stream(c10::DeviceIndex index);
// A stream of its own, valid as long as the process.
c10::Stream new_stream(c10::DeviceIndex index);
// Makes `stream` this thread's current one on its device and returns the one before.
c10::Stream exchange_stream(c10::Stream stream);

struct Event {
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  bool timed = false;
  bool recorded = false;
  EventTime at;
};

void record_event(Event& event, c10::Stream stream);
// The stream does not go on before the event has happened.
void stream_wait(c10::Stream stream, const Event& event);
// Simulated milliseconds.
double elapsed_ms(const Event& start, const Event& end);

} // namespace neuron
