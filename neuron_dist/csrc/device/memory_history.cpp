#include "device/memory_history.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include <torch/csrc/profiler/combined_traceback.h>

#include "device/streams.h"

namespace neuron {
namespace {

std::mutex options_mutex;
HistoryOptions options;

HistoryOptions current_options() {
  std::lock_guard<std::mutex> lock(options_mutex);
  return options;
}

} // namespace

const char* const kMemoryActionNames[kMemoryActions] = {
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"};

std::atomic<ContextLevel> MemoryHistory::level_{ContextLevel::kNever};
std::atomic<bool> MemoryHistory::events_{false};

void MemoryHistory::set_options(const HistoryOptions& chosen) {
  std::lock_guard<std::mutex> lock(options_mutex);
  options = chosen;
  level_.store(chosen.contexts);
  events_.store(chosen.events);
}

Context MemoryHistory::gather() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, current_options().cpp_frames);
}

void MemoryHistory::append(
    MemoryAction action, Name owner, uint64_t address, size_t bytes, int device, const Context& context) {
  const HistoryOptions now = current_options();
  if (now.skipped[static_cast<size_t>(action)] || now.max_events == 0) {
    return;
  }
  const bool freeing = action == MemoryAction::kFreeRequested || action == MemoryAction::kFreeCompleted;
  const bool keeps = now.contexts >= (freeing ? ContextLevel::kAll : ContextLevel::kAlloc);
  const c10::Stream stream = current_stream(static_cast<c10::DeviceIndex>(device));
  MemoryEvent event{
      action,
      owner,
      address,
      bytes,
      stream.id(),
      std::chrono::duration_cast<std::chrono::microseconds>(
          std::chrono::system_clock::now().time_since_epoch())
          .count(),
      std::max(SimulatedClock::host_ns(), SimulatedClock::get().time_of(stream)),
      keeps ? context : nullptr};
  if (ring_.size() > now.max_events) { // it has become smaller
    auto kept = events();
    kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(now.max_events));
    ring_ = std::move(kept);
    oldest_ = 0;
  } else if (ring_.size() < now.max_events && oldest_ != 0) { // larger
    ring_ = events();
    oldest_ = 0;
  }
  if (ring_.size() < now.max_events) {
    ring_.push_back(std::move(event));
    return;
  }
  ring_[oldest_] = std::move(event);
  oldest_ = (oldest_ + 1) % ring_.size();
}

std::vector<MemoryEvent> MemoryHistory::events() const {
  std::vector<MemoryEvent> all(ring_.begin() + static_cast<std::ptrdiff_t>(oldest_), ring_.end());
  all.insert(all.end(), ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(oldest_));
  return all;
}

void MemoryHistory::clear() {
  ring_.clear();
  oldest_ = 0;
}

} // namespace neuron
