"""Dead and stopped peers, and calls that do not match: every rank raises, soon, and says who and what.

"Soon" is one second by design. The tests allow five, and the process groups wait for a minute: a test that needed a
timeout to end would fail.
"""

import datetime
import os
import re
import signal
import time

import pytest
import torch
import torch.distributed as dist

from neuron_dist.testing import RankDied
from tests.distributed.target import BACKEND, DEVICES, launch, neuron_only

SOON_S = 5.0

pytestmark = pytest.mark.parametrize("device", DEVICES)


def error_of(call):
    """What the call raises, as text, and how long that took."""
    start = time.monotonic()
    try:
        result = call()
        if result is not None:
            result.wait()
    except (RuntimeError, ValueError) as error:
        return str(error), time.monotonic() - start
    return None, time.monotonic() - start


# --- death ---------------------------------------------------------------------------------------------------------


def die_in_a_loop(device, victim, number):
    """All-reduces until the victim is gone; returns (message, seconds from its death, victim's pid)."""
    rank = dist.get_rank()
    pids = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    store = dist.distributed_c10d._get_default_store()
    x = torch.ones(1000, device=device)
    for i in range(1_000_000):
        if rank == victim and i == 50:
            store.set("time of death", str(time.monotonic_ns()))
            os.kill(os.getpid(), number)
        message, _ = error_of(lambda: dist.all_reduce(x))
        if message:
            break
    now = time.monotonic_ns()
    return message, (now - int(store.get("time of death"))) / 1e9, pids[victim]


@pytest.mark.parametrize("victim", [0, 2])
def test_killed_rank_is_named(device, victim):
    results = launch(4, die_in_a_loop, device, victim, signal.SIGKILL, expect_dead={victim})
    assert isinstance(results.pop(victim), RankDied)
    for message, seconds, pid in results:
        assert seconds < SOON_S
        if BACKEND == "neuron":
            assert f"rank {victim}" in message and str(pid) in message and "SIGKILL" in message, (
                message
            )


def die_before_first_use(device):
    group = dist.new_group([1, 3])
    dist.barrier()
    if dist.get_rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if dist.get_rank() == 1:
        return error_of(lambda: dist.all_reduce(torch.ones(3, device=device), group=group))
    return None


@neuron_only
def test_peer_killed_before_the_first_call_of_a_group(device):
    _, (message, seconds), _, died = launch(4, die_before_first_use, device, expect_dead={3})
    assert isinstance(died, RankDied)
    assert seconds < SOON_S and "rank 3" in message


def die_while_peer_receives(device):
    if dist.get_rank() == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(lambda: dist.recv(torch.ones(3, device=device), 1) and None)


@neuron_only
def test_peer_killed_while_it_is_received_from(device):
    (message, seconds), _ = launch(2, die_while_peer_receives, device, expect_dead={1})
    assert seconds < SOON_S and "rank 1" in message


def leave_early(device):
    """A rank that leaves in good order is a lost peer for those who still call."""
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        return None
    time.sleep(0.3)
    return error_of(lambda: dist.all_reduce(torch.ones(3, device=device)))


@neuron_only
def test_peer_that_has_left(device):
    (message, seconds), _ = launch(2, leave_early, device)
    assert message and seconds < SOON_S and "rank 1" in message


# --- a stopped rank ------------------------------------------------------------------------------------------------


def stop_in_a_loop(device, victim):
    group = dist.new_group(timeout=datetime.timedelta(seconds=5))
    x = torch.ones(1000, device=device)
    start = time.monotonic()
    for i in range(1_000_000):
        if dist.get_rank() == victim and i == 20:
            os.kill(os.getpid(), signal.SIGSTOP)
        message, _ = error_of(lambda: dist.all_reduce(x, group=group))
        if message:
            return message, time.monotonic() - start
    return None


@neuron_only
def test_stopped_rank_is_named(device):
    results = launch(4, stop_in_a_loop, device, 2, expect_dead={2})
    del results[2]
    for message, seconds in results:
        assert 4 < seconds < 5 + SOON_S
        assert "all_reduce" in message and re.search(r"\b2\b", message), message


# --- calls that do not match ---------------------------------------------------------------------------------------


def ones(*shape, dtype=torch.float32, device="cpu"):
    return torch.ones(shape, dtype=dtype, device=device)


MISMATCHES = {
    "shape": (
        lambda d: dist.all_reduce(ones(4, device=d)),
        lambda d: dist.all_reduce(ones(8, device=d)),
        lambda _: ["all_reduce", "4", "8"],
    ),
    "dtype": (
        lambda d: dist.all_reduce(ones(4, device=d)),
        lambda d: dist.all_reduce(ones(4, dtype=torch.int32, device=d)),
        lambda _: ["all_reduce", "float32", "int32"],
    ),
    "reduction": (
        lambda d: dist.all_reduce(ones(4, device=d), dist.ReduceOp.SUM),
        lambda d: dist.all_reduce(ones(4, device=d), dist.ReduceOp.MAX),
        lambda _: ["all_reduce", "SUM", "MAX"],
    ),
    "op": (
        lambda d: dist.all_reduce(ones(4, device=d)),
        lambda d: dist.broadcast(ones(4, device=d), 0),
        lambda _: ["all_reduce", "broadcast"],
    ),
    "barrier": (
        lambda d: dist.all_reduce(ones(4, device=d)),
        lambda d: dist.barrier(),
        lambda _: ["all_reduce", "barrier"],
    ),
    "root": (
        lambda d: dist.broadcast(ones(4, device=d), 0),
        lambda d: dist.broadcast(ones(4, device=d), 1),
        lambda _: ["broadcast", "root"],
    ),
    "all_gather": (
        lambda d: dist.all_gather_into_tensor(
            ones(4 * dist.get_world_size(), device=d), ones(4, device=d)
        ),
        lambda d: dist.all_gather_into_tensor(
            ones(5 * dist.get_world_size(), device=d), ones(5, device=d)
        ),
        lambda world_size: ["all_gather", str(4 * world_size), str(5 * world_size)],
    ),
}


def mismatch(kind, odd_rank, device):
    """Some matching calls, one that does not match, and then no call of that group works any more."""
    for _ in range(3):
        dist.all_reduce(ones(4, device=device))
    usual, odd, _ = MISMATCHES[kind]
    call = odd if dist.get_rank() == odd_rank else usual
    return error_of(lambda: call(device))


@neuron_only
@pytest.mark.parametrize("kind", MISMATCHES)
@pytest.mark.parametrize("world_size, odd_rank", [(2, 1), (4, 2)])
def test_mismatch_raises_everywhere_and_names_both_sides(kind, world_size, odd_rank, device):
    for message, seconds in launch(world_size, mismatch, kind, odd_rank, device):
        assert message is not None and seconds < SOON_S
        for word in [*MISMATCHES[kind][2](world_size), "seq"]:
            assert word.lower() in message.lower(), f"{word!r} is not in: {message}"
        assert re.search(rf"rank\D{{0,3}}{odd_rank}\b", message), (
            f"the odd rank is not named: {message}"
        )


def wrong_arguments(device):
    """What one rank can see alone is refused before anything moves, and the group lives on."""
    size = dist.get_world_size()
    good = ones(4, device=device)
    refused = [
        lambda: dist.all_gather([ones(4, device=device)] * (size + 1), good),
        lambda: dist.reduce_scatter_tensor(ones(3, device=device), ones(4 * size, device=device)),
        lambda: dist.all_gather_into_tensor(ones(4 * size, dtype=torch.int32, device=device), good),
        lambda: dist.all_to_all_single(ones(4, device=device), good, [1, 1], [1, 1]),
        lambda: dist.all_reduce(ones(4, dtype=torch.complex64, device=device), dist.ReduceOp.MAX),
        lambda: dist.all_reduce(good, dist.ReduceOp.BAND),
        lambda: dist.all_reduce(ones(4, dtype=torch.int32, device=device), dist.ReduceOp.AVG),
        lambda: dist.broadcast(good, size),
    ]
    messages = [error_of(call)[0] for call in refused]
    x = ones(4, device=device)
    dist.all_reduce(x)
    assert x[0].item() == size
    return messages


@neuron_only
def test_wrong_arguments_are_refused(device):
    for messages in launch(2, wrong_arguments, device):
        assert all(messages), [i for i, message in enumerate(messages) if not message]


# --- nothing stays -------------------------------------------------------------------------------------------------


def files():
    return {name: sorted(os.listdir(name)) for name in ("/dev/shm", "/tmp")}


def work_and_die(device):
    x = torch.ones(1_000_000, device=device)
    dist.all_reduce(x)
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def use_all(device):
    dist.all_reduce(torch.ones(1_000_000, device=device))


def test_nothing_stays_after_kill(device):
    launch(2, use_all, device)
    before = files()
    for _ in range(10):
        launch(4, work_and_die, device, expect_dead={0, 1, 2, 3})
    after = files()
    assert after["/dev/shm"] == before["/dev/shm"]
    new = set(after["/tmp"]) - set(before["/tmp"])
    assert not {name for name in new if "neuron" in name or "torch" in name or "gloo" in name}
    launch(4, use_all, device)
