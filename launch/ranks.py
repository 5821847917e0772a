"""What a rank of ``nccom-test --wall`` and ``--check`` does. Imports torch where it runs, not before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Job", "Report", "work"]

TORCH_NAMES = {"fp8": "float8_e4m3fn", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
EXACT = {"fp8": 16, "fp16": 2048, "bf16": 256, "int8": 127, "uint8": 255}
"""Up to where sums of whole numbers are exact."""


@dataclass(frozen=True)
class Job:
    """The whole run: what every rank is told."""

    op: str
    dtype: str
    groups: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]
    sizes: Sequence[int]
    iterations: tuple[int, int, int, int] | None
    """Rounds, warm-up rounds, operations of a round, operations before them."""
    check: str | None
    seed: int


@dataclass
class Report:
    """What a rank found."""

    wall_us: list[list[float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def work(job: Job) -> Report:
    """Runs the job on this rank, whose process group is ready."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    report = Report()
    mine, group = None, None
    for ranks in job.groups:
        made = dist.new_group(list(ranks)) if len(job.groups) > 1 or len(ranks) != dist.get_world_size() else dist.group.WORLD
        if dist.get_rank() in ranks:
            mine, group = ranks, made
    if mine is None:
        return report
    for nbytes in job.sizes:
        run = _Run(job, nbytes, mine, group)
        if job.check:
            report.problems += run.verify()
        if job.iterations:
            report.wall_us.append(run.measure(job.iterations))
    return report


class _Run:
    """One size on one rank."""

    def __init__(self, job: Job, nbytes: int, ranks: tuple[int, ...], group: Any) -> None:
        import torch
        import torch.distributed as dist

        self.job, self.nbytes, self.ranks, self.group = job, nbytes, ranks, group
        self.rank, self.n = ranks.index(dist.get_rank()), len(ranks)
        self.dtype: torch.dtype = getattr(torch, TORCH_NAMES.get(job.dtype, job.dtype))
        self.numel = nbytes // self.dtype.itemsize
        self.part = self.numel // self.n
        gathers = job.op in ("all_gather", "all_gatherv")
        self.input_numel = self.part if gathers else self.numel
        if job.op == "sendrecv":
            self.pairs: Sequence[tuple[int, int]] = [(i, (i + 1) % self.n) for i in range(self.n)]
        else:
            self.pairs = [(ranks.index(a), ranks.index(b)) for a, b in job.pairs]
        self.source = next((a for a, b in self.pairs if b == self.rank), None)
        self.target = next((b for a, b in self.pairs if a == self.rank), None)
        self.input = self.data(self.rank).to("neuron")
        output = self.part if job.op == "reduce_scatter" else self.numel
        self.output = self.input if job.op == "all_reduce" else torch.zeros(output, dtype=self.dtype)

    def data(self, rank: int) -> torch.Tensor:
        """The input of a rank, on the CPU: zeros if nothing is verified."""
        import torch

        if self.job.check is None:
            return torch.zeros(self.input_numel, dtype=self.dtype, device="cpu")
        return self.whole_numbers(rank).to(self.dtype)

    def whole_numbers(self, rank: int) -> torch.Tensor:
        import torch

        if self.job.check == "all_ones":
            return torch.ones(self.input_numel, dtype=torch.int32, device="cpu")
        top = max(1, min(EXACT.get(self.job.dtype, 100 * self.n) // self.n, 100))
        random = torch.Generator("cpu").manual_seed(self.job.seed * 65537 + rank)
        low = 0 if self.job.dtype.startswith("uint") else -top
        return torch.randint(low, top + 1, (self.input_numel,), generator=random, dtype=torch.int32, device="cpu")

    def operation(self) -> Callable[[], Any]:
        import torch.distributed as dist

        group, x, y = self.group, self.input, self.output
        if self.job.op == "all_reduce":
            return lambda: dist.all_reduce(x, group=group)
        if self.job.op in ("all_gather", "all_gatherv"):
            return lambda: dist.all_gather_into_tensor(y, x, group=group)
        if self.job.op == "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(y, x, group=group)
        if self.job.op in ("alltoall", "alltoallv"):
            return lambda: dist.all_to_all_single(y, x, group=group)
        return self.exchange

    def exchange(self) -> None:
        """sendrecv and permute: what this rank sends and receives, at once."""
        import torch.distributed as dist

        if self.target == self.rank:
            self.output.copy_(self.input)
            return
        works = []
        if self.target is not None:
            works.append(dist.isend(self.input, group=self.group, group_dst=self.target))
        if self.source is not None:
            works.append(dist.irecv(self.output, group=self.group, group_src=self.source))
        for pending in works:
            assert pending is not None
            pending.wait()

    def measure(self, iterations: tuple[int, int, int, int]) -> list[float]:
        """Microseconds of each measured operation, one after the other without a pause."""
        import torch.distributed as dist

        rounds, warmup_rounds, count, warmup = iterations
        operation, found = self.operation(), []
        if self.job.check:
            self.input.zero_()
        dist.barrier(group=self.group)
        for i in range(warmup_rounds + rounds):
            for _ in range(warmup):
                operation()
            for _ in range(count):
                start = time.perf_counter()
                operation()
                if i >= warmup_rounds:
                    found.append((time.perf_counter() - start) * 1e6)
        return found

    def verify(self) -> list[str]:
        """Runs once and compares with what the CPU computes from everyone's input."""
        import torch

        self.operation()()
        expected = self.expected()
        if expected is None:
            return []
        got = self.output.cpu()
        bad = got.view(torch.uint8) != expected.to(self.dtype).view(torch.uint8)
        if not bad.any():
            return []
        at = int(bad.nonzero()[0]) // self.dtype.itemsize
        values = f"{got[at].item()!r}, expected {expected[at].item()!r}"
        return [f"{self.job.op} of {self.nbytes} bytes: rank {self.ranks[self.rank]}, element {at}: {values}"]

    def expected(self) -> torch.Tensor | None:
        """Whole numbers; None where this rank receives nothing."""
        import torch

        op, rank, part = self.job.op, self.rank, self.part
        if op in ("sendrecv", "permute"):
            return None if self.source is None else self.whole_numbers(self.source)
        if op in ("all_gather", "all_gatherv"):
            return torch.cat([self.whole_numbers(r) for r in range(self.n)])
        if op in ("alltoall", "alltoallv"):
            return torch.cat([self.whole_numbers(r)[rank * part :][:part] for r in range(self.n)])
        total = self.whole_numbers(0)
        for r in range(1, self.n):
            total += self.whole_numbers(r)
        return total if op == "all_reduce" else total[rank * part :][:part]
