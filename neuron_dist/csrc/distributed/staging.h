// Buffers in the control region, for what has to be copied before peers can reach it: CPU tensors, small
// messages.
#pragma once

#include <cstddef>

namespace neuron {

class Arena;

// A buffer that goes back to the pool by itself. Movable.
class Staging {
 public:
  Staging() = default;
  // At least `bytes`, 64-byte aligned. Throws when the control region is used up.
  Staging(Arena& arena, size_t bytes);
  ~Staging();
  Staging(Staging&& other) noexcept;
  Staging& operator=(Staging&& other) noexcept;

  char* data() const {
    return data_;
  }

 private:
  Arena* arena_ = nullptr;
  char* data_ = nullptr;
  int size_class_ = 0;
};

} // namespace neuron
