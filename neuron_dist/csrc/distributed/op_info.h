// What one operation is: the words that errors, hooks and the flight recorder use for it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <c10/core/ScalarType.h>

namespace neuron {

enum class Op : uint8_t {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv,
};
const char* op_name(Op op); // "all_reduce"

// In the order of c10d::ReduceOp::RedOpType.
enum class Reduction : uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum, kNone };
const char* reduction_name(Reduction reduction); // "SUM"

struct OpInfo {
  Op op = Op::kBarrier;
  Reduction reduction = Reduction::kNone;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  uint64_t seq = 0; // collectives: position in the group's order; send/recv: position in the channel
  int64_t numel = 0; // -1: ranks may differ
  int32_t root = -1; // rooted ops: group rank; send/recv: the other side, -1 for any
  int32_t tag = 0;
  const std::string* group = nullptr; // outlives the op

  // --- simulated time, in nanoseconds
  uint32_t work = 0; // the call that it is of: several operations may be
  uint32_t ledger_group = UINT32_MAX;
  int32_t stream = -1; // on which it was called; -1: the host
  bool first_piece = true; // a staged tensor goes in pieces: the first stands for all
  bool cpu = false;
  bool uneven = false;
  bool eager = false; // a send that does not wait for its receiver
  uint64_t bytes = 0; // of the whole collective, as nccom-test counts them
  int64_t ready_ns = 0; // when this rank has arrived
  int64_t cost_ns = 0; // what it lasts, by this rank's account
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  std::array<char, 32> algorithm{};

  // Each hook's own word about this op; index is the order of registration.
  std::array<uint64_t, 4> cookies{};

  // "all_reduce(SUM, float32, numel=4)"
  std::string describe() const;
};

const char* dtype_name(c10::ScalarType dtype); // "float32", as Python prints it

struct Failure {
  enum Kind { kMismatch, kPeerLost, kTimeout, kAborted, kInvalid };
  Kind kind = kInvalid;
  std::string message;
};

// Sees every operation of the engine. Tracing, simulated time, fidelity rules and faults are hooks, so that
// the engine has no branch for any of them. Called on whichever thread drives; must not block or throw.
class Hook {
 public:
  virtual ~Hook() = default;
  virtual void before(OpInfo& info) = 0; // when it is enqueued
  virtual void after(const OpInfo& info) = 0; // when it has completed
  virtual void abort(const OpInfo& info, const Failure& failure) = 0; // when it has failed
};

} // namespace neuron
