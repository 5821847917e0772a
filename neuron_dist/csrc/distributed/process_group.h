// c10d::Backend `neuron`: turns c10d's calls into operations of the engine.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/engine.h"
#include "distributed/work.h"

namespace neuron {

class ProcessGroupNeuron : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("neuron", timeout) {}
    // 16- and 8-bit floats: add in float32 and round once, instead of rounding after every hop.
    bool fp32_accumulation = false;
    std::string algorithm; // of collectives.algorithms, for this group's reductions; empty: Neuron's choice
    int device_index = 0; // of the arena that holds this rank's tensors
  };

  // The order of additions of a reduction of `bytes` (the whole collective's). Called once for each op, root
  // and size class; `root` is 0 for ops without one.
  using Planner = std::function<std::shared_ptr<const Plan>(Op, int64_t bytes, int root)>;

  // What a collective of `bytes` lasts in simulated time, by the schedule of its size class. For messages, `root`
  // is the receiver. Called once for each op, size and root.
  struct Price {
    int64_t ns = 0;
    std::array<char, 32> algorithm{};
  };
  using Pricer = std::function<Price(Op, int64_t bytes, int root)>;

  // What is not plain about a call; neuron_dist/fidelity/call.py says when each is set.
  enum CallFlags : uint32_t {
    kCpu = 1 << 0,
    kUneven = 1 << 1,
    kCoalesced = 1 << 3,
    kManaged = 1 << 4,
    kExplicitSplits = 1 << 5,
    kTensorList = 1 << 6,
    kEmpty = 1 << 7,
    kEmptyDim0 = 1 << 8,
    kReshaped = 1 << 9,
  };
  // Sees a call before anything of it is enqueued, and may throw. True: it need not see such a call again, that is
  // one of the same op, reduction, dtype and flags.
  using Watcher = std::function<bool(const char* op, const OpInfo&, uint32_t flags)>;

  // Collective over the group's ranks: returns when all are connected. `options->global_ranks_in_group` may
  // be empty, which means 0..size-1.
  ProcessGroupNeuron(
      c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options);
  ~ProcessGroupNeuron() override;

  const std::string getBackendName() const override {
    return "neuron";
  }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return c10::static_intrusive_pointer_cast<c10d::Backend::Options>(options_);
  }
  bool supportsSplitting() const override {
    return true;
  }
  bool supportsCoalescing() const override {
    return true;
  }
  bool supportsShrinking() const override {
    return true;
  }
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return true;
  }

  // collectives.cpp
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&, const c10d::BroadcastOptions&) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override;
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(
      std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>&, const c10d::AllreduceCoalescedOptions&) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>&, const c10d::ReduceOptions&) override;
  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<std::vector<at::Tensor>>&, std::vector<at::Tensor>&, const c10d::AllgatherOptions&) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<std::vector<at::Tensor>>&, std::vector<at::Tensor>&, const c10d::AllgatherOptions&) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>&, std::vector<at::Tensor>&, const c10d::AllgatherOptions&) override;
  c10::intrusive_ptr<c10d::Work> gather(
      std::vector<std::vector<at::Tensor>>&, std::vector<at::Tensor>&, const c10d::GatherOptions&) override;
  c10::intrusive_ptr<c10d::Work> scatter(
      std::vector<at::Tensor>&, std::vector<std::vector<at::Tensor>>&, const c10d::ScatterOptions&) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>&, std::vector<std::vector<at::Tensor>>&,
      const c10d::ReduceScatterOptions&) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>&, std::vector<at::Tensor>&, const c10d::ReduceScatterOptions&) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&,
      const c10d::AllToAllOptions&) override;
  c10::intrusive_ptr<c10d::Work> alltoall(
      std::vector<at::Tensor>&, std::vector<at::Tensor>&, const c10d::AllToAllOptions&) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool wait_all_ranks) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>&, int dst, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>&, int src, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>&, int tag) override;

  // process_group.cpp
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {} // every group counts from zero
  uint64_t getSequenceNumberForGroup() override;
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  c10::intrusive_ptr<c10d::Backend> merge(
      const c10::intrusive_ptr<c10d::Store>& store, const c10::intrusive_ptr<c10d::Backend::Options>& options,
      const int& rank, const int& size) override;
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& ranks_to_exclude, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  c10d::ErrorType getError() override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override {} // always on: Work::getDuration()
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  void abort() override;
  void shutdown() override;

  void set_planner(Planner planner);
  void set_pricer(Pricer pricer);
  void set_watcher(Watcher watcher);
  // Between the two, calls do nothing but add up their simulated time; end_time_estimate() returns it, in
  // microseconds as NCCL does.
  bool supportsTimeEstimation() const override {
    return true;
  }
  void start_time_estimate();
  float end_time_estimate();

 private:
  // One call of c10d: what all of its operations have in common.
  struct Call {
    OpInfo info;
    std::chrono::milliseconds timeout;
    bool async;
    c10::intrusive_ptr<NeuronWork> work;
    // reductions
    std::shared_ptr<const Plan> plan;
    double factor = 1;
    // kept here until they are handed to the operation
    bool staged = false;
    uint64_t sizes_hash = 0;
    uint32_t flags = 0; // CallFlags
    bool watched = false; // already, as what it is a part of
  };
  Call begin(
      Op op, c10d::OpType type, const char* title, std::chrono::milliseconds timeout, bool async);
  c10::intrusive_ptr<c10d::Work> finish(Call& call);
  void set_reduction(Call& call, const c10d::ReduceOp& op, c10::ScalarType dtype, int64_t bytes);
  void set_root(Call& call, int64_t root);
  void check(Call& call, const at::Tensor& tensor);
  at::Tensor input(Call& call, const at::Tensor& tensor);
  at::Tensor output(Call& call, const at::Tensor& tensor, bool is_input);
  // Enqueues; a staged tensor goes in pieces of `segment_bytes`, the size of every buffer (0: whole).
  void submit(
      Call& call, c10::ArrayRef<Buffer> in, c10::ArrayRef<Buffer> out,
      c10::ArrayRef<uint64_t> expected_bytes, uint64_t segment_bytes);
  void all_reduce_one(Call& call, const at::Tensor& tensor, const c10d::ReduceOp& op);
  void all_gather_one(Call& call, c10::ArrayRef<at::Tensor> outputs, const at::Tensor& input);
  void reduce_scatter_one(
      Call& call, const at::Tensor& output, c10::ArrayRef<at::Tensor> inputs, const c10d::ReduceOp& op);
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensors(
      c10::ArrayRef<at::Tensor> outputs, c10::ArrayRef<at::Tensor> inputs, uint32_t flags,
      const c10d::ReduceScatterOptions& opts);
  c10::intrusive_ptr<c10d::Work> all_gather_tensors(
      c10::ArrayRef<at::Tensor> outputs, c10::ArrayRef<at::Tensor> inputs, uint32_t flags,
      const c10d::AllgatherOptions& opts);
  void all_to_all_one(
      Call& call, c10::ArrayRef<at::Tensor> outputs, c10::ArrayRef<at::Tensor> inputs);
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts, bool watched);
  c10::intrusive_ptr<c10d::Work> receive(std::vector<at::Tensor>& tensors, int src, int tag);
  std::shared_ptr<const Plan> plan_for(Op op, int64_t bytes, int root);
  const Price& price_of(Op op, int64_t bytes, int root);
  // Whether the call is to run: it has been watched, and has its place in simulated time.
  bool admit(Call& call, int64_t bytes);
  void watch(const char* op, const OpInfo& info = {}, uint32_t flags = 0);
  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const;
  at::Tensor sparse_sum(const at::Tensor& tensor, const c10d::AllreduceOptions& options); // sparse.cpp

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<Options> options_;
  Engine* engine_ = nullptr;
  std::shared_ptr<Group> group_;
  c10::intrusive_ptr<NeuronWork> coalescing_; // between startCoalescing and endCoalescing
  Planner planner_;
  Pricer pricer_;
  Watcher watcher_;
  using WatchKey = std::tuple<const char*, Reduction, c10::ScalarType, uint32_t>;
  std::set<WatchKey> watched_; // calls that the watcher need not see again
  std::map<std::tuple<Op, int64_t, int>, std::shared_ptr<const Plan>> plans_; // by op, size class, root
  std::map<std::tuple<Op, int64_t, int>, Price> prices_; // by op, bytes, root
  std::shared_ptr<const Plan> rank_order_;
  uint32_t number_ = 0; // of the group, in the ledger and the trace
  bool estimating_ = false;
  int64_t estimate_ns_ = 0;
  int splits_ = 0; // the same on every rank of the group
  bool described_ = false; // c10d gives the description after construction
};

} // namespace neuron
