// Free blocks of memory, by size.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/memory_history.h"

namespace neuron {

struct Segment;

// A piece of a segment, in use or free. Lives outside the arena, so that a forked child may drop tensors.
struct Block {
  char* ptr = nullptr;
  size_t size = 0;
  size_t requested = 0;
  bool used = false;
  uint16_t owner = 0; // name of what it was allocated for
  Context context; // where, if memory history is kept
  Segment* segment = nullptr;
  Block* prev = nullptr; // neighbours in the segment, by address
  Block* next = nullptr;
  Block* bin_prev = nullptr; // list of the bin, when free
  Block* bin_next = nullptr;
};

// What was taken from the capacity at once.
struct Segment {
  char* ptr = nullptr;
  size_t size = 0;
  bool small = false;
  size_t used_blocks = 0;
  Block* first = nullptr;
  Context context;
  Segment* prev = nullptr;
  Segment* next = nullptr;
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

} // namespace neuron
