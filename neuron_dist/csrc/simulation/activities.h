// What ran on this rank's devices while torch.profiler looked, in simulated time.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "distributed/op_info.h"
#include "simulation/names.h"
#include "simulation/roofline.h"

namespace neuron {

struct Activity {
  enum Kind : uint8_t { kKernel, kCopyToDevice, kCopyFromDevice, kCollective };
  Kind kind = kKernel;
  Name name = 0; // the operator's, or the collective's
  int8_t device = 0;
  int32_t stream = 0; // collectives: kGroupStream plus the group's number
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  uint64_t flops = 0;
  uint64_t bytes = 0;
  uint64_t correlation = 0; // the host's operator that asked for it; 0: none
};

// One a process. Thread-safe.
class Activities {
 public:
  static Activities& get();

  bool recording() const {
    return recording_.load(std::memory_order_relaxed);
  }
  void start();
  // What was added since start().
  std::vector<Activity> stop();
  void add(const Activity& activity);

  // The operator that this thread is in, as torch.profiler numbers them. They nest.
  static void push_correlation(uint64_t id);
  static void pop_correlation();
  static uint64_t correlation();

 private:
  std::atomic<bool> recording_{false};
  std::mutex mutex_;
  std::vector<Activity> added_;
};

// Sees the collectives and messages.
class ActivityHook : public Hook {
 public:
  explicit ActivityHook(int slot) : slot_(slot) {}
  void before(OpInfo& info) override;
  void after(const OpInfo& info) override;
  void abort(const OpInfo& /*info*/, const Failure& /*failure*/) override {}

 private:
  const int slot_;
};

} // namespace neuron
