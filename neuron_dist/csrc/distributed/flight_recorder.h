// The last operations of each rank, in its shared memory: a rank that waits in vain reads what its peers did.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "distributed/op_info.h"

namespace neuron {

struct FlightEntry {
  enum State : uint8_t { kPending, kCompleted, kFailed };

  std::atomic<uint64_t> id{0}; // 1-based count of the rank's operations; 0 while it is being written
  OpInfo info; // `info.group` is this process's pointer: peers use `group`
  char group[32] = {};
  int64_t start_ns = 0; // CLOCK_MONOTONIC: comparable between ranks of one machine
  std::atomic<int64_t> end_ns{0};
  std::atomic<uint8_t> state{kPending};
};

struct FlightRing {
  static constexpr uint64_t kEntries = 256;
  std::atomic<uint64_t> count{0};
  FlightEntry entries[kEntries];

  // The newest `limit` entries as text, oldest first: "seq 12 all_reduce(...) in 'dp': pending for 5.0 s".
  std::vector<std::string> describe(uint64_t limit) const;
};

class FlightRecorder : public Hook {
 public:
  FlightRecorder(FlightRing& ring, int slot) : ring_(ring), slot_(slot) {}
  void before(OpInfo& info) override;
  void after(const OpInfo& info) override;
  void abort(const OpInfo& info, const Failure& failure) override;

 private:
  void close(const OpInfo& info, FlightEntry::State state);
  FlightRing& ring_;
  int slot_;
};

} // namespace neuron
