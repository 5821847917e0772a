// all_reduce of sparse COO tensors: gather everyone's indices and values, add them in rank order.
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <c10/util/irange.h>

#include "distributed/process_group.h"

namespace neuron {

c10::intrusive_ptr<c10d::Work> ProcessGroupNeuron::allreduce_sparse(
    std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) {
  TORCH_CHECK_VALUE(
      tensors.size() == 1 && tensors[0].is_sparse(), "neuron: all_reduce of sparse tensors takes one COO tensor");
  TORCH_CHECK_VALUE(
      opts.reduceOp == c10d::ReduceOp::SUM,
      "neuron: all_reduce of sparse tensors supports ReduceOp.SUM only; use to_dense() for others");
  at::Tensor& tensor = tensors[0];
  auto work = c10::make_intrusive<NeuronWork>(
      rank_, c10d::OpType::_ALLREDUCE_SPARSE, "neuron:all_reduce", *engine_, group_);
  work->add_output(tensor);
  tensor.copy_(sparse_sum(tensor, opts)); // done before the call returns: the result's size is data
  work->ready();
  return work;
}

at::Tensor ProcessGroupNeuron::sparse_sum(const at::Tensor& tensor, const c10d::AllreduceOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor mine = tensor.coalesce();
  const c10d::AllgatherOptions gather_opts{opts.timeout, false};
  const auto gather = [&](const at::Tensor& data, const std::vector<std::vector<int64_t>>& shapes) {
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (const auto& shape : shapes) {
      outputs[0].push_back(at::empty(shape, data.options()));
    }
    std::vector<at::Tensor> inputs{data.contiguous()};
    allgather(outputs, inputs, gather_opts)->wait();
    return outputs[0];
  };

  const at::Tensor count = at::full({1}, mine._nnz(), mine._indices().options());
  const auto counts = gather(count, std::vector<std::vector<int64_t>>(size_, {1}));
  std::vector<std::vector<int64_t>> index_shapes;
  std::vector<std::vector<int64_t>> value_shapes;
  for (const auto& each : counts) {
    const auto nnz = each.item<int64_t>();
    index_shapes.push_back({mine.sparse_dim(), nnz});
    auto shape = mine._values().sizes().vec();
    shape[0] = nnz;
    value_shapes.push_back(shape);
  }
  const auto indices = gather(mine._indices(), index_shapes);
  const auto values = gather(mine._values(), value_shapes);
  at::Tensor sum;
  for (const auto r : c10::irange(size_)) {
    const at::Tensor each = at::_sparse_coo_tensor_unsafe(indices[r], values[r], mine.sizes());
    sum = sum.defined() ? sum + each : each;
  }
  return sum.coalesce();
}

} // namespace neuron
