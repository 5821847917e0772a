"""Object collectives, functional collectives, and sparse tensors."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from tests.distributed.target import DEVICES, IN_RANKS

pytestmark = [*IN_RANKS, pytest.mark.parametrize("device", DEVICES)]


@pytest.mark.parametrize("world_size", [2, 4])
def test_objects(world_size, device, rank):
    if device != "cpu":
        torch.set_default_device(device)
    mine = {"rank": rank, "padding": "x" * (100 * rank)}
    everyone = [{"rank": r, "padding": "x" * (100 * r)} for r in range(world_size)]

    gathered = [None] * world_size
    dist.all_gather_object(gathered, mine)
    assert gathered == everyone

    at_root = [None] * world_size if rank == 1 else None
    dist.gather_object(mine, at_root, dst=1)
    assert at_root == (everyone if rank == 1 else None)

    sent = [mine, "second"]
    dist.broadcast_object_list(sent, src=1)
    assert sent == [everyone[1], "second"]

    received = [None]
    dist.scatter_object_list(received, everyone if rank == 0 else None, src=0)
    assert received == [everyone[rank]]

    if rank == 0:
        dist.send_object_list([mine, None], dst=1)
    elif rank == 1:
        received = [None, 1]
        assert dist.recv_object_list(received, src=0) == 0
        assert received == [everyone[0], None]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_functional(world_size, device, rank):
    group = dist.group.WORLD
    x = torch.full((2 * world_size, 3), 1.0 + rank, device=device)
    total = world_size * (world_size + 1) / 2

    def expect(actual, expected):
        actual = funcol.wait_tensor(actual).cpu()
        assert torch.equal(actual, expected), f"got {actual}, expected {expected}"

    expect(funcol.all_reduce(x, "sum", group), torch.full((2 * world_size, 3), total))
    gathered = torch.arange(world_size).repeat_interleave(2 * world_size * 3).view(-1, 3) + 1.0
    expect(funcol.all_gather_tensor(x, 0, group), gathered)
    expect(
        funcol.all_gather_tensor(x[:1], 1, group),
        (torch.arange(world_size).repeat_interleave(3) + 1.0)[None],
    )
    expect(funcol.reduce_scatter_tensor(x, "sum", 0, group), torch.full((2, 3), total))
    expect(funcol.broadcast(x, world_size - 1, group), torch.full((2 * world_size, 3), float(world_size)))
    swapped = torch.arange(world_size).repeat_interleave(2)[:, None].expand(-1, 3) + 1.0
    expect(funcol.all_to_all_single(x, None, None, group), swapped)
    shift = [(r + 1) % world_size for r in range(world_size)]
    expect(
        funcol.permute_tensor(x[:, 0].contiguous(), shift, group),
        torch.full((2 * world_size,), 1.0 + (rank - 1) % world_size),
    )
    many = funcol.all_reduce_coalesced([x, x[:1]], "sum", group)
    expect(many[0], torch.full((2 * world_size, 3), total))
    expect(many[1], torch.full((1, 3), total))
    expect(x, torch.full((2 * world_size, 3), 1.0 + rank))


@pytest.mark.parametrize("world_size", [2, 3])
def test_functional_autograd(world_size, device, rank):
    x = torch.ones(2 * world_size, device=device, requires_grad=True)
    y = funcol.reduce_scatter_tensor_autograd(x, "sum", 0, dist.group.WORLD)
    (y * (rank + 1.0)).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.arange(world_size).repeat_interleave(2) + 1.0)


@pytest.mark.parametrize("world_size", [2, 3])
def test_sparse_all_reduce(world_size, device, rank):
    indices = torch.tensor([[rank, 0]])
    x = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0]), (world_size + 1,)).to(device)
    dist.all_reduce(x)
    expected = torch.zeros(world_size + 1)
    expected[:world_size] += 1
    expected[0] += 2 * world_size
    assert torch.equal(x.cpu().to_dense(), expected)
