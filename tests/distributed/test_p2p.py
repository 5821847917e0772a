"""Send and receive: tags, any order, any source, batches, sub-groups, oneself."""

import pytest
import torch
import torch.distributed as dist

from tests.distributed.inputs import ALL_DTYPES, place, same_bits, values
from tests.distributed.target import DEVICES, IN_RANKS, neuron_only

pytestmark = [*IN_RANKS, pytest.mark.parametrize("device", DEVICES)]


def filled(value, device, size=5):
    return torch.full((size,), float(value), device=device)


def expect(tensor, value):
    assert torch.equal(tensor.cpu(), torch.full(tensor.shape, float(value))), (
        f"got {tensor}, expected {value}"
    )


@pytest.mark.neuron(ranks=2)
def test_ping_pong(device, rank):
    for size in (1, 100, 300_007):
        x = filled(rank, device, size)
        if rank == 0:
            dist.send(x, 1)
            assert dist.recv(x, 1) == 1
        else:
            y = torch.empty_like(x)
            assert dist.recv(y, 0) == 0
            dist.send(x, 0)
            x = y
        expect(x, 1 - rank)


@pytest.mark.parametrize("world_size", [3, 8])
def test_ring(device, rank, world_size):
    x, y = filled(rank, device), filled(-1, device)
    works = [dist.isend(x, (rank + 1) % world_size), dist.irecv(y, (rank - 1) % world_size)]
    for work in works:
        work.wait()
    expect(y, (rank - 1) % world_size)


@pytest.mark.neuron(ranks=2)
def test_tags_out_of_order(device, rank):
    count = 6
    if rank == 0:
        for work in [dist.isend(filled(tag, device), 1, tag=tag) for tag in range(count)]:
            work.wait()
    else:
        for tag in reversed(range(count)):
            x = filled(-1, device)
            dist.recv(x, 0, tag=tag)
            expect(x, tag)


@pytest.mark.neuron(ranks=2)
def test_same_tag_keeps_order(device, rank):
    if rank == 0:
        for value in range(20):
            dist.send(filled(value, device), 1)
    else:
        tensors = [filled(-1, device) for _ in range(20)]
        for work in [dist.irecv(x, 0) for x in tensors]:
            work.wait()
        for value, x in enumerate(tensors):
            expect(x, value)


@pytest.mark.neuron(ranks=4)
def test_any_source(device, rank, world_size):
    if rank:
        first = dist.isend(filled(rank, device), 0)
        second = dist.isend(filled(10 + rank, device), 0, tag=7)
        second.wait()
        first.wait()
        return
    sources = []
    for tag, offset in ((7, 10), (0, 0)):
        for _ in range(world_size - 1):
            x = filled(-1, device)
            source = dist.recv(x, tag=tag)
            expect(x, offset + source)
            sources.append(source)
    assert sorted(sources) == sorted(2 * list(range(1, world_size)))


@pytest.mark.parametrize("world_size", [2, 4])
def test_batch(device, rank, world_size):
    """Each rank sends to all others and receives from all others, in no special order."""
    others = [r for r in range(world_size) if r != rank]
    received = {r: filled(-1, device) for r in others}
    receives = [dist.P2POp(dist.irecv, received[r], r) for r in others]
    sends = [dist.P2POp(dist.isend, filled(100 * rank + r, device), r) for r in others]
    operations = receives + sends if rank % 2 else sends + receives[::-1]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for r in others:
        expect(received[r], 100 * r + rank)


@neuron_only
@pytest.mark.parametrize("world_size", [1, 2])
def test_batch_to_self(device, rank, world_size):
    received = [filled(-1, device), filled(-1, device)]
    operations = [
        dist.P2POp(dist.irecv, received[0], rank),
        dist.P2POp(dist.isend, filled(1, device), rank),
        dist.P2POp(dist.isend, filled(2, device), rank),
        dist.P2POp(dist.irecv, received[1], rank),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    expect(received[0], 1)
    expect(received[1], 2)


@pytest.mark.neuron(ranks=2)
def test_both_send_first(device, rank):
    """Asynchronous sends of much data need no receiver to be started."""
    x, y = filled(rank, device, 1_000_000), filled(-1, device, 1_000_000)
    work = dist.isend(x, 1 - rank)
    dist.recv(y, 1 - rank)
    work.wait()
    expect(y, 1 - rank)


@pytest.mark.neuron(ranks=4)
def test_in_subgroup(device, rank):
    """Ranks of the group's own counting, and global ones, meet."""
    group = dist.new_group([3, 1])
    if rank == 1:
        dist.send(filled(7, device), group=group, group_dst=1)
    if rank == 3:
        x = filled(-1, device)
        dist.recv(x, 1, group=group)
        expect(x, 7)


@pytest.mark.neuron(ranks=2)
def test_mixed_with_collectives(device, rank):
    x, y, z = filled(rank, device), filled(-1, device), filled(1, device)
    receive = dist.irecv(y, 1 - rank)
    dist.all_reduce(z)
    dist.isend(x, 1 - rank).wait()
    receive.wait()
    expect(y, 1 - rank)
    expect(z, 2)


@neuron_only
@pytest.mark.neuron(ranks=2)
def test_every_dtype(device, rank):
    for dtype in ALL_DTYPES:
        content = values(0, 0, (3, 5), dtype)
        for layout in ("contiguous", "strided", "transposed"):
            if rank == 0:
                dist.send(place(content, layout, device).tensor, 1)
            else:
                placed = place(torch.full((3, 5), 5).to(dtype), layout, device)
                dist.recv(placed.tensor, 0)
                assert same_bits(placed.tensor, content), f"{dtype} {layout}"
                assert placed.neighbours_untouched(), (
                    f"{dtype} {layout}: memory beside the tensor has changed"
                )
    x = torch.empty(0, device=device)
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
