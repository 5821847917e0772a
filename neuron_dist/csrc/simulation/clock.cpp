#include "simulation/clock.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "arena.h"
#include "simulation/activities.h"
#include "simulation/hook.h"

namespace neuron {
namespace {

thread_local int64_t host_time_ns = 0;
thread_local std::atomic<int64_t> callback_time_ns{0};

// Streams' times: a table of chunks, so that a place never moves.
constexpr size_t kChunk = 1024;
constexpr size_t kChunks = 4096;
std::array<std::atomic<int64_t>, kMaxDevices> default_times{};
std::array<std::atomic<std::atomic<int64_t>*>, kChunks> chunks{};
// Which device a stream is of, for what waits for a whole device; ids are of the process.
std::array<std::atomic<std::atomic<int8_t>*>, kChunks> owners{};
std::atomic<size_t> used_chunks{0};
std::mutex growing;

template <typename F>
void each_stream(c10::DeviceIndex device, F&& visit) {
  visit(c10::StreamId{0}, default_times[static_cast<size_t>(device)].load(std::memory_order_relaxed));
  for (size_t c = 0; c < used_chunks.load(std::memory_order_acquire); ++c) {
    const auto* times = chunks[c].load(std::memory_order_acquire);
    if (times == nullptr) {
      continue;
    }
    const auto* owner = owners[c].load(std::memory_order_relaxed);
    for (size_t i = 0; i < kChunk; ++i) {
      if (owner[i].load(std::memory_order_relaxed) == device) {
        visit(static_cast<c10::StreamId>(c * kChunk + i), times[i].load(std::memory_order_relaxed));
      }
    }
  }
}

Record point(Kind kind, int32_t stream, int64_t ns, uint64_t event = 0) {
  Record record;
  record.kind = kind;
  record.stream = stream;
  record.start_ns = ns;
  record.a = event;
  return record;
}

} // namespace

SimulatedClock& SimulatedClock::get() {
  static auto* clock = new SimulatedClock; // used while the process ends
  return *clock;
}

std::atomic<int64_t>& SimulatedClock::slot(c10::DeviceIndex device, c10::StreamId id) {
  if (C10_LIKELY(id == 0)) {
    return default_times[static_cast<size_t>(device)];
  }
  if (id >= kCopyBackStream) {
    return callback_time_ns;
  }
  const auto chunk = static_cast<size_t>(id) / kChunk;
  TORCH_CHECK(chunk < kChunks, "neuron: a process has at most ", kChunk * kChunks, " streams");
  if (C10_UNLIKELY(chunks[chunk].load(std::memory_order_acquire) == nullptr)) {
    std::lock_guard<std::mutex> lock(growing);
    if (chunks[chunk].load() == nullptr) {
      auto* owner = new std::atomic<int8_t>[kChunk];
      std::fill(owner, owner + kChunk, int8_t{-1});
      owners[chunk].store(owner, std::memory_order_release);
      chunks[chunk].store(new std::atomic<int64_t>[kChunk]{}, std::memory_order_release);
      used_chunks.store(std::max(used_chunks.load(), chunk + 1));
    }
  }
  owners[chunk].load(std::memory_order_relaxed)[static_cast<size_t>(id) % kChunk].store(
      static_cast<int8_t>(device), std::memory_order_relaxed);
  return chunks[chunk].load(std::memory_order_relaxed)[static_cast<size_t>(id) % kChunk];
}

void SimulatedClock::raise(std::atomic<int64_t>& time, int64_t to) {
  if (time.load(std::memory_order_relaxed) < to) {
    time.store(to, std::memory_order_relaxed);
  }
}

int64_t SimulatedClock::time_of(c10::Stream stream) {
  return slot(stream.device_index(), stream.id()).load(std::memory_order_relaxed);
}

int64_t SimulatedClock::time_of_device(c10::DeviceIndex device) {
  int64_t latest = 0;
  each_stream(device, [&](c10::StreamId, int64_t ns) { latest = std::max(latest, ns); });
  return latest;
}

int64_t SimulatedClock::host_ns() {
  return host_time_ns;
}

void SimulatedClock::charge(
    c10::Stream stream, Name name, c10::ScalarType dtype, uint64_t flops, uint64_t bytes, Moves moves,
    uint64_t allocated) {
  if (C10_UNLIKELY(!enabled())) {
    return;
  }
  const int64_t duration = rates_.duration_ns(flops, bytes, dtype, moves);
  host_time_ns += std::llround(rates_.dispatch_ns);
  auto& time = slot(stream.device_index(), stream.id());
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t start = std::max(time.load(std::memory_order_relaxed), host_time_ns);
  const int64_t end = start + duration;
  time.store(end, std::memory_order_relaxed);
  if (C10_UNLIKELY(Activities::get().recording())) {
    Activity activity;
    activity.kind = moves == Moves::kToDevice ? Activity::kCopyToDevice
        : moves == Moves::kFromDevice         ? Activity::kCopyFromDevice
                                              : Activity::kKernel;
    activity.name = name;
    activity.device = stream.device_index();
    activity.stream = trace_stream(stream);
    activity.start_ns = start;
    activity.end_ns = end;
    activity.flops = flops;
    activity.bytes = bytes;
    activity.correlation = Activities::correlation();
    Activities::get().add(activity);
  }
  ledger_.computed(trace_stream(stream), start, end, flops);
  if (C10_UNLIKELY(trace_ != nullptr)) {
    Record record;
    record.kind = Kind::kKernel;
    record.dtype = static_cast<uint8_t>(dtype);
    record.flag = static_cast<uint8_t>(moves);
    record.name = name;
    record.start_ns = start;
    record.end_ns = end;
    record.stream = trace_stream(stream);
    record.a = flops;
    record.b = bytes;
    record.allocated = allocated;
    trace_->add(record);
  }
  if (C10_UNLIKELY(blocking_.load(std::memory_order_relaxed))) {
    host_time_ns = end;
    if (trace_ != nullptr) {
      trace_->add(point(Kind::kHostWait, trace_stream(stream), end));
    }
  }
}

void SimulatedClock::note(const Record& record) {
  const auto held = lock();
  if (trace_ != nullptr) {
    trace_->add(record);
  }
}

void SimulatedClock::record(EventTime& event, c10::Stream stream) {
  if (!enabled()) {
    return;
  }
  event.id = next_event_.fetch_add(1, std::memory_order_relaxed);
  event.time_ns = time_of(stream);
  if (C10_UNLIKELY(tracing())) {
    note(point(Kind::kRecord, trace_stream(stream), event.time_ns, event.id));
  }
}

void SimulatedClock::wait(c10::Stream stream, const EventTime& event) {
  if (!enabled() || event.id == 0) {
    return; // an event that was never recorded holds nothing up
  }
  auto& time = slot(stream.device_index(), stream.id());
  raise(time, event.time_ns);
  if (C10_UNLIKELY(tracing())) {
    note(point(Kind::kWait, trace_stream(stream), time.load(), event.id));
  }
}

void SimulatedClock::host_waits_for(c10::Stream stream) {
  if (!enabled()) {
    return;
  }
  host_time_ns = std::max(host_time_ns, time_of(stream));
  if (C10_UNLIKELY(tracing())) {
    note(point(Kind::kHostWait, trace_stream(stream), host_time_ns));
  }
}

void SimulatedClock::host_waits_for(const EventTime& event) {
  if (!enabled() || event.id == 0) {
    return;
  }
  host_time_ns = std::max(host_time_ns, event.time_ns);
  if (C10_UNLIKELY(tracing())) {
    Record record = point(Kind::kHostWait, 0, host_time_ns, event.id);
    record.flag = 1; // for an event
    note(record);
  }
}

void SimulatedClock::host_waits_for_device(c10::DeviceIndex device) {
  if (!enabled()) {
    return;
  }
  host_time_ns = std::max(host_time_ns, time_of_device(device));
  if (C10_UNLIKELY(tracing())) {
    const auto held = lock(); // of all of them: a replay knows them by their standing together
    each_stream(device, [&](c10::StreamId id, int64_t) {
      if (trace_ != nullptr) {
        trace_->add(point(Kind::kHostWait, static_cast<int32_t>(id), host_time_ns));
      }
    });
  }
}

int64_t SimulatedClock::issue(const c10::Stream* stream) {
  if (!enabled()) {
    return 0;
  }
  host_time_ns += std::llround(rates_.dispatch_ns);
  return stream == nullptr ? host_time_ns : std::max(host_time_ns, time_of(*stream));
}

void SimulatedClock::wait_for_work(const c10::Stream* stream, uint32_t work, int64_t end_ns) {
  if (!enabled()) {
    return;
  }
  int64_t now;
  if (stream == nullptr) {
    now = host_time_ns = std::max(host_time_ns, end_ns);
  } else {
    auto& time = slot(stream->device_index(), stream->id());
    raise(time, end_ns);
    now = time.load();
  }
  if (C10_UNLIKELY(tracing())) {
    Record record = point(Kind::kWorkWait, stream == nullptr ? kHostStream : trace_stream(*stream), now);
    record.c = work;
    note(record);
  }
}

SimulatedClock::ThreadTimes SimulatedClock::enter_callback(c10::Stream stream, uint32_t work, int64_t end_ns) {
  const ThreadTimes before{host_time_ns, callback_time_ns.exchange(0, std::memory_order_relaxed)};
  wait_for_work(&stream, work, end_ns);
  host_time_ns = end_ns;
  return before;
}

void SimulatedClock::leave_callback(ThreadTimes before) {
  host_time_ns = before.host_ns;
  callback_time_ns.store(before.callback_ns, std::memory_order_relaxed);
}

void SimulatedClock::end_step(
    c10::DeviceIndex device, uint64_t peak_bytes, const std::vector<std::pair<Name, uint64_t>>& holders) {
  if (!enabled()) {
    return;
  }
  const int64_t now = std::max(host_time_ns, device < 0 ? 0 : time_of_device(device));
  const auto held = lock();
  Record* step = nullptr;
  if (trace_ != nullptr) {
    Record record;
    record.a = ledger_.step_under_way();
    record.allocated = peak_bytes;
    record.kind = Kind::kMemory;
    for (const auto& [name, bytes] : holders) {
      record.name = name;
      record.b = bytes;
      trace_->add(record);
    }
    record.kind = Kind::kStep;
    record.name = 0;
    record.b = 0;
    record.start_ns = ledger_.step_start();
    record.end_ns = now;
    step = trace_->add(record);
  }
  ledger_.end_step(now, peak_bytes, step);
  finish_steps();
}

void SimulatedClock::finish_steps() {
  StepFigures figures;
  void* tag = nullptr;
  while (ledger_.finished(figures, tag)) {
    if (tag != nullptr) {
      auto* record = static_cast<Record*>(tag);
      record->b = static_cast<uint64_t>(figures.compute_ns);
      record->c = static_cast<uint64_t>(figures.exposed_ns);
      record->d = static_cast<uint64_t>(figures.overlapped_ns);
      record->e = figures.flops;
    }
  }
}

void SimulatedClock::set_trace(std::unique_ptr<Trace> trace) {
  {
    const auto held = lock();
    ledger_.forget_tags();
    std::swap(trace_, trace);
    tracing_.store(trace_ != nullptr);
    if (trace_ != nullptr) {
      trace_groups(*trace_);
    }
  }
  if (trace_ == nullptr) {
    tell_names({});
  } else {
    tell_names([this](Name name, const std::string& text) {
      const auto held = lock();
      if (trace_ != nullptr) {
        Record fields;
        fields.name = name;
        trace_->text(Text::kName, text, fields);
      }
    });
  }
}

} // namespace neuron
