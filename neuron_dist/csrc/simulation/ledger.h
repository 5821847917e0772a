// Where a rank's simulated time went: each step's compute, exposed and overlapped communication, and the traffic of
// each group. Stands in memory that peers can read, so that one rank can sum up a run when it ends.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace neuron {

// Plain data in shared memory.
struct StepFigures {
  uint64_t step; // from 1
  int64_t start_ns;
  int64_t end_ns;
  int64_t compute_ns;
  int64_t exposed_ns;
  int64_t overlapped_ns;
  uint64_t flops;
  uint64_t peak_bytes;
};

struct TrafficRow {
  uint32_t group; // index into LedgerBlock::groups
  int32_t root; // of rooted collectives; messages: the receiver; -1: none
  uint8_t op; // neuron::Op
  char algorithm[32];
  uint64_t count;
  uint64_t bytes;
  int64_t time_ns;
};

struct GroupEntry {
  char name[64];
  uint32_t first; // of `ranks` in LedgerBlock::ranks
  uint32_t size;
};

struct LedgerBlock {
  static constexpr uint64_t kSteps = 512; // the newest
  static constexpr uint32_t kRows = 512;
  static constexpr uint32_t kGroups = 512;
  static constexpr uint32_t kRanks = 16384;

  std::atomic<uint64_t> steps; // finished and written
  std::atomic<uint32_t> rows;
  std::atomic<uint32_t> groups; // one more than the highest
  uint32_t ranks_used;
  std::atomic<uint64_t> unlisted; // operations that found no row or group any more
  StepFigures step[kSteps];
  TrafficRow row[kRows];
  GroupEntry group[kGroups];
  uint32_t ranks[kRanks]; // global
};

using Interval = std::pair<int64_t, int64_t>;

// All methods are called under the clock's lock.
class Ledger {
 public:
  Ledger();

  // From now on in `block` (zeroed), with what there was.
  void move_to(LedgerBlock* block);
  const LedgerBlock& block() const {
    return *block_;
  }

  void computed(int32_t stream, int64_t start_ns, int64_t end_ns, uint64_t flops);
  // An operation of a group begins in the step under way, and must end before that step's figures stand.
  uint64_t communication_begins();
  void communication_ends(uint64_t step, int64_t start_ns, int64_t end_ns);
  void communication_fails(uint64_t step);
  // Groups count from 0; those beyond the table have no traffic rows.
  void add_group(uint32_t group, const std::string& name, const std::vector<int>& ranks);
  void rename_group(uint32_t group, const std::string& name);
  void count(
      uint32_t group, uint8_t op, int32_t root, const char* algorithm, uint64_t bytes, int64_t time_ns);

  // Ends the step under way at `end_ns`. Its figures stand once all of its communication has ended: `finished`
  // then gives them, in order.
  void end_step(int64_t end_ns, uint64_t peak_bytes, void* tag);
  bool finished(StepFigures& figures, void*& tag);
  void forget_tags();
  uint64_t step_under_way() const {
    return first_open_ + open_.size() - 1;
  }
  int64_t step_start() const {
    return open_.back().figures.start_ns;
  }

 private:
  struct Open {
    StepFigures figures{};
    bool over = false;
    int pending = 0;
    void* tag = nullptr;
    std::vector<Interval> compute;
    std::vector<Interval> communication;
  };
  Open& at(uint64_t step) {
    return open_[step - first_open_];
  }

  LedgerBlock* block_;
  std::deque<Open> open_; // steps whose figures do not stand yet, the last one under way
  uint64_t first_open_ = 1;
  // The interval that each stream adds to, while its operators follow each other without a gap.
  std::vector<std::pair<int32_t, Interval>> running_;
};

// Nanoseconds of the union of `intervals`, which get sorted and merged.
int64_t merge(std::vector<Interval>& intervals);

} // namespace neuron
