#include "distributed/flight_recorder.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

namespace neuron {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

} // namespace

void FlightRecorder::before(OpInfo& info) {
  const uint64_t id = ring_.count.fetch_add(1, std::memory_order_relaxed) + 1;
  FlightEntry& entry = ring_.entries[id % FlightRing::kEntries];
  entry.id.store(0, std::memory_order_release);
  entry.info = info;
  std::strncpy(entry.group, info.group->c_str(), sizeof(entry.group) - 1);
  entry.start_ns = now_ns();
  entry.end_ns.store(0, std::memory_order_relaxed);
  entry.state.store(FlightEntry::kPending, std::memory_order_relaxed);
  entry.id.store(id, std::memory_order_release);
  info.cookies[slot_] = id;
}

void FlightRecorder::close(const OpInfo& info, FlightEntry::State state) {
  const uint64_t id = info.cookies[slot_];
  FlightEntry& entry = ring_.entries[id % FlightRing::kEntries];
  if (entry.id.load(std::memory_order_acquire) == id) { // else newer operations have overwritten it
    entry.end_ns.store(now_ns(), std::memory_order_relaxed);
    entry.state.store(state, std::memory_order_release);
  }
}

void FlightRecorder::after(const OpInfo& info) {
  close(info, FlightEntry::kCompleted);
}

void FlightRecorder::abort(const OpInfo& info, const Failure&) {
  close(info, FlightEntry::kFailed);
}

std::vector<std::string> FlightRing::describe(uint64_t limit) const {
  std::vector<std::string> lines;
  const uint64_t last = count.load(std::memory_order_acquire);
  const uint64_t kept = std::min<uint64_t>({last, limit, kEntries - 1});
  for (uint64_t id = last - kept + 1; id <= last; ++id) {
    const FlightEntry& entry = entries[id % kEntries];
    if (entry.id.load(std::memory_order_acquire) != id) {
      continue;
    }
    const uint8_t state = entry.state.load();
    const int64_t end = state == FlightEntry::kPending ? now_ns() : entry.end_ns.load();
    char tail[128];
    std::snprintf(
        tail, sizeof(tail), " in group '%.31s': %s %.3f ms", entry.group,
        state == FlightEntry::kPending        ? "pending for"
            : state == FlightEntry::kCompleted ? "completed in"
                                               : "failed after",
        static_cast<double>(end - entry.start_ns) / 1e6);
    lines.push_back("seq " + std::to_string(entry.info.seq) + " " + entry.info.describe() + tail);
  }
  return lines;
}

} // namespace neuron
