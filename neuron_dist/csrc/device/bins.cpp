#include "device/bins.h"

namespace neuron {

// Eight bins a power of two: the bin of a size class begins at that class exactly.
size_t Bins::bin_of(size_t size) {
  const auto log2 = static_cast<size_t>(63 - __builtin_clzll(size));
  return log2 * 8 + ((size >> (log2 - 3)) & 7);
}

void Bins::push(Block* block) {
  const size_t bin = bin_of(block->size);
  block->bin_prev = nullptr;
  block->bin_next = heads_[bin];
  if (heads_[bin] != nullptr) {
    heads_[bin]->bin_prev = block;
  }
  heads_[bin] = block;
  bitmap_[bin / 64] |= uint64_t{1} << (bin % 64);
}

void Bins::remove(Block* block) {
  const size_t bin = bin_of(block->size);
  if (block->bin_prev != nullptr) {
    block->bin_prev->bin_next = block->bin_next;
  } else {
    heads_[bin] = block->bin_next;
    if (heads_[bin] == nullptr) {
      bitmap_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
    }
  }
  if (block->bin_next != nullptr) {
    block->bin_next->bin_prev = block->bin_prev;
  }
  block->bin_prev = block->bin_next = nullptr;
}

Block* Bins::find(size_t size) const {
  size_t bin = bin_of(size);
  uint64_t word = bitmap_[bin / 64] & (~uint64_t{0} << (bin % 64));
  size_t at = bin / 64;
  while (true) {
    while (word != 0) {
      const size_t found = at * 64 + static_cast<size_t>(__builtin_ctzll(word));
      Block* best = nullptr;
      for (Block* b = heads_[found]; b != nullptr; b = b->bin_next) {
        if (b->size == size) {
          return b;
        }
        if (b->size > size && (best == nullptr || b->size < best->size)) {
          best = b;
        }
      }
      if (best != nullptr) {
        return best;
      }
      word &= word - 1;
    }
    if (++at == bitmap_.size()) {
      return nullptr;
    }
    word = bitmap_[at];
  }
}

} // namespace neuron
