#include "device/generator.h"

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include "arena.h"

namespace neuron {
namespace {

constexpr size_t kStateBytes = 16;
constexpr uint64_t kMarkWords = uint64_t{1} << 22; // 10 ms from any mark to the next
constexpr uint64_t kStreamWords = uint64_t{1} << 32; // so far one goes along the stream; then all streams are hashed

std::array<at::Generator, kMaxDevices> generators;
std::array<std::atomic<bool>, kMaxDevices> made{};
std::mutex generators_mutex;
uint64_t first_seed = c10::default_rng_seed_val;

// The finalizer of splitmix64: every bit of the input reaches every bit of the output.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

} // namespace

NeuronGenerator::NeuronGenerator(c10::DeviceIndex index, uint64_t seed)
    : c10::GeneratorImpl(
          c10::Device(kNeuron, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(seed) {}

void NeuronGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

void NeuronGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK_VALUE(offset % 4 == 0, "offset must be a multiple of 4, got ", offset);
  offset_ = offset;
}

uint64_t NeuronGenerator::get_offset() const {
  return offset_;
}

uint64_t NeuronGenerator::current_seed() const {
  return seed_;
}

uint64_t NeuronGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void NeuronGenerator::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK_TYPE(
      state.device().is_cpu() && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
          state.layout() == c10::kStrided && state.is_contiguous(),
      "RNG state must be a contiguous torch.ByteTensor on the CPU");
  TORCH_CHECK_VALUE(
      state.numel() == static_cast<int64_t>(kStateBytes), "RNG state of a neuron device has ",
      kStateBytes, " bytes (seed, offset), got ", state.numel());
  TORCH_CHECK_VALUE(
      state.data() != nullptr,
      "RNG state has no memory, as a tensor made under FakeTensorMode has none; expected one of get_rng_state()");
  uint64_t words[2];
  std::memcpy(words, state.data(), kStateBytes);
  seed_ = words[0];
  set_offset(words[1]);
}

c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  auto state = at::detail::empty_cpu(
      {static_cast<int64_t>(kStateBytes)}, at::kByte, std::nullopt, std::nullopt, std::nullopt,
      std::nullopt);
  const uint64_t words[2] = {seed_, offset_};
  std::memcpy(state.mutable_data_ptr(), words, kStateBytes);
  return state.getIntrusivePtr();
}

// At offset 0 it is the seed itself: the first draw after manual_seed equals the CPU's.
uint64_t NeuronGenerator::operator_seed() const {
  return offset_ == 0 ? seed_ : mix(seed_ ^ mix(offset_));
}

void NeuronGenerator::prepare(at::CPUGeneratorImpl& cpu, bool one_word_a_value) {
  if (!one_word_a_value || offset_ == 0 || offset_ >= kStreamWords) {
    cpu.set_current_seed(operator_seed());
    return;
  }
  cpu.set_current_seed(seed_); // also forgets normal samples that were left over
  cpu.set_engine(engine_at_offset());
}

const at::mt19937& NeuronGenerator::engine_at_offset() {
  if (marks_.empty() || marks_seed_ != seed_) {
    engine_ = at::mt19937(seed_);
    engine_at_ = 0;
    marks_.assign(1, engine_);
    marks_seed_ = seed_;
  }
  const uint64_t mark = std::min<uint64_t>(offset_ / kMarkWords, marks_.size() - 1);
  if (engine_at_ > offset_ || engine_at_ < mark * kMarkWords) {
    engine_ = marks_[mark];
    engine_at_ = mark * kMarkWords;
  }
  while (engine_at_ < offset_) {
    engine_();
    if (++engine_at_ == marks_.size() * kMarkWords) {
      marks_.push_back(engine_);
    }
  }
  return engine_;
}

void NeuronGenerator::advance(uint64_t values) {
  offset_ += std::max<uint64_t>((values + 3) / 4 * 4, 4);
}

NeuronGenerator* NeuronGenerator::clone_impl() const {
  auto* copy = new NeuronGenerator(device_.index(), seed_);
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  index = checked_index(index);
  if (!made[index].load(std::memory_order_acquire)) {
    std::lock_guard<std::mutex> lock(generators_mutex);
    if (!made[index].load(std::memory_order_relaxed)) {
      generators[index] = at::make_generator<NeuronGenerator>(index, first_seed);
      made[index].store(true, std::memory_order_release);
    }
  }
  return generators[index];
}

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<NeuronGenerator>(checked_index(index));
}

void seed_all(uint64_t seed) {
  std::lock_guard<std::mutex> lock(generators_mutex);
  first_seed = seed;
  for (int i = 0; i < kMaxDevices; ++i) {
    if (made[i].load(std::memory_order_acquire)) {
      std::lock_guard<std::mutex> generator_lock(generators[i].mutex());
      generators[i].set_current_seed(seed);
    }
  }
}

} // namespace neuron
