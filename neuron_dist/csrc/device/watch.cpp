#include "device/watch.h"

#include <memory>
#include <mutex>
#include <utility>

#include <c10/core/ScalarType.h>

namespace neuron {
namespace {

std::mutex mutex;
std::shared_ptr<Watcher> current;

} // namespace

std::atomic<bool> watching_operators{false};

void set_watcher(Watcher watcher) {
  std::shared_ptr<Watcher> next = watcher ? std::make_shared<Watcher>(std::move(watcher)) : nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  watching_operators.store(next != nullptr);
  current.swap(next);
}

bool tell_watcher(const std::string& op, at::ScalarType dtype, uint8_t seen) {
  std::shared_ptr<Watcher> watcher;
  {
    std::lock_guard<std::mutex> lock(mutex);
    watcher = current;
  }
  const bool known = dtype != at::ScalarType::Undefined; // not where all tensors are 0-dim
  return watcher != nullptr && (*watcher)(op, known ? std::string(c10::getDtypeNames(dtype).first) : "", seen);
}

bool beyond_32_bits(const at::Tensor& cpu) {
  if (!cpu.is_non_overlapping_and_dense()) {
    return false; // a view; what was computed was dense
  }
  const auto* values = cpu.const_data_ptr<int64_t>();
  // Shifted by 2^31, values of int32 are those without upper bits: an addition and an OR each, which vectorize.
  uint64_t bits = 0;
  const int64_t count = cpu.numel();
  for (int64_t i = 0; i < count; ++i) {
    bits |= static_cast<uint64_t>(values[i]) + (uint64_t{1} << 31);
  }
  return bits >> 32 != 0;
}

} // namespace neuron
