#include "simulation/activities.h"

#include <utility>

#include "device/runtime.h"
#include "simulation/clock.h"

namespace neuron {
namespace {

thread_local std::vector<uint64_t> correlations;

} // namespace

Activities& Activities::get() {
  static auto* made = new Activities; // used while the process ends
  return *made;
}

void Activities::start() {
  std::lock_guard<std::mutex> lock(mutex_);
  added_.clear();
  recording_.store(true);
}

std::vector<Activity> Activities::stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  recording_.store(false);
  return std::exchange(added_, {});
}

void Activities::add(const Activity& activity) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (recording()) {
    added_.push_back(activity);
  }
}

void Activities::push_correlation(uint64_t id) {
  correlations.push_back(id);
}

void Activities::pop_correlation() {
  if (!correlations.empty()) { // empty: the operator began before the profiler did
    correlations.pop_back();
  }
}

uint64_t Activities::correlation() {
  return correlations.empty() ? 0 : correlations.back();
}

void ActivityHook::before(OpInfo& info) {
  if (Activities::get().recording()) {
    info.cookies[slot_] = Activities::correlation(); // it may end on another thread
  }
}

void ActivityHook::after(const OpInfo& info) {
  auto& activities = Activities::get();
  if (!activities.recording() || !info.first_piece || !SimulatedClock::get().enabled()) {
    return;
  }
  Activity activity;
  activity.kind = Activity::kCollective;
  activity.name = name_of(op_name(info.op));
  activity.device = current_device();
  activity.stream = kGroupStream + static_cast<int32_t>(info.ledger_group);
  activity.start_ns = info.start_ns;
  activity.end_ns = info.end_ns;
  activity.bytes = info.bytes;
  activity.correlation = info.cookies[slot_];
  activities.add(activity);
}

} // namespace neuron
