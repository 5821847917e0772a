// What the ranks of a group keep in shared memory. Plain data and atomics only: several processes map it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "distributed/op_info.h"

namespace neuron {

// How many collectives of a group may be under way; a slot is used again once all ranks have departed.
constexpr uint64_t kSlots = 16;
constexpr uint64_t kInlineBytes = 16 * 1024; // input of a small collective, inside its descriptor
// Up to here a message is copied out at once and the send is complete, as NCCL's and Gloo's small sends are.
constexpr uint64_t kEagerBytes = 64 * 1024;
constexpr uint64_t kChannelEntries = 32; // sends under way from one rank to another

// A place in the arena of the rank that posts it.
struct Span {
  uint64_t offset;
  uint64_t bytes;
};

// What has to be equal on every rank before a byte moves.
struct Fingerprint {
  uint64_t seq;
  uint64_t sizes_hash; // of the list of sizes, where the op takes one
  uint64_t plan_hash; // of the order of additions
  int64_t numel;
  int32_t root;
  uint32_t piece; // a staged tensor goes in pieces, each a collective of its own
  Op op;
  Reduction reduction;
  c10::ScalarType dtype;
  uint8_t staged;

  bool operator==(const Fingerprint&) const = default;
};

struct alignas(64) Descriptor {
  std::atomic<uint64_t> posted; // seq + 1 once the rank has arrived
  std::atomic<uint64_t> departed; // seq + 1 once the rank has done its share
  Fingerprint print;
  double factor; // PREMUL_SUM
  // Simulated time: it starts when the last rank is ready and lasts what the dearest account says.
  int64_t ready_ns;
  int64_t cost_ns;
  std::array<char, 32> algorithm; // of rank 0's account
  uint64_t n_in; // spans in use: 1, or one a rank
  Span out; // where peers store results (all_reduce, reduce); else only its size counts
  // Followed by Span in[ranks] and uint64_t expected_bytes[ranks].
};

// Each rank increments once an op; the count says when all are there. In rank 0's block.
struct alignas(64) Counter {
  std::atomic<uint64_t> value;
};

struct Central {
  Counter arrived[kSlots];
  Counter departed[kSlots];
  // The first failure that peers cannot find out by themselves (abort, timeout, refused message).
  std::atomic<uint32_t> poison; // 0 none, 1 being written, 2 stands
  uint32_t poison_kind;
  char poison_text[4096];
};

struct alignas(64) ChannelEntry {
  enum State : uint32_t { kFree, kPosted, kTaken };
  std::atomic<uint32_t> state;
  int32_t tag;
  uint64_t id; // order within the channel
  Span data;
  int64_t numel;
  c10::ScalarType dtype;
  bool eager;
  // Simulated time: when it leaves the sender and how long it takes, and the receiver's answer when it has come.
  int64_t leaves_ns;
  int64_t cost_ns;
  int64_t start_ns;
  int64_t end_ns;
};

// Offsets inside one rank's block of a group of `ranks`.
struct GroupLayout {
  explicit GroupLayout(uint64_t ranks)
      : descriptor_stride(align64(sizeof(Descriptor) + ranks * (sizeof(Span) + sizeof(uint64_t)))),
        descriptors(align64(sizeof(Central))),
        inlines(descriptors + kSlots * descriptor_stride),
        channels(inlines + kSlots * kInlineBytes),
        bytes(channels + ranks * kChannelEntries * sizeof(ChannelEntry)) {}

  static constexpr uint64_t align64(uint64_t n) {
    return (n + 63) / 64 * 64;
  }

  uint64_t descriptor_stride;
  uint64_t descriptors;
  uint64_t inlines;
  uint64_t channels; // [destination][entry]
  uint64_t bytes;
};

} // namespace neuron
