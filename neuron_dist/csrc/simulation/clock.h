// Simulated time: an int64 of nanoseconds for each stream of this rank and for each of its host threads. Charges
// operators by the roofline, carries time through events, and tells the ledger and the trace.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Stream.h>

#include "simulation/ledger.h"
#include "simulation/roofline.h"
#include "simulation/trace.h"

namespace neuron {

constexpr int32_t kHostStream = -1; // where CPU tensors' collectives are called
// What runs when a work has ended runs on streams of that work, which are these plus its number; their time is each
// thread's own, and begins where the work's operations ended, whichever thread drives. The copies of its results into
// views are part of the work; what its future calls back is not.
constexpr c10::StreamId kCopyBackStream = c10::StreamId{1} << 29;
constexpr c10::StreamId kCallbackStream = c10::StreamId{1} << 30;
// A group's own stream in the trace is this plus the group's number.
constexpr int32_t kGroupStream = 1 << 20;

struct EventTime {
  uint64_t id = 0; // of the last record
  int64_t time_ns = 0;
};

// One a process. Thread-safe.
class SimulatedClock {
 public:
  static SimulatedClock& get();

  // Off, everything below returns at once and all times are 0.
  void set_enabled(bool enabled) {
    enabled_.store(enabled);
  }
  bool enabled() const {
    return enabled_.load(std::memory_order_relaxed);
  }
  // On, the host waits for each operator, as NEURON_LAUNCH_BLOCKING=1 asks.
  void set_blocking(bool blocking) {
    blocking_.store(blocking);
  }
  void set_rates(const Rates& rates) {
    rates_ = rates;
  }
  const Rates& rates() const {
    return rates_;
  }

  int64_t time_of(c10::Stream stream);
  // The latest of all streams of a device, group streams excepted: what a device's synchronisation waits for.
  int64_t time_of_device(c10::DeviceIndex device);
  static int64_t host_ns();

  // An operator on `stream`; `allocated` is the HBM in use.
  void charge(
      c10::Stream stream, Name name, c10::ScalarType dtype, uint64_t flops, uint64_t bytes, Moves moves,
      uint64_t allocated);
  void record(EventTime& event, c10::Stream stream);
  void wait(c10::Stream stream, const EventTime& event);
  void host_waits_for(c10::Stream stream);
  void host_waits_for(const EventTime& event);
  void host_waits_for_device(c10::DeviceIndex device);

  // When a collective that is called now on `stream` (or on the host) is ready; takes the host's time to issue it.
  int64_t issue(const c10::Stream* stream);
  // `stream` (nullptr: the host) waits for a collective's end.
  void wait_for_work(const c10::Stream* stream, uint32_t work, int64_t end_ns);
  // This thread's host and its `stream` of the work begin at the work's end; returns what leave_callback() takes.
  struct ThreadTimes {
    int64_t host_ns;
    int64_t callback_ns;
  };
  ThreadTimes enter_callback(c10::Stream stream, uint32_t work, int64_t end_ns);
  static void leave_callback(ThreadTimes before);

  // A training step ends now, as late as the latest stream of `device` (-1: none) and this thread's host.
  // `holders` is what had `peak_bytes` of HBM.
  void end_step(c10::DeviceIndex device, uint64_t peak_bytes, const std::vector<std::pair<Name, uint64_t>>& holders);

  // Replaces the trace; nullptr ends it.
  void set_trace(std::unique_ptr<Trace> trace);

  // Lets the figures of steps stand whose communication has ended. Under the lock.
  void finish_steps();
  // Held for whatever follows; the hook on the engine writes through these. Names must be asked for before.
  std::unique_lock<std::mutex> lock() {
    return std::unique_lock<std::mutex>(mutex_);
  }
  Ledger& ledger() {
    return ledger_;
  }
  Trace* trace() {
    return trace_.get();
  }

 private:
  std::atomic<int64_t>& slot(c10::DeviceIndex device, c10::StreamId id);
  int32_t trace_stream(c10::Stream stream) const {
    return static_cast<int32_t>(stream.id());
  }
  void raise(std::atomic<int64_t>& time, int64_t to);
  bool tracing() const {
    return tracing_.load(std::memory_order_relaxed);
  }
  void note(const Record& record); // into the trace, if there is one; takes the lock

  std::atomic<bool> enabled_{true};
  std::atomic<bool> blocking_{false};
  Rates rates_;
  std::mutex mutex_; // the ledger, the trace, and the order of charges on a stream
  Ledger ledger_;
  std::unique_ptr<Trace> trace_;
  std::atomic<bool> tracing_{false};
  std::atomic<uint64_t> next_event_{1};
};

} // namespace neuron
