// c10d's collectives as operations of the engine.
#include "distributed/process_group.h"
#include "distributed/tensors.h"
#include "simulation/hook.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/irange.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace neuron {
namespace {

using c10d::OpType;

// What a CPU tensor is staged in: a few pieces fit in the cache, and copying one overlaps with reducing another.
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
constexpr uint64_t kSmallestPieceBytes = uint64_t{64} << 10;

// Equal parts of a contiguous tensor, one a rank.
std::vector<Buffer> parts(const at::Tensor& tensor, int n) {
  std::vector<Buffer> buffers;
  buffers.reserve(n);
  char* data = static_cast<char*>(tensor.data_ptr());
  const uint64_t bytes = tensor.nbytes() / n;
  for (int i = 0; i < n; ++i) {
    buffers.push_back({data + i * bytes, bytes});
  }
  return buffers;
}

uint64_t hash_sizes(c10::ArrayRef<Buffer> buffers) {
  uint64_t hash = 14695981039346656037ull; // FNV-1a
  for (const Buffer& buffer : buffers) {
    hash = (hash ^ buffer.bytes) * 1099511628211ull;
  }
  return hash;
}

// Equal but for the first dimension, which is divided by the ranks.
bool correspond(const at::Tensor& whole, const at::Tensor& part, int ranks) {
  return whole.dim() > 0 && whole.dim() == part.dim() && part.size(0) == whole.size(0) / ranks &&
      whole.sizes().slice(1) == part.sizes().slice(1);
}

uint64_t sum(c10::ArrayRef<Buffer> buffers) {
  uint64_t bytes = 0;
  for (const Buffer& buffer : buffers) {
    bytes += buffer.bytes;
  }
  return bytes;
}

bool equal(c10::ArrayRef<Buffer> buffers) {
  return std::all_of(
      buffers.begin(), buffers.end(), [&](const Buffer& b) { return b.bytes == buffers[0].bytes; });
}

// The size of a collective as nccom-test counts it, by what this rank knows of it.
int64_t whole_bytes(Op op, bool root, c10::ArrayRef<Buffer> in, c10::ArrayRef<Buffer> out, int ranks) {
  const uint64_t own = std::max(sum(in), sum(out));
  const bool one_of_many = (op == Op::kGather || op == Op::kScatter) && !root;
  return static_cast<int64_t>(one_of_many ? own * static_cast<uint64_t>(ranks) : own);
}

template <typename T>
const std::vector<T>& only_list(const char* op, const std::vector<std::vector<T>>& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, "neuron: ", op, " takes one list a rank, got ", lists.size());
  return lists[0];
}

void check_count(const char* op, const char* what, size_t count, int size) {
  TORCH_CHECK_VALUE(
      count == static_cast<size_t>(size), "neuron: ", op, " needs ", size, " ", what,
      ", one a rank of the group, got ", count);
}

} // namespace

ProcessGroupNeuron::Call ProcessGroupNeuron::begin(
    Op op, OpType type, const char* title, std::chrono::milliseconds timeout, bool async) {
  if (!described_) {
    described_ = true;
    if (!pg_desc_.empty() && pg_desc_ != "undefined") {
      group_->describe_as(pg_desc_);
      describe_group(number_, pg_desc_);
    }
  }
  Call call{};
  call.info.op = op;
  call.info.group = &group_->name();
  call.info.ledger_group = number_;
  call.timeout = timeout_or_default(timeout);
  call.async = async;
  call.work = coalescing_ ? coalescing_ : c10::make_intrusive<NeuronWork>(rank_, type, title, *engine_, group_);
  if (onCompletionHook_) {
    call.work->set_on_end(onCompletionHook_);
  }
  call.info.work = call.work->number();
  return call;
}

WorkPtr ProcessGroupNeuron::finish(Call& call) {
  if (call.work != coalescing_) {
    call.work->ready();
  }
  return call.work;
}

void ProcessGroupNeuron::check(Call& call, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "neuron: ", op_name(call.info.op), " got an undefined tensor");
  TORCH_CHECK_VALUE(
      tensor.layout() == at::kStrided, "neuron: ", op_name(call.info.op), " takes dense tensors, got layout ",
      tensor.layout(), "; only all_reduce(SUM) takes sparse COO tensors");
  const bool cpu = tensor.is_cpu();
  TORCH_CHECK_VALUE(
      cpu || tensor.is_privateuseone(), "neuron: ", op_name(call.info.op), " got a tensor on ", tensor.device(),
      "; expected device neuron or cpu");
  call.staged = call.staged || cpu;
  if (tensor.numel() == 0) {
    call.flags |= kEmpty;
    call.flags |= tensor.dim() > 0 && tensor.size(0) == 0 ? kEmptyDim0 : 0U;
  }
  TORCH_CHECK_VALUE(
      cpu || tensor.numel() == 0 || group_->is_shared(tensor.data_ptr()), "neuron: ", op_name(call.info.op),
      " got a tensor of another device than this rank's (", tensor.device(),
      "); after init_process_group a rank has one device, and \"neuron\" without an index is always right");
}

at::Tensor ProcessGroupNeuron::input(Call& call, const at::Tensor& tensor) {
  check(call, tensor);
  at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor plain = tensor.resolve_conj().resolve_neg().contiguous();
  call.work->keep(plain);
  return plain;
}

at::Tensor ProcessGroupNeuron::output(Call& call, const at::Tensor& tensor, bool is_input) {
  check(call, tensor);
  at::AutoDispatchBelowADInplaceOrView below;
  call.work->add_output(tensor);
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
    return tensor;
  }
  at::Tensor plain = is_input ? tensor.resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous)
                              : at::empty(tensor.sizes(), tensor.options());
  call.work->copy_back(plain, tensor);
  return plain;
}

void ProcessGroupNeuron::set_reduction(
    Call& call, const c10d::ReduceOp& op, c10::ScalarType dtype, int64_t bytes) {
  call.info.reduction = static_cast<Reduction>(op.op_);
  const std::string why = why_not_reducible(call.info.reduction, dtype);
  TORCH_CHECK_VALUE(
      why.empty(), "neuron: ", op_name(call.info.op), " with ReduceOp.", reduction_name(call.info.reduction),
      " is not defined for ", dtype_name(dtype), ": ", why);
  if (call.info.reduction == Reduction::kPremulSum) {
    const auto* supplement = dynamic_cast<c10d::PreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK_VALUE(supplement != nullptr, "neuron: ReduceOp.PREMUL_SUM has no factor");
    call.factor = supplement->tensor_factor.defined() ? supplement->tensor_factor.item().toDouble()
                                                      : supplement->double_factor;
  }
  call.plan = plan_for(call.info.op, bytes, std::max(call.info.root, 0));
}

void ProcessGroupNeuron::set_root(Call& call, int64_t root) {
  TORCH_CHECK_VALUE(
      root >= 0 && root < size_, "neuron: ", op_name(call.info.op), " has root rank ", root,
      "; expected 0 to ", size_ - 1, " (a rank of the group)");
  call.info.root = static_cast<int32_t>(root);
}

void ProcessGroupNeuron::submit(
    Call& call, c10::ArrayRef<Buffer> in, c10::ArrayRef<Buffer> out, c10::ArrayRef<uint64_t> expected_bytes,
    uint64_t segment_bytes) {
  if (!admit(call, whole_bytes(call.info.op, rank_ == call.info.root, in, out, size_))) {
    return;
  }
  const uint64_t item = c10::elementSize(call.info.dtype);
  uint64_t piece = segment_bytes;
  if (call.staged && segment_bytes > 0) {
    piece = std::max(kPieceBytes / std::max<uint64_t>(in.size(), 1), kSmallestPieceBytes);
    piece = std::max<uint64_t>(piece / (64 * item), 1) * 64 * item;
  }
  const uint64_t pieces = segment_bytes == 0 ? 1 : (segment_bytes + piece - 1) / piece;
  call.work->set_sequence(group_->sequence());
  for (uint64_t i = 0; i < pieces; ++i) {
    const uint64_t begin = i * piece;
    const auto cut = [&](const Buffer& b) -> Buffer {
      if (pieces == 1) {
        return b;
      }
      return {b.data + begin, std::min(piece, b.bytes - begin)};
    };
    auto op = std::make_unique<Collective>();
    op->info = call.info;
    if (i > 0) { // the first piece stands for all of them in simulated time
      op->info.first_piece = false;
      op->info.cost_ns = 0;
    }
    op->timeout = call.timeout;
    op->deadline = Clock::now() + call.timeout;
    for (const Buffer& b : in) {
      op->in.push_back(cut(b));
    }
    for (const Buffer& b : out) {
      op->out.push_back(cut(b));
    }
    for (const uint64_t bytes : expected_bytes) {
      op->expected_bytes.push_back(cut({nullptr, bytes}).bytes);
    }
    op->sizes_hash = call.sizes_hash;
    op->plan = call.plan;
    op->plan_offset = static_cast<int64_t>(begin / item);
    op->plan_numel = static_cast<int64_t>((segment_bytes > 0 || out.empty() ? segment_bytes : out[0].bytes) / item);
    op->factor = call.factor;
    op->fp32_accumulation = options_->fp32_accumulation;
    op->piece = static_cast<uint32_t>(i);
    op->staged = call.staged;
    call.work->expect_one();
    op->completion = call.work->completion();
    engine_->enqueue(*group_, std::move(op), call.async);
  }
}

// --- reductions ---

void ProcessGroupNeuron::all_reduce_one(Call& call, const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const at::Tensor data = output(call, tensor, true);
  call.work->keep(data);
  call.info.dtype = data.scalar_type();
  call.info.numel = data.numel();
  set_reduction(call, op, call.info.dtype, static_cast<int64_t>(data.nbytes()));
  submit(call, whole(data), whole(data), {}, data.nbytes());
}

WorkPtr ProcessGroupNeuron::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  if (tensor.is_sparse()) {
    return allreduce_sparse(tensors, opts);
  }
  Call call = begin(Op::kAllReduce, OpType::ALLREDUCE, "neuron:all_reduce", opts.timeout, opts.asyncOp);
  all_reduce_one(call, tensor, opts.reduceOp);
  return finish(call);
}

WorkPtr ProcessGroupNeuron::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  Call call = begin(
      Op::kAllReduce, OpType::ALLREDUCE_COALESCED, "neuron:all_reduce", opts.timeout, opts.asyncOp);
  call.flags |= kCoalesced;
  for (const auto& tensor : tensors) {
    call.staged = false;
    all_reduce_one(call, tensor, opts.reduceOp);
  }
  return finish(call);
}

WorkPtr ProcessGroupNeuron::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = only("reduce", tensors);
  Call call = begin(Op::kReduce, OpType::REDUCE, "neuron:reduce", opts.timeout, opts.asyncOp);
  set_root(call, opts.rootRank);
  const bool root = rank_ == opts.rootRank;
  const at::Tensor data = root ? output(call, tensor, true) : input(call, tensor);
  call.work->keep(data);
  call.info.dtype = data.scalar_type();
  call.info.numel = data.numel();
  set_reduction(call, opts.reduceOp, call.info.dtype, static_cast<int64_t>(data.nbytes()));
  std::vector<Buffer> out;
  if (root) {
    out.push_back(whole(data));
  }
  submit(call, whole(data), out, {}, data.nbytes());
  return finish(call);
}

void ProcessGroupNeuron::reduce_scatter_one(
    Call& call, const at::Tensor& tensor, c10::ArrayRef<at::Tensor> inputs, const c10d::ReduceOp& op) {
  // Either one tensor a rank, or one that holds the segments of all ranks.
  const bool list = inputs.size() != 1 || size_ == 1;
  const at::Tensor result = output(call, tensor, false);
  call.work->keep(result);
  call.info.dtype = result.scalar_type();
  std::vector<Buffer> in;
  int64_t numel = 0;
  for (const auto& each : inputs) {
    TORCH_CHECK_VALUE(
        each.scalar_type() == call.info.dtype, "neuron: reduce_scatter has an output of ",
        dtype_name(call.info.dtype), " and an input of ", dtype_name(each.scalar_type()));
    const at::Tensor plain = input(call, each);
    numel += plain.numel();
    if (list) {
      in.push_back(whole(plain));
    } else {
      in = parts(plain, size_);
    }
  }
  TORCH_CHECK_VALUE(
      in[rank_].bytes == result.nbytes(), "neuron: reduce_scatter on rank ", rank_, " has an output of ",
      result.numel(), " elements and a segment of ", in[rank_].bytes / result.element_size());
  call.info.numel = numel;
  call.sizes_hash = hash_sizes(in);
  set_reduction(call, op, call.info.dtype, numel * static_cast<int64_t>(result.element_size()));
  call.info.uneven = !equal(in);
  // Uneven segments cannot be cut into the same pieces, so they go whole.
  submit(call, in, whole(result), {}, call.info.uneven ? 0 : result.nbytes());
}

WorkPtr ProcessGroupNeuron::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& result = only("reduce_scatter", outputs);
  const Tensors& list = only_list("reduce_scatter", inputs);
  check_count("reduce_scatter", "inputs", list.size(), size_);
  Call call = begin(
      Op::kReduceScatter, OpType::REDUCE_SCATTER, "neuron:reduce_scatter", opts.timeout, opts.asyncOp);
  call.flags |= kTensorList;
  reduce_scatter_one(call, result, list, opts.reduceOp);
  return finish(call);
}

WorkPtr ProcessGroupNeuron::_reduce_scatter_base(
    at::Tensor& result, at::Tensor& data, const c10d::ReduceScatterOptions& opts) {
  return reduce_scatter_tensors({&result, 1}, {&data, 1}, 0, opts);
}

WorkPtr ProcessGroupNeuron::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  return reduce_scatter_tensors(outputs, inputs, kCoalesced, opts);
}

WorkPtr ProcessGroupNeuron::reduce_scatter_tensors(
    c10::ArrayRef<at::Tensor> outputs, c10::ArrayRef<at::Tensor> inputs, uint32_t flags,
    const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(
      outputs.size() == inputs.size(), "neuron: reduce_scatter of ", inputs.size(), " inputs has ",
      outputs.size(), " outputs");
  Call call = begin(
      Op::kReduceScatter, OpType::_REDUCE_SCATTER_BASE, "neuron:reduce_scatter", opts.timeout, opts.asyncOp);
  call.flags |= flags;
  for (const auto i : c10::irange(outputs.size())) {
    TORCH_CHECK_VALUE(
        inputs[i].numel() == outputs[i].numel() * size_,
        "neuron: input tensor must be the same size as output size times world size: input ",
        inputs[i].sizes(), ", output ", outputs[i].sizes(), ", world size ", size_);
    call.staged = false;
    call.flags |= correspond(inputs[i], outputs[i], size_) ? 0U : kReshaped;
    reduce_scatter_one(call, outputs[i], inputs[i], opts.reduceOp);
  }
  return finish(call);
}

// --- copies ---

WorkPtr ProcessGroupNeuron::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor& tensor = only("broadcast", tensors);
  Call call = begin(Op::kBroadcast, OpType::BROADCAST, "neuron:broadcast", opts.timeout, opts.asyncOp);
  set_root(call, opts.rootRank);
  const bool root = rank_ == opts.rootRank;
  const at::Tensor data = root ? input(call, tensor) : output(call, tensor, false);
  call.work->keep(data);
  if (root) {
    call.work->add_output(tensor);
  }
  call.info.dtype = data.scalar_type();
  call.info.numel = data.numel();
  std::vector<Buffer> in;
  std::vector<Buffer> out;
  (root ? in : out).push_back(whole(data));
  submit(call, in, out, {}, data.nbytes());
  return finish(call);
}

void ProcessGroupNeuron::all_gather_one(
    Call& call, c10::ArrayRef<at::Tensor> outputs, const at::Tensor& tensor) {
  const at::Tensor data = input(call, tensor);
  call.info.dtype = data.scalar_type();
  std::vector<Buffer> out;
  std::vector<uint64_t> expected;
  int64_t numel = 0;
  for (const auto& each : outputs) {
    TORCH_CHECK_VALUE(
        each.scalar_type() == call.info.dtype, "neuron: all_gather has an input of ",
        dtype_name(call.info.dtype), " and an output of ", dtype_name(each.scalar_type()));
    const at::Tensor plain = output(call, each, false);
    call.work->keep(plain);
    numel += plain.numel();
    if (outputs.size() == 1) {
      out = parts(plain, size_);
    } else {
      out.push_back(whole(plain));
    }
  }
  for (const Buffer& b : out) {
    expected.push_back(b.bytes);
  }
  TORCH_CHECK_VALUE(
      out[rank_].bytes == data.nbytes(), "neuron: all_gather on rank ", rank_, " has an input of ",
      data.numel(), " elements, but a place for ", out[rank_].bytes / data.element_size(),
      " in its output");
  call.info.uneven = !equal(out);
  call.info.numel = call.info.uneven ? numel : data.numel(); // what ranks that agree have in common
  call.sizes_hash = hash_sizes(out);
  submit(call, whole(data), out, expected, call.info.uneven ? 0 : data.nbytes());
}

WorkPtr ProcessGroupNeuron::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const Tensors& list = only_list("all_gather", outputs);
  check_count("all_gather", "outputs", list.size(), size_);
  Call call = begin(Op::kAllGather, OpType::ALLGATHER, "neuron:all_gather", opts.timeout, opts.asyncOp);
  call.flags |= kTensorList;
  all_gather_one(call, list, only("all_gather", inputs));
  return finish(call);
}

WorkPtr ProcessGroupNeuron::_allgather_base(
    at::Tensor& result, at::Tensor& data, const c10d::AllgatherOptions& opts) {
  return all_gather_tensors({&result, 1}, {&data, 1}, 0, opts);
}

WorkPtr ProcessGroupNeuron::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  check_count("all_gather_coalesced", "lists of outputs", outputs.size(), size_);
  Call call = begin(
      Op::kAllGather, OpType::ALLGATHER_COALESCED, "neuron:all_gather", opts.timeout, opts.asyncOp);
  call.flags |= kCoalesced | kTensorList;
  for (const auto i : c10::irange(inputs.size())) {
    Tensors list;
    for (const auto& from_rank : outputs) {
      TORCH_CHECK_VALUE(
          from_rank.size() == inputs.size(), "neuron: all_gather_coalesced of ", inputs.size(),
          " tensors has ", from_rank.size(), " outputs for a rank");
      list.push_back(from_rank[i]);
    }
    call.staged = false;
    all_gather_one(call, list, inputs[i]);
  }
  return finish(call);
}

WorkPtr ProcessGroupNeuron::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return all_gather_tensors(outputs, inputs, kCoalesced, opts);
}

WorkPtr ProcessGroupNeuron::all_gather_tensors(
    c10::ArrayRef<at::Tensor> outputs, c10::ArrayRef<at::Tensor> inputs, uint32_t flags,
    const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(
      outputs.size() == inputs.size(), "neuron: all_gather of ", inputs.size(), " inputs has ",
      outputs.size(), " outputs");
  Call call = begin(
      Op::kAllGather, OpType::_ALLGATHER_BASE, "neuron:all_gather", opts.timeout, opts.asyncOp);
  call.flags |= flags;
  for (const auto i : c10::irange(outputs.size())) {
    TORCH_CHECK_VALUE(
        outputs[i].numel() == inputs[i].numel() * size_,
        "neuron: output tensor size must be equal to world_size times input tensor size: output ",
        outputs[i].sizes(), ", input ", inputs[i].sizes(), ", world size ", size_);
    call.staged = false;
    all_gather_one(call, outputs[i], inputs[i]);
  }
  return finish(call);
}

WorkPtr ProcessGroupNeuron::gather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const at::Tensor& tensor = only("gather", inputs);
  Call call = begin(Op::kGather, OpType::GATHER, "neuron:gather", opts.timeout, opts.asyncOp);
  set_root(call, opts.rootRank);
  const at::Tensor data = input(call, tensor);
  call.info.dtype = data.scalar_type();
  call.info.numel = data.numel();
  std::vector<Buffer> out;
  std::vector<uint64_t> expected;
  if (rank_ == opts.rootRank) {
    const Tensors& list = only_list("gather", outputs);
    check_count("gather", "outputs on the root", list.size(), size_);
    for (const auto& each : list) {
      TORCH_CHECK_VALUE(
          each.scalar_type() == call.info.dtype, "neuron: gather has an input of ",
          dtype_name(call.info.dtype), " and an output of ", dtype_name(each.scalar_type()));
      const at::Tensor plain = output(call, each, false);
      call.work->keep(plain);
      out.push_back(whole(plain));
      expected.push_back(plain.nbytes());
    }
  } else {
    TORCH_CHECK_VALUE(
        outputs.empty() || (outputs.size() == 1 && outputs[0].empty()),
        "neuron: gather takes outputs on its root (rank ", opts.rootRank, ") only");
  }
  submit(call, whole(data), out, expected, 0);
  return finish(call);
}

WorkPtr ProcessGroupNeuron::scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  const at::Tensor& tensor = only("scatter", outputs);
  Call call = begin(Op::kScatter, OpType::SCATTER, "neuron:scatter", opts.timeout, opts.asyncOp);
  set_root(call, opts.rootRank);
  const at::Tensor result = output(call, tensor, false);
  call.work->keep(result);
  call.info.dtype = result.scalar_type();
  call.info.numel = result.numel();
  std::vector<Buffer> in;
  if (rank_ == opts.rootRank) {
    const Tensors& list = only_list("scatter", inputs);
    check_count("scatter", "inputs on the root", list.size(), size_);
    for (const auto& each : list) {
      TORCH_CHECK_VALUE(
          each.scalar_type() == call.info.dtype, "neuron: scatter has an output of ",
          dtype_name(call.info.dtype), " and an input of ", dtype_name(each.scalar_type()));
      in.push_back(whole(input(call, each)));
    }
  } else {
    TORCH_CHECK_VALUE(
        inputs.empty() || (inputs.size() == 1 && inputs[0].empty()),
        "neuron: scatter takes inputs on its root (rank ", opts.rootRank, ") only");
  }
  submit(call, in, whole(result), {}, 0);
  return finish(call);
}

void ProcessGroupNeuron::all_to_all_one(
    Call& call, c10::ArrayRef<at::Tensor> outputs, c10::ArrayRef<at::Tensor> inputs) {
  check_count("all_to_all", "outputs", outputs.size(), size_);
  check_count("all_to_all", "inputs", inputs.size(), size_);
  call.info.dtype = inputs[0].scalar_type();
  std::vector<Buffer> in;
  std::vector<Buffer> out;
  std::vector<uint64_t> expected;
  for (const auto i : c10::irange(size_)) {
    for (const auto& each : {inputs[i], outputs[i]}) {
      TORCH_CHECK_VALUE(
          each.scalar_type() == call.info.dtype, "neuron: all_to_all mixes ", dtype_name(call.info.dtype),
          " and ", dtype_name(each.scalar_type()));
    }
    in.push_back(whole(input(call, inputs[i])));
    const at::Tensor plain = output(call, outputs[i], false);
    call.work->keep(plain);
    out.push_back(whole(plain));
    expected.push_back(plain.nbytes());
  }
  for (const auto& each : inputs) {
    call.info.numel += each.numel();
  }
  call.info.uneven = !equal(in) || !equal(out);
  submit(call, in, out, expected, 0);
}

WorkPtr ProcessGroupNeuron::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  Call call = begin(Op::kAllToAll, OpType::ALLTOALL, "neuron:all_to_all", opts.timeout, opts.asyncOp);
  call.flags |= kTensorList;
  all_to_all_one(call, outputs, inputs);
  return finish(call);
}

WorkPtr ProcessGroupNeuron::alltoall_base(
    at::Tensor& result, at::Tensor& data, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  c10d::checkSplitSizes(input_splits, data, size_);
  c10d::checkSplitSizes(output_splits, result, size_);
  Call call = begin(Op::kAllToAll, OpType::ALLTOALL_BASE, "neuron:all_to_all", opts.timeout, opts.asyncOp);
  for (const auto* splits : {&input_splits, &output_splits}) {
    const bool plain = std::all_of(splits->begin(), splits->end(), [](int64_t n) { return n == 1; });
    call.flags |= plain ? 0U : kExplicitSplits;
  }
  TORCH_CHECK_VALUE(
      data.scalar_type() == result.scalar_type(), "neuron: all_to_all has an input of ",
      dtype_name(data.scalar_type()), " and an output of ", dtype_name(result.scalar_type()));
  const at::Tensor plain_in = input(call, data);
  const at::Tensor plain_out = output(call, result, false);
  call.work->keep(plain_out);
  call.info.dtype = data.scalar_type();
  call.info.numel = data.numel();
  const auto split = [&](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    std::vector<int64_t> lengths(size_);
    std::vector<int64_t> offsets(size_);
    c10d::computeLengthsAndOffsets(splits, tensor, &lengths, &offsets);
    std::vector<Buffer> buffers;
    const auto item = static_cast<int64_t>(tensor.element_size());
    for (const auto i : c10::irange(size_)) {
      buffers.push_back(
          {static_cast<char*>(tensor.data_ptr()) + offsets[i] * item,
           static_cast<uint64_t>(lengths[i] * item)});
    }
    return buffers;
  };
  const auto in = split(plain_in, input_splits);
  const auto out = split(plain_out, output_splits);
  std::vector<uint64_t> expected;
  for (const Buffer& b : out) {
    expected.push_back(b.bytes);
  }
  call.info.uneven = !equal(in) || !equal(out);
  submit(call, in, out, expected, 0);
  return finish(call);
}

} // namespace neuron
