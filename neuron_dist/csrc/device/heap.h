// The caching allocator of one device, in the heap part of its arena.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/flat_hash_map.h>

namespace neuron {

class Arena;
struct Segment;

// A piece of a segment, in use or free. Lives outside the arena, so that a forked child may drop tensors.
struct Block {
  char* ptr = nullptr;
  size_t size = 0;
  size_t requested = 0;
  bool used = false;
  Segment* segment = nullptr;
  Block* prev = nullptr; // neighbours in the segment, by address
  Block* next = nullptr;
  Block* bin_prev = nullptr; // list of the bin, when free
  Block* bin_next = nullptr;
};

// Free blocks by size: eight bins a power of two, newest first, and a bitmap of the bins in use.
class Bins {
 public:
  void push(Block* block);
  void remove(Block* block);
  // The best fit for `size`, or nullptr. Not removed.
  Block* find(size_t size) const;
  static size_t bin_of(size_t size);

 private:
  static constexpr size_t kBins = 64 * 8;
  std::array<Block*, kBins> heads_{};
  std::array<uint64_t, kBins / 64> bitmap_{};
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
  // For tests: replaces the cluster's HBM (0: the cluster's again).
  static void set_capacity_override(size_t bytes);
  // Walks every list and throws if one invariant does not hold. For tests.
  void check() const;

  static size_t round_size(size_t bytes);

 private:
  explicit Heap(int device);
  struct Pool {
    Bins bins;
    size_t stat_type;
  };
  Pool& pool_of(size_t rounded);
  Block* new_segment(Pool& pool, bool small, size_t rounded);
  Block* try_allocate(Pool& pool, bool small, size_t rounded);
  Block* allocate_locked(size_t bytes, size_t rounded);
  void free_locked(Block* block);
  void release_cached();
  size_t limit() const;
  char* take_address(size_t bytes);
  void give_address(char* ptr, size_t bytes);
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
  std::atomic<size_t> live_bytes_{0};
};

} // namespace neuron
