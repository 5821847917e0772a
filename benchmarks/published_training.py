"""Published training throughput on Trainium beside what the simulated time of this project makes of the same runs.

    python benchmarks/published_training.py [--json] [--docs]

For each row that AWS published: one rank's operators, recorded from a PyTorch model of the same architecture and tensor
parallel share (neuron_dist.simulation.transformer), priced by the roofline, with the collectives, the pipeline and the
data parallel step of its layout (neuron_dist.simulation.estimate), on 32 instances of trn1.32xlarge and trn1n.32xlarge:
the pages do not say which. Then the roofline alone, by product, and predictions for Trainium 2, for which nothing is
published. `--docs` prints the tables of docs/simulation.md. Ends with 1 if a published row is faster than its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.nn import functional as F

from collectives.topology import Cluster, load_cluster
from neuron_dist.simulation import transformer
from neuron_dist.simulation.architecture import Run, Shape
from neuron_dist.simulation.estimate import Charge, Job, Layout, Stage, Step, estimate
from neuron_dist.simulation.program import Program, Recorder
from neuron_dist.simulation.roofline import Roofline
from neuron_dist.simulation.transformer import Piece

HERE = Path(__file__).resolve().parent
PRODUCTS = ("trn1.32xlarge", "trn1n.32xlarge")
PRECISIONS = {
    "bf16 + fp32 optimizer": (torch.bfloat16, torch.float32, torch.float32),
    "bf16 + SR": (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    "fp32": (torch.float32, torch.float32, torch.float32),
}
"""dtypes of the parameters and activations, of the gradients that add up and are reduced, and of the optimizer."""


@dataclass(frozen=True)
class Row:
    """One run: what the YAML's ``published`` and ``predicted`` say."""

    model: str
    instances: int
    tp: int
    dp: int
    sequence: int
    global_batch: int
    precision: str
    pp: int = 1
    micro_batch: int = 1
    flash: bool = False
    recompute: tuple[str, ...] = ()
    zero1: bool = False
    seq_per_s: float = 0.0
    """Published; 0: nothing is."""
    neuron: str = ""

    @property
    def layout(self) -> str:
        parts = (
            [f"TP {self.tp}"] * (self.tp > 1)
            + [f"DP {self.dp}"]
            + [f"PP {self.pp}"] * (self.pp > 1)
        )
        return " ".join(parts)

    @property
    def run(self) -> Run:
        dtype, gradient_dtype, _ = PRECISIONS[self.precision]
        return Run(
            self.sequence, self.micro_batch, self.tp, flash=self.flash, recompute=frozenset(self.recompute),
            dtype=dtype, gradient_dtype=gradient_dtype,
        )  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One row on one product."""

    row: Row
    product: str
    seq_per_s: dict[str, float]
    """Ours by :class:`Charge`: tensor, matmul, eager."""
    tokens_per_s: dict[str, float]
    share_of_bound: float | None
    """Published over ours by ``tensor``."""
    mfu: float | None
    """Published: 6 * parameters * tokens/s over the bf16 peak of the chips."""
    tensor_efficiency: float | None
    """With which ``tensor`` gives the published number."""
    parts_ms: dict[str, float]
    """Of a step by ``tensor``."""
    dominant: str


@lru_cache(maxsize=1)
def _read() -> dict[str, Any]:
    return yaml.safe_load((HERE / "published_training.yaml").read_text())


def shape_of(model: str) -> Shape:
    return Shape(**_read()["models"][model])


def rows(section: str = "published") -> list[Row]:
    return [
        Row(**{**entry, "recompute": tuple(entry.get("recompute", ()))})
        for entry in _read()[section]
    ]


@lru_cache(maxsize=256)
def _pieces(shape: Shape, run: Run) -> tuple[Piece, Piece, Piece]:
    return (
        transformer.embedding(shape, run),
        transformer.layer(shape, run),
        transformer.head(shape, run),
    )


def parameters(shape: Shape) -> int:
    """Of the whole model, as its modules count them."""
    embedding, layer, head = _pieces(shape, Run(sequence=1, flash=False))
    shared = shape.vocab * shape.hidden if shape.tied else 0
    padding = -shape.vocab % shape.vocab_multiple * shape.hidden
    unpadded = embedding.parameters + head.parameters - 2 * padding
    return shape.layers * layer.parameters + unpadded - shared


def _optimizer(count: int, dtype: torch.dtype) -> tuple[Program, Program]:
    """AdamW on ``count`` parameters of a rank: operator by operator, and as one."""
    made = [torch.empty(count, dtype=dtype, device="meta") for _ in range(4)]
    parameter = torch.nn.Parameter(made[0])
    parameter.grad = made[1]
    optimizer = torch.optim.AdamW([parameter], foreach=False)
    optimizer.step()
    with Recorder() as each:
        optimizer.step()
    with Recorder() as fused:
        torch._fused_adamw_(
            [made[0]], [made[1]], [made[2]], [made[3]], [], [torch.empty((), device="meta")],
            lr=1e-4, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip
    return each.program, fused.program


def job_of(row: Row) -> Job:
    """The row as one rank's programs."""
    shape, run = shape_of(row.model), row.run
    embedding, layer, head = _pieces(shape, run)
    each, left = divmod(shape.layers, row.pp)
    if left:
        raise ValueError(
            f"{row.model}: pp is {row.pp}, expected a divisor of its {shape.layers} layers"
        )
    stages, held = [], []
    for stage in range(row.pp):
        parts = [(layer, each)]
        parts = [(embedding, 1)] * (stage == 0) + parts + [(head, 1)] * (stage == row.pp - 1)
        stages.append(Stage(tuple((piece.program, count) for piece, count in parts)))
        held.append(sum(piece.parameters * count for piece, count in parts))
    if shape.tied and row.pp == 1:
        held[0] -= shape.vocab * shape.hidden // row.tp
    most = max(held)
    dtype, gradient_dtype, optimizer_dtype = PRECISIONS[row.precision]
    optimizer, fused = _optimizer(-(-most // row.dp) if row.zero1 else most, optimizer_dtype)
    hidden_bytes = run.local_sequence * run.batch * shape.hidden * dtype.itemsize
    return Job(
        layout=Layout(row.tp, row.dp, row.pp),
        stages=tuple(stages),
        micro_batches=row.global_batch // (row.dp * row.micro_batch),
        sequences=row.global_batch,
        boundary_bytes=hidden_bytes,
        reduce_bytes=most * gradient_dtype.itemsize,
        gather_bytes=most * dtype.itemsize if row.zero1 else 0,
        optimizer=optimizer,
        optimizer_fused=fused,
    )


def _rate(job: Job, step: Step) -> float:
    return job.sequences / step.total_ns * 1e9


def rate_at(job: Job, cluster: Cluster, tensor_efficiency: float) -> float:
    """Sequences per second by ``tensor`` where TensorE sustains a share of its rate."""
    roofline = Roofline.of(cluster)
    slower = {kind: flops * tensor_efficiency for kind, flops in roofline.tensor_flops.items()}
    return _rate(job, estimate(job, cluster, Charge.TENSOR, replace(roofline, tensor_flops=slower)))


def reconciling(job: Job, cluster: Cluster, seq_per_s: float) -> float | None:
    """The ``tensor_efficiency`` with which the bound gives ``seq_per_s``; None where no share of TensorE's rate does."""
    low, high = 1e-6, 1.0
    if not rate_at(job, cluster, low) < seq_per_s <= rate_at(job, cluster, high):
        return None
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rate_at(job, cluster, middle) < seq_per_s else (low, middle)
    return high


def predict(row: Row, product: str) -> Result:
    """The row on as many instances of ``product``."""
    cluster, job = load_cluster(product, instances=row.instances), job_of(row)
    steps = {charge.value: estimate(job, cluster, charge) for charge in Charge}
    ours = {name: _rate(job, step) for name, step in steps.items()}
    chips = row.instances * cluster.chips_per_instance
    peak = chips * cluster.spec["compute"]["chip_flops"]
    published = row.seq_per_s
    return Result(
        row=row,
        product=product,
        seq_per_s=ours,
        tokens_per_s={name: value * row.sequence for name, value in ours.items()},
        share_of_bound=published / ours["tensor"] if published else None,
        mfu=6 * parameters(shape_of(row.model)) * published * row.sequence / peak
        if published
        else None,
        tensor_efficiency=reconciling(job, cluster, published) if published else None,
        parts_ms={name: ns / 1e6 for name, ns in steps["tensor"].parts.items()},
        dominant=steps["tensor"].dominant,
    )


# --- the roofline alone -----------------------------------------------------------------------------------------------

ROOFLINE_PRODUCTS = ("trn1.32xlarge", "trn2.48xlarge", "trn3-gen1")
TOKENS = (1, 128, 1024, 8192)


@dataclass(frozen=True)
class OperatorResult:
    """One operator on one logical core."""

    product: str
    name: str
    tokens: int
    flops: int
    nbytes: int
    duration_ns: int
    share_of_tensor: float
    share_of_hbm: float
    """Of the chip's published bandwidth, this core's share: at most ``hbm_efficiency``."""


def operators() -> Iterator[tuple[str, int, Program]]:
    """Matmuls of Llama 8B and two operators that only move bytes, in bfloat16."""
    shape = shape_of("Llama-3.1-8B")
    kv = shape.hidden * shape.kv_heads // shape.heads
    widths = {"q, out": shape.hidden, "k, v": kv, "gate, up": shape.ffn}
    for tokens in TOKENS:
        x = torch.empty(tokens, shape.hidden, dtype=torch.bfloat16, device="meta")
        wide = torch.empty(tokens, shape.ffn, dtype=torch.bfloat16, device="meta")
        calls = {
            **{name: (x, shape.hidden, width) for name, width in widths.items()},
            "down": (wide, shape.ffn, shape.hidden),
        }
        for name, (given, inner, width) in calls.items():
            weight = torch.empty(width, inner, dtype=torch.bfloat16, device="meta")
            with Recorder() as recorder:
                F.linear(given, weight)
            yield f"{name} {inner} x {width}", tokens, recorder.program
        with Recorder() as recorder:
            x + x.clone()
        yield f"add {shape.hidden}", tokens, Program(recorder.program.operators[-1:])
        with Recorder() as recorder:
            torch.nn.RMSNorm(shape.hidden, dtype=torch.bfloat16, device="meta")(x)
        yield f"rms_norm {shape.hidden}", tokens, recorder.program


def operator_results() -> list[OperatorResult]:
    found = []
    for product in ROOFLINE_PRODUCTS:
        cluster = load_cluster(product)
        roofline = Roofline.of(cluster)
        hbm_Bps = cluster.spec["compute"]["hbm_Bps"] / cluster.logical_cores_per_chip
        for name, tokens, program in operators():
            duration = sum(
                roofline.duration_ns(o.flops, o.nbytes, o.dtype) for o in program.operators
            )
            found.append(
                OperatorResult(
                    product,
                    name,
                    tokens,
                    program.flops,
                    program.nbytes,
                    duration,
                    program.flops / duration * 1e9 / roofline.tensor_flops["bfloat16"],
                    program.nbytes / duration * 1e9 / hbm_Bps,
                )
            )
    return found


# --- tables -----------------------------------------------------------------------------------------------------------


def _pair(found: list[Result], text: Callable[[Result], str]) -> str:
    """One text where products agree, else all."""
    return " / ".join(dict.fromkeys(text(r) for r in found))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def _rate_text(charge: Charge, result: Result) -> str:
    return _number(result.seq_per_s[charge.value])


def published_table(results: list[Result]) -> list[list[str]]:
    table = [["model", "layout", "published seq/s", "tokens/s", "ours: bound", "matmuls in HBM", "eager",
              "published / bound", "MFU", "`tensor_efficiency`", "largest part of the bound"]]  # fmt: skip
    for row in dict.fromkeys(r.row for r in results):
        found = [r for r in results if r.row == row]
        name = row.model + (", fp32" if row.precision == "fp32" else "")
        table.append([
            name, row.layout, _number(row.seq_per_s), _number(row.seq_per_s * row.sequence),
            *(_pair(found, partial(_rate_text, charge)) for charge in Charge),
            _pair(found, lambda r: f"{r.share_of_bound:.2f}"), _pair(found, lambda r: f"{r.mfu:.0%}"),
            _pair(found, lambda r: f"{r.tensor_efficiency:.2f}" if r.tensor_efficiency else "none"),
            _pair(found, lambda r: f"{r.dominant} {r.parts_ms[r.dominant] / sum(r.parts_ms.values()):.0%}"),
        ])  # fmt: skip
    return table


def operator_table(results: list[OperatorResult]) -> list[list[str]]:
    table = [
        [
            "operator",
            "product",
            *(f"{tokens:,} tokens" if tokens > 1 else "1 token" for tokens in TOKENS),
        ]
    ]
    for name, product in dict.fromkeys((r.name, r.product) for r in results):
        found = [r for r in results if (r.name, r.product) == (name, product)]
        shares = [
            (r.share_of_tensor, "T")
            if r.share_of_tensor > r.share_of_hbm
            else (r.share_of_hbm, "H")
            for r in found
        ]
        table.append([name, product, *(f"{share:.0%} {engine}" for share, engine in shares)])
    return table


def efficiency_range(results: list[Result]) -> tuple[float, float]:
    """Of the published rows in bfloat16 with tensor parallelism."""
    found = [r.tensor_efficiency for r in results if r.row.tp > 1 and r.tensor_efficiency]
    return min(found), max(found)


def prediction_table(results: list[Result], low: float, high: float) -> list[list[str]]:
    table = [["model", "cluster", "layout", "bound: seq/s", "tokens/s", "matmuls in HBM", "eager",
              f"bound at `tensor_efficiency` {low:.2f} to {high:.2f}"]]  # fmt: skip
    for r in results:
        cluster, job = load_cluster(r.product, instances=r.row.instances), job_of(r.row)
        ours = [_number(r.seq_per_s[charge.value]) for charge in Charge]
        slower = [_number(rate_at(job, cluster, efficiency)) for efficiency in (low, high)]
        table.append([r.row.model, str(cluster), r.row.layout, ours[0], _number(r.tokens_per_s["tensor"]), *ours[1:],
                      " to ".join(slower)])  # fmt: skip
    return table


def markdown(table: list[list[str]]) -> str:
    lines = [table[0], ["---"] * len(table[0]), *table[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(table: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in table
    )


@dataclass(frozen=True)
class Everything:
    """All that this benchmark finds."""

    published: list[Result]
    predicted: list[Result]
    operators: list[OperatorResult]

    @classmethod
    def now(cls) -> Everything:
        return cls(
            [predict(row, product) for row in rows() for product in PRODUCTS],
            [predict(row, "trn2.48xlarge") for row in rows("predicted")],
            operator_results(),
        )

    @property
    def tables(self) -> dict[str, list[list[str]]]:
        """By their names in docs/simulation.md."""
        return {
            "published": published_table(self.published),
            "predicted": prediction_table(self.predicted, *efficiency_range(self.published)),
            "operators": operator_table(self.operators),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument(
        "--docs", action="store_true", help="the tables as docs/simulation.md has them"
    )
    arguments = parser.parse_args()
    found = Everything.now()
    if arguments.json:
        print(json.dumps(asdict(found)))
    else:
        for name, table in found.tables.items():
            print(f"{name}\n\n{markdown(table) if arguments.docs else plain(table)}\n")
    return 1 if any(r.share_of_bound and r.share_of_bound > 1 for r in found.published) else 0


if __name__ == "__main__":
    sys.exit(main())
