"""A collective algorithm of one's own: proved, priced on the cluster's links, and then what all_reduce runs.

torchrun --nproc-per-node 8 examples/custom_algorithm.py

An algorithm says who sends which chunk to whom in which step (docs/algorithms.md). This one is a star: all send to rank 0, which
adds up and sends back. It has two steps only, but rank 0's links carry everything.
"""

import numpy as np
import torch
import torch.distributed as dist

from collectives import load_cluster, plan
from collectives.algorithms import Single, register
from collectives.schedule import Rows, Schedule
from neuron_dist.distributed import Options


def star(op, group, root, pairs):
    n = group.size
    others = np.arange(1, n)
    inwards = Rows.of(0, others, 0, 0, reduce=True)  # step 0: slot 0, the whole tensor, to rank 0, which adds
    outwards = Rows.of(1, 0, others, 0)  # step 1: the sum to everyone
    return Schedule(op, "star", n, 1, Rows.join([inwards, outwards]))


register(Single("star", frozenset({"all_reduce"}), star))  # on every rank, before the first collective

options = Options()
options.algorithm = "star"  # for this group; NEURON_DIST_ALGORITHM=all_reduce=star would be for all
dist.init_process_group("neuron", pg_options=options)
rank, world_size = dist.get_rank(), dist.get_world_size()

x = torch.arange(1000.0, device="neuron") + rank
work = dist.all_reduce(x, async_op=True)
work.wait()
expected = world_size * torch.arange(1000.0) + sum(range(world_size))

if rank == 0:
    print(f"sums are right: {torch.equal(x.cpu(), expected)}")
    print(f"this all_reduce took {work._get_duration() * 1000:.1f} us of simulated time")
    cluster = load_cluster("trn2.48xlarge")
    print("\nsimulated us      star   Neuron's choice")
    for nbytes, size in ((1 << 10, "1 KiB"), (1 << 20, "1 MiB"), (1 << 26, "64 MiB")):
        mine = plan("all_reduce", nbytes, range(world_size), cluster, algorithm="star")
        chosen = plan("all_reduce", nbytes, range(world_size), cluster)
        print(f"{size:>8}  {mine.time_ns / 1e3:10.1f}  {chosen.time_ns / 1e3:10.1f} ({chosen.algorithm})")
dist.destroy_process_group()
