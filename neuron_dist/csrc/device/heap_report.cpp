// What the allocator tells about itself: out-of-memory messages, free blocks, snapshots.
#include <algorithm>

#include <c10/util/Exception.h>

#include "device/heap.h"
#include "device/runtime.h"

namespace neuron {

using c10::CachingAllocator::format_size;

void Heap::throw_out_of_memory(size_t bytes, size_t rounded) {
  const size_t most = limit();
  const auto reserved = static_cast<size_t>(stats_.reserved_bytes[0].current);
  const auto allocated = static_cast<size_t>(stats_.allocated_bytes[0].current);
  const size_t free = most - std::min(most, reserved);
  history_.add(MemoryAction::kOom, allocating_for, free, bytes, device_, context_);
  const std::string share =
      fraction_ < 1.0 ? c10::str(" (", fraction_ * 100, "% of the core's HBM)") : std::string();
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "neuron:", device_, " out of memory. Tried to allocate ",
      format_size(bytes), rounded != bytes ? " (" + format_size(rounded) + " rounded)" : "",
      ". One core of ", cluster().name, " has ", format_size(most), share, ", of which ",
      format_size(free), " is free; ", format_size(allocated), " is allocated by tensors and ",
      format_size(reserved - allocated),
      " is reserved but unallocated (fragmented: its largest free block is ",
      format_size(free_blocks_locked().first), ").", largest_allocations());
}

// The largest live allocations: usually the answer to where the memory went.
std::string Heap::largest_allocations() const {
  constexpr size_t kShown = 5;
  std::vector<const Block*> blocks;
  blocks.reserve(used_.size());
  for (const auto& [ptr, block] : used_) {
    blocks.push_back(block);
  }
  const size_t shown = std::min(kShown, blocks.size());
  std::partial_sort(
      blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(shown), blocks.end(),
      [](const Block* a, const Block* b) { return std::pair(b->size, a->ptr) < std::pair(a->size, b->ptr); });
  std::string text = shown == 0 ? "" : " The largest live allocations:";
  for (size_t i = 0; i < shown; ++i) {
    text += c10::str(i == 0 ? " " : ", ", format_size(blocks[i]->requested), " by ", text_of(blocks[i]->owner));
  }
  return shown == 0 ? text : text + ".";
}

std::pair<size_t, size_t> Heap::free_blocks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return free_blocks_locked();
}

std::pair<size_t, size_t> Heap::free_blocks_locked() const {
  size_t largest = 0;
  size_t all = 0;
  for (const Segment* s = segments_; s != nullptr; s = s->next) {
    for (const Block* b = s->first; b != nullptr; b = b->next) {
      if (!b->used) {
        largest = std::max(largest, b->size);
        all += b->size;
      }
    }
  }
  return {largest, all};
}

void Heap::record(MemoryAction action, Name owner, const void* at, size_t bytes) {
  history_.add(action, owner, reinterpret_cast<uintptr_t>(at), bytes, device_, context_);
}

std::pair<std::vector<SegmentState>, std::vector<MemoryEvent>> Heap::snapshot() {
  std::lock_guard<std::mutex> lock(mutex_);
  record(MemoryAction::kSnapshot, 0, nullptr, 0);
  std::vector<SegmentState> segments;
  for (const Segment* s = segments_; s != nullptr; s = s->next) {
    SegmentState state{reinterpret_cast<uintptr_t>(s->ptr), s->size, s->small, s->context, {}};
    for (const Block* b = s->first; b != nullptr; b = b->next) {
      state.blocks.push_back(
          {reinterpret_cast<uintptr_t>(b->ptr), b->size, b->requested, b->used, b->owner, b->context});
    }
    segments.push_back(std::move(state));
  }
  std::sort(segments.begin(), segments.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  return {std::move(segments), history_.events()};
}

void Heap::clear_history() {
  std::lock_guard<std::mutex> lock(mutex_);
  history_.clear();
}

} // namespace neuron
