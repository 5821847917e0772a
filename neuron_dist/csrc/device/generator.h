// The device's random number generator: a seed and an offset, as DTensor and fork_rng expect.
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include "device/runtime.h"

namespace neuron {

// State: 16 bytes, uint64 seed and uint64 offset. A random operator runs on a CPU generator seeded with both
// and then advances the offset by the number of values drawn, rounded up to a multiple of 4.
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
  void advance(uint64_t values);

 private:
  NeuronGenerator* clone_impl() const override;
  uint64_t seed_;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);
// Seeds every device's generator, those of devices not used yet too, without loading the cluster.
void seed_all(uint64_t seed);

} // namespace neuron
