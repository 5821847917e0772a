// One process group on this machine: its queue of collectives, its channels of messages, and how they advance.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include "distributed/op_info.h"
#include "distributed/peers.h"
#include "distributed/plan.h"
#include "distributed/shared_layout.h"
#include "distributed/staging.h"
#include "distributed/sync.h"

namespace neuron {

// Told once when an operation has ended; `failure` is nullptr on success.
struct Completion : c10::intrusive_ptr_target {
  virtual void op_ended(const OpInfo& info, const Failure* failure) = 0;
  // Whether op_ended() may run code of the user, which may wait for other operations in turn.
  virtual bool calls_back() const = 0;
};

struct Buffer {
  char* data = nullptr;
  uint64_t bytes = 0;
};

struct Operation {
  OpInfo info;
  std::chrono::milliseconds timeout{};
  TimePoint deadline; // when it was enqueued + timeout
  c10::intrusive_ptr<Completion> completion;
};

struct Collective : Operation {
  c10::SmallVector<Buffer, 4> in; // one, or one a rank
  c10::SmallVector<Buffer, 4> out; // one, or one a rank
  c10::SmallVector<uint64_t, 4> expected_bytes; // of what each rank sends me, where I must know it
  uint64_t sizes_hash = 0;
  std::shared_ptr<const Plan> plan; // reductions
  // Where this piece lies in the whole tensor (reduce_scatter: in the rank's segment) that the plan divides.
  int64_t plan_offset = 0;
  int64_t plan_numel = 0;
  double factor = 1; // PREMUL_SUM
  bool fp32_accumulation = false;
  uint32_t piece = 0;
  bool staged = false; // tensors outside the arena: every rank must say the same

  // set when it is posted
  bool small = false; // the input travels in the descriptor
  Staging staging_in;
  Staging staging_out;
  char* shared_out = nullptr;
};

struct Send : Operation {
  Buffer data;
  int32_t dst = 0;
  Staging bounce;
  ChannelEntry* entry = nullptr;
};

struct Recv : Operation {
  Buffer data;
  int32_t src = -1; // -1: any
};

using AnyOperation =
    std::variant<std::unique_ptr<Collective>, std::unique_ptr<Send>, std::unique_ptr<Recv>>;

// Ended operations, to be told after the engine's lock has been given up.
struct Ended {
  Operation operation;
  std::optional<Failure> failure;
};

// All methods are called under the engine's drive lock, except those that say otherwise.
class Group {
 public:
  // `blocks[r]` is the offset of rank r's group block in its arena; `peers[rank]` is nullptr.
  Group(
      std::string name, int rank, std::vector<int> global_ranks, std::vector<Peer*> peers,
      const std::vector<uint64_t>& blocks, Peers& process);

  // As errors print it. Constant once the first operation has been enqueued.
  const std::string& name() const {
    return name_;
  }
  void describe_as(const std::string& description) {
    constexpr size_t kReadable = 16; // torch names split groups by a hash
    name_ = name_.size() > kReadable ? description : name_ + " (" + description + ")";
  }
  int rank() const {
    return rank_;
  }
  int size() const {
    return static_cast<int>(peers_.size());
  }
  int global_rank(int rank) const {
    return global_ranks_[rank];
  }
  // Thread-safe: whether peers can reach this memory.
  bool is_shared(const void* data) const;

  // Thread-safe, and never waits for a thread that drives. `started` sees the operation with its sequence
  // number before anything else happens to it.
  void enqueue(AnyOperation op, const std::function<void(OpInfo&)>& started);
  // Thread-safe.
  bool has_failed() const {
    return failed_.load(std::memory_order_acquire);
  }

  // Posts what can be posted, so that peers see this rank's arrival, but does no share of any work.
  void arrive(std::vector<Ended>& ended);
  // Does whatever can be done now; true when something was. Ended operations go to `ended`.
  bool progress(std::vector<Ended>& ended);
  // Nothing enqueued is unfinished. Thread-safe.
  bool idle() const {
    return open_.load(std::memory_order_acquire) == 0;
  }
  // Fails what cannot end any more: peers that are gone, poison, deadlines. True when something failed.
  bool check_health(TimePoint now, std::vector<Ended>& ended);
  TimePoint next_deadline() const;
  // Fails everything under way and all that comes later. `tell_peers`: they raise too.
  void fail(const Failure& failure, bool tell_peers, std::vector<Ended>& ended);
  const std::optional<Failure>& failure() const {
    return failure_;
  }
  // Who has not arrived for the collective `seq`, as group ranks.
  std::vector<int> missing(uint64_t seq) const;
  // Collectives enqueued so far. Thread-safe.
  uint64_t sequence() const {
    return next_seq_.load();
  }
  // "rank 2 (pid 4711)", for any rank of the group.
  std::string describe_rank(int rank) const;

 private:
  void take_inbox(std::vector<Ended>& ended);
  // collective.cpp
  bool post_collectives();
  bool progress_collectives(std::vector<Ended>& ended);
  bool can_post(const Collective& op) const;
  void post(Collective& op);
  bool arrived(uint64_t seq) const;
  bool all_departed(uint64_t seq) const;
  std::string find_mismatch(const Collective& op) const;
  void keep_time(Collective& op);
  void execute(Collective& op);
  void execute_reduction(Collective& op, int64_t lo, int64_t hi, int64_t part_base, int64_t part_numel,
      size_t first_program, size_t n_programs, int span, c10::ArrayRef<char*> outputs);
  bool must_wait_for_departures(const Collective& op) const;
  void finish(Collective& op);
  // p2p.cpp
  bool progress_messages(std::vector<Ended>& ended);
  bool post_sends(std::vector<Ended>& ended);
  bool reap_sends(std::vector<Ended>& ended);
  bool match_recvs(std::vector<Ended>& ended);
  ChannelEntry* find_posted(int src, int32_t tag) const;
  // group.cpp
  std::string timeout_message(const Operation& op, const std::vector<int>& waiting_for, const char* what) const;
  void ring_all();
  void ring(int rank);
  std::optional<Failure> poison() const;
  void end(Operation& op, std::vector<Ended>& ended, const Failure* failure = nullptr);

  Descriptor& descriptor(int rank, uint64_t seq) const {
    return *reinterpret_cast<Descriptor*>(
        blocks_[rank] + layout_.descriptors + seq % kSlots * layout_.descriptor_stride);
  }
  Span* spans(Descriptor& d) const {
    return reinterpret_cast<Span*>(&d + 1);
  }
  uint64_t* expected(Descriptor& d) const {
    return reinterpret_cast<uint64_t*>(spans(d) + size());
  }
  ChannelEntry* channel(int src, int dst) const {
    return reinterpret_cast<ChannelEntry*>(blocks_[src] + layout_.channels) + dst * kChannelEntries;
  }
  // What rank `rank` posted as its span `index`, in this process's mapping.
  char* at(int rank, const Span& span) const {
    return arenas_[rank] + span.offset;
  }

  std::string name_;
  int rank_;
  std::vector<int> global_ranks_;
  std::vector<Peer*> peers_;
  std::vector<char*> arenas_;
  std::vector<char*> blocks_;
  Peers& process_;
  GroupLayout layout_;
  Central* central_;
  uint64_t inline_limit_;

  std::mutex inbox_mutex_;
  std::vector<AnyOperation> inbox_; // guarded by inbox_mutex_, as are the numbers below
  std::atomic<bool> inbox_full_{false};
  std::atomic<int> open_{0}; // operations that have not ended
  std::atomic<uint64_t> next_seq_{0};
  std::vector<uint64_t> next_message_; // by destination
  std::vector<int64_t> channel_free_ns_; // by destination: simulated time at which the last message has left

  std::deque<std::unique_ptr<Collective>> queue_;
  size_t posted_ = 0; // of the queue's front
  size_t executed_ = 0;
  size_t staged_ = 0; // posted collectives that hold staging
  int64_t ended_ns_ = 0; // simulated time at which the last executed collective ended

  std::vector<std::deque<std::unique_ptr<Send>>> unsent_; // by destination, in order
  size_t unsent_count_ = 0;
  std::vector<std::unique_ptr<Send>> sent_; // posted, not taken yet
  std::deque<std::unique_ptr<Recv>> recvs_;

  std::optional<Failure> failure_;
  std::atomic<bool> failed_{false};
};

} // namespace neuron
