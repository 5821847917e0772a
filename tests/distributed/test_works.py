"""What a call returns: works, futures, timeouts, sequence numbers; and barriers, coalescing, abort and shutdown."""

import datetime
import threading
import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed.target import BACKEND, DEVICES, launch, neuron_only

pytestmark = pytest.mark.parametrize("device", DEVICES)


def backend_of(device, group=None):
    return (group or dist.group.WORLD)._get_backend(torch.device(device))


def async_work(device):
    x = torch.ones(1000, device=device)
    work = dist.all_reduce(x, async_op=True)
    assert work.wait() is True and work.wait() is True, "wait is idempotent"
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert torch.equal(x.cpu(), torch.full((1000,), 2.0))


def many_in_flight(device):
    tensors = [torch.full((17,), float(i), device=device) for i in range(50)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for work in reversed(works):
        work.wait()
    assert [x[0].item() for x in tensors] == [2.0 * i for i in range(50)]


def dropped_works(device):
    """Nobody waits and nobody holds the tensor: the backend must, until it is done."""
    for _ in range(50):
        dist.all_reduce(torch.ones(1000, device=device), async_op=True)
    x = torch.ones(1, device=device)
    dist.all_reduce(x)
    assert x.item() == 2


def futures(device):
    x = torch.full((4,), 1.0 + dist.get_rank(), device=device)
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert torch.equal(doubled.wait().cpu(), torch.full((4,), 6.0))
    assert torch.equal(future.value()[0].cpu(), torch.full((4,), 3.0))


def future_of_all_gather(device):
    outputs = [torch.zeros(2, device=device) for _ in range(2)]
    future = dist.all_gather(
        outputs, torch.full((2,), 5.0, device=device), async_op=True
    ).get_future()
    future.wait()
    assert all(torch.equal(o.cpu(), torch.full((2,), 5.0)) for o in outputs)


def wait_times_out(device):
    """The peer comes late; a wait with a timeout does not wait for it, and says so."""
    x = torch.ones(4, device=device)
    if dist.get_rank() == 1:
        dist.distributed_c10d._get_default_store().wait(["gave_up"], datetime.timedelta(seconds=30))
    else:
        work = dist.all_reduce(x, async_op=True)
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=r"(?i)time"):
            work.wait(timeout=datetime.timedelta(milliseconds=300))
        assert time.monotonic() - start < 10
        dist.distributed_c10d._get_default_store().set("gave_up", "1")
    return "alive"


def group_timeout_names_the_missing(device):
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if dist.get_rank() == 2:
        dist.distributed_c10d._get_default_store().wait(["gave_up"], datetime.timedelta(seconds=30))
        return None
    try:
        dist.all_reduce(torch.ones(4, device=device), group=group)
        message = None
    except RuntimeError as error:
        message = str(error)
    store = dist.distributed_c10d._get_default_store()
    if store.add("messages", 1) == 2:
        store.set("gave_up", "1")
    return message


def sequence_numbers(device):
    group = dist.new_group()
    backend = backend_of(device, group)
    numbers = []
    for _ in range(3):
        dist.all_reduce(torch.ones(1, device=device), group=group)
        numbers.append(backend._get_sequence_number_for_group())
    return numbers


def barriers(device):
    dist.barrier()
    dist.barrier(async_op=True).wait()
    rank = dist.get_rank()
    if rank == 1:
        time.sleep(0.3)
    before = time.monotonic()
    dist.barrier()
    return before, time.monotonic()


def barrier_timeout(device):
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError):
            dist.barrier(group=group)
        dist.distributed_c10d._get_default_store().set("gave_up", "1")
    else:
        dist.distributed_c10d._get_default_store().wait(["gave_up"], datetime.timedelta(seconds=30))


def monitored_barrier(device):
    """All come; then one does not, and rank 0 names it."""
    group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
    group.monitored_barrier(datetime.timedelta(seconds=30))
    message = None
    if dist.get_rank() != 1:
        try:
            group.monitored_barrier(datetime.timedelta(seconds=1))
        except RuntimeError as error:
            message = str(error)
    if dist.get_rank() == 0:
        store.set("gave_up", "1")
    store.wait(["gave_up"], datetime.timedelta(seconds=30))
    return message


def coalescing(device):
    rank, size = dist.get_rank(), dist.get_world_size()
    with dist._coalescing_manager(async_ops=True) as manager:
        tensors = [torch.full((i + 1,), float(rank), device=device) for i in range(4)]
        for x in tensors:
            dist.all_reduce(x)
    manager.wait()
    for x in tensors:
        assert torch.equal(x.cpu(), torch.full(x.shape, float(sum(range(size)))))
    outputs = [torch.zeros(size * n, device=device) for n in (1, 3)]
    with dist._coalescing_manager():
        for output, n in zip(outputs, (1, 3), strict=True):
            dist.all_gather_into_tensor(output, torch.full((n,), float(rank), device=device))
    for output, n in zip(outputs, (1, 3), strict=True):
        assert torch.equal(output.cpu(), torch.arange(size).repeat_interleave(n).float())
    shares = [torch.zeros(n, device=device) for n in (1, 3)]
    with dist._coalescing_manager():
        for share, n in zip(shares, (1, 3), strict=True):
            dist.reduce_scatter_tensor(share, torch.arange(size * n, device=device).float())
    for share, n in zip(shares, (1, 3), strict=True):
        assert torch.equal(share.cpu(), size * torch.arange(n * rank, n * rank + n).float())


def coalescing_on_device(device):
    """The old way: calls between start and end go to the backend one by one, and are waited for together."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = torch.full((3,), 1.0 + rank, device=device), torch.zeros(3, device=device)
    with dist._coalescing_manager(device=torch.device(device), async_ops=True) as manager:
        dist.isend(x, (rank + 1) % size)
        dist.irecv(y, (rank - 1) % size)
    manager.wait()
    assert torch.equal(y.cpu(), torch.full((3,), 1.0 + (rank - 1) % size))


def abort_ends_a_wait(device):
    """Another thread aborts while the main thread waits for a peer that never comes."""
    group, store = dist.new_group(), dist.distributed_c10d._get_default_store()
    result = None
    if dist.get_rank() == 0:
        threading.Timer(0.5, lambda: backend_of(device, group).abort()).start()
        try:
            dist.all_reduce(torch.ones(4, device=device), group=group)
        except RuntimeError as error:
            result = str(error)
        store.set("done", "1")
    store.wait(["done"], datetime.timedelta(seconds=30))
    x = torch.ones(1, device=device)
    dist.all_reduce(x)
    assert x.item() == 2, "other groups live on"
    return result


def shut_down_and_again(device):
    for _ in range(5):
        group = dist.new_group()
        x = torch.ones(1, device=device)
        dist.all_reduce(x, group=group)
        assert x.item() == 2
        dist.destroy_process_group(group)


def buffer_is_input(device):
    """Output that is a part of the input or holds it, as FSDP does."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.full((size * 4,), -1.0, device=device)
    mine = whole[4 * rank : 4 * rank + 4]
    mine.fill_(float(rank))
    dist.all_gather_into_tensor(whole, mine)
    assert torch.equal(whole.cpu(), torch.arange(size).repeat_interleave(4).float())
    dist.reduce_scatter_tensor(mine, whole)
    assert torch.equal(mine.cpu(), torch.full((4,), float(size * rank)))


PORTABLE = [
    async_work, many_in_flight, dropped_works, futures, future_of_all_gather, wait_times_out, barrier_timeout,
    shut_down_and_again,
]  # fmt: skip
NEURON = [coalescing_on_device, buffer_is_input]


@pytest.mark.parametrize("fn", PORTABLE)
def test_works(fn, device):
    launch(2, fn, device)


@neuron_only
@pytest.mark.parametrize("fn", NEURON)
@pytest.mark.parametrize("world_size", [2, 3])
def test_works_beyond_gloo(fn, world_size, device):
    launch(world_size, fn, device)


@neuron_only
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_coalescing(world_size, device):
    launch(world_size, coalescing, device)


def test_sequence_numbers_agree(device):
    first, second = launch(2, sequence_numbers, device)
    assert first == second and first == list(range(first[0], first[0] + 3))


def test_barrier_waits_for_all(device):
    results = launch(4, barriers, device)
    last_arrival = max(before for before, _ in results)
    assert all(after >= last_arrival for _, after in results)


def test_monitored_barrier_names_the_missing(device):
    messages = launch(3, monitored_barrier, device)
    assert "1" in messages[0] and messages[1] is None


@neuron_only
def test_timeout_names_the_missing(device):
    messages = launch(3, group_timeout_names_the_missing, device)
    for rank in (0, 1):
        assert "all_reduce" in messages[rank]
        assert "missing" in messages[rank] or "not arrived" in messages[rank]
        assert "2" in messages[rank]


@neuron_only
def test_abort_ends_a_wait(device):
    aborted, _ = launch(2, abort_ends_a_wait, device)
    assert aborted is not None and "abort" in aborted.lower()


def test_abort_is_harmless_when_idle(device):
    launch(2, abort_idle, device)


def abort_idle(device):
    dist.all_reduce(torch.ones(1, device=device))
    dist.barrier()
    backend_of(device).abort()


if BACKEND == "gloo":
    del test_abort_is_harmless_when_idle
