"""What runs is the schedule: the engine's bits are those of the schedule executed hop by hop, for every algorithm."""

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist

from collectives import plan
from collectives.algorithms import Half, Halves, algorithms_for, register
from collectives.interpret import bf16_from_fp32, interpret
from collectives.planner import _group
from collectives.schedule import Rows, ScheduleError
from neuron_dist.device import _cluster
from neuron_dist.distributed import Options
from tests.distributed.target import launch, neuron_only

pytestmark = neuron_only

OPS = [
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "gather",
    "scatter",
    "all_to_all",
]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int32": torch.int32}
ROOT = 1
WHOLE = ("all_reduce", "reduce", "broadcast")
ONE_SEGMENT = ("all_gather", "gather")


def contents(op, n, segment, dtype):
    """What each rank gives, as the interpreter takes it: bf16 as bit patterns."""
    numel = segment if op in ONE_SEGMENT else segment * n
    random = np.random.default_rng(abs(hash((n, segment))) % 1000)
    wide = random.normal(size=(n, numel)).astype(np.float32) * 10.0 ** random.integers(
        -3, 4, (n, numel)
    )
    if dtype == "int32":
        return list(random.integers(-(2**31), 2**31 - 1, (n, numel)).astype(np.int32))
    wide = wide.astype(np.float32)
    return list(bf16_from_fp32(wide) if dtype == "bf16" else wide)


def to_torch(array, device):
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).to(device)
    return torch.from_numpy(array.copy()).to(device)


def bits(tensor):
    return tensor.cpu().contiguous().view(torch.uint8).numpy()


def run(op, mine, n, segment, group, device):
    """The collective by c10d; returns this rank's result, or None where it has none."""
    rank = dist.get_rank(group)
    root = dist.get_global_rank(group, ROOT % n)
    is_root = rank == ROOT % n
    x = to_torch(mine, device)
    parts = [torch.zeros(segment, dtype=x.dtype, device=device) for _ in range(n)]
    match op:
        case "all_reduce":
            dist.all_reduce(x, group=group)
        case "reduce":
            dist.reduce(x, root, group=group)
            x = x if is_root else None
        case "reduce_scatter":
            y = parts[0]
            dist.reduce_scatter_tensor(y, x, group=group)
            x = y
        case "all_gather":
            dist.all_gather(parts, x, group=group)
            x = torch.cat(parts)
        case "broadcast":
            dist.broadcast(x, root, group=group)
        case "gather":
            dist.gather(x, parts if is_root else None, root, group=group)
            x = torch.cat(parts) if is_root else None
        case "scatter":
            y = parts[0]
            dist.scatter(y, list(x.split(segment)) if is_root else None, root, group=group)
            x = y
        case "all_to_all":
            y = torch.zeros_like(x)
            dist.all_to_all_single(y, x, group=group)
            x = y
    return x


def engine_against_interpreter(op, ranks, device):
    """Each algorithm on the sub-group of ``ranks``; returns how many were compared."""
    n = len(ranks)
    root = ROOT % n
    cluster = _cluster.current()
    shape = _group(cluster, tuple(ranks))
    done = 0
    for algorithm in algorithms_for(op):
        if algorithm.refuses(op, shape):
            continue
        os.environ["NEURON_DIST_ALGORITHM"] = f"{op}={algorithm.name}"
        group = dist.new_group(ranks)
        if dist.get_rank() not in ranks:
            continue
        schedule = plan(op, 4096, ranks, cluster, root=root, algorithm=algorithm.name).schedule
        me = dist.get_rank(group)
        for dtype in DTYPES:
            for segment in (37, 6000):  # in the descriptors, and read in place
                inputs = contents(op, n, segment, dtype)
                expected = interpret(schedule, inputs, dtype).outputs[me]
                got = run(op, inputs[me], n, segment, group, device)
                assert (got is None) == (expected is None)
                if expected is not None:
                    same = np.array_equal(bits(got), bits(to_torch(expected, "cpu")))
                    assert same, (
                        f"{op} by {algorithm.name}, {dtype}, {n} ranks, segments of {segment}"
                    )
                done += 1
    return done


GROUPS = [[0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 2, 4, 6], [1, 2, 5], list(range(8))]


@pytest.mark.parametrize("ranks", GROUPS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_engine_runs_the_schedule(op, ranks):
    counts = launch(max(ranks) + 1, engine_against_interpreter, op, ranks, "neuron")
    assert counts[ranks[0]] >= len(DTYPES) * 2


def different_schedules(device):
    os.environ["NEURON_DIST_ALGORITHM"] = "ring" if dist.get_rank() == 0 else "rdh"
    with pytest.raises(RuntimeError, match="different schedules"):
        dist.all_reduce(torch.ones(1000, device=device))


def test_ranks_with_different_schedules_are_told():
    launch(4, different_schedules, "neuron")


def wrong_planner(device):
    backend = dist.group.WORLD._get_backend(torch.device(device))
    for table, why in (
        ([[0, 0, -1]], "more than once"),
        ([[0]], "leaves out"),
        ([[0, 1]], "values"),
    ):
        backend._set_planner(lambda op, nbytes, root, table=table: np.array(table, np.int16))
        with pytest.raises(ValueError, match=why):
            dist.all_reduce(torch.ones(1000, device=device))


def test_wrong_order_is_refused():
    launch(2, wrong_planner, "neuron")


def everyone(group, *, reduce):
    """One step: each rank sends every other its segment."""
    n = group.size
    src, dst = np.array([(s, d) for s in reversed(range(n)) for d in range(n) if s != d]).T
    return Half(Rows.of(0, src, dst, dst if reduce else src, reduce=reduce), steps=1, pieces=1)


def own_algorithm(device):
    register(
        Halves("mine", lambda g: everyone(g, reduce=True), lambda g: everyone(g, reduce=False))
    )
    os.environ["NEURON_DIST_ALGORITHM"] = "mine"
    n, rank = dist.get_world_size(), dist.get_rank()
    schedule = plan("all_reduce", 4096, range(n), _cluster.current(), algorithm="mine").schedule
    inputs = contents("all_reduce", n, 6000, "fp32")
    got = run("all_reduce", inputs[rank], n, 6000, dist.group.WORLD, device)
    assert np.array_equal(got.cpu().numpy(), interpret(schedule, inputs, "fp32").outputs[rank])


def broken_algorithm(device):
    """A step that forgets a rank: the proof says so on every rank before anything runs."""

    def forgetful(group):
        half = everyone(group, reduce=True)
        return Half(half.rows.take(np.flatnonzero(half.rows.src != 1)), steps=1, pieces=1)

    register(Halves("mine", forgetful, lambda g: everyone(g, reduce=False)))
    os.environ["NEURON_DIST_ALGORITHM"] = "mine"
    with pytest.raises(ScheduleError, match=r"chunk .* lacks the contribution of rank 1"):
        dist.all_reduce(torch.ones(1000, device=device))


@pytest.mark.parametrize("function", [own_algorithm, broken_algorithm])
def test_own_algorithm(function):
    launch(3, function, "neuron")


def algorithm_of_a_group(device):
    """Each group adds in its own algorithm's order; a misspelt one is named with the nearest."""
    n, rank = dist.get_world_size(), dist.get_rank()
    inputs = contents("all_reduce", n, 6000, "fp32")
    results = []
    for name in ("ring", "rdh"):
        options = Options()
        options.algorithm = name
        group = dist.new_group(pg_options=options)
        schedule = plan("all_reduce", 4096, range(n), _cluster.current(), algorithm=name).schedule
        results.append(run("all_reduce", inputs[rank], n, 6000, group, device).cpu().numpy())
        assert np.array_equal(results[-1], interpret(schedule, inputs, "fp32").outputs[rank])
    assert not np.array_equal(*results)
    options = Options()
    options.algorithm = "rign"
    group = dist.new_group(pg_options=options)
    with pytest.raises(ScheduleError, match="did you mean 'ring'"):
        dist.all_reduce(torch.ones(1000, device=device), group=group)


def test_algorithm_of_a_group():
    launch(4, algorithm_of_a_group, "neuron")


def on_a_cluster_of_ones_own(device, path):
    os.environ["NEURON_DIST_CLUSTER"] = path
    dist.init_process_group("neuron")
    x = torch.full((1000,), float(dist.get_rank()), device=device)
    dist.all_reduce(x)
    return x[0].item()


def test_a_cluster_of_ones_own_is_planned_on(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("extends: trn2.48xlarge\nproduct: own\n")
    assert launch(2, on_a_cluster_of_ones_own, "neuron", str(own), backend=None) == [1.0, 1.0]
