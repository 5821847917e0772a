// The caching allocator of one device, in the heap part of its arena.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/flat_hash_map.h>

#include "device/bins.h"
#include "device/memory_history.h"
#include "simulation/names.h"

namespace neuron {

class Arena;

// What this thread allocates for: operators name themselves.
inline thread_local Name allocating_for = 0;

class AllocatingFor {
 public:
  explicit AllocatingFor(Name name) : before_(allocating_for) {
    note_executed(name);
    allocating_for = name;
  }
  ~AllocatingFor() {
    allocating_for = before_;
  }
  AllocatingFor(const AllocatingFor&) = delete;
  AllocatingFor& operator=(const AllocatingFor&) = delete;

 private:
  const Name before_;
};

class Heap {
 public:
  // The heap of `device`, made at first use (as is its arena).
  static Heap& get(int device);
  // nullptr if it was never used. Lock-free.
  static Heap* find(int device);

  // Memory for `bytes` (more than none), at a multiple of 256.
  void* allocate(size_t bytes);
  // The heap that `ptr` was allocated from; nullptr if it is in none. Lock-free.
  static Heap* holding(const void* ptr);
  void free(void* ptr);
  // The rounded size of the allocation at `ptr`.
  size_t size_of(void* ptr) const;
  int device() const {
    return device_;
  }

  void empty_cache();
  c10::CachingDeviceAllocator::DeviceStats stats() const;
  void reset_peak();
  void reset_accumulated();
  int64_t tensor_frees() const;
  // Free and total bytes as the device's owner sees them: cached blocks count as used.
  std::pair<size_t, size_t> memory_info() const;
  void set_fraction(double fraction);
  size_t live_bytes() const {
    return live_bytes_.load(std::memory_order_relaxed);
  }
  // Accounts the allocation at `ptr` (if there is one) to `name` from now on.
  void set_owner(void* ptr, Name name);
  // The most that was allocated since the last call, and by what, largest first.
  struct Peak {
    size_t bytes = 0;
    std::vector<std::pair<Name, uint64_t>> holders;
  };
  Peak take_step_peak();
  // Segments and blocks as they are, and the history, which gets an event for it.
  std::pair<std::vector<SegmentState>, std::vector<MemoryEvent>> snapshot();
  void clear_history();
  // Bytes of the largest free block of the cache, and of all.
  std::pair<size_t, size_t> free_blocks() const;
  // For tests: replaces the cluster's HBM (0: the cluster's again).
  static void set_capacity_override(size_t bytes);
  // Walks every list and throws if one invariant does not hold. For tests.
  void check() const;

  static size_t round_size(size_t bytes);

 private:
  explicit Heap(int device);
  class Request;
  void record(MemoryAction action, Name owner, const void* at, size_t bytes);
  struct Pool {
    Bins bins;
    size_t stat_type;
  };
  Pool& pool_of(size_t rounded);
  Block* new_segment(Pool& pool, bool small, size_t rounded);
  Block* try_allocate(Pool& pool, bool small, size_t rounded);
  Block* allocate_locked(size_t bytes, size_t rounded);
  void free_locked(Block* block);
  void account(Name name, int64_t bytes);
  void note_peak();
  void release_cached();
  size_t limit() const;
  char* take_address(size_t bytes);
  void give_address(char* ptr, size_t bytes);
  std::pair<size_t, size_t> free_blocks_locked() const;
  std::string largest_allocations() const;
  [[noreturn]] void throw_out_of_memory(size_t bytes, size_t rounded);

  const int device_;
  Arena& arena_;
  mutable std::mutex mutex_;
  Pool small_;
  Pool large_;
  Segment* segments_ = nullptr;
  ska::flat_hash_map<void*, Block*> used_; // a plain pointer is all that oneDNN gives back
  std::map<size_t, size_t> addresses_; // free address ranges: offset -> bytes
  c10::CachingDeviceAllocator::DeviceStats stats_;
  int64_t tensor_frees_ = 0;
  double fraction_ = 1.0;
  MemoryHistory history_;
  Context context_; // of the request under way
  std::atomic<size_t> live_bytes_{0};
  // Who holds what, and who did at the peak of the step.
  std::vector<uint64_t> held_; // by name
  size_t step_peak_ = 0;
  bool at_peak_ = false; // nothing has been freed since the peak
  std::vector<uint64_t> held_at_peak_;
  size_t noted_peak_ = 0; // the peak that held_at_peak_ is of
};

} // namespace neuron
