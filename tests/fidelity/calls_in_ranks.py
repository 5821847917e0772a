"""Calls that TorchNeuron refuses, made in ranks; each returns what its rank was told."""

import warnings

import torch
import torch.distributed as dist

from neuron_dist.fidelity import FidelityError, FidelityWarning
from neuron_dist.fidelity.reporting import counts


def float64():
    dist.all_reduce(torch.zeros(4, dtype=torch.float64, device="neuron"))


def uneven():
    n, rank = dist.get_world_size(), dist.get_rank()
    splits = [2, 0] + [1] * (n - 2)
    received = [splits[rank]] * n
    dist.all_to_all_single(
        torch.empty(sum(received), device="neuron"),
        torch.zeros(n, device="neuron"),
        received,
        splits,
    )


def six_ranks():
    dist.all_reduce(torch.zeros(4, device="neuron"))


def subgroup_barrier():
    group = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        dist.barrier(group=group)


def legal():
    x = torch.zeros(8, device="neuron")
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        dist.all_reduce(x, op)
    dist.all_gather_into_tensor(torch.zeros(8 * dist.get_world_size(), device="neuron"), x)
    dist.broadcast(x, 0)
    dist.barrier()
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, "text")
    dist.broadcast_object_list(gathered, 0)
    assert gathered == ["text"] * dist.get_world_size()


def cpu_tensor_after_objects():
    dist.all_gather_object([None] * dist.get_world_size(), "text")
    dist.all_reduce(torch.zeros(1))


CALLS = {
    f.__name__: f
    for f in (float64, uneven, six_ranks, subgroup_barrier, legal, cpu_tensor_after_objects)
}


def reports(name, times=3):
    """(rule, file, line) of this rank's warnings, and (rule, count) of its counts, for a call made several times."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            CALLS[name]()
    told = [
        (str(w.message).rsplit("[rule ", 1)[1].split(";")[0], w.filename, w.lineno)
        for w in caught
        if issubclass(w.category, FidelityWarning)
    ]
    return told, [(c.rule, c.count) for c in counts()]


def strict(name):
    """The error's text, and that the group still works."""
    try:
        CALLS[name]()
    except FidelityError as error:
        dist.all_reduce(torch.zeros(4, device="neuron"))
        return str(error)
    return None


def one_rank_uneven():
    """Rank 0 alone is kept from its call: what the others see."""
    n = dist.get_world_size()
    splits = [2, 0] + [1] * (n - 2) if dist.get_rank() == 0 else None
    x, y = torch.zeros(n, device="neuron"), torch.empty(n, device="neuron")
    try:
        dist.all_to_all_single(y, x, splits, splits)
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return None
