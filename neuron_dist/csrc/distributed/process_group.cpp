#include "distributed/process_group.h"

#include <algorithm>
#include <numeric>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "device/heap.h"
#include "device/streams.h"
#include "distributed/rendezvous.h"
#include "simulation/clock.h"
#include "simulation/hook.h"

namespace neuron {
ProcessGroupNeuron::ProcessGroupNeuron(
    c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options)
    : Backend(rank, size), store_(std::move(store)), options_(std::move(options)) {
  TORCH_CHECK_VALUE(
      rank >= 0 && rank < size, "neuron: rank ", rank, " does not fit a group of ", size,
      " (expected 0 to ", size - 1, ")");
  std::vector<int> global_ranks(size);
  if (options_->global_ranks_in_group.empty()) {
    std::iota(global_ranks.begin(), global_ranks.end(), 0);
  } else {
    TORCH_CHECK_VALUE(
        options_->global_ranks_in_group.size() == static_cast<size_t>(size), "neuron: a group of ", size,
        " was given ", options_->global_ranks_in_group.size(), " global ranks");
    std::copy(
        options_->global_ranks_in_group.begin(), options_->global_ranks_in_group.end(), global_ranks.begin());
  }
  Peers& peers = Peers::start(options_->device_index, global_ranks[rank]);
  engine_ = &Engine::get(peers);
  const std::string name = options_->group_name.empty() ? "default" : options_->group_name;
  group_ = rendezvous(store_, name, rank, global_ranks, options_->timeout, peers);
  rank_order_ = Plan::in_rank_order(size);
  engine_->add_group(group_);
  number_ = announce_group(name, global_ranks);
  init();
}

ProcessGroupNeuron::~ProcessGroupNeuron() {
  if (engine_ != nullptr && group_ != nullptr && engine_ == Engine::running()) {
    shutdown();
  }
}

void ProcessGroupNeuron::startCoalescing() {
  TORCH_CHECK(!coalescing_, "neuron: startCoalescing() inside startCoalescing()");
  coalescing_ = c10::make_intrusive<NeuronWork>(rank_, c10d::OpType::COALESCED, "neuron:coalesced", *engine_, group_);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupNeuron::endCoalescing() {
  TORCH_CHECK(coalescing_, "neuron: endCoalescing() without startCoalescing()");
  auto work = std::move(coalescing_);
  work->ready();
  return work;
}

void ProcessGroupNeuron::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
}

std::chrono::milliseconds ProcessGroupNeuron::timeout_or_default(std::chrono::milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
}

uint64_t ProcessGroupNeuron::getSequenceNumberForGroup() {
  watch("get_sequence_number");
  return group_->sequence();
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupNeuron::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  watch("split_group");
  // torch gives all parts of a split the same store, and asks once for each device type of the group.
  std::string prefix = "split" + std::to_string(splits_++);
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) {
    return nullptr;
  }
  auto mine_options = c10::make_intrusive<Options>(*options_);
  if (options) {
    mine_options->timeout = options->timeout;
    mine_options->group_name = options->group_name;
    mine_options->group_desc = options->group_desc;
  }
  mine_options->global_ranks_in_group.clear();
  for (const int r : ranks) {
    mine_options->global_ranks_in_group.push_back(group_->global_rank(r));
    prefix += "," + std::to_string(group_->global_rank(r));
  }
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  return c10::make_intrusive<ProcessGroupNeuron>(
      prefixed, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()), mine_options);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupNeuron::merge(
    const c10::intrusive_ptr<c10d::Store>& store, const c10::intrusive_ptr<c10d::Backend::Options>& options,
    const int& rank, const int& size) {
  auto mine_options = c10::make_intrusive<Options>(*options_);
  if (options) {
    mine_options->timeout = options->timeout;
    mine_options->group_name = options->group_name;
    mine_options->group_desc = options->group_desc;
    mine_options->global_ranks_in_group = options->global_ranks_in_group;
  } else {
    mine_options->global_ranks_in_group.clear();
  }
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>("merge", store);
  return c10::make_intrusive<ProcessGroupNeuron>(prefixed, rank, size, mine_options);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupNeuron::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), r) == ranks_to_exclude.end()) {
      ranks.push_back(r);
    }
  }
  TORCH_CHECK_VALUE(!ranks.empty(), "neuron: shrink() would leave nobody in group '", group_->name(), "'");
  return split(c10::make_intrusive<c10d::PrefixStore>("shrink", store_), ranks, options);
}

c10d::ErrorType ProcessGroupNeuron::getError() {
  if (!group_->has_failed()) {
    return c10d::ErrorType::SUCCESS;
  }
  switch (engine_->failure_of(*group_)) {
    case Failure::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case Failure::kPeerLost:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupNeuron::waitForPendingWorks() {
  engine_->drain(*group_, Clock::now() + options_->timeout);
}

void ProcessGroupNeuron::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK(
      group_->sequence() == 0, "neuron: register the completion hook before the group's first collective");
  watch("register_on_completion_hook");
  onCompletionHook_ = std::move(hook);
}

at::Tensor ProcessGroupNeuron::allocateTensor(long size, at::TensorOptions options) {
  return at::empty({size}, options); // all device memory is reachable by the peers
}

void ProcessGroupNeuron::abort() {
  engine_->abort(*group_);
}

void ProcessGroupNeuron::shutdown() {
  engine_->fail(
      *group_,
      {Failure::kAborted, "neuron: group '" + group_->name() + "' was shut down on rank " +
           std::to_string(group_->global_rank(rank_))},
      false);
  engine_->remove_group(group_);
}

void ProcessGroupNeuron::set_planner(Planner planner) {
  planner_ = std::move(planner);
  plans_.clear();
}

void ProcessGroupNeuron::set_pricer(Pricer pricer) {
  pricer_ = std::move(pricer);
  prices_.clear();
}

void ProcessGroupNeuron::set_watcher(Watcher watcher) {
  watcher_ = std::move(watcher);
  watched_.clear();
}

void ProcessGroupNeuron::start_time_estimate() {
  TORCH_CHECK(!estimating_, "neuron: a time estimate inside a time estimate");
  watch("time_estimator");
  estimating_ = true;
  estimate_ns_ = 0;
}

float ProcessGroupNeuron::end_time_estimate() {
  TORCH_CHECK(estimating_, "neuron: end of a time estimate that was not started");
  estimating_ = false;
  return static_cast<float>(static_cast<double>(estimate_ns_) / 1e3);
}

const ProcessGroupNeuron::Price& ProcessGroupNeuron::price_of(Op op, int64_t bytes, int root) {
  static const Price nothing;
  if (op == Op::kSend && root == rank_) { // read and written in this rank's own memory
    auto& price = prices_[{op, bytes, root}];
    price.ns = SimulatedClock::get().rates().copy_ns(static_cast<uint64_t>(bytes));
    return price;
  }
  if (!pricer_ || size_ == 1) {
    return nothing;
  }
  const auto found = prices_.find({op, bytes, root});
  if (C10_LIKELY(found != prices_.end())) {
    return found->second;
  }
  return prices_[{op, bytes, root}] = pricer_(op, bytes, root);
}

void ProcessGroupNeuron::watch(const char* op, const OpInfo& info, uint32_t flags) {
  if (!watcher_) {
    return;
  }
  // The op by its name's address: names are literals.
  const WatchKey key{op, info.reduction, info.dtype, flags};
  if (C10_LIKELY(watched_.find(key) != watched_.end())) {
    return;
  }
  try {
    if (watcher_(op, info, flags)) {
      watched_.insert(key);
    }
  } catch (...) {
    // Peers whose own call looked different may not have been stopped; they shall not wait for this one.
    if ((flags & (kCpu | kUneven | kEmpty | kEmptyDim0)) != 0) {
      engine_->fail(
          *group_,
          {Failure::kInvalid,
           "neuron: rank " + std::to_string(group_->global_rank(rank_)) + " was kept from calling " + info.describe() +
               " in group '" + group_->name() + "' by its fidelity profile; its own error says why"},
          true);
    }
    throw;
  }
}

bool ProcessGroupNeuron::admit(Call& call, int64_t bytes) {
  OpInfo& info = call.info;
  info.cpu = call.staged;
  info.bytes = static_cast<uint64_t>(bytes);
  info.first_piece = true;
  if (!call.watched) {
    watch(
        op_name(info.op), info,
        call.flags | (info.cpu ? kCpu : 0U) | (info.uneven ? kUneven : 0U) | (coalescing_ ? kManaged : 0U));
  }
  auto& clock = SimulatedClock::get();
  if (!clock.enabled() && !estimating_) {
    return true;
  }
  // All ranks take rank 0's account, but where each knows only its own sizes, they take the dearest.
  const bool own_sizes = info.op == Op::kAllToAll || info.op == Op::kGather || info.op == Op::kScatter ||
      info.op == Op::kSend;
  if (info.op != Op::kRecv && (rank_ == 0 || own_sizes || estimating_)) {
    const Price& price = price_of(info.op, info.uneven ? rounded_up(bytes) : bytes, std::max(info.root, 0));
    info.cost_ns = price.ns;
    info.algorithm = price.algorithm;
  } else {
    info.cost_ns = 0;
  }
  if (estimating_) {
    estimate_ns_ += info.cost_ns;
    return false;
  }
  const auto device = static_cast<c10::DeviceIndex>(options_->device_index);
  const bool on_host = info.cpu || (info.op == Op::kBarrier && Heap::find(device) == nullptr);
  if (on_host) {
    info.stream = kHostStream;
    info.ready_ns = clock.issue(nullptr);
  } else {
    const c10::Stream stream = current_stream(device);
    info.stream = static_cast<int32_t>(stream.id());
    info.ready_ns = clock.issue(&stream);
  }
  if (info.cpu || info.op == Op::kBarrier) {
    call.work->set_holds_host();
  }
  return true;
}

std::shared_ptr<const Plan> ProcessGroupNeuron::plan_for(Op op, int64_t bytes, int root) {
  if (!planner_ || size_ == 1) {
    return rank_order_;
  }
  const int64_t planned = size_class(bytes);
  auto& plan = plans_[{op, planned, root}];
  if (!plan) {
    auto made = std::make_shared<Plan>(*planner_(op, planned, root));
    const size_t segments = op == Op::kReduceScatter ? size_ : 1;
    TORCH_CHECK_VALUE(
        made->programs.size() == 1 || (!made->programs.empty() && made->programs.size() % segments == 0),
        "neuron: the schedule for ", op_name(op), " has ", made->programs.size(),
        " programs, expected 1 or a multiple of ", segments);
    uint32_t hash = 2166136261u; // FNV-1a
    for (const ReduceProgram& program : made->programs) {
      const std::string wrong = check_program(program, size_);
      TORCH_CHECK_VALUE(wrong.empty(), "neuron: the schedule for ", op_name(op), " is wrong: ", wrong);
      for (const int16_t code : program) {
        hash = (hash ^ static_cast<uint16_t>(code)) * 16777619u;
      }
    }
    made->hash = hash;
    plan = std::move(made);
  }
  return plan;
}

} // namespace neuron
