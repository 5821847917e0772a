"""torch.ops.symm_mem's products fused with a collective give what the collective and the product give."""

from __future__ import annotations

import torch
import torch.distributed as dist

from neuron_dist.testing import run_ranks

RANKS = 2


def shards(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A (4 x 6) and B (6 x 8) of a rank."""
    torch.manual_seed(rank)
    return torch.randn(4, 6), torch.randn(6, 8)


def gather_and_multiply(dim: int) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    import torch.distributed._symmetric_memory  # defines the operators

    a, b = (t.to("neuron") for t in shards(dist.get_rank()))
    gathered, products = torch.ops.symm_mem.fused_all_gather_matmul(
        a, [b, 2 * b], dim, dist.group.WORLD.group_name
    )
    return gathered.cpu(), [p.cpu() for p in products]


def multiply_and_scatter() -> torch.Tensor:
    import torch.distributed._symmetric_memory  # defines the operators

    a, b = (t.to("neuron") for t in shards(dist.get_rank()))
    name = dist.group.WORLD.group_name
    return torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, name).cpu()


def test_all_gather_matmul() -> None:
    whole = torch.cat([shards(rank)[0] for rank in range(RANKS)])
    for rank, (gathered, products) in enumerate(run_ranks(RANKS, gather_and_multiply, 0)):
        b = shards(rank)[1]
        torch.testing.assert_close(gathered, whole, rtol=0, atol=0)
        torch.testing.assert_close(products, [whole @ b, whole @ (2 * b)])


def test_matmul_reduce_scatter() -> None:
    total = sum((a @ b for a, b in map(shards, range(RANKS))), torch.zeros(4, 8))
    for rank, part in enumerate(run_ranks(RANKS, multiply_and_scatter)):
        torch.testing.assert_close(part, total[2 * rank : 2 * rank + 2])
