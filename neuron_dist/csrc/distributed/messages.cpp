// c10d's barriers and messages as operations of the engine.
#include "distributed/process_group.h"
#include "distributed/tensors.h"

namespace neuron {

using c10d::OpType;

WorkPtr ProcessGroupNeuron::barrier(const c10d::BarrierOptions& opts) {
  return barrier(opts, false);
}

WorkPtr ProcessGroupNeuron::barrier(const c10d::BarrierOptions& opts, bool watched) {
  Call call = begin(Op::kBarrier, OpType::BARRIER, "neuron:barrier", opts.timeout, opts.asyncOp);
  call.watched = watched;
  submit(call, {}, {}, {}, 0);
  return finish(call);
}

void ProcessGroupNeuron::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  watch("monitored_barrier");
  const uint64_t seq = group_->sequence();
  const auto timeout = timeout_or_default(opts.timeout);
  // As Gloo says it; a rank that has no time to wait does not enter, so nobody waits for it in vain.
  TORCH_CHECK_WITH(
      DistBackendError, timeout.count() > 0, "Rank ", rank_, " timed out in monitoredBarrier after ",
      timeout.count(), " ms");
  c10d::BarrierOptions barrier_opts = opts;
  barrier_opts.asyncOp = false;
  auto work = barrier(barrier_opts, true);
  try {
    work->wait();
  } catch (const c10::Error& e) {
    std::string ranks;
    int count = 0;
    for (const int r : group_->missing(seq)) {
      if (count > 0 && !wait_all_ranks) {
        break; // the first one only, unless all were asked for
      }
      ranks += (count++ ? ", " : "") + std::to_string(r);
    }
    TORCH_CHECK_WITH(
        DistBackendError, false, count > 1 ? "Ranks " : "Rank ", ranks, " failed to pass monitoredBarrier in ",
        timeout.count(), " ms: ", e.what_without_backtrace());
  }
}

namespace {

void describe(OpInfo& info, const at::Tensor& data, int tag) {
  info.dtype = data.scalar_type();
  info.numel = data.numel();
  info.tag = tag;
}

template <typename MessageT>
std::unique_ptr<MessageT> make_message(
    const OpInfo& info, const at::Tensor& data, std::chrono::milliseconds timeout, NeuronWork& work) {
  auto op = std::make_unique<MessageT>();
  op->info = info;
  op->timeout = timeout;
  op->deadline = Clock::now() + timeout;
  op->data = whole(data);
  work.expect_one();
  op->completion = work.completion();
  return op;
}

} // namespace

WorkPtr ProcessGroupNeuron::send(Tensors& tensors, int dst, int tag) {
  const at::Tensor& tensor = only("send", tensors);
  Call call = begin(Op::kSend, OpType::SEND, "neuron:send", c10d::kUnsetTimeout, true);
  set_root(call, dst);
  const at::Tensor data = input(call, tensor);
  describe(call.info, data, tag);
  if (admit(call, static_cast<int64_t>(data.nbytes()))) {
    auto op = make_message<Send>(call.info, data, call.timeout, *call.work);
    op->dst = dst;
    engine_->enqueue(*group_, std::move(op), true);
  }
  return finish(call);
}

WorkPtr ProcessGroupNeuron::receive(Tensors& tensors, int src, int tag) {
  const at::Tensor& tensor = only("recv", tensors);
  Call call = begin(
      Op::kRecv, src < 0 ? OpType::RECVANYSOURCE : OpType::RECV, "neuron:recv", c10d::kUnsetTimeout, true);
  if (src >= 0) {
    set_root(call, src);
  }
  const at::Tensor data = output(call, tensor, false);
  call.work->keep(data);
  describe(call.info, data, tag);
  if (admit(call, static_cast<int64_t>(data.nbytes()))) {
    auto op = make_message<Recv>(call.info, data, call.timeout, *call.work);
    op->src = src;
    engine_->enqueue(*group_, std::move(op), true);
  }
  return finish(call);
}

WorkPtr ProcessGroupNeuron::recv(Tensors& tensors, int src, int tag) {
  TORCH_CHECK_VALUE(src >= 0, "neuron: recv has source rank ", src, "; expected 0 to ", size_ - 1);
  return receive(tensors, src, tag);
}

WorkPtr ProcessGroupNeuron::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, -1, tag);
}

} // namespace neuron
