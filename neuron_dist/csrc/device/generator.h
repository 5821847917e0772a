// The device's random number generator: a seed and an offset, as DTensor and fork_rng expect.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include "device/runtime.h"

namespace neuron {

// State: 16 bytes, uint64 seed and uint64 offset. A random operator runs on a CPU generator that both determine
// and then advances the offset by the number of values drawn, rounded up to a multiple of 4.
//
// An operator that takes one 32-bit word a value gets the words from `offset` on of the seed's one long stream, as
// the CPU's generator would: shards that are drawn at their own offsets then are the pieces of the whole. Others
// get a stream of their own, from a hash of seed and offset, so that no word is used twice.
struct NeuronGenerator final : c10::GeneratorImpl {
  explicit NeuronGenerator(c10::DeviceIndex index, uint64_t seed = c10::default_rng_seed_val);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // What the CPU generator of the next random operator is seeded with.
  uint64_t operator_seed() const;
  // Makes `cpu` draw what the next operator draws. Its lock, and this one's, are held.
  void prepare(at::CPUGeneratorImpl& cpu, bool one_word_a_value);
  void advance(uint64_t values);

 private:
  NeuronGenerator* clone_impl() const override;
  const at::mt19937& engine_at_offset();
  uint64_t seed_;
  uint64_t offset_ = 0;
  // The engine of `marks_seed_` after every kMarkWords words, and the last one that was asked for.
  uint64_t marks_seed_ = 0;
  std::vector<at::mt19937> marks_;
  at::mt19937 engine_;
  uint64_t engine_at_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);
// Seeds every device's generator, those of devices not used yet too, without loading the cluster.
void seed_all(uint64_t seed);

} // namespace neuron
