#include "distributed/staging.h"

#include <array>
#include <bit>
#include <mutex>
#include <utility>
#include <vector>

#include "arena.h"

namespace neuron {
namespace {

constexpr int kSmallest = 12; // 4 KiB
constexpr size_t kKeepPages = size_t{64} << 20; // larger buffers return their pages when they are freed

std::mutex mutex;
std::array<std::vector<char*>, 48> free_lists; // by power of two; one arena holds a process's engine

} // namespace

Staging::Staging(Arena& arena, size_t bytes) : arena_(&arena) {
  size_class_ = std::max<int>(kSmallest, std::bit_width(bytes == 0 ? 0 : bytes - 1));
  std::lock_guard<std::mutex> lock(mutex);
  auto& list = free_lists[size_class_];
  if (list.empty()) {
    data_ = static_cast<char*>(arena.take_control(size_t{1} << size_class_));
  } else {
    data_ = list.back();
    list.pop_back();
  }
}

Staging::~Staging() {
  if (data_ == nullptr) {
    return;
  }
  const size_t bytes = size_t{1} << size_class_;
  if (bytes > kKeepPages) {
    arena_->punch(arena_->offset(data_), bytes);
  }
  std::lock_guard<std::mutex> lock(mutex);
  free_lists[size_class_].push_back(data_);
}

Staging::Staging(Staging&& other) noexcept
    : arena_(other.arena_),
      data_(std::exchange(other.data_, nullptr)),
      size_class_(other.size_class_) {}

Staging& Staging::operator=(Staging&& other) noexcept {
  std::swap(arena_, other.arena_);
  std::swap(data_, other.data_);
  std::swap(size_class_, other.size_class_);
  return *this;
}

} // namespace neuron
