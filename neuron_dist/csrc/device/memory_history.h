// What a device's allocator did, with who asked for it: the events of torch's memory snapshots.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/Allocator.h> // GatheredContext

#include "simulation/names.h"

namespace neuron {

using Context = std::shared_ptr<c10::GatheredContext>; // a stack trace, not symbolized yet

enum class MemoryAction : uint8_t {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kOom,
  kSnapshot,
};
constexpr size_t kMemoryActions = 7;
// As torch's snapshots spell them; in the order of the enumerators.
extern const char* const kMemoryActionNames[kMemoryActions];

struct MemoryEvent {
  MemoryAction action = MemoryAction::kAlloc;
  Name owner = 0; // the operator
  uint64_t address = 0; // kOom: bytes that are free instead
  size_t bytes = 0;
  int64_t stream = 0;
  int64_t time_us = 0; // of the host's clock, since the epoch
  int64_t simulated_ns = 0; // when the host and the stream have got here
  Context context;
};

// For which memory stacks are kept; each includes the ones before.
enum class ContextLevel : uint8_t { kNever, kState, kAlloc, kAll };

struct HistoryOptions {
  bool events = false; // else only what is held now gets stacks
  ContextLevel contexts = ContextLevel::kNever;
  bool cpp_frames = false;
  size_t max_events = 0; // the newest are kept
  bool skipped[kMemoryActions] = {};
};

// The ring of one device. The heap's lock is held, except where it says otherwise.
class MemoryHistory {
 public:
  // For all devices; from their next event on. No lock is needed.
  static void set_options(const HistoryOptions& options);
  // The current stack if stacks of this level are kept, else nullptr. Takes Python's lock: no other may be held.
  static Context context_for(ContextLevel level) {
    return level_.load(std::memory_order_relaxed) < level ? nullptr : gather();
  }

  void add(MemoryAction action, Name owner, uint64_t address, size_t bytes, int device, const Context& context) {
    if (events_.load(std::memory_order_relaxed)) {
      append(action, owner, address, bytes, device, context);
    }
  }
  // Oldest first.
  std::vector<MemoryEvent> events() const;
  void clear();

 private:
  static Context gather();
  void append(MemoryAction action, Name owner, uint64_t address, size_t bytes, int device, const Context& context);

  static std::atomic<ContextLevel> level_;
  static std::atomic<bool> events_;
  std::vector<MemoryEvent> ring_;
  size_t oldest_ = 0;
};

// What a snapshot shows of a heap.
struct BlockState {
  uint64_t address = 0;
  size_t size = 0;
  size_t requested = 0;
  bool used = false;
  Name owner = 0;
  Context context;
};

struct SegmentState {
  uint64_t address = 0;
  size_t size = 0;
  bool small = false;
  Context context;
  std::vector<BlockState> blocks;
};

} // namespace neuron
