#include "device/heap.h"

#include <algorithm>
#include <array>
#include <iterator>

#include <c10/util/Exception.h>

#include "arena.h"
#include "device/runtime.h"

namespace neuron {

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatType;

constexpr size_t kMinBlock = 256;
constexpr size_t kPage = 4096;
constexpr size_t kSmallLimit = size_t{1} << 20; // requests below it go to the small pool
constexpr size_t kExactLimit = size_t{16} << 20; // requests from here up are not rounded to a class
constexpr size_t kSmallSegment = size_t{2} << 20;
constexpr size_t kLargeSegment = size_t{32} << 20;
// A rest smaller than this stays with its block: splitting it off would only leave crumbs.
constexpr size_t kLargeRest = size_t{1} << 20;

std::array<std::atomic<Heap*>, kMaxDevices> heaps{};
std::mutex create_mutex;
std::atomic<size_t> capacity_override{0};
std::atomic<Heap*> last_used{nullptr}; // what holding() tries first

constexpr size_t round_up(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

template <typename Array>
void increase(Array& stat, size_t type, size_t amount) {
  stat[0].increase(amount);
  stat[type].increase(amount);
}

template <typename Array>
void decrease(Array& stat, size_t type, size_t amount) {
  stat[0].decrease(amount);
  stat[type].decrease(amount);
}

template <typename F>
void each_stat(c10::CachingDeviceAllocator::DeviceStats& s, F f) {
  for (auto* array : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes,
                      &s.reserved_bytes, &s.active_bytes, &s.inactive_split_bytes,
                      &s.requested_bytes}) {
    for (Stat& stat : *array) {
      f(stat);
    }
  }
}

// A free block counts as "inactive split" while its segment cannot be released.
bool is_split(const Block* block) {
  return block->prev != nullptr || block->next != nullptr;
}

} // namespace

// Holds the lock, and the stack that goes with what is recorded under it.
class Heap::Request {
 public:
  Request(Heap& heap, ContextLevel level)
      : heap_(heap), context_(MemoryHistory::context_for(level)), lock_(heap.mutex_) {
    heap_.context_ = std::move(context_);
  }
  ~Request() {
    heap_.context_ = nullptr;
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

 private:
  Heap& heap_;
  Context context_; // taken before the lock: it needs Python's
  const std::lock_guard<std::mutex> lock_;
};

Heap::Heap(int device) : device_(device), arena_(Arena::get(device)) {
  small_.stat_type = static_cast<size_t>(StatType::SMALL_POOL);
  large_.stat_type = static_cast<size_t>(StatType::LARGE_POOL);
  addresses_.emplace(0, kHeapBytes);
  note_device_used(static_cast<c10::DeviceIndex>(device));
}

Heap* Heap::find(int device) {
  return heaps[device].load(std::memory_order_acquire);
}

Heap& Heap::get(int device) {
  TORCH_CHECK(device >= 0 && device < kMaxDevices, "neuron: no device of index ", device);
  if (Heap* heap = find(device)) {
    if (C10_UNLIKELY(Arena::in_bad_fork())) {
      Arena::get(device); // raises
    }
    return *heap;
  }
  std::lock_guard<std::mutex> lock(create_mutex);
  if (Heap* heap = find(device)) {
    return *heap;
  }
  auto* heap = new Heap(device); // lives as long as the process, as its arena does
  heaps[device].store(heap, std::memory_order_release);
  return *heap;
}

size_t Heap::round_size(size_t bytes) {
  if (bytes >= kExactLimit) {
    return round_up(bytes, kPage);
  }
  if (bytes <= kMinBlock) {
    return kMinBlock;
  }
  const size_t step = std::max(kMinBlock, (size_t{1} << (63 - __builtin_clzll(bytes))) / 8);
  return round_up(bytes, step);
}

size_t Heap::limit() const {
  const size_t override = capacity_override.load(std::memory_order_relaxed);
  const size_t capacity = override != 0 ? override : cluster().hbm_bytes;
  return static_cast<size_t>(static_cast<double>(capacity) * fraction_);
}

void Heap::set_capacity_override(size_t bytes) {
  capacity_override.store(bytes);
}

// First fit. Ranges are few (segments that were released), and the space is many times the capacity.
char* Heap::take_address(size_t bytes) {
  for (auto it = addresses_.begin(); it != addresses_.end(); ++it) {
    if (it->second >= bytes) {
      const auto [offset, size] = *it;
      addresses_.erase(it);
      if (size > bytes) {
        addresses_.emplace(offset + bytes, size - bytes);
      }
      return arena_.heap() + offset;
    }
  }
  return nullptr;
}

void Heap::give_address(char* ptr, size_t bytes) {
  auto offset = static_cast<size_t>(ptr - arena_.heap());
  auto next = addresses_.lower_bound(offset);
  if (next != addresses_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = addresses_.erase(next);
  }
  if (next != addresses_.begin()) {
    auto prev = std::prev(next);
    if (prev->first + prev->second == offset) {
      prev->second += bytes;
      return;
    }
  }
  addresses_.emplace(offset, bytes);
}

Block* Heap::new_segment(Pool& pool, bool small, size_t rounded) {
  size_t size = small ? kSmallSegment : rounded < kExactLimit ? kLargeSegment : rounded;
  const auto reserved = static_cast<size_t>(stats_.reserved_bytes[0].current);
  const size_t most = limit();
  if (reserved + size > most) {
    // The last bit of the capacity is worth using even where a whole segment no longer fits.
    size = round_up(rounded, kPage);
    if (reserved + size > most) {
      return nullptr;
    }
  }
  char* ptr = take_address(size);
  if (ptr == nullptr) {
    return nullptr;
  }
  auto* segment = new Segment{ptr, size, small, 0, nullptr, context_, nullptr, segments_};
  if (segments_ != nullptr) {
    segments_->prev = segment;
  }
  segments_ = segment;
  auto* block = new Block;
  block->ptr = ptr;
  block->size = size;
  block->segment = segment;
  segment->first = block;
  increase(stats_.segment, pool.stat_type, 1);
  increase(stats_.reserved_bytes, pool.stat_type, size);
  ++stats_.num_device_alloc;
  record(MemoryAction::kSegmentAlloc, allocating_for, ptr, size);
  return block;
}

// Takes a block out of its bin (or a new segment) and cuts it to size.
Block* Heap::try_allocate(Pool& pool, bool small, size_t rounded) {
  Block* block = pool.bins.find(rounded);
  if (block != nullptr) {
    pool.bins.remove(block);
    if (is_split(block)) {
      decrease(stats_.inactive_split, pool.stat_type, 1);
      decrease(stats_.inactive_split_bytes, pool.stat_type, block->size);
    }
  } else {
    block = new_segment(pool, small, rounded);
    if (block == nullptr) {
      return nullptr;
    }
  }
  const size_t rest = block->size - rounded;
  if (rest >= (small ? kMinBlock : kLargeRest)) {
    auto* tail = new Block;
    tail->ptr = block->ptr + rounded;
    tail->size = rest;
    tail->segment = block->segment;
    tail->prev = block;
    tail->next = block->next;
    if (tail->next != nullptr) {
      tail->next->prev = tail;
    }
    block->next = tail;
    block->size = rounded;
    pool.bins.push(tail);
    increase(stats_.inactive_split, pool.stat_type, 1);
    increase(stats_.inactive_split_bytes, pool.stat_type, rest);
  }
  return block;
}

Heap* Heap::holding(const void* ptr) {
  Heap* last = last_used.load(std::memory_order_acquire);
  if (C10_LIKELY(last != nullptr && last->arena_.contains(ptr))) {
    return last;
  }
  for (auto& slot : heaps) {
    Heap* heap = slot.load(std::memory_order_acquire);
    if (heap != nullptr && heap->arena_.contains(ptr)) {
      last_used.store(heap, std::memory_order_release);
      return heap;
    }
  }
  return nullptr;
}

void* Heap::allocate(size_t bytes) {
  const size_t rounded = round_size(bytes);
  cluster(); // loads it, if need be, before the lock: that takes Python's own lock
  const Request request(*this, ContextLevel::kState);
  Block* block = allocate_locked(bytes, rounded);
  used_.emplace(block->ptr, block);
  return block->ptr;
}

Block* Heap::allocate_locked(size_t bytes, size_t rounded) {
  const bool small = rounded < kSmallLimit;
  Pool& pool = small ? small_ : large_;
  Block* block = try_allocate(pool, small, rounded);
  if (C10_UNLIKELY(block == nullptr)) {
    ++stats_.num_alloc_retries;
    release_cached();
    block = try_allocate(pool, small, rounded);
    if (block == nullptr) {
      ++stats_.num_ooms;
      throw_out_of_memory(bytes, rounded);
    }
  }
  block->used = true;
  block->requested = bytes;
  ++block->segment->used_blocks;
  increase(stats_.allocation, pool.stat_type, 1);
  increase(stats_.active, pool.stat_type, 1);
  increase(stats_.allocated_bytes, pool.stat_type, block->size);
  increase(stats_.active_bytes, pool.stat_type, block->size);
  increase(stats_.requested_bytes, pool.stat_type, bytes);
  const auto live = static_cast<size_t>(stats_.allocated_bytes[0].current);
  live_bytes_.store(live, std::memory_order_relaxed);
  block->owner = allocating_for;
  block->context = context_;
  record(MemoryAction::kAlloc, block->owner, block->ptr, block->size);
  account(block->owner, static_cast<int64_t>(block->size));
  if (live > step_peak_) {
    step_peak_ = live;
    at_peak_ = true;
  }
  return block;
}

void Heap::account(Name name, int64_t bytes) {
  if (C10_UNLIKELY(name >= held_.size())) {
    held_.resize(name + size_t{64}, 0);
  }
  held_[name] += static_cast<uint64_t>(bytes);
}

// Before the first free after a peak. Peaks within a hundredth of the last one are not worth a copy.
void Heap::note_peak() {
  at_peak_ = false;
  if (step_peak_ - step_peak_ / 100 > noted_peak_) {
    held_at_peak_ = held_;
    noted_peak_ = step_peak_;
  }
}

void Heap::set_owner(void* ptr, Name name) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = used_.find(ptr);
  if (it != used_.end() && it->second->owner != name) {
    const auto bytes = static_cast<int64_t>(it->second->size);
    account(it->second->owner, -bytes);
    account(name, bytes);
    it->second->owner = name;
  }
}

Heap::Peak Heap::take_step_peak() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (at_peak_) {
    note_peak();
  }
  Peak peak{step_peak_, {}};
  for (size_t i = 0; i < held_at_peak_.size(); ++i) {
    if (held_at_peak_[i] > 0) {
      peak.holders.emplace_back(static_cast<Name>(i), held_at_peak_[i]);
    }
  }
  std::sort(peak.holders.begin(), peak.holders.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  step_peak_ = live_bytes();
  at_peak_ = true;
  noted_peak_ = 0;
  held_at_peak_.clear();
  return peak;
}

void Heap::free(void* ptr) {
  // In a forked child the arena is gone and its lock may be held for ever.
  if (C10_UNLIKELY(Arena::in_bad_fork())) {
    return;
  }
  const Request request(*this, ContextLevel::kAll);
  const auto it = used_.find(ptr);
  TORCH_INTERNAL_ASSERT(it != used_.end(), "neuron: freed memory that is not allocated");
  Block* block = it->second;
  used_.erase(it);
  free_locked(block);
}

size_t Heap::size_of(void* ptr) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = used_.find(ptr);
  return it == used_.end() ? 0 : it->second->size;
}

void Heap::free_locked(Block* block) {
  if (at_peak_) {
    note_peak();
  }
  account(block->owner, -static_cast<int64_t>(block->size));
  record(MemoryAction::kFreeRequested, block->owner, block->ptr, block->size);
  record(MemoryAction::kFreeCompleted, block->owner, block->ptr, block->size); // no stream is behind the host
  block->context = nullptr;
  Pool& pool = block->segment->small ? small_ : large_;
  decrease(stats_.allocation, pool.stat_type, 1);
  decrease(stats_.active, pool.stat_type, 1);
  decrease(stats_.allocated_bytes, pool.stat_type, block->size);
  decrease(stats_.active_bytes, pool.stat_type, block->size);
  decrease(stats_.requested_bytes, pool.stat_type, block->requested);
  live_bytes_.store(
      static_cast<size_t>(stats_.allocated_bytes[0].current), std::memory_order_relaxed);
  ++tensor_frees_;
  --block->segment->used_blocks;
  block->used = false;
  block->requested = 0;
  for (Block* other : {block->prev, block->next}) {
    if (other == nullptr || other->used) {
      continue;
    }
    pool.bins.remove(other);
    decrease(stats_.inactive_split, pool.stat_type, 1);
    decrease(stats_.inactive_split_bytes, pool.stat_type, other->size);
    Block* low = other == block->prev ? other : block;
    Block* high = other == block->prev ? block : other;
    low->size += high->size;
    low->next = high->next;
    if (low->next != nullptr) {
      low->next->prev = low;
    }
    delete high;
    block = low;
  }
  pool.bins.push(block);
  if (is_split(block)) {
    increase(stats_.inactive_split, pool.stat_type, 1);
    increase(stats_.inactive_split_bytes, pool.stat_type, block->size);
  }
}

// Returns every wholly free segment to the system.
void Heap::release_cached() {
  for (Segment* segment = segments_; segment != nullptr;) {
    Segment* next = segment->next;
    if (segment->used_blocks == 0) {
      Pool& pool = segment->small ? small_ : large_;
      Block* block = segment->first;
      pool.bins.remove(block);
      record(MemoryAction::kSegmentFree, 0, segment->ptr, segment->size);
      arena_.punch(arena_.offset(segment->ptr), segment->size);
      give_address(segment->ptr, segment->size);
      decrease(stats_.segment, pool.stat_type, 1);
      decrease(stats_.reserved_bytes, pool.stat_type, segment->size);
      ++stats_.num_device_free;
      (segment->prev != nullptr ? segment->prev->next : segments_) = next;
      if (next != nullptr) {
        next->prev = segment->prev;
      }
      delete block;
      delete segment;
    }
    segment = next;
  }
}

void Heap::empty_cache() {
  if (Arena::in_bad_fork()) {
    return;
  }
  const Request request(*this, ContextLevel::kAlloc);
  release_cached();
}

c10::CachingDeviceAllocator::DeviceStats Heap::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

int64_t Heap::tensor_frees() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return tensor_frees_;
}

void Heap::reset_peak() {
  std::lock_guard<std::mutex> lock(mutex_);
  each_stat(stats_, [](Stat& s) { s.reset_peak(); });
}

void Heap::reset_accumulated() {
  std::lock_guard<std::mutex> lock(mutex_);
  each_stat(stats_, [](Stat& s) { s.reset_accumulated(); });
  stats_.num_alloc_retries = stats_.num_ooms = 0;
  stats_.num_device_alloc = stats_.num_device_free = 0;
  tensor_frees_ = 0;
}

std::pair<size_t, size_t> Heap::memory_info() const {
  cluster();
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t most = limit();
  return {most - std::min(most, static_cast<size_t>(stats_.reserved_bytes[0].current)), most};
}

void Heap::set_fraction(double fraction) {
  TORCH_CHECK_VALUE(
      fraction > 0 && fraction <= 1, "neuron: memory fraction is ", fraction,
      ", expected above 0 and at most 1");
  std::lock_guard<std::mutex> lock(mutex_);
  fraction_ = fraction;
}

void Heap::check() const {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t reserved = 0;
  size_t allocated = 0;
  size_t split = 0;
  for (const Segment* s = segments_; s != nullptr; s = s->next) {
    reserved += s->size;
    const char* at = s->ptr;
    size_t used = 0;
    const Block* before = nullptr;
    for (const Block* b = s->first; b != nullptr; before = b, b = b->next) {
      TORCH_CHECK(b->ptr == at && b->prev == before && b->segment == s, "blocks do not join");
      TORCH_CHECK(b->size % kMinBlock == 0, "odd block size");
      TORCH_CHECK(b->used || before == nullptr || before->used, "free neighbours not merged");
      at += b->size;
      used += b->used ? 1 : 0;
      allocated += b->used ? b->size : 0;
      split += !b->used && is_split(b) ? b->size : 0;
    }
    TORCH_CHECK(at == s->ptr + s->size && used == s->used_blocks, "segment does not add up");
  }
  const auto same = [](size_t a, const Stat& b) { return static_cast<int64_t>(a) == b.current; };
  TORCH_CHECK(same(reserved, stats_.reserved_bytes[0]), "reserved bytes");
  TORCH_CHECK(same(used_.size(), stats_.allocation[0]), "allocations");
  TORCH_CHECK(same(allocated, stats_.allocated_bytes[0]), "allocated bytes");
  TORCH_CHECK(same(split, stats_.inactive_split_bytes[0]), "inactive split bytes");
}

} // namespace neuron
